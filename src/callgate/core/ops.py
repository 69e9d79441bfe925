"""Everything that can be changed in a store, as values.

The set is closed. An op carries the ids of what it makes, and the moment where it needs one:
applying it again, because nobody knows whether it was applied, changes nothing. An op about a
session may carry the `fence` that came with its lock; the commit then fails with `StaleOwner`
once the session has another owner.

    call          (asked) waiting ---start---> running ---finish---> ended
                         \\_________________finish_________________/
    confirmation  pending ---> allowed | denied | expired | withdrawn

Both move by compare-and-set: of several who try, one is told that it was the one, and the
others what stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from callgate.core.effects import SideEffects
from callgate.core.events import Event
from callgate.core.ids import ulid
from callgate.core.sessions import Mode, Root
from callgate.core.stored import (
    LOCAL,
    ConfirmationState,
    Pin,
    SharedEntry,
    StoredCall,
    StoredConfirmation,
    StoredGrant,
    StoredMessage,
    StoredSession,
)

T = TypeVar("T")


# What an op gives back, where it is not a value from `stored`.


class CallReceipt(msgspec.Struct, frozen=True):
    applied: bool
    """False: someone else started or ended it; `call` is what stands."""
    call: StoredCall


class Resolution(msgspec.Struct, frozen=True):
    applied: bool
    """False: someone else was first; `confirmation` carries their answer."""
    confirmation: StoredConfirmation


class EntryReceipt(msgspec.Struct, frozen=True):
    applied: bool
    """False: it has another version than the expected one; `entry` is what stands."""
    entry: SharedEntry | None


class Reaped(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    interrupted: Sequence[StoredCall] = ()
    """Had started; what they did is not known."""
    closed: Sequence[StoredCall] = ()
    """Had not started and never will."""
    more: bool = False
    """Whether something of it is left for a further `Reap`."""


# The ops.


class Op(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One change; `T` is what it gives back."""

    sole: ClassVar[bool] = False
    """Whether its commit must not share a transaction: it changes more than it names."""

    @property
    def recorded(self) -> Sequence[Event]:
        """The events that it appends."""
        return ()

    @property
    def sessions(self) -> tuple[str, ...]:
        """The sessions that it names."""
        return ()


class SessionOp(Op[T], Generic[T], frozen=True, kw_only=True):
    session: str
    fence: int | None = None
    """What `Acquire` gave; None where the session's owner is not the one who speaks."""

    @property
    def sessions(self) -> tuple[str, ...]:
        return (self.session,)


class EventOp(SessionOp[T], Generic[T], frozen=True, kw_only=True):
    event: Event

    @property
    def recorded(self) -> Sequence[Event]:
        return (self.event,)


class NewSession(SessionOp[StoredSession], frozen=True, kw_only=True):
    """Make a session; one with this id that exists is given back as it is."""

    workspace: str
    mode: Mode = Mode.ASK
    title: str | None = None
    parent: str | None = None
    parent_call: str | None = None
    extra_roots: tuple[Root, ...] = ()
    tags: frozenset[str] = frozenset()
    meta: Mapping[str, Any] = {}
    principal: str = LOCAL
    at: float

    @property
    def sessions(self) -> tuple[str, ...]:
        return (self.session,) if self.parent is None else (self.session, self.parent)


class UpdateSession(SessionOp[StoredSession], frozen=True, kw_only=True):
    """Change what is set; the rest stays."""

    workspace: str | UnsetType = UNSET
    mode: Mode | UnsetType = UNSET
    title: str | UnsetType | None = UNSET
    extra_roots: tuple[Root, ...] | UnsetType = UNSET
    tags: frozenset[str] | UnsetType = UNSET
    turn_id: str | UnsetType | None = UNSET
    meta: Mapping[str, Any] | UnsetType = UNSET
    labels: Mapping[str, str] | UnsetType = UNSET
    at: float


class Fork(SessionOp[StoredSession], frozen=True, kw_only=True):
    """Copy the events and messages of `session`, up to the end of a turn, to a new one.

    The copies have ids of their own and the numbers of the originals. A call without an end
    among them is ended as interrupted. The new session has no owner, grants or questions.
    """

    new: str
    turn: str | None = None
    """The last turn to copy; None copies everything. `ValueError` for one that is not there."""
    at: float

    @property
    def sessions(self) -> tuple[str, ...]:
        return (self.session, self.new)


class DeleteSession(SessionOp[bool], frozen=True, kw_only=True):
    """Remove a session with its workers; False if there is none.

    `SessionLocked` while another living process owns it.
    """

    sole: ClassVar[bool] = True


class Acquire(SessionOp[int], frozen=True, kw_only=True):
    """Take the lock of a session; the fence. `SessionLocked` if a living process has it.

    What an owner that is gone has left open in it is ended first, as by `Reap`.
    """

    owner: str
    at: float


class Release(SessionOp[bool], frozen=True, kw_only=True):
    """Give the lock back; False if it was not the owner's any more."""

    owner: str


class Append(SessionOp[tuple[int, ...]], frozen=True, kw_only=True):
    """Append events; their numbers. One that is there already keeps its number."""

    events: tuple[Event, ...]

    @property
    def recorded(self) -> Sequence[Event]:
        return self.events


class AppendMessages(SessionOp[tuple[int, ...]], frozen=True, kw_only=True):
    """Append messages of the conversation; their numbers, which are not those of events."""

    messages: tuple[StoredMessage, ...]
    at: float


class DropOutput(SessionOp[int], frozen=True, kw_only=True):
    """Empty the output deltas among the events after `after`, up to `upto`; how many.

    Their places stay, so that the numbers have no gap.
    """

    after: int = 0
    upto: int


class StartCall(EventOp[CallReceipt], frozen=True, kw_only=True):
    """Record that a call starts; the tool may run if and only if it was applied.

    Not applied to a call that started or ended before, whoever did it, nor to one that
    waits for a person who has not allowed it with these very arguments.
    """

    call: str
    owner: str
    attempt: int = 1
    caller: str = ""
    tool: str
    tool_use_id: str = ""
    turn_id: str | None = None
    side_effects: SideEffects
    arguments_sha256: str
    summary: str = ""
    """Of the arguments, redacted: what can be said of the call if its process dies."""
    principal: str = ""


class FinishCall(EventOp[CallReceipt], frozen=True, kw_only=True):
    """Record a call's end with its one terminal event, also of a call that never started.

    Of a running call only its owner, in the same attempt, may tell the end.
    """

    call: str
    owner: str
    attempt: int = 1
    record: str | None = None
    """For the audit log, as JSON: put into the outbox if the op is applied."""


class ClearOutbox(Op[int], frozen=True, kw_only=True):
    """The lines of these calls are in the audit log: forget their records; how many."""

    calls: tuple[str, ...]


class ClaimOutbox(Op[tuple[str, ...]], frozen=True, kw_only=True):
    """Become the one who writes the lines of these calls; the ids of those that are claimed.

    Of several who try one gets each: a record whose owner lives, or is another than the expected
    one, stays as it is. Idempotent.
    """

    calls: tuple[str, ...]
    owner: str
    """Empty: nobody, so that anyone may claim them."""
    expected: str | None = None
    """Whose they must be; None: of an owner that is gone."""


class CloseCutCalls(SessionOp[tuple[str, ...]], frozen=True, kw_only=True):
    """End the calls without effects that dead owners of a session left open; their ids.

    Only after the lines of those owners were read: a call with a line has ended.
    """

    at: float
    owners: tuple[str, ...] | None = None
    """Those whose lines were read; None: of all. While there are others nothing ends, and
    those that are named here are not waited for any more."""


class PutConfirmation(EventOp[StoredConfirmation], frozen=True, kw_only=True):
    """Ask a person about a call, which waits from now on; a question before it is withdrawn."""

    confirmation: str
    call: str
    owner: str
    caller: str = ""
    tool: str
    tool_use_id: str = ""
    turn_id: str | None = None
    """None: a direct call, whose question closes with its caller."""
    side_effects: SideEffects
    arguments_sha256: str
    expires_at: float
    question: Mapping[str, Any]
    summary: str = ""
    principal: str = ""


class ResolveConfirmation(EventOp[Resolution], frozen=True, kw_only=True):
    """Close a question. The first one wins, and only then its event and grants are kept.

    A call that will not run, and whose process and session owner are gone, ends with it.
    """

    confirmation: str
    state: ConfirmationState
    arguments_sha256: str | None = None
    """What the answerer was shown; None if their wire does not say."""
    amended_sha256: str | None = None
    """The arguments that the answer puts in place of the question's; it covers only these."""
    answer: Mapping[str, Any] | None = None
    by: str | None = None
    principal: str | None = None
    grants: tuple[StoredGrant, ...] = ()
    at: float


class ExpireConfirmations(Op[tuple[StoredConfirmation, ...]], frozen=True, kw_only=True):
    """Close every question whose time is over."""

    at: float


class PutGrant(SessionOp[None], frozen=True, kw_only=True):
    grant: StoredGrant


class UseGrant(SessionOp[bool], frozen=True, kw_only=True):
    """Let a call use a grant; False if it is used up, over, or gone."""

    grant: str
    call: str
    at: float


class RevokeGrants(SessionOp[int], frozen=True, kw_only=True):
    """Forget one grant, or all of the session; how many."""

    grant: str | None = None


class PutPin(Op[None], frozen=True, kw_only=True):
    pin: Pin


class DropPins(Op[int], frozen=True, kw_only=True):
    """Forget what was approved of a source, or of one of its tools; how many."""

    source: str
    tool: str | None = None


class PutBlob(Op[str], frozen=True, kw_only=True):
    """Keep bytes too large for an event; their SHA-256 in hex."""

    data: bytes


class DropBlob(Op[bool], frozen=True, kw_only=True):
    sha256: str


class PutEntry(Op[EntryReceipt], frozen=True, kw_only=True):
    """Set a shared entry, or only if its version is the expected one; 0: if there is none.

    The same op once more, as after an answer that was lost, is applied as it was the first time
    while what it wrote stands."""

    kind: str
    name: str
    value: str
    expected: int | None = None
    id: str = msgspec.field(default_factory=ulid)
    """Of this attempt: another who expects the same and writes the same is not this one."""


class DropEntry(Op[EntryReceipt], frozen=True, kw_only=True):
    """Remove a shared entry, or only if its version is the expected one."""

    kind: str
    name: str
    expected: int | None = None


class Reap(Op[Reaped], frozen=True, kw_only=True):
    """End what a process that is gone has left open. Nothing happens while it lives.

    Running calls fail as `interrupted`, once, and are not run again. Questions of direct
    calls are withdrawn. Questions of turns stay open, and what was allowed may still start.
    The records of the calls that end are put into the outbox; the sessions become `CutSession`s.
    At most `most` sessions are dealt with at once.
    """

    sole: ClassVar[bool] = True

    owner: str
    at: float
    most: int = 100
