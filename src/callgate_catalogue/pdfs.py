"""Extract the text of a PDF with pypdf, if it is installed (`callgate[documents]`).

A separate process reads the PDF and is ended at a time limit; the pages that it had read by then
are the result.
"""

from __future__ import annotations

import asyncio
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import util

from callgate import ToolCancelled, ToolContext, ToolExecutionError
from callgate.packs.files import opening
from callgate_catalogue import pdf_pages

MOST_PAGES = 500
MOST_CHARACTERS = 5_000_000
SECONDS = 20.0
_MOST_BYTES = 8 * MOST_CHARACTERS
_LOOK_UP_MS = 50
"""Interval between two checks for cancellation."""
_LEFT_OUT = "[more pages are left out]"
_LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


async def text_of(content: bytes, context: ToolContext) -> str:
    return await asyncio.to_thread(read, content, context.cancel_event.is_set)


def read(
    content: bytes, should_stop: Callable[[], bool] = lambda: False, *, seconds: float = SECONDS
) -> str:
    """Return the text, page by page. Raises a `ToolExecutionError` of one sentence."""
    with _started(_where()) as process:
        try:
            output, ended = _answer(process, content, should_stop, time.monotonic() + seconds)
        finally:
            process.kill()
    if ended and process.returncode == pdf_pages.PASSWORD:
        raise ToolExecutionError("The PDF has a password.", reason="not_text")
    pages = _pages(output)
    if not any(pages):
        if ended and process.returncode == pdf_pages.ALL:
            raise ToolExecutionError(
                "The PDF has no text: it may consist of pictures.", reason="not_text"
            )
        raise ToolExecutionError("The PDF cannot be read.", reason="not_text")
    texts = [f"[page {number}]\n{text}" for number, text in enumerate(pages, start=1)]
    if not ended or process.returncode != pdf_pages.ALL:
        texts.append(_LEFT_OUT)
    return "\n\n".join(texts)


def _where() -> str:
    """Return the directory of pypdf."""
    try:
        found = util.find_spec("pypdf")
    except ValueError:  # replaced by another module
        found = None
    if found is None or found.origin is None:
        raise ToolExecutionError(
            "The PDF reader is not installed: pip install 'callgate[documents]'.",
            reason="not_installed",
        )
    return os.path.dirname(os.path.dirname(found.origin))


def _started(where: str) -> subprocess.Popen[bytes]:
    words = (where, str(MOST_PAGES), str(MOST_CHARACTERS))
    try:
        with opening():
            return subprocess.Popen(
                [sys.executable, "-I", "-S", pdf_pages.__file__, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in _LIBRARIES if name in os.environ},
            )
    except OSError as error:
        raise ToolExecutionError("The PDF cannot be read.", reason="not_text") from error


def _answer(
    process: subprocess.Popen[bytes],
    content: bytes,
    should_stop: Callable[[], bool],
    deadline: float,
) -> tuple[bytes, bool]:
    """Return the output, and whether the process ended in time."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(content)  # the process reads all input first
        process.stdin.close()
    except OSError:
        pass  # its exit code is more informative
    output, fd = bytearray(), process.stdout.fileno()
    answers = select.poll()
    answers.register(fd, select.POLLIN)
    while time.monotonic() < deadline and len(output) < _MOST_BYTES:
        if should_stop():
            raise ToolCancelled
        if not answers.poll(_LOOK_UP_MS):
            continue
        part = os.read(fd, 1 << 16)
        if not part:
            process.wait()
            return bytes(output), True
        output += part
    return bytes(output), False


def _pages(output: bytes) -> list[str]:
    """Return the complete pages."""
    pages, at = [], 0
    while len(output) >= at + 4:
        (length,) = struct.unpack_from("<I", output, at)
        at += 4 + length
        if len(output) >= at:
            pages.append(output[at - length : at].decode("utf-8", "replace"))
    return pages
