"""A log file read from its end: chunks of whole lines, and where to begin.

Nothing here knows what a record holds, but for the time in its id, by which `end_before` finds a
place in a file of any size with a few reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

_BLOCK = 256 * 1024
_LONGEST_LINE = 1024 * 1024
"""What is longer is no record of ours."""
_PEEK = 32 * 1024
"""Enough for the rest of one of our lines and the beginning of the next."""
_SLACK_MS = 60_000
"""How far lines of several processes may be out of order."""
_ID = re.compile(rb'\{"id":"audit_([0-9A-HJKMNP-TV-Z]{10})')
_DIGITS = bytes.maketrans(b"ABCDEFGHJKMNPQRSTVWXYZ", b"ABCDEFGHIJKLMNOPQRSTUV")
"""From the digits of a ULID to those of `int`."""


def chunks_backwards(file: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """The lines before an offset, many in a chunk: the last chunk first, its lines in order.

    Each with the offset at which it begins.
    """
    pieces: list[bytes] = []
    """The end of a line whose beginning is not read yet, last piece first."""
    while end > 0:
        size = min(_BLOCK, end)
        end -= size
        file.seek(end)
        block = file.read(size)
        begin = block.find(b"\n") + 1
        if not begin:
            pieces.append(block)
            continue
        if sum(map(len, pieces)) > _LONGEST_LINE:
            yield end + begin, block[begin : block.rfind(b"\n")]
        else:
            yield end + begin, b"".join([memoryview(block)[begin:], *reversed(pieces)])
        pieces = [block[: begin - 1]]
    if sum(map(len, pieces)) <= _LONGEST_LINE:
        yield 0, b"".join(reversed(pieces))


def read_lines(file: BinaryIO, begin: int, end: int) -> bytes:
    """Whole lines between two offsets."""
    file.seek(begin)
    return file.read(end - begin)


def first_line(file: BinaryIO, begin: int) -> bytes:
    """The line at an offset, if it is not longer than any of ours."""
    return read_lines(file, begin, begin + _PEEK).partition(b"\n")[0]


def end_before(file: BinaryIO, size: int, id: str) -> int:
    """An offset behind the record with an id, near to it if ids grow with the file.

    The size itself where nothing can be told from the id; 0 if all lines are newer.
    """
    wanted = time_of(b'{"id":"' + id.encode("utf-8", "replace"))
    if wanted is None:
        return size
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2 if high - low > _BLOCK else low
        begin, time = _line_after(file, middle)
        if time is None or begin >= high:
            break
        if time > wanted + _SLACK_MS:
            high = begin
        elif middle > low:
            low = middle
        else:
            break
    return high


def time_of(line: bytes) -> int | None:
    """Milliseconds since 1970 when the id at the beginning of a line was made."""
    match = _ID.match(line)
    return None if match is None else int(match[1].translate(_DIGITS), 32)


def _line_after(file: BinaryIO, offset: int) -> tuple[int, int | None]:
    """Where the first whole line behind an offset begins, and the time of its id."""
    file.seek(max(offset - 1, 0))
    block = file.read(_PEEK)
    skipped = block.find(b"\n") + 1 if offset else 0
    if offset and not skipped:
        return offset, None
    return max(offset - 1, 0) + skipped, time_of(block[skipped:])
