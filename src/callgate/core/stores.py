"""What outlives the process: the port behind which sessions and all that belongs to them live.

    commit(op, op, ...) ---> all of it or nothing; durable once awaited; written with others
    read_events(session, after) ---> the next events; `after` plus their number is the cursor
    wake(session) ---> a hint that there may be more; it carries nothing and may be late

Replay, live tail and many clients are one path: read a page, wait for a hint or a while, read
again (`tail`). An event's place is (session, seq); seq counts from 1 without a gap. What may
be asked for is closed: the reads below and the ops in `ops`.

    StoreError
    ├── SessionNotFound         no such session, or it was deleted
    ├── ConfirmationNotFound    no such question
    ├── SessionLocked           another living process owns the session
    ├── StaleOwner              the session has gone to another owner since
    ├── CallMismatch            the id of a call that is another one
    ├── AnswerMismatch          an answer for other arguments than the question's
    ├── StoreUnwritable         full, read-only, gone: nothing was written; reads go on
    ├── StoreUnreadable         the disk does not give back what it holds
    ├── StoreDamaged            the file is broken; it is left as it is
    ├── StoreUnlocked           its file system does not enforce locks
    ├── StoreTooNew             written by a newer callgate
    ├── EngineTooOld            a database server of a version that is not supported
    ├── StoreAddressInvalid     what is given as its address is none
    ├── MissingPackage          what the engine needs is not installed
    ├── StoreMisconfigured      the settings name no store that could be there
    └── StoreClosed             used after `close`

After `StoreUnwritable` the outcome may be unknown: the same ops, with the same ids, may be
committed again and are never applied twice. `str(error)` is safe to show to a person.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, overload

import msgspec

from callgate.core.events import EVENTS_PRUNED, Event
from callgate.core.ops import Op, Reap, Reaped
from callgate.core.stored import (
    CutSession,
    OutboxRecord,
    Pin,
    SharedEntry,
    StoredCall,
    StoredConfirmation,
    StoredGrant,
    StoredMessage,
    StoredSession,
)

if TYPE_CHECKING:  # few commands prune
    from callgate.core.pruning.usage import PrunablePage, StoreUsage

PAGE = 1_000
"""Events read at once unless someone asks for fewer."""
POLL_S = 2.0
"""A hint may be lost: whoever waits for one looks again after this long."""


class SessionPage(msgspec.Struct, frozen=True):
    sessions: Sequence[StoredSession]
    cursor: str | None
    """Where the next page begins; None: this was the last."""


class EventPage(msgspec.Struct, frozen=True):
    """Events of all sessions in the order in which they were committed."""

    events: Sequence[Event]
    cursors: Sequence[str]
    """Behind each of them."""
    cursor: str
    """Behind the last."""
    seqs: Sequence[int] = ()
    """The number of each in its session."""
    begin: str = ""
    """Before the first; given by `read_last` alone."""
    pending: bool = False
    """Whether events are being committed that belong before later ones: look again soon."""


class Behind(msgspec.Struct, frozen=True):
    """What there is behind a cursor."""

    most: int
    """At most so many events; those of deleted sessions may be counted."""
    cursor: str
    """Behind the last of them."""
    pruned: bool = False
    """Whether events behind the cursor were pruned."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A session at one moment: what is true after event number `session.last_seq`."""

    session: StoredSession
    calls: Sequence[StoredCall]
    """Not ended: asked about, or running."""
    confirmations: Sequence[StoredConfirmation]
    """Open, or allowed while the call has not started."""
    grants: Sequence[StoredGrant]


class Hint(Protocol):
    """Wakes whoever waits in `with store.wake(...) as hint`."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    async def wait(self, limit_s: float = POLL_S) -> bool:
        """Wait for a change since the last wait; False if there was no word of one."""
        ...


A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class Lease:
    """How long this process may rely on owning its sessions without asking the store.

    Other processes take sessions over from a process that was silent for some time, because it was
    stopped or cut off. Safe to use in several threads.
    """

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s = lasts_s
        self._until = -math.inf

    @staticmethod
    def now() -> float:
        """Return the time by a clock that runs on while the process or the machine is suspended."""
        return time.clock_gettime(_CLOCK)

    def renew(self, at: float) -> None:
        """Others have heard of this process; `at` is a time before that."""
        self._until = at + self._lasts_s

    @property
    def is_valid(self) -> bool:
        return self.now() < self._until


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Store(Protocol):
    owner: str
    """Names this process, and no other one ever, as the owner of sessions and calls."""
    lease: Lease | None
    """None: no living process loses its sessions, stopped or not."""

    @property
    def is_dead(self) -> bool:
        """Whether others took this process for dead: it can commit nothing and must start anew."""
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
        """Write all of these or none; what each op gives back, in their order.

        The ops are taken when this is called, in the order of the calls, and are written
        whether or not anyone waits. They are on the disk when the future is done.
        """
        ...

    async def read_events(self, session: str, after: int = 0, limit: int = PAGE) -> Sequence[Event]:
        """The events after a number, at most `limit`; fewer if they are large, none at the end.

        Where events were pruned stands an `EVENTS_PRUNED` for each.
        """
        ...

    async def read_all(self, after: str | None = None, limit: int = PAGE) -> EventPage:
        """The events of all sessions after an opaque cursor: none is skipped, and those of one
        session are in order. What is being committed just now may follow a moment later."""
        ...

    async def read_last(
        self, after: str | None = None, upto: str | None = None, limit: int = PAGE
    ) -> EventPage:
        """The newest events of all sessions between two cursors, oldest of them first.

        The page before it is read with its `begin` as `upto`.
        """
        ...

    async def behind(self, after: str | None = None) -> Behind:
        """How much there is after a cursor, and where it ends, without reading it."""
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
        """Last used first. What is added meanwhile makes no page skip or repeat a session.

        `ValueError` for a cursor that is not ours.
        """
        ...

    async def workers_of(self, session: str) -> Sequence[StoredSession]:
        """The sessions that were started by one to work for it."""
        ...

    async def find_sessions(self, part: str) -> Sequence[str]:
        """The ids of all sessions that contain a text, whatever its case; last used first."""
        ...

    async def snapshot(self, session: str) -> Snapshot: ...

    async def open_confirmations(
        self, session: str | None = None
    ) -> Sequence[StoredConfirmation]: ...

    async def get_confirmation(self, id: str) -> StoredConfirmation: ...

    async def open_calls(
        self, session: str | None = None, owner: str | None = None
    ) -> Sequence[StoredCall]:
        """The calls that have not ended."""
        ...

    async def get_call(self, id: str) -> StoredCall | None: ...
    async def grants(self, session: str) -> Sequence[StoredGrant]: ...
    async def pins(self, source: str | None = None) -> Sequence[Pin]: ...
    async def get_blob(self, sha256: str) -> bytes | None: ...

    async def prunable(
        self, before: float, cursor: str | None = None, limit: int = PAGE
    ) -> PrunablePage:
        """What `PruneSessions` would remove, among the next `limit` sessions."""
        ...

    async def usage(self) -> StoreUsage: ...

    async def dead_owners(self) -> Sequence[str]:
        """Owners of sessions or calls whose process is gone."""
        ...

    async def outbox(self, *, of_dead: bool = False) -> Sequence[OutboxRecord]:
        """The records whose lines may not be in the audit log, in the order of their calls.

        `of_dead`: only those whose owner is gone.
        """
        ...

    async def cut_sessions(self) -> Sequence[CutSession]: ...

    async def entries(self, kind: str) -> Sequence[SharedEntry]:
        """The shared entries of one kind, by name."""
        ...

    async def alive(self, owner: str) -> bool:
        """Whether the process with this name still runs, as far as the store can tell."""
        ...

    async def audited_from(self) -> str | None:
        """The cursor after which every call that ended has a record; None: from the beginning."""
        ...

    def wake(self, *sessions: str) -> Hint:
        """Hints about these sessions, or about any; `entries_key` names entries instead."""
        ...

    async def close(self) -> None:
        """Write what was committed and leave; the sessions owned here are free again."""
        ...


async def tail(store: Store, session: str, after: int = 0) -> AsyncIterator[tuple[int, Event]]:
    """Every event after a number, and those to come, each with its number. Never ends."""
    with store.wake(session) as hint:
        while True:
            events = await store.read_events(session, after)
            for event in events:
                after += 1
                yield after, event
            if not events:
                await hint.wait()


def pruned_upto(page: Sequence[Event], after: int) -> int:
    """The number up to which events are pruned, if the page after a number begins so; else 0."""
    if not page or page[0].type != EVENTS_PRUNED:
        return 0
    # By its id: an event of a program may have any type.
    is_ours = page[0].id == pruned_id(page[0].session_id, after + 1)
    return int(page[0].payload["upto"]) if is_ours else 0


def pruned_id(session: str, seq: int) -> str:
    """The id of what stands in the place of an event that is pruned."""
    return f"{session}.{seq}"


async def reap_dead(store: Store, at: float, dead: Sequence[str] | None = None) -> list[Reaped]:
    """End what the processes that are gone have left open; once, whoever else does the same.

    `dead` are those that count; None: all."""
    dead = await store.dead_owners() if dead is None else dead
    portions = await asyncio.gather(*(_reap(store, owner, at) for owner in dead))
    return [reaped for each in portions for reaped in each]


async def _reap(store: Store, owner: str, at: float) -> list[Reaped]:
    """What each portion ended."""
    portions: list[Reaped] = []
    while not portions or portions[-1].more:
        (reaped,) = await store.commit(Reap(owner=owner, at=at))
        portions.append(reaped)
    return portions


class StoreError(Exception):
    """Something that the store did not do."""


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
        super().__init__(f"The id {id} is that of another call, or of one that has ended.")
        self.id = id


class AnswerMismatch(StoreError):
    def __init__(self, id: str) -> None:
        super().__init__(f"The answer is not for the arguments that confirmation {id} shows.")
        self.id = id


def is_lost(error: BaseException) -> bool:
    """Whether an error says that another process has, or may have, taken over the session."""
    return isinstance(error, StaleOwner) or (
        isinstance(error, StoreUnwritable) and error.reason is Trouble.TAKEN_FOR_DEAD
    )


class Trouble(StrEnum):
    """What is wrong with the place where the store lives."""

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
    Trouble.BUSY: "another process did not let go of it",
    Trouble.NO_ACCESS: "it cannot be opened",
    Trouble.IO: "the disk reports an error",
    Trouble.UNREACHABLE: "the database cannot be reached",
    Trouble.EXHAUSTED: "the database takes no more connections",
    Trouble.TAKEN_FOR_DEAD: (
        "this process was silent for so long that others took it for dead; it has to start anew"
    ),
}


class StoreUnwritable(StoreError):
    def __init__(self, place: str, reason: Trouble, *, outcome_unknown: bool = False) -> None:
        super().__init__(f"{place} cannot be written: {_REASONS[reason]}.")
        self.reason = reason
        self.outcome_unknown = outcome_unknown
        """Whether it may have been written all the same."""


class StoreUnreadable(StoreError):
    def __init__(self, place: str, reason: Trouble) -> None:
        super().__init__(f"{place} cannot be read: {_REASONS[reason]}.")
        self.reason = reason


class Salvage(msgspec.Struct, frozen=True, kw_only=True):
    """What could be read of a damaged store, written to a sound one beside it."""

    path: str
    rows: Mapping[str, int]
    """By what they are: sessions, events, ..."""
    lost_events: int
    """Known to have been there and not readable."""


class StoreDamaged(StoreError):
    def __init__(self, path: str, salvage: Salvage | None = None) -> None:
        message = f"{path} is damaged and was left as it is."
        if salvage is not None:
            rows = ", ".join(f"{count} {name}" for name, count in salvage.rows.items() if count)
            message += f" What could be read is in {salvage.path}: {rows or 'nothing'}."
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
    def __init__(self, place: str, found: str, needed: str) -> None:
        super().__init__(f"{place} is {found}; callgate needs at least {needed}.")


class StoreAddressInvalid(StoreError):
    def __init__(self, place: str) -> None:
        super().__init__(
            f"{place} is no address of a database;"
            " one looks like postgresql://user@host:5432/database."
        )


class UnstorableName(ValueError):
    """A name that the store cannot hold, so that nothing has it. Only what names it is refused."""

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
