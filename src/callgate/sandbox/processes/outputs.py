"""What a command writes: kept within bounds to be shown, and passed on in pieces as it comes."""

from __future__ import annotations

import asyncio
import codecs
import itertools
import os
from collections.abc import Callable
from typing import IO

from callgate.core.commands import Stream

KEPT_FILE = 64 * 1024 * 1024
"""The most that is kept on disk of one stream."""
DELTA_S = 0.02
DELTA_SIZE = 16 * 1024
"""Live output is passed on after this time or in pieces of this many characters."""

_CUT = b"\n[... the rest was not kept]\n"


class Capture:
    """One stream: its beginning and its end in memory, all of it in a file once it is long.

    `keep` gives the file's path when one is first needed, or None where no file is kept.
    """

    def __init__(self, cap: int, keep: Callable[[], str | None]) -> None:
        self.total = 0
        self.path: str | None = None
        """Where the whole stream is, once a file was needed and could be written."""
        self.path_is_whole = True
        self._half = cap // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._keep = keep
        self._file: IO[bytes] | None = None
        self._room = KEPT_FILE
        self._opened = False

    def add(self, data: bytes) -> None:
        if self.total + len(data) > 2 * self._half:
            self._open()
        self._write(data)
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half:  # not at each piece: this moves what is kept
            del self._tail[: -self._half]

    def show(self, limit: int) -> str:
        """All of it, or as much of both ends as fits, around a mark that says what is missing.

        `limit` counts bytes and is at most the cap.
        """
        if self.total <= limit:
            return (self._head + self._tail).decode(errors="replace")
        self._open()
        if self.total <= 2 * self._half:
            front = back = bytes(self._head + self._tail)
        else:
            front, back = bytes(self._head), bytes(self._tail)
        each = max(limit // 2, 1)
        front, back = _whole_characters(front[:each], back[-each:])
        mark = f"[... {self.total - len(front) - len(back)} bytes left out{self._whereabouts()}]"
        return "\n".join([front.decode(errors="replace"), mark, back.decode(errors="replace")])

    def close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                self.path = None
            self._file = None

    def _whereabouts(self) -> str:
        if self.path is None:
            return ""
        content = "whole output" if self.path_is_whole else f"the first {KEPT_FILE} bytes"
        return f"; {content} in {self.path}"

    def _open(self) -> None:
        """Begin the file with what came so far, all of which is still in memory."""
        if self._opened:
            return
        self._opened = True
        path = self._keep()
        if path is None:
            return
        try:
            self._file = open(path, "wb", opener=_open_private)  # noqa: SIM115 close() closes it
        except OSError:
            return
        self.path = path
        self._write(bytes(self._head + self._tail))

    def _write(self, data: bytes) -> None:
        if self._file is None or not self.path_is_whole:
            return
        try:
            self._file.write(data[: self._room])
            if len(data) > self._room:
                self.path_is_whole = False
                self._file.write(_CUT)
        except OSError:  # a full disk must not fail the command; what is shown names no file
            self.close()
            self.path = None
        self._room -= len(data)


class Deltas:
    """Live output, joined so that a chatty command makes no flood of events."""

    def __init__(self, emit: Callable[[str, Stream], None]) -> None:
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._decoders: dict[Stream, codecs.IncrementalDecoder] = {
            "stdout": _decoder(),
            "stderr": _decoder(),
        }
        self._pending: list[tuple[Stream, str]] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: Stream, data: bytes) -> None:
        self._append(stream, self._decoders[stream].decode(data))
        if self._size >= DELTA_SIZE:
            self._flush()
        elif self._timer is None and self._pending:
            self._timer = self._loop.call_later(DELTA_S, self._flush)

    def close(self) -> None:
        """Pass on the rest. A character that was never completed becomes a replacement."""
        for stream, decoder in self._decoders.items():
            self._append(stream, decoder.decode(b"", final=True))
        self._flush()

    def _append(self, stream: Stream, text: str) -> None:
        if text:
            self._pending.append((stream, text))
            self._size += len(text)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending, self._size = self._pending, [], 0
        for stream, pieces in itertools.groupby(pending, key=lambda piece: piece[0]):
            text = "".join(piece for _, piece in pieces)
            for start in range(0, len(text), DELTA_SIZE):
                self._emit(text[start : start + DELTA_SIZE], stream)


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")


def _whole_characters(front: bytes, back: bytes) -> tuple[bytes, bytes]:
    """Two ends without the character that was cut in half at each."""
    decoder = _decoder()
    decoder.decode(front)
    unfinished, _ = decoder.getstate()
    start = 0
    while start < min(3, len(back)) and back[start] & 0xC0 == 0x80:
        start += 1
    return front[: len(front) - len(unfinished)], back[start:]


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
