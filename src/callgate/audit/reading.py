"""Reading the audit log: the newest lines first, without loading the files.

A search looks at raw bytes first: a chunk of lines in which a wanted value does not occur is
passed over as a whole, and only lines with all of them are decoded. Of closed files `indexes` says
which blocks need not be read at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import BinaryIO, NamedTuple

import msgspec

from callgate.audit.backwards import chunks_backwards, end_before, first_line, read_lines
from callgate.audit.records import CallRecord, after_remains, encoded_text
from callgate.audit.segments import all_segments, closed_segments

_decode = msgspec.json.Decoder(CallRecord).decode


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """What to look for; everything given must hold."""

    text: str | None = None
    """Anywhere in the line, whatever its case."""
    tool: str | None = None
    session: str | None = None
    call: str | None = None
    decision: str | None = None
    error_classes: Collection[str] | None = None
    """One of these."""
    without_error: bool = False
    since_ms: int | None = None

    def matches(self, line: CallRecord, raw: bytes) -> bool:
        return (
            (self.tool is None or line.tool == self.tool)
            and (self.session is None or line.session == self.session)
            and (self.call is None or line.call_id == self.call)
            and (self.decision is None or line.decision == self.decision)
            and (self.error_classes is None or line.error_class in self.error_classes)
            and not (self.without_error and line.error_class is not None)
            and (self.text is None or self.text.lower() in raw.decode("utf-8", "replace").lower())
        )

    def prefilter(self) -> Callable[[bytes], bool]:
        """Whether raw bytes may hold a line that matches. A no is certain, a yes is not."""
        fields = (self.tool, self.session, self.call, self.decision)
        values = [encoded_text(value) for value in fields if value is not None]
        classes = None if self.error_classes is None else [*map(encoded_text, self.error_classes)]
        text = None if self.text is None else self.text.lower().encode("utf-8", "replace")

        def may_match(raw: bytes) -> bool:
            for value in values:
                if value not in raw:
                    return False
            if classes is not None and not any(value in raw for value in classes):
                return False
            # Beyond ASCII, lower case is no matter of single bytes.
            return text is None or not raw.isascii() or text in raw.lower()

        return may_match


def newest_first(path: str) -> Iterator[tuple[CallRecord, bytes]]:
    """Every record of a log, newest first; what is not a record is passed over."""
    for _, file in _files(path):
        for _, chunk in chunks_backwards(file, _size(file)):
            for raw in reversed(chunk.split(b"\n")):
                yield from records_in(raw)


def newest_calls(path: str, since_ms: int, limit: int | None = None) -> Iterator[CallRecord]:
    """The newest records, at most `limit`, until one is older than `since_ms`."""
    for number, (record, _) in enumerate(newest_first(path)):
        if record.ts < since_ms or number == limit:
            return
        yield record


def _matching(
    path: str, wanted: Filter, before: str | None = None
) -> Iterator[tuple[CallRecord, bytes]]:
    """The records that match, newest first, behind the one with the id `before`."""
    may_match = wanted.prefilter()
    for chunk in _chunks(path, wanted, before):
        if may_match(chunk):
            for raw in reversed(chunk.split(b"\n")):
                if not may_match(raw):
                    continue
                for line, part in records_in(raw):
                    if wanted.since_ms is not None and line.ts < wanted.since_ms:
                        return
                    if wanted.matches(line, part):
                        yield line, part
        elif wanted.since_ms is not None:
            oldest = records_in(chunk.partition(b"\n")[0])
            if oldest and oldest[0][0].ts < wanted.since_ms:
                return


def _chunks(path: str, wanted: Filter, before: str | None) -> Iterator[bytes]:
    """Lines of all files, many at a time, the newest chunk first: those that may match."""
    start = None if before is None else _start_of(path, before)
    if before is not None and start is None:
        return
    for segment, file in _files(path):
        end = _size(file)
        if start is not None:
            if os.fstat(file.fileno()).st_ino != start.inode:
                continue
            end, start = start.offset, None
        yield from _chunks_of(path, segment, file, end, wanted)


def _chunks_of(
    path: str, segment: str, file: BinaryIO, end: int, wanted: Filter
) -> Iterator[bytes]:
    from callgate.audit.indexes import find_blocks  # lazy: for searches alone  # noqa: PLC0415

    blocks = None if segment == path else find_blocks(path, segment, file, wanted)
    if blocks is None:
        for _, chunk in chunks_backwards(file, end):
            yield chunk
        return
    for begin, block_end, matches in blocks.backwards(end):
        if matches:
            yield read_lines(file, begin, block_end)
        elif wanted.since_ms is not None:  # its time is all that matters
            yield first_line(file, begin)


class _LineStart(NamedTuple):
    inode: int
    """Of the file: its name changes when it is closed."""
    offset: int


def _start_of(path: str, id: str) -> _LineStart | None:
    """Where a record's line begins: looked for where the time in its id says, then everywhere."""
    for near in (partial(end_before, id=id), lambda file, size: size):
        for _, file in _files(path):
            for begin, chunk in chunks_backwards(file, near(file, _size(file))):
                if (at := _line_with(chunk, id)) is not None:
                    return _LineStart(os.fstat(file.fileno()).st_ino, begin + at)
    return None


def _line_with(chunk: bytes, id: str) -> int | None:
    """Where the line of the record with an id begins."""
    at = len(chunk)
    while (at := chunk.rfind(encoded_text(id), 0, at)) >= 0:
        begin = chunk.rfind(b"\n", 0, at) + 1
        raw = chunk[begin:].partition(b"\n")[0]
        if any(line.id == id for line, _ in records_in(raw)):
            return begin
    return None


def _files(path: str) -> Iterator[tuple[str, BinaryIO]]:
    """Every file of a log, opened, newest first; one that is closed meanwhile is not missed."""
    inode = -1
    closed = None
    with suppress(FileNotFoundError), open(path, "rb") as file:
        inode, closed = os.fstat(file.fileno()).st_ino, closed_segments(path)
        yield path, file
    for segment in reversed(closed_segments(path) if closed is None else closed):
        with suppress(FileNotFoundError), open(segment, "rb") as file:  # else dropped meanwhile
            if os.fstat(file.fileno()).st_ino != inode:
                yield segment, file


def _size(file: BinaryIO) -> int:
    return file.seek(0, os.SEEK_END)


def records_in(raw: bytes) -> list[tuple[CallRecord, bytes]]:
    """The record of a line, if it is one."""
    for part in (raw, after_remains(raw)):
        try:
            return [(_decode(part), part)]
        except (ValueError, RecursionError):
            continue
    return []


def search(path: str, wanted: Filter, limit: int) -> list[tuple[CallRecord, bytes]]:
    """The newest records that match, oldest of them first."""
    return [*islice(_matching(path, wanted), limit)][::-1]


def page(
    path: str,
    wanted: Filter,
    limit: int,
    *,
    before: str | None = None,
) -> tuple[list[CallRecord], str | None]:
    """The newest records that match, newest first, and where the next page begins.

    `before` is what was given with the page before; None begins with the newest.
    """
    found: list[CallRecord] = []
    for line, _ in _matching(path, wanted, before):
        if len(found) == limit:
            return found, found[-1].id
        found.append(line)
    return found, None


def tail(path: str, count: int) -> list[tuple[CallRecord, bytes]]:
    """The newest records, oldest of them first."""
    return search(path, Filter(), count)


class Follower:
    """Reads what is appended from now on. `read` returns what came since it was last asked."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._inode = 0
        self._offset = 0
        self._partial = b""
        try:
            status = os.stat(path)
            self._inode, self._offset = status.st_ino, status.st_size
        except FileNotFoundError:
            pass

    def read(self) -> list[tuple[CallRecord, bytes]]:
        found: list[tuple[CallRecord, bytes]] = []
        for segment in self._files():
            with open(segment, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:
                    self._inode, self._offset, self._partial = inode, 0, b""
                file.seek(self._offset)
                data = file.read()
            self._offset += len(data)
            *lines, self._partial = (self._partial + data).split(b"\n")
            for raw in lines:
                found += records_in(raw)
        return found

    def _files(self) -> list[str]:
        """The file we were in, if it was closed meanwhile, and those after it."""
        segments = all_segments(self._path)
        for at, segment in enumerate(segments):
            try:
                if os.stat(segment).st_ino == self._inode:
                    return segments[at:]
            except FileNotFoundError:
                continue
        return segments[-1:]
