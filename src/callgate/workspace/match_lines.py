"""Find the lines of a text that match a regular expression; also a program that does this.

As a program, it reads from stdin and answers on stdout, so that its parent process can end it:
matching in Python cannot be interrupted, and some patterns take practically forever. It imports
nothing of callgate and touches no file.

    in   first frame   flags byte, pattern
         each frame    4 bytes: maximum number of lines, text
    out  first frame   nothing: ready
         each frame    line numbers from 0, 4 bytes each
A frame is its length in 4 bytes, then its bytes. Numbers are little-endian.
"""

from __future__ import annotations

import re
import struct
import sys

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

LONGEST_LINE = 2_000
"""Maximum characters of a line that are searched."""
_LOOK_UP = 32
"""Lines between two calls of `look_up`."""
_CPU_SECONDS = 60
_NUMBER = struct.Struct("<I")


def matching(
    pattern: re.Pattern[str], text: str, most: int, look_up: Callable[[], None] | None = None
) -> list[int]:
    """Return the numbers of the matching lines, from 0. `look_up` is called every few lines, and
    raises to stop the search."""
    found = []
    for number, line in enumerate(text.split("\n")):
        if look_up is not None and number % _LOOK_UP == 0:
            look_up()
        if pattern.search(line[:LONGEST_LINE].removesuffix("\r")):
            found.append(number)
            if len(found) >= most:
                break
    return found


def read_frame(stream: BinaryIO) -> bytes | None:
    head = stream.read(_NUMBER.size)
    if len(head) < _NUMBER.size:
        return None
    length = _NUMBER.unpack(head)[0]
    body = stream.read(length)
    return body if len(body) == length else None


def frame(body: bytes) -> bytes:
    return _NUMBER.pack(len(body)) + body


def main() -> None:
    _limit_time()
    source, answers = sys.stdin.buffer, sys.stdout.buffer
    first = read_frame(source)
    if first is None:
        return
    pattern = re.compile(first[1:].decode(), first[0])
    answers.write(frame(b""))
    answers.flush()
    while (body := read_frame(source)) is not None:
        most = _NUMBER.unpack_from(body)[0]
        found = matching(pattern, body[_NUMBER.size :].decode("utf-8", "replace"), most)
        answers.write(frame(struct.pack(f"<{len(found)}I", *found)))
        answers.flush()


def _limit_time() -> None:
    """Limit the run time, in case the parent process is gone."""
    try:
        import resource  # lazy: only in the process that matches  # noqa: PLC0415

        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    except (ImportError, OSError, ValueError):
        pass


if __name__ == "__main__":
    main()
