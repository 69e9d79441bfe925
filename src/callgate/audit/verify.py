"""Verify the audit log: follow every chain, line by line, through all files.

An edited, inserted, swapped or removed line breaks the chain at the next line. A removed end, or a
removed chain, is detected if another process wrote afterwards, because its record names the last
line it found. A removed file is detected because signed records name the retained files. Not
detected are the removal of the very last lines, and changes by an attacker who recomputes all
hashes: store a copy of the last hash elsewhere if that matters.

Homes that share a store have such copies there, the heads of chains:

    audit_head / CHAIN -> home, owner, number of lines, hash of the last, its file, time

A head is published after its line is durable and at most a second later, so a chain may have more
lines than its head says, and never fewer.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from callgate.audit.keys import drop_signature, read_keys
from callgate.audit.records import after_remains, line_hash, open_segments
from callgate.core.ops import PutEntry
from callgate.core.stored import SharedEntry


class LogProblem(msgspec.Struct, frozen=True):
    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    records: int
    chains: int
    segments: int
    problems: tuple[LogProblem, ...]
    unreadable: tuple[LogProblem, ...]
    """Number of lines that are not records: traces of a crash if the chains are complete."""
    last_hash: str
    kept_from: int = 1
    """The number of the first file that was not deleted, according to the records."""
    expected_chains: frozenset[str] = frozenset()
    """Expected chains that are present."""

    @property
    def ok(self) -> bool:
        return not self.problems


class _Link(msgspec.Struct):
    """The links of a record to other records."""

    chain: str
    n: int
    prev: str = ""
    seen: str = ""
    file: int = 0
    file_before: int = 0
    kept_from: int = 0
    dropped_last: str = ""
    signature: str = ""
    principal: str = ""
    dropped_files: int = 0


_decode = msgspec.json.Decoder(_Link).decode


def verify(
    path: str,
    *,
    keys: Sequence[bytes] = (),
    most: int = 100,
    expected: Mapping[str, tuple[int, str]] = MappingProxyType({}),
) -> Verification:
    """Check every file of a log; list at most `most` problems.

    `keys` are additional keys that may have signed lines. Without any key, signatures are not
    checked. `expected` are numbers and hashes of lines that the chains had, as far as they are in
    this log.
    """
    check = _Check((*read_keys(path), *keys), expected)
    segments = 0
    for segment, number, file in open_segments(path):
        segments += 1
        if check.enter(
            segment, number, size=os.fstat(file.fileno()).st_size, is_last=segment == path
        ):
            for line, raw in enumerate(file, start=1):
                check.line(line, raw.rstrip(b"\n"))
    check.finish()
    check.find_cut(path)
    return Verification(
        records=check.records,
        chains=len(check.ends),
        segments=segments,
        problems=tuple(check.problems[:most]),
        unreadable=tuple(check.unreadable[:most]),
        last_hash=check.last_hash,
        kept_from=check.kept_from,
        expected_chains=frozenset(expected.keys() & check.ends.keys()),
    )


class _Check:
    def __init__(self, keys: Sequence[bytes], expected: Mapping[str, tuple[int, str]]) -> None:
        self._keys = keys
        self._expected = expected
        self._is_signed = False
        """Whether a line of a version that signs was read."""
        self.records = 0
        self.ends: dict[str, tuple[int, str]] = {}
        """Number and hash of the last line of each chain so far."""
        self.problems: list[LogProblem] = []
        self.unreadable: list[LogProblem] = []
        self.last_hash = ""
        self._file = ""
        self._number = 0
        self._first_file = 0
        self._last_lines: dict[int, str] = {}
        """Last lines by file number."""
        self._dropped_last: dict[int, tuple[str, LogProblem]] = {}
        """Last lines of deleted files, according to the records that name these files."""
        self.kept_from = 1
        self._missing_files: list[tuple[int, LogProblem]] = []
        self._here: set[str] = set()
        """Hashes of the lines of this file so far ..."""
        self._before: set[str] = set()
        """... and of the lines of the previous file, which a line of this file may name."""

    def enter(self, segment: str, number: int, *, size: int, is_last: bool) -> bool:
        """Enter a file; return whether its lines must be read."""
        if self._first_file == 0:
            if size == 0 and not is_last:
                return False  # deleted, but left empty, so that its name preserves the number
            self._first_file = number
        if number > self._number + 1:
            gap = LogProblem(segment, 0, f"files {self._number + 1} to {number - 1} are missing")
            self._missing_files.append((number, gap))
        self._file, self._number = segment, number
        self._before, self._here = self._here, set()
        return True

    def line(self, number: int, raw: bytes) -> None:
        if not raw:
            return
        link = _read(raw)
        if link is None:
            remainder = after_remains(raw)
            link = _read(remainder)
            self.unreadable.append(LogProblem(self._file, number, "is not a record"))
            self._here.add(line_hash(raw))
            if link is None:
                return
            raw = remainder  # a record that was written after the remains of another
        found = line_hash(raw)
        self.records += 1
        problem = self._broken(link)
        if problem is not None:
            self.problems.append(LogProblem(self._file, number, problem))
        self._is_signed |= bool(link.principal or link.dropped_files or link.signature)
        if link.kept_from:
            self._dropped(link, number)
        self._last_lines[self._number] = found
        self._here.add(found)
        self.ends[link.chain] = (link.n, found)
        self.last_hash = found
        if self._expected and self._expected.get(link.chain, (link.n, found)) != (link.n, found):
            self._differs(link, number)

    def _dropped(self, link: _Link, number: int) -> None:
        """Check a line that names deleted files. Older versions did not sign these."""
        fields = link.chain, link.n, link.kept_from, link.dropped_last
        is_new = self._is_signed or bool(link.dropped_last)
        signatures = [drop_signature(key, *fields) for key in self._keys]
        if signatures and is_new and link.signature not in signatures:
            problem = "it says that files were dropped, without the signature of this log"
            self.problems.append(LogProblem(self._file, number, problem))
            return
        self.kept_from = max(self.kept_from, link.kept_from)
        other = LogProblem(self._file, number, "the file that it says was dropped is another")
        self._dropped_last[link.kept_from - 1] = link.dropped_last, other

    def finish(self) -> None:
        """Report missing files that no record names as deleted."""
        missing = [gap for number, gap in self._missing_files if number > self.kept_from]
        self.problems[:0] = missing
        for number, (last, other) in self._dropped_last.items():
            if last and self._last_lines.get(number, last) != last:
                self.problems.append(other)

    def _differs(self, link: _Link, number: int) -> None:
        if self._expected[link.chain][0] == link.n:
            problem = f"record {link.n} of its chain is another than the store knows"
            self.problems.append(LogProblem(self._file, number, problem))

    def find_cut(self, path: str) -> None:
        """Report chains that lost lines at their end."""
        for chain, (n, _) in self._expected.items():
            last = self.ends.get(chain, (n, ""))[0]
            if last < n:
                problem = f"chain {chain} ends with record {last}, and the store knows {n}"
                self.problems.append(LogProblem(path, 0, problem))

    def _broken(self, link: _Link) -> str | None:
        known = self.ends.get(link.chain)
        if link.file and link.file != self._number:
            return f"it belongs to file {link.file}"
        if known is None:
            problem = self._bad_start(link)
        elif link.n <= known[0]:
            problem = f"record {link.n} of its chain comes after record {known[0]}"
        elif link.n != known[0] + 1:
            problem = f"records {known[0] + 1} to {link.n - 1} of its chain are missing before it"
        elif link.prev != known[1]:
            problem = "the record before it in its chain was changed"
        else:
            problem = None
        if problem is None and link.seen and link.seen not in self._here:
            problem = "the line of another chain that it was written after is missing"
        return problem

    def _bad_start(self, link: _Link) -> str | None:
        if link.n > 1:
            if link.file and link.file_before < self._first_file:
                return None  # it continues a deleted file
            return f"the first {link.n - 1} records of its chain are missing"
        if not link.prev or link.prev in self._here or link.prev in self._before:
            return None
        if self._number == self._first_file > 1:
            return None  # the line that it found last may lie in a file that was dropped
        return "the line that was last when its chain began is missing"


def _read(raw: bytes) -> _Link | None:
    try:
        return _decode(raw)
    except (ValueError, RecursionError):
        return None


KIND = "audit_head"


class Head(msgspec.Struct, frozen=True, kw_only=True):
    home: str
    owner: str
    """The process that writes the chain."""
    n: int
    hash: str
    file: int
    """The number of the file with the last line."""
    at: float


class LogFile(msgspec.Struct, frozen=True):
    path: str
    home: str | None
    """The id of its home, if known."""


class LogsVerdict(msgspec.Struct, frozen=True):
    """The results for several logs."""

    logs: Sequence[Verification]
    missing: tuple[LogProblem, ...]
    """Chains that are in none of the logs."""


def put_head(chain: str, head: Head) -> PutEntry:
    return PutEntry(kind=KIND, name=chain, value=msgspec.json.encode(head).decode())


def read_heads(entries: Iterable[SharedEntry]) -> dict[str, Head]:
    """Return the heads by chain. Raises `MsgspecError` for an entry of a newer version."""
    return {each.name: msgspec.json.decode(each.value, type=Head) for each in entries}


def verify_logs(
    logs: Sequence[LogFile],
    heads: Mapping[str, Head],
    *,
    homes: Collection[str] | None = None,
    keys: Sequence[bytes] = (),
) -> LogsVerdict:
    """Check each log, and that it has the lines of the heads. `homes`: the homes whose chains are
    expected; None for all."""
    ends = {chain: (head.n, head.hash) for chain, head in heads.items()}
    found = [verify(each.path, keys=keys, expected=ends) for each in logs]
    missing = []
    for chain, head in heads.items():
        if homes is not None and head.home not in homes:
            continue
        if any(chain in each.expected_chains for each in found):
            continue
        of_home = [
            each for log, each in zip(logs, found, strict=True) if log.home in (None, head.home)
        ]
        if any(head.file < each.kept_from for each in of_home):
            continue  # in a file that was dropped, which a record says
        path = next((log.path for log in logs if log.home == head.home), logs[0].path)
        problem = (
            f"no file has chain {chain} of home {head.home}; the store knows {head.n} lines of it"
        )
        missing.append(LogProblem(path, 0, problem))
    return LogsVerdict(found, tuple(missing))
