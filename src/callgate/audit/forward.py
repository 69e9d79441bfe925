"""Read the audit log forwards from a stored position, and store that position.

    Position = number of the file, offset in it, and a check of the bytes before it

A line counts once it is whole. A file that was dropped before it was read is skipped and counted.
A log other than the position's own is an error: continuing would lose or repeat lines. A cursor
file holds the position that the consumer of the records has accepted, and one process holds it at
a time. A crash before that repeats records and never omits one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import BinaryIO

import msgspec

from callgate.audit.reading import records_in
from callgate.audit.records import CallRecord, closed_segments, last_time, number_of
from callgate.core.local.disk import make_private_directory, try_lock, write_private_synced

PART = 256 * 1024
"""Bytes per read."""
_LONGEST_LINE = 16 * 1024 * 1024
_CHECKED = 512


class LogReplaced(Exception):
    """The log at this path is not the one that was read before."""


class Position(msgspec.Struct, frozen=True):
    """A position; everything before it was read."""

    file: int = 0
    """0: the beginning of the oldest file."""
    offset: int = 0
    check: str = ""
    """Check of the bytes before the position."""


class Part(msgspec.Struct, frozen=True):
    """The result of one read."""

    records: list[tuple[CallRecord, bytes]]
    position: Position
    """The position after the last line."""
    dropped: int = 0
    """Number of files that were deleted before they were read."""
    is_end: bool = False
    """Whether there were no more lines."""


def end_of(path: str) -> Position:
    """Return the position after the present end."""
    closed = closed_segments(path)
    number = number_of(closed[-1]) + 1 if closed else 1
    opened = _open(path, number)
    if opened is None:
        return Position(number)
    file, number, _ = opened
    with file:
        size = file.seek(0, os.SEEK_END)
        data = _pread(file, max(0, size - PART), PART)
        return _position_at(file, number, size - len(data) + data.rfind(b"\n") + 1)


def start_of(path: str, since_ms: int | None) -> Position:
    """Return the beginning of the first file that may have a line of that time or later."""
    for segment in closed_segments(path) if since_ms is not None else ():
        try:
            if last_time(segment) >= (since_ms or 0):
                return Position(number_of(segment))
        except FileNotFoundError:  # deleted since the list was read
            continue
    return Position() if since_ms is None else _current_file(path)


def _current_file(path: str) -> Position:
    """Return the beginning of the file that is being written."""
    closed = closed_segments(path)
    return Position(number_of(closed[-1]) + 1 if closed else 1)


def read_part(path: str, position: Position, limit: int = PART) -> Part:
    """Return the next complete lines, about `limit` bytes. Raises `LogReplaced` or `OSError`."""
    closed = closed_segments(path)
    first = number_of(closed[0]) if closed else 1
    newest = number_of(closed[-1]) if closed else 0
    number = position.file or first
    if number > newest + 1:
        raise LogReplaced(f"{path} has no file number {number}")
    opened = _open(path, number)
    if opened is None and number > newest:
        return Part([], Position(number) if position.file == 0 else position, is_end=True)
    if opened is None:  # deleted, by age or by number
        following = next((n for n in map(number_of, closed) if n > number), newest + 1)
        return Part([], Position(following), dropped=following - number)
    file, number, is_closed = opened
    with file:
        at = position.offset if position.file == number else 0
        if at and is_closed and not os.fstat(file.fileno()).st_size:
            return Part(
                [], Position(number + 1), dropped=1
            )  # the newest is emptied, for its number
        if at and _check(file, at) != position.check:
            raise LogReplaced(f"{path} has other lines than before")
        data = _lines(file, at, limit, is_closed)
        if not data:
            return Part([], Position(number + 1)) if is_closed else Part([], position, is_end=True)
        records = [found for raw in data.split(b"\n") if raw for found in records_in(raw)]
        return Part(records, _position_at(file, number, at + len(data)))


def read_parts(path: str, position: Position, limit: int = PART) -> Iterator[Part]:
    """Yield all parts up to the present end."""
    while True:
        part = read_part(path, position, limit)
        yield part
        if part.is_end:
            return
        position = part.position


def _open(path: str, number: int) -> tuple[BinaryIO, int, bool] | None:
    """Open a file by its number; return whether it is closed. None: it does not exist."""
    for _ in range(2):  # it may be closed between the two looks
        for segment in closed_segments(path):
            if number_of(segment) == number:
                try:
                    return open(segment, "rb"), number, True
                except FileNotFoundError:
                    return None
        try:
            file = open(path, "rb")  # noqa: SIM115  # the caller closes it
        except FileNotFoundError:
            continue
        closed = closed_segments(path)
        newest = number_of(closed[-1]) if closed else 0
        if number == newest + 1:
            return file, number, False
        file.close()
        if number < newest:
            return None
    return None


def _lines(file: BinaryIO, at: int, limit: int, is_closed: bool) -> bytes:
    """Return complete lines; for a closed file also an incomplete last line."""
    for length in (limit, _LONGEST_LINE):
        data = _pread(file, at, length)
        if end := data.rfind(b"\n") + 1:
            return data[:end]
        if len(data) < length:  # the end of the file
            return data if is_closed else b""
    return data  # no record is as long: it is passed over


def _position_at(file: BinaryIO, number: int, offset: int) -> Position:
    return Position(number, offset, _check(file, offset) if offset else "")


def _check(file: BinaryIO, offset: int) -> str:
    begin = max(0, offset - _CHECKED)
    before = _pread(file, begin, offset - begin)
    return sha256(before).hexdigest()[:32] if len(before) == offset - begin else ""


def _pread(file: BinaryIO, at: int, length: int) -> bytes:
    return os.pread(file.fileno(), length, at)


_LONGEST = 1024 * 1024


class CursorHeld(Exception):
    """Another process uses this cursor."""


class CursorUnreadable(Exception):
    """The cursor file was not written by callgate."""


class Positions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    for_: str = msgspec.field(name="for", default="")
    """Cursor key: one cursor per target and format."""
    logs: Mapping[str, Position] = {}
    """Positions by path of the log."""
    output_inode: int = 0
    output_size: int = 0
    """For a file that receives the records: its durable length."""


class Cursor:
    """The locked cursor file. Raises `CursorHeld`, `CursorUnreadable` or `OSError`."""

    def __init__(self, path: str, owner: str) -> None:
        """`owner`: see `Positions.for_`."""
        self.path = path
        make_private_directory(os.path.dirname(os.path.abspath(path)))
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._lock = os.open(f"{path}.lock", flags, 0o600)
        try:
            is_free = try_lock(self._lock, fcntl.LOCK_EX)
        except OSError:
            os.close(self._lock)
            raise
        if not is_free:
            os.close(self._lock)
            raise CursorHeld(f"another process goes by the cursor {path}")
        try:
            self.is_new, self.positions = self._read(owner)
        except BaseException:
            self.close()
            raise

    def _read(self, owner: str) -> tuple[bool, Positions]:
        try:
            with open(self.path, "rb") as file:
                data = file.read(_LONGEST)
        except FileNotFoundError:
            return True, Positions(for_=owner)
        try:
            found = msgspec.json.decode(data, type=Positions)
        except (ValueError, RecursionError):
            raise CursorUnreadable(f"{self.path} is not a cursor file of callgate") from None
        if found.for_ != owner:
            raise CursorUnreadable(f"{self.path} is the cursor of {found.for_!r}, not of {owner!r}")
        return False, found

    def advance(self, positions: Positions) -> None:
        """Store these positions durably."""
        write_private_synced(self.path, msgspec.json.encode(positions).decode())
        self.positions = positions

    def close(self) -> None:
        """Release the cursor for other processes."""
        os.close(self._lock)
