"""Output of a command: read from its pipes in fair turns, bounded, and forwarded in pieces.

One read takes as much as its reader can process in a time slice, so a flood of output delays no
other command. Unread output stays in the pipe, and its writer waits.
"""

from __future__ import annotations

import asyncio
import codecs
import itertools
import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import IO

from callgate.core.commands import OnOutput, Stream
from callgate.core.turns import PieceSize, Turns, fair_turns

KEPT_FILE = 64 * 1024 * 1024
"""Maximum bytes of one stream that are stored on disk."""
DELTA_S = 0.02
DELTA_SIZE = 16 * 1024
"""Live output is forwarded after this time or in pieces of this many characters."""

_CUT = b"\n[... the rest was not kept]\n"


class Capture:
    """One stream: its beginning and end in memory, and all of a long stream in a file.

    `keep` returns the path for the file, or None if there is no place for files.
    """

    def __init__(self, cap: int, keep: Callable[[], str | None]) -> None:
        self.total = 0
        self.path: str | None = None
        """Path of the stored stream, after a file was needed and created."""
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
        if len(self._tail) > 2 * self._half:  # not for each piece, because this copies the tail
            del self._tail[: -self._half]

    def show(self, limit: int) -> str:
        """Return all of it, or as much of both ends as fits around a mark with the omitted size.

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
        """Create the file with the stream so far, which is still in memory."""
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
        except OSError:  # a full disk must not fail the command; the result then names no file
            self.close()
            self.path = None
        self._room -= len(data)


class Deltas:
    """Live output, joined so that many small writes become few events."""

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
        """Forward the rest. An incomplete character becomes a replacement character."""
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
    """Return two ends without a partial character at the cuts."""
    decoder = _decoder()
    decoder.decode(front)
    unfinished, _ = decoder.getstate()
    start = 0
    while start < min(3, len(back)) and back[start] & 0xC0 == 0x80:
        start += 1
    return front[: len(front) - len(unfinished)], back[start:]


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


_MOST_LEFT = 16
"""Maximum pieces to read from a pipe at the cut, enough for a full pipe."""


class OutputPipes:
    def __init__(
        self,
        pipes: Mapping[int, Stream],
        on_output: OnOutput,
        on_end: Callable[[], None],
        turns: Turns | None = None,
    ) -> None:
        """Take over the descriptors. `on_end` is called after the end of all pipes."""
        self._pipes = dict(pipes)
        self._on_output = on_output
        self._on_end = on_end
        self._turns = turns or fair_turns()
        self._loop = asyncio.get_running_loop()
        self._piece = PieceSize()
        self._drain: asyncio.Future[None] | None = None
        """Reading pauses until this future is done, because the reader has fallen behind."""
        self._left: deque[tuple[Stream, bytes]] = deque()
        """Content of the pipes at the cut."""
        for pipe in self._pipes:
            self._loop.add_reader(pipe, self._read, pipe)

    def __len__(self) -> int:
        """Number of open pipes and pending pieces."""
        return len(self._pipes) + len(self._left)

    def close(self) -> None:
        """Close the pipes, and drop unread output."""
        for pipe in list(self._pipes):
            self._close(pipe)
        self._left.clear()

    def cut(self) -> None:
        """Read the present content of the pipes and close them. `on_end` follows after it is
        forwarded."""
        for pipe, stream in list(self._pipes.items()):
            for _ in range(_MOST_LEFT):
                try:
                    data = os.read(pipe, PieceSize.MOST)
                except BlockingIOError:
                    break
                if not data:
                    break
                self._left.append((stream, data))
            self._close(pipe)
        self._turns.wait(self._hand_on_rest)

    def _hand_on_rest(self) -> None:
        if self._left:
            stream, data = self._left.popleft()
            size = self._piece.size
            if len(data) > size:
                self._left.appendleft((stream, data[size:]))
            self._hand_on(stream, data[:size])
        if self._left:
            self._turns.wait(self._hand_on_rest)
        else:
            self._on_end()

    def _read(self, pipe: int) -> None:
        """Read once. A slow read makes the next one take its turn among other commands."""
        if self._read_once(pipe):
            self._loop.remove_reader(pipe)
            self._turns.wait(partial(self._read_slice, pipe))

    def _read_slice(self, pipe: int) -> None:
        if pipe not in self._pipes or self._drain is not None:  # closed or paused since
            return
        if self._read_once(pipe):
            self._turns.wait(partial(self._read_slice, pipe))
        elif pipe in self._pipes and self._drain is None:
            self._loop.add_reader(pipe, self._read, pipe)

    def _read_once(self, pipe: int) -> bool:
        """Read one piece. Returns whether it used up its time slice, and there may be more."""
        try:
            data = os.read(pipe, self._piece.size)
        except BlockingIOError:
            return False
        if data:
            return self._hand_on(self._pipes[pipe], data) and pipe in self._pipes
        self._close(pipe)
        if not self._pipes:
            self._on_end()
        return False

    def _hand_on(self, stream: Stream, data: bytes) -> bool:
        """Forward a piece. Returns whether that was slow, and adjusts the size of the next one."""
        began = self._turns.now()
        drain = self._on_output(stream, data)
        if drain is not None and not drain.done():
            self._pause(drain)
        return self._piece.learn(len(data), self._turns.now() - began)

    def _pause(self, drain: asyncio.Future[None]) -> None:
        self._drain = drain
        for pipe in self._pipes:
            self._loop.remove_reader(pipe)
        drain.add_done_callback(self._resume)

    def _resume(self, drain: asyncio.Future[None]) -> None:
        if drain is self._drain:
            self._drain = None
            for pipe in self._pipes:
                self._loop.add_reader(pipe, self._read, pipe)

    def _close(self, pipe: int) -> None:
        self._loop.remove_reader(pipe)
        os.close(pipe)
        del self._pipes[pipe]
