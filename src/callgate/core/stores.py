"""The port of the store, which contains sessions and all their data beyond a process.

    commit(op, op, ...) ---> all ops or none; durable once awaited; written together with others
    read_events(session, after) ---> the next events; `after` plus their number is the cursor
    wake(session) ---> a hint that there may be more; it has no data and may be late

Replay, live tail and many clients use one path: read a page, wait for a hint or a timeout, read
again (`tail`). An event is addressed by (session, seq); seq counts from 1 without a gap. The set of
operations is closed: the reads below and the ops in `ops`.

    StoreError
    ├── SessionNotFound         no such session, or it was deleted
    ├── ConfirmationNotFound    no such question
    ├── SessionLocked           another living process owns the session
    ├── StaleOwner              the session has another owner now
    ├── CallMismatch            the call id belongs to another call
    ├── AnswerMismatch          an answer for other arguments than the question's
    ├── StoreUnwritable         full, read-only or missing: nothing was written; reads still work
    ├── StoreUnreadable         the disk does not return the data
    ├── StoreDamaged            the file is damaged; it is not changed
    ├── StoreUnlocked           its file system does not enforce locks
    ├── StoreTooNew             written by a newer callgate
    ├── EngineTooOld            a database server of an unsupported version
    ├── StoreAddressInvalid     the address is malformed
    ├── MissingPackage          a package of the engine is not installed
    ├── StoreMisconfigured      the settings name an impossible store
    └── StoreClosed             used after `close`

After `StoreUnwritable` the outcome may be unknown: the same ops, with the same ids, may be
committed again and are never applied twice. `str(error)` is safe to show to a person.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, overload

import msgspec

from callgate.core.events import EVENTS_PRUNED, Event
from callgate.core.ops import Op, Reap, Reaped
from callgate.core.stored import (
    CutSession,
    OutboxRecord,
    SharedEntry,
    StoredCall,
    StoredConfirmation,
    StoredGrant,
    StoredMessage,
    StoredSession,
)

if TYPE_CHECKING:  # few commands prune
    from callgate.core.budgets import PrunablePage, StoreUsage

PAGE = 1_000
"""Default number of events per read."""
POLL_S = 2.0
"""A hint may be lost: a waiting reader checks again after this time."""


class SessionPage(msgspec.Struct, frozen=True):
    sessions: Sequence[StoredSession]
    cursor: str | None
    """Start of the next page; None: this was the last."""


class EventPage(msgspec.Struct, frozen=True):
    """Events of all sessions in the order in which they were committed."""

    events: Sequence[Event]
    cursors: Sequence[str]
    """For each event, the cursor after it."""
    cursor: str
    """The cursor after the last event."""
    seqs: Sequence[int] = ()
    """The number of each event in its session."""
    begin: str = ""
    """The cursor before the first event; set only by `read_last`."""
    pending: bool = False
    """Whether earlier events are still being committed: read again soon."""


class Behind(msgspec.Struct, frozen=True):
    """The events after a cursor."""

    most: int
    """Upper bound of their number; it may include events of deleted sessions."""
    cursor: str
    """The cursor after the last of them."""
    pruned: bool = False
    """Whether events after the cursor were pruned."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A session at one moment: its state after event number `session.last_seq`."""

    session: StoredSession
    calls: Sequence[StoredCall]
    """Calls that have not ended: waiting for approval, or running."""
    confirmations: Sequence[StoredConfirmation]
    """Open questions, and allowed ones whose call has not started."""
    grants: Sequence[StoredGrant]


class Hint(Protocol):
    """Wakes the waiting task in `with store.wake(...) as hint`."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    async def wait(self, limit_s: float = POLL_S) -> bool:
        """Wait for a change since the last wait; False if none was reported."""
        ...


A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class Lease:
    """The time for which this process can rely on owning its sessions without asking the store.

    Other processes take over the sessions of a process that was silent for some time, because it
    was
    suspended or disconnected. Thread-safe.
    """

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s = lasts_s
        self._until = -math.inf

    @staticmethod
    def now() -> float:
        """Return the time of a clock that continues while process or machine are suspended."""
        return time.clock_gettime(_CLOCK)

    def renew(self, at: float) -> None:
        """Extend the lease: other processes have seen a sign of life that is newer than `at`."""
        self._until = at + self._lasts_s

    @property
    def is_valid(self) -> bool:
        return self.now() < self._until


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Store(Protocol):
    owner: str
    """Unique name of this process, as the owner of sessions and calls; never reused."""
    lease: Lease | None
    """None: a living process never loses its sessions, even if it is suspended."""

    @property
    def is_dead(self) -> bool:
        """Whether other processes consider this one dead: it cannot commit and must restart."""
        ...

    def may_hold(self, flush: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Whether events may now wait longer than readers may. The store calls `flush` before a
        reader reads, in this process or in another one."""
        ...

    @overload
    def commit(self, a: Op[A], /) -> asyncio.Future[tuple[A]]: ...
    @overload
    def commit(self, a: Op[A], b: Op[B], /) -> asyncio.Future[tuple[A, B]]: ...
    @overload
    def commit(self, a: Op[A], b: Op[B], c: Op[C], /) -> asyncio.Future[tuple[A, B, C]]: ...
    @overload
    def commit(self, *ops: Op[Any]) -> asyncio.Future[tuple[Any, ...]]: ...
    def commit(self, *ops: Op[Any]) -> asyncio.Future[tuple[Any, ...]]:
        """Write all of these ops or none; the result of each op, in order.

        The ops are queued immediately, in the order of the calls, and are written even if no task
        waits for
        the future. They are durable when the future is done.
        """
        ...

    async def read_events(self, session: str, after: int = 0, limit: int = PAGE) -> Sequence[Event]:
        """Return events after a number: at most `limit`, fewer if they are large, none at the end.

        Each pruned event is replaced by an `EVENTS_PRUNED`.
        """
        ...

    async def read_all(self, after: str | None = None, limit: int = PAGE) -> EventPage:
        """Return events of all sessions after an opaque cursor.

        None is skipped, and events of one session are in order. Events of a running commit may
        follow later.
        """
        ...

    async def read_last(
        self, after: str | None = None, upto: str | None = None, limit: int = PAGE
    ) -> EventPage:
        """Return the newest events of all sessions between two cursors, in ascending order.

        The `begin` of a page is the `upto` of the page before it.
        """
        ...

    async def behind(self, after: str | None = None) -> Behind:
        """Return the number of events after a cursor and the end cursor, without reading them."""
        ...

    async def read_messages(
        self, session: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredMessage]: ...

    async def get_session(self, session: str) -> StoredSession: ...

    async def list_sessions(
        self,
        workspace: str | None = None,
        *,
        cursor: str | None = None,
        limit: int = 50,
        workers: bool = False,
    ) -> SessionPage:
        """List sessions, most recently used first. Concurrent additions make no page skip or repeat
        one.

        Raises `ValueError` for a malformed cursor.
        """
        ...

    async def workers_of(self, session: str) -> Sequence[StoredSession]:
        """Return the sessions that a session started for sub-agents."""
        ...

    async def find_sessions(self, part: str) -> Sequence[str]:
        """Return the ids of all sessions that contain a text, ignoring case; most recently used
        first.
        """
        ...

    async def snapshot(self, session: str) -> Snapshot: ...

    async def open_confirmations(
        self, session: str | None = None
    ) -> Sequence[StoredConfirmation]: ...

    async def get_confirmation(self, id: str) -> StoredConfirmation: ...

    async def open_calls(
        self, session: str | None = None, owner: str | None = None
    ) -> Sequence[StoredCall]:
        """Return the calls that have not ended."""
        ...

    async def get_call(self, id: str) -> StoredCall | None: ...
    async def grants(self, session: str) -> Sequence[StoredGrant]: ...
    async def get_blob(self, sha256: str) -> bytes | None: ...

    async def prunable(
        self, before: float, cursor: str | None = None, limit: int = PAGE
    ) -> PrunablePage:
        """Return what `PruneSessions` would delete among the next `limit` sessions."""
        ...

    async def usage(self) -> StoreUsage: ...

    async def dead_owners(self) -> Sequence[str]:
        """Return the owners of sessions or calls whose process is dead."""
        ...

    async def outbox(self, *, of_dead: bool = False) -> Sequence[OutboxRecord]:
        """Return the records whose lines may be missing from the audit log, in the order of their
        calls.

        `of_dead`: only those with a dead owner.
        """
        ...

    async def cut_sessions(self) -> Sequence[CutSession]: ...

    async def entries(self, kind: str) -> Sequence[SharedEntry]:
        """Return the shared entries of one kind, by name."""
        ...

    async def alive(self, owner: str) -> bool:
        """Whether the process with this name still runs, as far as the store knows."""
        ...

    async def audited_from(self) -> str | None:
        """Return the cursor after which every ended call has a record; None: from the beginning."""
        ...

    def wake(self, *sessions: str) -> Hint:
        """Return a hint for these sessions, or for any; `entries_key` names entries instead."""
        ...

    async def close(self) -> None:
        """Write pending commits and disconnect; the sessions of this process become free."""
        ...


async def tail(store: Store, session: str, after: int = 0) -> AsyncIterator[tuple[int, Event]]:
    """Yield every event after a number and all later ones, each with its number. Never ends."""
    with store.wake(session) as hint:
        while True:
            events = await store.read_events(session, after)
            for event in events:
                after += 1
                yield after, event
            if not events:
                await hint.wait()


def pruned_upto(page: Sequence[Event], after: int) -> int:
    """Return the number up to which events are pruned; 0 if the page starts with another event."""
    if not page or page[0].type != EVENTS_PRUNED:
        return 0
    # By its id: a program may record an event of any type.
    is_ours = page[0].id == pruned_id(page[0].session_id, after + 1)
    return int(page[0].payload["upto"]) if is_ours else 0


def pruned_id(session: str, seq: int) -> str:
    """Return the id of the event that replaces a pruned one."""
    return f"{session}.{seq}"


async def reap_dead(store: Store, at: float, dead: Sequence[str] | None = None) -> list[Reaped]:
    """Close the open calls and sessions of dead processes; once, even if other processes do the
    same.

    `dead`: the owners to examine; None: all.
    """
    dead = await store.dead_owners() if dead is None else dead
    portions = await asyncio.gather(*(_reap(store, owner, at) for owner in dead))
    return [reaped for each in portions for reaped in each]


async def _reap(store: Store, owner: str, at: float) -> list[Reaped]:
    """Commit `Reap` for an owner in batches, and return the result of each."""
    portions: list[Reaped] = []
    while not portions or portions[-1].more:
        (reaped,) = await store.commit(Reap(owner=owner, at=at))
        portions.append(reaped)
    return portions


class StoreError(Exception):
    """A failed operation of the store."""


class SessionNotFound(StoreError):
    def __init__(self, session: str) -> None:
        super().__init__(f"There is no session {session}.")
        self.session = session


class ConfirmationNotFound(StoreError):
    def __init__(self, id: str) -> None:
        super().__init__(f"There is no confirmation {id}.")
        self.id = id


class SessionLocked(StoreError):
    def __init__(self, session: str, owner: str) -> None:
        super().__init__(f"Another process is using session {session}.")
        self.session = session
        self.owner = owner


class StaleOwner(StoreError):
    def __init__(self, session: str) -> None:
        super().__init__(f"Session {session} now belongs to another process.")
        self.session = session


class CallMismatch(StoreError):
    def __init__(self, id: str) -> None:
        super().__init__(f"The id {id} belongs to another call, or to one that has ended.")
        self.id = id


class AnswerMismatch(StoreError):
    def __init__(self, id: str) -> None:
        super().__init__(f"The answer is not for the arguments that confirmation {id} shows.")
        self.id = id


def is_lost(error: BaseException) -> bool:
    """Whether the error means that another process has, or may have, taken over the session."""
    return isinstance(error, StaleOwner) or (
        isinstance(error, StoreUnwritable) and error.reason is Trouble.TAKEN_FOR_DEAD
    )


class Trouble(StrEnum):
    """Problems with the location of the store."""

    FULL = "full"
    READ_ONLY = "read_only"
    BUSY = "busy"
    NO_ACCESS = "no_access"
    IO = "io"
    UNREACHABLE = "unreachable"
    EXHAUSTED = "exhausted"
    TAKEN_FOR_DEAD = "taken_for_dead"


_REASONS = {
    Trouble.FULL: "the disk is full",
    Trouble.READ_ONLY: "it is read-only",
    Trouble.BUSY: "another process did not release it",
    Trouble.NO_ACCESS: "it cannot be opened",
    Trouble.IO: "the disk reports an error",
    Trouble.UNREACHABLE: "the database cannot be reached",
    Trouble.EXHAUSTED: "the database accepts no more connections",
    Trouble.TAKEN_FOR_DEAD: (
        "this process was silent for too long, and others consider it dead; restart it"
    ),
}


class StoreUnwritable(StoreError):
    def __init__(self, location: str, reason: Trouble, *, outcome_unknown: bool = False) -> None:
        super().__init__(f"{location} cannot be written: {_REASONS[reason]}.")
        self.reason = reason
        self.outcome_unknown = outcome_unknown
        """Whether the data may have been written nevertheless."""


class StoreUnreadable(StoreError):
    def __init__(self, location: str, reason: Trouble) -> None:
        super().__init__(f"{location} cannot be read: {_REASONS[reason]}.")
        self.reason = reason


class Salvage(msgspec.Struct, frozen=True, kw_only=True):
    """The readable part of a damaged store, written to a new one next to it."""

    path: str
    rows: Mapping[str, int]
    """Number of rows by kind: sessions, events, ..."""
    lost_events: int
    """Number of events that certainly existed and cannot be read."""


class StoreDamaged(StoreError):
    def __init__(self, path: str, salvage: Salvage | None = None) -> None:
        message = f"{path} is damaged and was not changed."
        if salvage is not None:
            rows = ", ".join(f"{count} {name}" for name, count in salvage.rows.items() if count)
            message += f" The readable part is in {salvage.path}: {rows or 'nothing'}."
        super().__init__(message)
        self.path = path
        self.salvage = salvage


class StoreTooNew(StoreError):
    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(
            f"{path} was written by a newer callgate (format {found}; this one knows {known})."
        )
        self.found = found
        self.known = known


class StoreUnlocked(StoreError):
    def __init__(self, directory: str, why: str) -> None:
        super().__init__(
            f"File locks do not work in {directory}: {why}."
            " Set CALLGATE_HOME to a directory on a local file system."
        )


class EngineTooOld(StoreError):
    def __init__(self, location: str, found: str, needed: str) -> None:
        super().__init__(f"{location} is {found}; callgate needs at least {needed}.")


class StoreAddressInvalid(StoreError):
    def __init__(self, location: str) -> None:
        super().__init__(
            f"{location} is not a database address;"
            " a valid one looks like postgresql://user@host:5432/database."
        )


class UnstorableName(ValueError):
    """A name that the store cannot represent, so that no object has it. Only its lookup fails."""

    def __init__(self) -> None:
        super().__init__("A name with a NUL character or a lone surrogate cannot be stored.")


class MissingPackage(StoreError):
    def __init__(self, setting: str, package: str) -> None:
        super().__init__(f"{setting} needs a package that is not installed: {package}.")


class StoreMisconfigured(StoreError):
    pass


class StoreClosed(StoreError):
    def __init__(self) -> None:
        super().__init__("The store is closed.")
