"""Reading the audit log: the newest lines first, without loading the files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import msgspec

from callgate.audit.records import CallRecord, after_remains
from callgate.audit.segments import all_segments

_BLOCK = 256 * 1024
_LONGEST_LINE = 1024 * 1024
"""What is longer is no record of ours."""
_decode = msgspec.json.Decoder(CallRecord).decode


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """What to look for; everything given must hold."""

    text: str | None = None
    """Anywhere in the line, whatever its case."""
    tool: str | None = None
    session: str | None = None
    decision: str | None = None
    error_class: str | None = None
    since_ms: int | None = None

    def matches(self, line: CallRecord, raw: bytes) -> bool:
        return (
            (self.tool is None or line.tool == self.tool)
            and (self.session is None or line.session == self.session)
            and (self.decision is None or line.decision == self.decision)
            and (self.error_class is None or line.error_class == self.error_class)
            and (self.text is None or self.text.lower() in raw.decode("utf-8", "replace").lower())
        )


def newest_first(path: str) -> Iterator[tuple[CallRecord, bytes]]:
    """Every record of a log, newest first; what is not a record is passed over."""
    for segment in reversed(all_segments(path)):
        for raw in _lines_backwards(segment):
            yield from _records_in(raw)


def newest_calls(path: str, since_ms: int, limit: int | None = None) -> Iterator[CallRecord]:
    """The newest records, at most `limit`, until one is older than `since_ms`."""
    for number, (record, _) in enumerate(newest_first(path)):
        if record.ts < since_ms or number == limit:
            return
        yield record


def _records_in(raw: bytes) -> list[tuple[CallRecord, bytes]]:
    for part in (raw, after_remains(raw)):
        try:
            return [(_decode(part), part)]
        except (msgspec.MsgspecError, RecursionError):
            continue
    return []


def search(path: str, wanted: Filter, limit: int) -> list[tuple[CallRecord, bytes]]:
    """The newest records that match, oldest of them first."""
    found: list[tuple[CallRecord, bytes]] = []
    for line, raw in newest_first(path):
        if len(found) >= limit or (wanted.since_ms is not None and line.ts < wanted.since_ms):
            break
        if wanted.matches(line, raw):
            found.append((line, raw))
    return found[::-1]


def page(
    path: str,
    wanted: Filter,
    limit: int,
    *,
    before: str | None = None,
    also: Callable[[CallRecord], bool] = lambda line: True,
) -> tuple[list[CallRecord], str | None]:
    """The newest records that match, newest first, and where the next page begins.

    `before` is what was given with the page before; None begins with the newest.
    """
    found: list[CallRecord] = []
    for line, raw in newest_first(path):
        if before is not None:
            before = None if line.id == before else before
            continue
        if wanted.since_ms is not None and line.ts < wanted.since_ms:
            break
        if wanted.matches(line, raw) and also(line):
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
                found += _records_in(raw)
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


def _lines_backwards(path: str) -> Iterator[bytes]:
    try:
        file = open(path, "rb")  # noqa: SIM115  # closed below
    except FileNotFoundError:  # dropped meanwhile
        return
    with file:
        position = file.seek(0, os.SEEK_END)
        pieces: list[bytes] = []
        """The end of a line whose beginning is not read yet, last piece first."""
        while position > 0:
            size = min(_BLOCK, position)
            position -= size
            file.seek(position)
            first, *lines = file.read(size).split(b"\n")
            if lines:
                yield from _joined([*pieces, lines.pop()])
                yield from (line for line in reversed(lines) if line)
                pieces = [first]
            else:
                pieces.append(first)
        yield from _joined(pieces)


def _joined(pieces: list[bytes]) -> Iterator[bytes]:
    if sum(map(len, pieces)) <= _LONGEST_LINE and (line := b"".join(reversed(pieces))):
        yield line
