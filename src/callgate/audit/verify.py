"""Is the audit log whole? Every chain is followed, line by line, through all its files.

An edited, inserted, swapped or removed line breaks the chain at the line after it. A removed
end is seen if another process began its chain after it, because that chain names the last
line it found. What cannot be seen is the removal of the very last lines of the log by someone
who may write the file: keep a copy of `verify`'s last hash elsewhere if that matters.
"""

from __future__ import annotations

from itertools import islice

import msgspec

from callgate.audit.log import Dropped
from callgate.audit.records import line_hash
from callgate.audit.segments import all_segments

_HEAD_LINES = 1_000
"""How far into a file to look for what was dropped: others may write before it is said."""


class Problem(msgspec.Struct, frozen=True):
    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    records: int
    chains: int
    segments: int
    problems: tuple[Problem, ...]
    unreadable: tuple[Problem, ...]
    """Lines that are no records: the mark of a crash while writing, if the chains are whole."""
    last_hash: str

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def first_problem(self) -> Problem | None:
        return self.problems[0] if self.problems else None


class _Link(msgspec.Struct):
    chain: str
    n: int
    prev: str = ""


def verify(path: str, *, most: int = 100) -> Verification:
    """Check every file of a log; at most `most` problems are listed."""
    segments = all_segments(path)
    check = _Check(_dropped(segments))
    for segment in segments:
        with open(segment, "rb") as file:
            for number, raw in enumerate(file, start=1):
                check.line(segment, number, raw.rstrip(b"\n"))
    return Verification(
        records=check.records,
        chains=len(check.ends),
        segments=len(segments),
        problems=tuple(check.problems[:most]),
        unreadable=tuple(check.unreadable[:most]),
        last_hash=check.last_hash,
    )


def _dropped(segments: list[str]) -> dict[str, tuple[int, str]]:
    """How each chain ended in the files that are no longer there; newer files know more."""
    chains: dict[str, tuple[int, str]] = {}
    for segment in segments:
        with open(segment, "rb") as file:
            for raw in islice(file, _HEAD_LINES):
                if raw.startswith(b'{"type":"dropped"'):
                    try:
                        chains.update(msgspec.json.decode(raw, type=Dropped).chains)
                    except msgspec.MsgspecError:
                        continue
    return chains


class _Check:
    def __init__(self, dropped: dict[str, tuple[int, str]]) -> None:
        self.records = 0
        self.ends: dict[str, tuple[int, str]] = {}
        self.dropped = dropped
        self.hashes: set[str] = set()
        """Every line so far: a new chain must name one of them."""
        self.problems: list[Problem] = []
        self.unreadable: list[Problem] = []
        self.last_hash = ""
        self._decode = msgspec.json.Decoder(_Link).decode

    def line(self, file: str, number: int, raw: bytes) -> None:
        if not raw or raw.startswith(b'{"type":"dropped"'):
            return
        found = line_hash(raw)
        self.hashes.add(found)
        try:
            link = self._decode(raw)
        except (msgspec.MsgspecError, RecursionError):
            self.unreadable.append(Problem(file, number, "is not a record"))
            return
        self.records += 1
        problem = self._broken(link)
        if problem is not None:
            self.problems.append(Problem(file, number, problem))
        self.ends[link.chain] = (link.n, found)
        self.last_hash = found

    def _broken(self, link: _Link) -> str | None:
        known = self.ends.get(link.chain)
        if known is None:
            return self._bad_start(link)
        last, expected = known
        if link.n <= last:
            return f"record {link.n} of its chain stands after record {last}"
        if link.n != last + 1:
            return f"records {last + 1} to {link.n - 1} of its chain are missing before it"
        if link.prev != expected:
            return "the record before it in its chain was changed"
        return None

    def _bad_start(self, link: _Link) -> str | None:
        ended = self.dropped.get(link.chain)
        if ended is not None and link.n > 1:
            continues = (link.n - 1, link.prev) == ended
            return None if continues else "it does not continue what was dropped"
        if link.n != 1:
            return f"the first {link.n - 1} records of its chain are missing"
        if link.prev in self.hashes or not link.prev:
            return None
        if self.dropped:  # the line it found may lie in a file that was dropped since
            return None
        return "the line that was last when its chain began is missing"
