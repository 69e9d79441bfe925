"""Lines out of a stream of bytes, however it was cut on its way.

    feed(chunk) ---> the lines that it ends; a line too long is None, once, as soon as it is

A line ends at `\\n` and nowhere else. Every byte is looked at once and copied at most twice,
whatever the sizes of the chunks. No more than one line of the greatest length is ever held:
what is too long is let go at once, and the rest of that line is passed over.

    line(value) ---> its JSON as one line, which no reader takes for two
"""

from __future__ import annotations

import sys
from collections import deque

import msgspec

MAX_LINE = 8 * 1024 * 1024
"""Bytes, without the newline."""

MAX_DEPTH = 1_000
"""Levels of nesting that are sent: about where the encoder itself gives up before Python 3.14."""

_BLANK = b" \t\r"
"""What JSON allows around a value: so CRLF is no matter, and a line of these is no line."""

# Line ends to some readers (Node's readline, Python's splitlines), though not to JSON.
_MISTAKEN = (
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
    ("\u0085".encode(), rb"\u0085"),
)
_encode = msgspec.json.Encoder().encode
_ENCODER_BOUNDS_DEPTH = sys.version_info < (3, 14)  # later it recurses as deep as the stack is


class Unsendable(ValueError):
    """The value has no JSON spelling, or one longer than a line may be."""


def line(value: object) -> bytes:
    """The value's line, newline included. Raises `Unsendable`."""
    try:
        data = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Unsendable(f"not JSON: {type(error).__name__}") from error
    if not data.isascii():
        for written, escaped in _MISTAKEN:
            data = data.replace(written, escaped)
    if len(data) > MAX_LINE:
        raise Unsendable(f"{len(data)} bytes; at most {MAX_LINE} fit into one line")
    if not _ENCODER_BOUNDS_DEPTH and len(data) > 2 * MAX_DEPTH and _is_too_deep(data):
        raise Unsendable(f"nested deeper than {MAX_DEPTH}")
    return data + b"\n"


def _is_too_deep(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    import re  # lazy: few values have so many brackets  # noqa: PLC0415
    from itertools import accumulate  # lazy: the same  # noqa: PLC0415

    steps = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
    without_strings = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", data)
    return max(accumulate(steps.get(byte, 0) for byte in without_strings)) > MAX_DEPTH


class Framer:
    __slots__ = ("_head", "_max_line", "_passed_over", "_unfinished", "heads", "longest")

    def __init__(self, max_line: int = MAX_LINE, head: int = 0) -> None:
        """`head`: so many first bytes of each line that is too long are kept in `heads`."""
        self._max_line = max_line
        self._head = head
        self.heads: deque[bytes] = deque()
        """In their order, for whoever feeds to take out; stays empty without `head`."""
        self._unfinished = bytearray()
        """The beginning of a line that has not ended."""
        self._passed_over = 0
        """Bytes of a line that is too long and has not ended."""
        self.longest = 0
        """Bytes of the longest line so far that was too long, ended or not."""

    @property
    def unfinished(self) -> int:
        """Bytes of a line that has not ended."""
        return len(self._unfinished)

    def drop(self) -> None:
        """Let go of a line that will not end, now and not when somebody collects garbage."""
        self._unfinished = bytearray()

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that end in `data`, blank ones left out; None for one that is too long."""
        lines: list[bytes | None] = []
        pieces = data.split(b"\n")
        tail = pieces.pop()
        if pieces and (self._unfinished or self._passed_over):
            self._hold(pieces.pop(0), lines)
            self._end(lines)
        for piece in pieces:
            if len(piece) > self._max_line:
                self._too_long(len(piece), piece, lines)
            elif line := piece.strip(_BLANK):
                lines.append(line)
        if tail:
            self._hold(tail, lines)
        return lines

    def _hold(self, piece: bytes, lines: list[bytes | None]) -> None:
        if self._passed_over:
            self._passed_over += len(piece)
            self.longest = max(self.longest, self._passed_over)
        elif (size := len(self._unfinished) + len(piece)) > self._max_line:
            self._too_long(size, bytes(self._unfinished[: self._head]) + piece[: self._head], lines)
            self._unfinished = bytearray()
            self._passed_over = size
        else:
            self._unfinished += piece

    def _end(self, lines: list[bytes | None]) -> None:
        if line := bytes(self._unfinished).strip(_BLANK):
            lines.append(line)
        self._unfinished = bytearray()
        self._passed_over = 0

    def _too_long(self, size: int, first: bytes, lines: list[bytes | None]) -> None:
        self.longest = max(self.longest, size)
        if self._head:
            self.heads.append(bytes(first[: self._head]))
        lines.append(None)
