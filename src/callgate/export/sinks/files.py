"""A file, or a stream such as stdout. A file that is gone on with gets no line twice, and no gap.

    |...... written for certain ......|...... perhaps written ......|
                                      ^ the cursor's output_size

A killed export may have written lines that its cursor does not know of. The next one makes the same
lines again: as long as they are those that stand there, they are passed over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import BinaryIO

from callgate.core.directories import sync_file
from callgate.export.formats import Row
from callgate.export.sinks.sink import SinkRefused

_LONGEST_TAIL = 64 * 1024 * 1024


class StreamSink:
    def __init__(self, write: Callable[[bytes], object], head: bytes) -> None:
        self._write = write
        self._head = head

    async def send(self, rows: Sequence[Row]) -> None:
        lines = [row.line for row in rows]
        if self._head:
            lines, self._head = [self._head, *lines], b""
        self._write(b"".join(line + b"\n" for line in lines))

    async def close(self) -> None:
        """Nothing is held."""


class FileSink:
    """Made anew, or gone on with. `OSError`."""

    def __init__(self, path: str, head: bytes, written: tuple[int, int] | None = None) -> None:
        """`written`: what a cursor knows of the file (zeros: nothing yet), which is appended to.
        Without, a file that is there is replaced."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if written is None else 0)
        inode, size = written or (0, 0)
        self._path = path
        self._file: BinaryIO = os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0)
        status = os.fstat(self._file.fileno())
        self._tail = b""
        if inode == status.st_ino and size <= status.st_size:
            self._file.seek(size)
            self._tail = self._file.read(_LONGEST_TAIL) or b""
            self._file.seek(size)
        else:  # another file than before, or the first
            self._file.seek(0, os.SEEK_END)
        self._head = head if self._file.tell() == 0 else b""

    @property
    def written(self) -> tuple[int, int]:
        """Which file it is, and how much of it is on the disk for certain."""
        return os.fstat(self._file.fileno()).st_ino, self._file.tell()

    async def send(self, rows: Sequence[Row]) -> None:
        lines = [row.line for row in rows]
        if self._head:
            lines, self._head = [self._head, *lines], b""
        try:
            for line in lines:
                self._append(line + b"\n")
            sync_file(self._file.fileno())
        except OSError as error:
            raise SinkRefused(f"{self._path} cannot be written: {error.strerror}") from error

    def _append(self, line: bytes) -> None:
        if self._tail:
            if self._tail.startswith(line):
                self._tail = self._tail[len(line) :]
                self._file.seek(len(line), os.SEEK_CUR)
                return
            if not line.startswith(self._tail):  # somebody else wrote there: it stays
                self._file.seek(0, os.SEEK_END)
                line = line if self._tail.endswith(b"\n") else b"\n" + line
            self._tail = b""  # else it was cut short, and is written over by the same
        view = memoryview(line)
        while view:
            view = view[self._file.write(view) :]

    async def close(self) -> None:
        self._file.close()
