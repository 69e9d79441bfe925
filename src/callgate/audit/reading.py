"""Read the audit log backwards: newest lines first, without loading whole files.

A file is read in chunks of whole lines from its end; `end_before` finds a time in a file of any
size with a few reads, by the time in each record's id. A search looks at raw bytes first: a chunk
without a wanted value is skipped, and only lines with all of them are decoded. `indexes` names the
blocks of closed files that need no reading.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import BinaryIO, NamedTuple

import msgspec

from callgate.audit.records import (
    CallRecord,
    after_remains,
    all_segments,
    closed_segments,
    encoded_text,
)

_BLOCK = 256 * 1024
_LONGEST_LINE = 1024 * 1024
"""Maximum length of a record; a longer line is not a record."""
_PEEK = 32 * 1024
"""Size that contains the rest of a line and the beginning of the next."""
_SLACK_MS = 60_000
"""Maximum disorder of the lines of several processes."""
_ID = re.compile(rb'\{"id":"audit_([0-9A-HJKMNP-TV-Z]{10})')
_DIGITS = bytes.maketrans(b"ABCDEFGHJKMNPQRSTVWXYZ", b"ABCDEFGHIJKLMNOPQRSTUV")
"""Translation of ULID digits to digits of `int`."""


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
    """Complete lines between two offsets."""
    file.seek(begin)
    return file.read(end - begin)


def first_line(file: BinaryIO, begin: int) -> bytes:
    """Return the line at an offset, unless it is too long for a record."""
    return read_lines(file, begin, begin + _PEEK).partition(b"\n")[0]


def end_before(file: BinaryIO, size: int, id: str) -> int:
    """Return an offset behind the record with an id, close to it if ids grow with the file.

    Return the size itself if the id has no time, and 0 if all lines are newer.
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
    """Return the milliseconds since 1970 at which the id of a line was created."""
    match = _ID.match(line)
    return None if match is None else int(match[1].translate(_DIGITS), 32)


def _line_after(file: BinaryIO, offset: int) -> tuple[int, int | None]:
    """Return the offset of the first complete line after an offset, and the time of its id."""
    file.seek(max(offset - 1, 0))
    block = file.read(_PEEK)
    skipped = block.find(b"\n") + 1 if offset else 0
    if offset and not skipped:
        return offset, None
    return max(offset - 1, 0) + skipped, time_of(block[skipped:])


_decode = msgspec.json.Decoder(CallRecord).decode


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Search criteria; all of them must hold."""

    text: str | None = None
    """Text to find anywhere in the line, ignoring case."""
    tool: str | None = None
    session: str | None = None
    call: str | None = None
    decision: str | None = None
    error_classes: Collection[str] | None = None
    """Classes of which a record must have one; None: any."""
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
        """Whether raw bytes may contain a matching line. A no is certain, a yes is not."""
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
    """Yield every record of a log, newest first; other lines are skipped."""
    for _, file in _files(path):
        for _, chunk in chunks_backwards(file, _size(file)):
            for raw in reversed(chunk.split(b"\n")):
                yield from records_in(raw)


def newest_calls(path: str, since_ms: int, limit: int | None = None) -> Iterator[CallRecord]:
    """Yield the newest records, at most `limit`, until one is older than `since_ms`."""
    for number, (record, _) in enumerate(newest_first(path)):
        if record.ts < since_ms or number == limit:
            return
        yield record


def _matching(
    path: str, wanted: Filter, before: str | None = None
) -> Iterator[tuple[CallRecord, bytes]]:
    """Yield the matching records, newest first, after the one with the id `before`."""
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
    """Yield chunks of lines that may match, from all files, newest chunk first."""
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
        elif wanted.since_ms is not None:  # only its time matters
            yield first_line(file, begin)


class _LineStart(NamedTuple):
    inode: int
    """Identity of the file, whose name changes when it is closed."""
    offset: int


def _start_of(path: str, id: str) -> _LineStart | None:
    """Find the line of a record: first at the time in its id, then everywhere."""
    for near in (partial(end_before, id=id), lambda file, size: size):
        for _, file in _files(path):
            for begin, chunk in chunks_backwards(file, near(file, _size(file))):
                if (at := _line_with(chunk, id)) is not None:
                    return _LineStart(os.fstat(file.fileno()).st_ino, begin + at)
    return None


def _line_with(chunk: bytes, id: str) -> int | None:
    """Return the offset of the line of the record with an id."""
    at = len(chunk)
    while (at := chunk.rfind(encoded_text(id), 0, at)) >= 0:
        begin = chunk.rfind(b"\n", 0, at) + 1
        raw = chunk[begin:].partition(b"\n")[0]
        if any(line.id == id for line, _ in records_in(raw)):
            return begin
    return None


def _files(path: str) -> Iterator[tuple[str, BinaryIO]]:
    """Yield every file of a log, opened, newest first, including files closed in between."""
    inode = -1
    closed = None
    with suppress(FileNotFoundError), open(path, "rb") as file:
        inode, closed = os.fstat(file.fileno()).st_ino, closed_segments(path)
        yield path, file
    for segment in reversed(closed_segments(path) if closed is None else closed):
        with suppress(FileNotFoundError), open(segment, "rb") as file:  # else deleted since
            if os.fstat(file.fileno()).st_ino != inode:
                yield segment, file


def _size(file: BinaryIO) -> int:
    return file.seek(0, os.SEEK_END)


def records_in(raw: bytes) -> list[tuple[CallRecord, bytes]]:
    """Return the record of a line with its bytes, as a list; empty if the line is not a record."""
    for part in (raw, after_remains(raw)):
        try:
            return [(_decode(part), part)]
        except (ValueError, RecursionError):
            continue
    return []


def search(path: str, wanted: Filter, limit: int) -> list[tuple[CallRecord, bytes]]:
    """Return the newest matching records, in ascending order."""
    return [*islice(_matching(path, wanted), limit)][::-1]


def page(
    path: str,
    wanted: Filter,
    limit: int,
    *,
    before: str | None = None,
) -> tuple[list[CallRecord], str | None]:
    """Return the newest matching records, newest first, and the cursor of the next page.

    `before` is the cursor from the previous page; None starts with the newest record.
    """
    found: list[CallRecord] = []
    for line, _ in _matching(path, wanted, before):
        if len(found) == limit:
            return found, found[-1].id
        found.append(line)
    return found, None


def tail(path: str, count: int) -> list[tuple[CallRecord, bytes]]:
    """Return the newest records, in ascending order."""
    return search(path, Filter(), count)


class Follower:
    """Reader of appended lines. `read` returns the lines since the previous call."""

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
        """Return the current file, if it was closed in between, and its successors."""
        segments = all_segments(self._path)
        for at, segment in enumerate(segments):
            try:
                if os.stat(segment).st_ino == self._inode:
                    return segments[at:]
            except FileNotFoundError:
                continue
        return segments[-1:]
