"""Program that extracts the texts of a PDF's pages, so that its caller can end it.

A small file can cause hours of work, and a running thread cannot be stopped. The program reads the
PDF from stdin, and imports nothing of callgate.

    argv  directory of pypdf, maximum pages, maximum characters
    out   for each page its length in 4 bytes, little-endian, then its text
    exit  one of the numbers below
"""

from __future__ import annotations

import contextlib
import resource
import struct
import sys
from io import BytesIO
from typing import Any

ALL, MORE, PASSWORD, UNREADABLE = 0, 10, 11, 12
_CPU_SECONDS = 60
_MEMORY = 2 * 1024**3


def main() -> int:
    for limit, most in (("RLIMIT_CPU", _CPU_SECONDS), ("RLIMIT_AS", _MEMORY)):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            resource.setrlimit(getattr(resource, limit), (most, most))
    where, pages, characters = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    content = sys.stdin.buffer.read()
    sys.path.append(where)
    try:
        return _write(content, pages, characters)
    except Exception:  # foreign code on a foreign file
        return UNREADABLE


def _write(content: bytes, pages: int, characters: int) -> int:
    import pypdf  # lazy: the caller adds its directory  # noqa: PLC0415

    reader: Any = pypdf.PdfReader(BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        return PASSWORD
    for number, page in enumerate(reader.pages, start=1):
        text = (page.extract_text() or "").strip()
        data = text.encode("utf-8", "replace")
        sys.stdout.buffer.write(struct.pack("<I", len(data)) + data)
        sys.stdout.buffer.flush()
        characters -= len(text)
        if number >= pages or characters <= 0:
            return MORE
    return ALL


if __name__ == "__main__":
    sys.exit(main())
