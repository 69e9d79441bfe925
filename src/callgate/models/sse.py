"""Server-sent events out of bytes that arrive in any pieces. No I/O.

Lines end with LF, CRLF or CR, also where a piece ends between the two. Only `event` and
`data` are kept: nothing here is ever resumed. Time is linear and memory bounded, whatever
the size of the pieces.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

MAX_EVENT = 16 * 1024 * 1024
"""Bytes of one event, and of one line."""
MAX_STREAM = 128 * 1024 * 1024
"""Bytes of all of it."""

_BOM = b"\xef\xbb\xbf"


class SseEvent(msgspec.Struct, frozen=True):
    event: str
    """Empty where the server did not say."""
    data: bytes


class SseError(ValueError):
    """The stream is larger than anything a model would say."""


class SseDecoder:
    def __init__(self, *, max_event: int = MAX_EVENT, max_stream: int = MAX_STREAM) -> None:
        self._max_event = max_event
        self._left = max_stream
        self._line: list[bytes] = []
        """The pieces of a line that has not ended."""
        self._line_size = 0
        self._after_cr = False
        self._first = True
        self._event = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[SseEvent]:
        """The events that this piece completes. What is left at the end is no event."""
        self._left -= len(piece)
        if self._left < 0:
            raise SseError("the stream is too long")
        if self._after_cr and piece:
            self._after_cr = False
            if piece.startswith(b"\n"):
                piece = piece[1:]
        self._after_cr = self._after_cr or piece.endswith(b"\r")
        # bytes.splitlines knows exactly the three line ends of the format.
        for part in piece.splitlines(keepends=True):
            ended = part.endswith((b"\n", b"\r"))
            self._take(part)
            if ended:
                event = self._end_line()
                if event is not None:
                    yield event

    def _take(self, part: bytes) -> None:
        self._line_size += len(part)
        if self._line_size > self._max_event:
            raise SseError("a line is too long")
        self._line.append(part)

    def _end_line(self) -> SseEvent | None:
        line = b"".join(self._line).rstrip(b"\r\n")
        self._line, self._line_size = [], 0
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._end_event()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._size += len(value) + 1
            if self._size > self._max_event:
                raise SseError("an event is too large")
            self._data.append(value)
        elif field == b"event":
            self._event = value.decode("utf-8", "replace")
        return None

    def _end_event(self) -> SseEvent | None:
        event, data = self._event, self._data
        self._event, self._data, self._size = "", [], 0
        return SseEvent(event, b"\n".join(data)) if data else None
