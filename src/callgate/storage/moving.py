"""Moves everything that one store holds into another, empty one: the same rows under the same ids.

    source, locked and read in one transaction
        |  table by table, a row at a time; counted and hashed on the way
        v
    target, one transaction ---> read back, counted and hashed again ---> commit

Numbers stay as they are: of events (`n`), changes (`touch`) and sessions (`ord`). The cursors that
clients hold therefore mean the same in the target, and what is numbered there later comes after
them. Until the commit the target is empty for everyone else; whatever fails leaves it so.
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
"""Marks of a file for what sequences are in a database: moved as `Numbers`."""
_TELL_EVERY = 1_000


class Table(NamedTuple):
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    """By which rows are ordered, the same on every engine: numbers, and texts as bytes."""


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
    "pins": Table(("source", "tool", "body"), ("source", "tool")),
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
    """The last number that was given to an event, a change and a session."""

    n: int
    touch: int
    ord: int


class Contents(Protocol):
    """What a store holds, in one transaction."""

    def count(self, table: str) -> int: ...
    def rows(self, table: str) -> Iterator[Row]:
        """In the order of the table's keys. Whoever begins it reads it to its end."""
        ...

    def numbers(self) -> Numbers: ...


class EmptyContents(Contents, Protocol):
    """The contents of a store that is being filled."""

    def write(self, table: str, rows: Iterable[Row]) -> None: ...
    def set_numbers(self, numbers: Numbers) -> None: ...


class MovableStore(Protocol):
    """A place that things are moved from or to."""

    @property
    def place(self) -> str:
        """For people."""
        ...

    def living(self) -> Sequence[str]:
        """The processes that use it."""
        ...

    def reading(self) -> AbstractContextManager[Contents]:
        """What it holds; nobody can change it meanwhile. Raises a `StoreError`."""
        ...

    def writing(self) -> AbstractContextManager[EmptyContents]:
        """For a store with nothing in it: all that is written is committed at the end, or none.

        Raises `StoreNotEmpty` or another `StoreError`."""
        ...

    def row_counts(self) -> Mapping[str, int]:
        """How many rows it has in each table that has any; nothing is made or changed."""
        ...


class StoreNotEmpty(StoreError):
    def __init__(self, place: str, held: Mapping[str, int]) -> None:
        rows = ", ".join(f"{count} {table}" for table, count in held.items() if count)
        super().__init__(f"{place} is not empty: it holds {rows}. Nothing was moved.")
        self.held = held


class StoreInUse(StoreError):
    def __init__(self, place: str, processes: Sequence[str]) -> None:
        super().__init__(f"{place} is in use by {', '.join(processes)}. Nothing was moved.")
        self.processes = processes


class NotMovable(StoreError):
    """Something that the target cannot hold."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem} Nothing was moved.")


class MoveInterrupted(StoreError):
    def __init__(self, place: str, trouble: Trouble, *, outcome_unknown: bool = False) -> None:
        reasons = {
            Trouble.FULL: "its disk is full",
            Trouble.READ_ONLY: "it is read-only",
            Trouble.BUSY: "another process did not let go of it",
            Trouble.NO_ACCESS: "it cannot be opened, or its rights do not suffice",
            Trouble.UNREACHABLE: "the database cannot be reached",
            Trouble.EXHAUSTED: "the database takes no more connections",
        }
        reason = reasons.get(trouble, "it reports an error")
        left = (
            "Whether the target holds everything or nothing is not known: move again, which tells."
            if outcome_unknown
            else "The source is as it was, and the target is empty."
        )
        super().__init__(f"The move to or from {place} did not succeed: {reason}. {left}")
        self.trouble = trouble


class MoveMismatch(StoreError):
    def __init__(self, table: str) -> None:
        super().__init__(
            f"What the target gives back of {table} is not what the source holds. Nothing was "
            "moved: the source is as it was, and the target is empty."
        )
        self.table = table


class TableSum(msgspec.Struct, frozen=True):
    rows: int
    sha256: str


class MoveReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is in the target now, as both sides say."""

    tables: Mapping[str, TableSum]
    numbers: Numbers
    was_there: bool = False
    """Whether an earlier move had done it."""


class Step(NamedTuple):
    """How far a move is."""

    doing: str
    """`copying`, `verifying`, `comparing` or `committed`."""
    table: str
    rows: int
    of: int


def move(
    source: MovableStore,
    target: MovableStore,
    tell: Callable[[Step], None] = lambda step: None,
    before_commit: Callable[[], None] = lambda: None,
    committed: Callable[[], None] = lambda: None,
) -> MoveReport:
    """Move everything. If `before_commit` raises, nothing was moved; `committed` is called at the
    end. During both nobody can write to the source.

    A target that holds exactly what the source holds is left as it is: an earlier move may have
    ended without knowing that it had succeeded.
    """
    with source.reading() as reader:
        try:
            moved = _fill(reader, target, tell, before_commit)
        except StoreNotEmpty:
            found = _same(reader, target, tell)
            if found is None:
                raise
            moved = found
        tell(Step("committed", "", 0, 0))
        committed()
    return moved


def _fill(
    reader: Contents,
    target: MovableStore,
    tell: Callable[[Step], None],
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
    reader: Contents, target: MovableStore, tell: Callable[[Step], None]
) -> MoveReport | None:
    """What both hold; None where they differ."""
    with target.reading() as held:
        if any(held.count(table) != reader.count(table) for table in TABLES):
            return None
        sums = {table: _sum("comparing", reader, table, tell) for table in TABLES}
        if any(_sum("comparing", held, table, tell) != sums[table] for table in TABLES):
            return None
        return MoveReport(tables=sums, numbers=reader.numbers(), was_there=True)


def _copy(
    reader: Contents, writer: EmptyContents, table: str, tell: Callable[[Step], None]
) -> TableSum:
    counting = _Counting(Step("copying", table, 0, reader.count(table)), tell)
    writer.write(table, counting.through(reader.rows(table)))
    return counting.sum()


def _verify(
    written: EmptyContents,
    copied: Mapping[str, TableSum],
    numbers: Numbers,
    tell: Callable[[Step], None],
) -> None:
    """Read back what was written, and compare."""
    for table, expected in copied.items():
        if _sum("verifying", written, table, tell) != expected:
            raise MoveMismatch(table)
    if any(there < known for there, known in zip(written.numbers(), numbers, strict=True)):
        raise MoveMismatch("numbers")


def _sum(doing: str, held: Contents, table: str, tell: Callable[[Step], None]) -> TableSum:
    counting = _Counting(Step(doing, table, 0, held.count(table)), tell)
    for _ in counting.through(held.rows(table)):
        pass
    return counting.sum()


class _Counting:
    """Counts and hashes rows that go by."""

    def __init__(self, step: Step, tell: Callable[[Step], None]) -> None:
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


def expiry_of(body: str, place: str) -> float:
    """When the question in a row expires, which one engine has as a column too."""
    try:
        return decode(body, StoredConfirmation).expires_at
    except msgspec.DecodeError:
        raise StoreDamaged(place) from None
