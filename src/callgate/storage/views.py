"""The changes of the commits in a batch, as a layer over the rows.

    begin ---> apply an op, another, ... ---> begin (the next commit)
                   |                            |
                   +--- undo, if one fails -----+---> saved by the engine, all at once

A failed commit is undone completely; the rest of its batch continues. Rows are frozen values,
identified by their type and key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import msgspec
from msgspec.structs import replace

from callgate.core.events import Event
from callgate.core.stored import ConfirmationState, StoredConfirmation, StoredSession
from callgate.core.stores import SessionNotFound
from callgate.storage.encoding import encode

if TYPE_CHECKING:  # few commands prune
    from callgate.core.budgets import PageRelease, RowSweep


class Row(Protocol):
    @property
    def key(self) -> Hashable: ...


R = TypeVar("R", bound=Row)


class EventRow(msgspec.Struct, frozen=True, gc=False):
    id: str
    session_id: str
    seq: int
    text: str
    """The event as JSON; empty if only its number was looked up."""

    @property
    def key(self) -> str:
        return self.id


class EmptiedEvent(msgspec.Struct, frozen=True, gc=False):
    """The text that replaces an event."""

    session_id: str
    seq: int
    text: str

    @property
    def key(self) -> tuple[str, int]:
        return self.session_id, self.seq


class MessageRow(msgspec.Struct, frozen=True, gc=False):
    id: str
    session_id: str
    seq: int
    text: str

    @property
    def key(self) -> str:
        return self.id


class Blob(msgspec.Struct, frozen=True, gc=False):
    sha256: str
    data: bytes

    @property
    def key(self) -> str:
        return self.sha256


class Rows(Protocol):
    """The rows below a view."""

    def get(self, kind: type[R], key: Hashable) -> R | None: ...

    def find(self, kind: type[R], field: str, value: Any, limit: int | None = None) -> Sequence[R]:
        """Return the rows with this value, or the first of them; of calls, only running ones.

        Supported: sessions by owner and parent, calls by owner and session_id, grants by
        session_id.
        """
        ...

    def due(self, at: float) -> Sequence[StoredConfirmation]:
        """Return the open questions that have expired."""
        ...

    def events(self, session: str, after: int = 0) -> Iterator[tuple[int, str]]:
        """Return the numbers and texts of a session's events in order, without pruned ones."""
        ...

    def messages(self, session: str) -> Iterator[str]: ...

    def alive(self, owner: str) -> bool:
        """Whether the process still runs."""
        ...

    # For pruning. `cursor` is None at the beginning and after the end.

    def oldest_sessions(
        self, cursor: str | None, most: int
    ) -> tuple[Sequence[StoredSession], str | None]:
        """Return sessions, least recently changed first."""
        ...

    def oldest_events(self, cursor: str | None, most: int) -> tuple[Sequence[EventRow], str | None]:
        """Return events in the order of their commits."""
        ...

    def sweep(self, most: int) -> RowSweep:
        """Remove rows of deleted sessions immediately: no reader sees them."""
        ...

    def release_pages(self, most: int) -> PageRelease: ...


_UNKNOWN: Any = object()


def is_due(question: StoredConfirmation, at: float) -> bool:
    return question.state is ConfirmationState.PENDING and question.expires_at <= at


class View:
    """Changes over rows, from consecutive commits."""

    __slots__ = ("_below", "_maintained", "_texts", "_undo", "deleted", "described", "dropped",
                 "entry_kinds", "pruned", "reaped", "rows", "touched")  # fmt: skip

    def __init__(self, below: Rows) -> None:
        self._below = below
        self._texts: Mapping[str, str] = {}
        self._undo: list[tuple[dict[Any, Any], Hashable, Any]] = []
        self.rows: defaultdict[type[Any], dict[Hashable, Any]] = defaultdict(dict)
        """Changed rows by kind and key; None: removed."""
        self.described: dict[str, None] = {}
        """Sessions with a change of more than numbers, times and owner."""
        self.touched: dict[str, None] = {}
        """Sessions with any change, in order."""
        self.entry_kinds: dict[str, None] = {}
        """Kinds of shared entries with any change."""
        self.reaped: dict[str, None] = {}
        """Owners that were declared dead."""
        self.deleted: dict[str, None] = {}
        """Sessions whose rows are all deleted."""
        self.dropped: dict[str, None] = {}
        """Deleted sessions whose rows are swept later."""
        self.pruned: dict[str, EventRow] = {}
        """The last pruned event of each remaining session."""
        self._maintained = False

    @property
    def changed(self) -> bool:
        return self._maintained or bool(self.touched) or any(self.rows.values())

    def begin(self, texts: Mapping[str, str]) -> None:
        """Start a commit with these encoded events."""
        self._texts = texts
        self._undo.clear()

    def undo(self) -> None:
        """Undo the changes since `begin`."""
        for changes, key, before in reversed(self._undo):
            if before is _UNKNOWN:
                del changes[key]
            else:
                changes[key] = before
        self._undo.clear()

    def _set(self, changes: dict[Any, Any], key: Hashable, value: Any) -> None:
        self._undo.append((changes, key, changes.get(key, _UNKNOWN)))
        changes[key] = value

    # Reading.

    def get(self, kind: type[R], key: Hashable) -> R | None:
        row = self.rows[kind].get(key, _UNKNOWN)
        return self._below.get(kind, key) if row is _UNKNOWN else row

    def find(self, kind: type[R], field: str, value: Any, limit: int | None = None) -> Sequence[R]:
        changes = self.rows[kind]
        most = None if limit is None else limit + len(changes)
        found = {row.key: row for row in self._below.find(kind, field, value, most)}
        for key, row in changes.items():
            found.pop(key, None)
            if row is not None and getattr(row, field) == value:
                found[key] = row
        # In one order for all engines: each change appends events.
        return [found[key] for key in sorted(cast(dict[Any, R], found))][:limit]

    def due(self, at: float) -> Sequence[StoredConfirmation]:
        changes = self.rows[StoredConfirmation]
        below = [row for row in self._below.due(at) if row.id not in changes]
        found = [row for row in changes.values() if row is not None and is_due(row, at)]
        return sorted([*below, *found], key=lambda question: question.id)

    def events(self, session: str, after: int = 0) -> Iterator[tuple[int, str]]:
        """Return numbers and texts, without pruned ones."""
        texts = chain(self._below.events(session, after), self._added(EventRow, session, after))
        emptied = self.rows[EmptiedEvent]
        for seq, text in texts:
            row = emptied.get((session, seq))
            yield seq, text if row is None else row.text

    def messages(self, session: str) -> Iterator[str]:
        yield from self._below.messages(session)
        yield from (text for _, text in self._added(MessageRow, session, 0))

    def _added(self, kind: type[Any], session: str, after: int) -> Iterator[tuple[int, str]]:
        for row in list(self.rows[kind].values()):
            if row is not None and row.session_id == session and row.seq > after:
                yield row.seq, row.text

    def alive(self, owner: str) -> bool:
        return self._below.alive(owner)

    def session(self, id: str) -> StoredSession:
        row = self.get(StoredSession, id)
        if row is None:
            raise SessionNotFound(id)
        return row

    # Changing.

    def put(self, row: Row) -> None:
        self._set(self.rows[type(row)], row.key, row)
        if type(row) is StoredSession:
            self.touch(row.id)

    def remove(self, row: Row) -> None:
        self._set(self.rows[type(row)], row.key, None)

    def describe(self, session: StoredSession) -> None:
        """Put a session with any changes."""
        self.put(session)
        self._set(self.described, session.id, None)

    def touch(self, session: str) -> None:
        """Note a change of a session's data."""
        if session not in self.touched:
            self._set(self.touched, session, None)

    def take_for_dead(self, owner: str) -> None:
        self._set(self.reaped, owner, None)

    def touch_entries(self, kind: str) -> None:
        self._set(self.entry_kinds, kind, None)

    def delete(self, session: StoredSession) -> None:
        """Remove a session with all its rows."""
        self.remove(session)
        self.touch(session.id)
        self._set(self.deleted, session.id, None)

    def drop(self, session: StoredSession) -> None:
        """Mark a session as deleted; its rows are swept later."""
        self.remove(session)
        self.touch(session.id)
        self._set(self.dropped, session.id, None)

    def drop_event(self, row: EventRow) -> None:
        """Prune the oldest event of a session."""
        self.remove(row)
        self._set(self.pruned, row.session_id, row)

    def oldest_sessions(
        self, cursor: str | None, most: int
    ) -> tuple[Sequence[StoredSession], str | None]:
        return self._alone().oldest_sessions(cursor, most)

    def oldest_events(self, cursor: str | None, most: int) -> tuple[Sequence[EventRow], str | None]:
        return self._alone().oldest_events(cursor, most)

    def sweep(self, most: int) -> RowSweep:
        below, self._maintained = self._alone(), True
        return below.sweep(most)

    def release_pages(self, most: int) -> PageRelease:
        below, self._maintained = self._alone(), True
        return below.release_pages(most)

    def _alone(self) -> Rows:
        """Return the rows if nothing was changed yet: pruning is a separate commit."""
        if self.changed:
            raise ValueError("a pruning op needs a separate commit")
        return self._below

    def append(self, session: str, events: Sequence[Event]) -> tuple[int, ...]:
        """Number and store events; one that exists keeps its number."""
        row = self.session(session)
        last, at, rows, seqs = row.last_seq, row.updated_at, self.rows[EventRow], []
        for event in events:
            id = event.id
            known = rows.get(id) or self._below.get(EventRow, id)
            if known is None:
                last += 1
                known = EventRow(id, session, last, self._texts.get(id) or encode(event))
                self._undo.append((rows, id, _UNKNOWN))
                rows[id] = known
                if event.timestamp > at:
                    at = event.timestamp
            if known.session_id != session or event.session_id != session:
                raise ValueError(f"event {id} belongs to another session")
            seqs.append(known.seq)
        if last != row.last_seq:
            self.put(replace(row, last_seq=last, updated_at=at))
        return tuple(seqs)
