"""Move the content of a store into another, empty one: the same rows under the same ids.

    source, locked and read in one transaction
        |  table by table, a row at a time; counted and hashed
        v
    target, one transaction ---> read back, counted and hashed again ---> commit

Numbers stay the same: of events (`n`), changes (`touch`) and sessions (`ord`). Cursors of clients
therefore have the same meaning in the target, and later rows get higher numbers. Until the commit,
other processes see an empty target; any failure leaves it empty.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import msgspec

from callgate.core.stored import StoredConfirmation
from callgate.core.stores import StoreDamaged, StoreError, Trouble
from callgate.storage.encoding import decode

Row = tuple[Any, ...]
NUMBERS = ("n", "touch")
"""Marks of a file that are sequences in a database: moved as `Numbers`."""
_TELL_EVERY = 1_000


class Table(NamedTuple):
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    """Sort keys of the rows, the same in every engine: numbers, and texts as bytes."""


TABLES: Mapping[str, Table] = {
    "sessions": Table(
        (
            "ord", "id", "workspace", "parent", "owner", "fence", "last_seq", "messages",
            "updated_at", "touch", "body",
        ),
        ("ord",),
    ),
    "events": Table(("n", "ord", "seq", "id", "body"), ("n",)),
    "messages": Table(("ord", "seq", "id", "body"), ("ord", "seq")),
    "calls": Table(("id", "ord", "state", "owner", "body"), ("id",)),
    "confirmations": Table(("id", "ord", "state", "body"), ("id",)),
    "grants": Table(("id", "ord", "body"), ("id",)),
    "blobs": Table(("sha256", "data"), ("sha256",)),
    "outbox": Table(("id", "owner", "body"), ("id",)),
    "cut_sessions": Table(("id", "body"), ("id",)),
    "entries": Table(("kind", "name", "body"), ("kind", "name")),
    "entry_kinds": Table(("kind", "touch"), ("kind",)),
    "marks": Table(("name", "value"), ("name",)),
    "dropped_sessions": Table(("ord",), ("ord",)),
    "pruned_events": Table(("ord", "upto"), ("ord",)),
}  # fmt: skip


class Numbers(NamedTuple):
    """Last numbers of an event, a change and a session."""

    n: int
    touch: int
    ord: int


class Contents(Protocol):
    """The content of a store, in one transaction."""

    def count(self, table: str) -> int: ...
    def rows(self, table: str) -> Iterator[Row]:
        """Yield rows in the order of the table's keys. The caller reads them to the end."""
        ...

    def numbers(self) -> Numbers: ...


class EmptyContents(Contents, Protocol):
    """The content of the store that is being filled."""

    def write(self, table: str, rows: Iterable[Row]) -> None: ...
    def set_numbers(self, numbers: Numbers) -> None: ...


class MovableStore(Protocol):
    """A source or target of a move."""

    @property
    def label(self) -> str:
        """Name of the store in messages for people."""
        ...

    def living(self) -> Sequence[str]:
        """Return the processes that use it."""
        ...

    def reading(self) -> AbstractContextManager[Contents]:
        """Lock the content against changes and return it. Raises a `StoreError`."""
        ...

    def writing(self) -> AbstractContextManager[EmptyContents]:
        """Write to an empty store: everything is committed at the end, or nothing.

        Raises `StoreNotEmpty` or another `StoreError`.
        """
        ...

    def row_counts(self) -> Mapping[str, int]:
        """Return the number of rows of each non-empty table, without any change."""
        ...


class StoreNotEmpty(StoreError):
    def __init__(self, label: str, counts: Mapping[str, int]) -> None:
        rows = ", ".join(f"{count} {table}" for table, count in counts.items() if count)
        super().__init__(f"{label} is not empty: it holds {rows}. Nothing was moved.")
        self.counts = counts


class StoreInUse(StoreError):
    def __init__(self, label: str, processes: Sequence[str]) -> None:
        super().__init__(f"{label} is in use by {', '.join(processes)}. Nothing was moved.")
        self.processes = processes


class NotMovable(StoreError):
    """Content that the target cannot represent."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem} Nothing was moved.")


class MoveInterrupted(StoreError):
    def __init__(self, label: str, trouble: Trouble, *, outcome_unknown: bool = False) -> None:
        reasons = {
            Trouble.FULL: "its disk is full",
            Trouble.READ_ONLY: "it is read-only",
            Trouble.BUSY: "another process did not release it",
            Trouble.NO_ACCESS: "it cannot be opened, or its rights do not suffice",
            Trouble.UNREACHABLE: "the database cannot be reached",
            Trouble.EXHAUSTED: "the database accepts no more connections",
        }
        reason = reasons.get(trouble, "it reports an error")
        left = (
            "Whether the target holds everything or nothing is not known: move again, which tells."
            if outcome_unknown
            else "The source is as it was, and the target is empty."
        )
        super().__init__(f"The move to or from {label} did not succeed: {reason}. {left}")
        self.trouble = trouble


class MoveMismatch(StoreError):
    def __init__(self, table: str) -> None:
        super().__init__(
            f"The table {table} in the target differs from the source. Nothing was "
            "moved: the source is unchanged, and the target is empty."
        )
        self.table = table


class TableSum(msgspec.Struct, frozen=True):
    rows: int
    sha256: str


class MoveReport(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the target, confirmed by both sides."""

    tables: Mapping[str, TableSum]
    numbers: Numbers
    was_there: bool = False
    """Whether an earlier move had succeeded."""


class MoveStep(NamedTuple):
    """Progress of a move."""

    doing: str
    """`copying`, `verifying`, `comparing` or `committed`."""
    table: str
    rows: int
    of: int


def move(
    source: MovableStore,
    target: MovableStore,
    tell: Callable[[MoveStep], None] = lambda step: None,
    before_commit: Callable[[], None] = lambda: None,
    committed: Callable[[], None] = lambda: None,
) -> MoveReport:
    """Move the complete content. If `before_commit` raises, nothing was moved; `committed` is
    called at the end. During both calls, no process can write to the source.

    A target with exactly the content of the source is left unchanged: an earlier move may have
    succeeded without a report.
    """
    with source.reading() as reader:
        try:
            moved = _fill(reader, target, tell, before_commit)
        except StoreNotEmpty:
            found = _same(reader, target, tell)
            if found is None:
                raise
            moved = found
        tell(MoveStep("committed", "", 0, 0))
        committed()
    return moved


def _fill(
    reader: Contents,
    target: MovableStore,
    tell: Callable[[MoveStep], None],
    before_commit: Callable[[], None],
) -> MoveReport:
    with target.writing() as writer:
        numbers = reader.numbers()
        copied = {table: _copy(reader, writer, table, tell) for table in TABLES}
        writer.set_numbers(numbers)
        _verify(writer, copied, numbers, tell)
        before_commit()
    return MoveReport(tables=copied, numbers=numbers)


def _same(
    reader: Contents, target: MovableStore, tell: Callable[[MoveStep], None]
) -> MoveReport | None:
    """Return a report if both have the same content, otherwise None."""
    with target.reading() as contents:
        if any(contents.count(table) != reader.count(table) for table in TABLES):
            return None
        sums = {table: _sum("comparing", reader, table, tell) for table in TABLES}
        if any(_sum("comparing", contents, table, tell) != sums[table] for table in TABLES):
            return None
        return MoveReport(tables=sums, numbers=reader.numbers(), was_there=True)


def _copy(
    reader: Contents, writer: EmptyContents, table: str, tell: Callable[[MoveStep], None]
) -> TableSum:
    counting = _Counting(MoveStep("copying", table, 0, reader.count(table)), tell)
    writer.write(table, counting.through(reader.rows(table)))
    return counting.sum()


def _verify(
    written: EmptyContents,
    copied: Mapping[str, TableSum],
    numbers: Numbers,
    tell: Callable[[MoveStep], None],
) -> None:
    """Read back the written rows, and compare."""
    for table, expected in copied.items():
        if _sum("verifying", written, table, tell) != expected:
            raise MoveMismatch(table)
    if any(there < known for there, known in zip(written.numbers(), numbers, strict=True)):
        raise MoveMismatch("numbers")


def _sum(doing: str, contents: Contents, table: str, tell: Callable[[MoveStep], None]) -> TableSum:
    counting = _Counting(MoveStep(doing, table, 0, contents.count(table)), tell)
    for _ in counting.through(contents.rows(table)):
        pass
    return counting.sum()


class _Counting:
    """Counts and hashes rows."""

    def __init__(self, step: MoveStep, tell: Callable[[MoveStep], None]) -> None:
        self._step = step
        self._tell = tell
        self._rows = 0
        self._digest = hashlib.sha256()
        self._encoder = msgspec.msgpack.Encoder()

    def through(self, rows: Iterator[Row]) -> Iterator[Row]:
        self._tell(self._step)
        for row in rows:
            self._rows += 1
            self._digest.update(self._encoder.encode(row))
            if self._rows % _TELL_EVERY == 0:
                self._tell(self._step._replace(rows=self._rows))
            yield row
        self._tell(self._step._replace(rows=self._rows))

    def sum(self) -> TableSum:
        return TableSum(self._rows, self._digest.hexdigest())


def expiry_of(body: str, label: str) -> float:
    """Return the expiry time of a question, which one engine also has as a column."""
    try:
        return decode(body, StoredConfirmation).expires_at
    except msgspec.DecodeError:
        raise StoreDamaged(label) from None
