"""Reading the audit log forwards, from a place that can be kept: through closed files, in parts.

    Place = number of the file, offset in it, and a check of the bytes before it

A line counts once it is whole. A file that was dropped before it was read is skipped and counted. A
log that is not the one the place was taken from is an error: going on would lose or repeat lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from typing import BinaryIO

import msgspec

from callgate.audit.reading import records_in
from callgate.audit.records import CallRecord
from callgate.audit.segments import closed_segments, last_time, number_of

PART = 256 * 1024
"""Bytes that are read at once."""
_LONGEST_LINE = 16 * 1024 * 1024
_CHECKED = 512


class LogReplaced(Exception):
    """The log at this path is not the one that was read before."""


class Place(msgspec.Struct, frozen=True):
    """Everything before it was read."""

    file: int = 0
    """0: the beginning of the oldest file."""
    offset: int = 0
    check: str = ""
    """Of the bytes before it."""


class Part(msgspec.Struct, frozen=True):
    """What was read at once."""

    records: list[tuple[CallRecord, bytes]]
    place: Place
    """After the last of them."""
    dropped: int = 0
    """Files that were dropped before they were read."""
    is_end: bool = False
    """Nothing more was there."""


def end_of(path: str) -> Place:
    """The place after everything that is there now."""
    closed = closed_segments(path)
    number = number_of(closed[-1]) + 1 if closed else 1
    opened = _open(path, number)
    if opened is None:
        return Place(number)
    file, number, _ = opened
    with file:
        size = file.seek(0, os.SEEK_END)
        data = _pread(file, max(0, size - PART), PART)
        return _place(file, number, size - len(data) + data.rfind(b"\n") + 1)


def start_of(path: str, since_ms: int | None) -> Place:
    """The beginning of the first file that may have a line of that time or later."""
    for segment in closed_segments(path) if since_ms is not None else ():
        try:
            if last_time(segment) >= (since_ms or 0):
                return Place(number_of(segment))
        except FileNotFoundError:  # dropped meanwhile
            continue
    return Place() if since_ms is None else _current_file(path)


def _current_file(path: str) -> Place:
    """The beginning of the file that is being written."""
    closed = closed_segments(path)
    return Place(number_of(closed[-1]) + 1 if closed else 1)


def read_part(path: str, place: Place, limit: int = PART) -> Part:
    """The next whole lines, about `limit` bytes of them. `LogReplaced`, `OSError`."""
    closed = closed_segments(path)
    first = number_of(closed[0]) if closed else 1
    newest = number_of(closed[-1]) if closed else 0
    number = place.file or first
    if number > newest + 1:
        raise LogReplaced(f"{path} has no file number {number}")
    opened = _open(path, number)
    if opened is None and number > newest:
        return Part([], Place(number) if place.file == 0 else place, is_end=True)
    if opened is None:  # dropped: by age, or because there were more than are kept
        following = next((n for n in map(number_of, closed) if n > number), newest + 1)
        return Part([], Place(following), dropped=following - number)
    file, number, is_closed = opened
    with file:
        at = place.offset if place.file == number else 0
        if at and is_closed and not os.fstat(file.fileno()).st_size:
            return Part([], Place(number + 1), dropped=1)  # the newest is emptied, for its number
        if at and _check(file, at) != place.check:
            raise LogReplaced(f"{path} has other lines than those that were read")
        data = _lines(file, at, limit, is_closed)
        if not data:
            return Part([], Place(number + 1)) if is_closed else Part([], place, is_end=True)
        records = [found for raw in data.split(b"\n") if raw for found in records_in(raw)]
        return Part(records, _place(file, number, at + len(data)))


def read_parts(path: str, place: Place, limit: int = PART) -> Iterator[Part]:
    """All parts up to the end that there is now."""
    while True:
        part = read_part(path, place, limit)
        yield part
        if part.is_end:
            return
        place = part.place


def _open(path: str, number: int) -> tuple[BinaryIO, int, bool] | None:
    """A file by its number, and whether it is closed; None: there is none."""
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
    """Whole lines; of a closed file also an end that is none."""
    for length in (limit, _LONGEST_LINE):
        data = _pread(file, at, length)
        if end := data.rfind(b"\n") + 1:
            return data[:end]
        if len(data) < length:  # the end of the file
            return data if is_closed else b""
    return data  # no record is as long: it is passed over


def _place(file: BinaryIO, number: int, offset: int) -> Place:
    return Place(number, offset, _check(file, offset) if offset else "")


def _check(file: BinaryIO, offset: int) -> str:
    begin = max(0, offset - _CHECKED)
    before = _pread(file, begin, offset - begin)
    return sha256(before).hexdigest()[:32] if len(before) == offset - begin else ""


def _pread(file: BinaryIO, at: int, length: int) -> bytes:
    return os.pread(file.fileno(), length, at)
