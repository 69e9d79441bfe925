"""All changes of a store, as values.

The set is closed. An op carries the ids that it creates and, if needed, a timestamp. So an op
whose outcome is unknown can be applied again without effect. An op on a
session may carry the `fence` from the session's lock; the commit then fails with `StaleOwner`
once the session has another owner.

    call          (pending) waiting ---start---> running ---finish---> ended
                         \\_________________finish_________________/
    confirmation  pending ---> allowed | denied | expired | withdrawn

Both change by compare-and-set: if several processes try, one is applied, and the others receive
the current state.
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
    SharedEntry,
    StoredCall,
    StoredConfirmation,
    StoredGrant,
    StoredMessage,
    StoredSession,
)

T = TypeVar("T")


# Results of ops, except for values from `stored`.


class CallReceipt(msgspec.Struct, frozen=True):
    applied: bool
    """False: another process started or ended it; `call` is the current state."""
    call: StoredCall


class Resolution(msgspec.Struct, frozen=True):
    applied: bool
    """False: another answer was first; `confirmation` contains it."""
    confirmation: StoredConfirmation


class EntryReceipt(msgspec.Struct, frozen=True):
    applied: bool
    """False: the entry has another version than the expected one; `entry` is the current state."""
    entry: SharedEntry | None


class Reaped(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    interrupted: Sequence[StoredCall] = ()
    """Calls that had started; their effects are unknown."""
    closed: Sequence[StoredCall] = ()
    """Calls that had not started and never will."""
    more: bool = False
    """Whether another `Reap` is needed."""


# The ops.


class Op(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One change; `T` is its result."""

    sole: ClassVar[bool] = False
    """The commit must not share a transaction, because it changes more than the op names."""

    @property
    def recorded(self) -> Sequence[Event]:
        """The events that the op appends."""
        return ()

    @property
    def sessions(self) -> tuple[str, ...]:
        """The sessions that the op names."""
        return ()


class SessionOp(Op[T], Generic[T], frozen=True, kw_only=True):
    session: str
    fence: int | None = None
    """The result of `Acquire`; None if the caller is not the owner of the session."""

    @property
    def sessions(self) -> tuple[str, ...]:
        return (self.session,)


class EventOp(SessionOp[T], Generic[T], frozen=True, kw_only=True):
    event: Event

    @property
    def recorded(self) -> Sequence[Event]:
        return (self.event,)


class NewSession(SessionOp[StoredSession], frozen=True, kw_only=True):
    """Create a session; if one with this id exists, return it unchanged."""

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
    """Change the fields that are set."""

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

    The copies have new ids and the numbers of the originals. A copied call without an end
    ends as interrupted. The new session has no owner, grants or questions.
    """

    new: str
    turn: str | None = None
    """The last turn to copy; None copies everything. Raises `ValueError` for an unknown turn."""
    at: float

    @property
    def sessions(self) -> tuple[str, ...]:
        return (self.session, self.new)


class DeleteSession(SessionOp[bool], frozen=True, kw_only=True):
    """Remove a session with its sub-agents; the result is False if it does not exist.

    Raises `SessionLocked` while another living process owns it.
    """

    sole: ClassVar[bool] = True


class Acquire(SessionOp[int], frozen=True, kw_only=True):
    """Take the lock of a session; the result is the fence.

    Raises `SessionLocked` if a living process owns it. Calls and questions of a dead owner are
    closed first, as by `Reap`.
    """

    owner: str
    at: float


class Release(SessionOp[bool], frozen=True, kw_only=True):
    """Release the lock; the result is False if the owner had already lost it."""

    owner: str


class Append(SessionOp[tuple[int, ...]], frozen=True, kw_only=True):
    """Append events; the result is their numbers. An event that exists keeps its number."""

    events: tuple[Event, ...]

    @property
    def recorded(self) -> Sequence[Event]:
        return self.events


class AppendMessages(SessionOp[tuple[int, ...]], frozen=True, kw_only=True):
    """Append messages of the conversation; the result is their numbers, separate from events."""

    messages: tuple[StoredMessage, ...]
    at: float


class DropOutput(SessionOp[int], frozen=True, kw_only=True):
    """Empty the output deltas among the events after `after`, up to `upto`; the result is their
    count.

    The events remain, so that the numbers have no gap.
    """

    after: int = 0
    upto: int


class StartCall(EventOp[CallReceipt], frozen=True, kw_only=True):
    """Record the start of a call; the tool may run if and only if the op was applied.

    It is not applied to a call that has started or ended, nor to a call that waits for approval of
    exactly these arguments.
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
    """Redacted summary of the arguments, for a report if the process dies."""
    principal: str = ""


class FinishCall(EventOp[CallReceipt], frozen=True, kw_only=True):
    """Record a call's end with its one terminal event, also of a call that never started.

    A running call can be ended only by its owner, in the same attempt.
    """

    call: str
    owner: str
    attempt: int = 1
    record: str | None = None
    """Line for the audit log, as JSON: goes to the outbox if the op is applied."""


class ClearOutbox(Op[int], frozen=True, kw_only=True):
    """Delete the outbox records of these calls, whose lines are in the audit log; returns the
    count.
    """

    calls: tuple[str, ...]


class ClaimOutbox(Op[tuple[str, ...]], frozen=True, kw_only=True):
    """Claim the writing of these calls' audit lines; the result is the ids of the claimed calls.

    Each record has at most one claimant. A record whose owner lives, or is not the expected one,
    stays unchanged. Idempotent.
    """

    calls: tuple[str, ...]
    owner: str
    """Empty: releases the records, so that any process can claim them."""
    expected: str | None = None
    """Required present owner; None: any dead owner."""


class CloseCutCalls(SessionOp[tuple[str, ...]], frozen=True, kw_only=True):
    """End the calls without effects that dead owners of a session left open; the result is their
    ids.

    Allowed only after the lines of those owners were read: a call with a line has ended.
    """

    at: float
    owners: tuple[str, ...] | None = None
    """Owners whose lines were read; None: all. While other owners remain no call ends, and the
    named owners are removed from the list.
    """


class PutConfirmation(EventOp[StoredConfirmation], frozen=True, kw_only=True):
    """Ask for approval of a call, which then waits; withdraws an earlier question."""

    confirmation: str
    call: str
    owner: str
    caller: str = ""
    tool: str
    tool_use_id: str = ""
    turn_id: str | None = None
    """None: a direct call, whose question closes when its caller leaves."""
    side_effects: SideEffects
    arguments_sha256: str
    expires_at: float
    question: Mapping[str, Any]
    summary: str = ""
    principal: str = ""


class ResolveConfirmation(EventOp[Resolution], frozen=True, kw_only=True):
    """Close a question. The first answer wins; only its event and grants are stored.

    A call that will not run, and whose process and session owner are dead, ends with it.
    """

    confirmation: str
    state: ConfirmationState
    arguments_sha256: str | None = None
    """Hash of the arguments that the approver saw; None if the wire does not carry it."""
    amended_sha256: str | None = None
    """Hash of the arguments that the approver substituted."""
    answer: Mapping[str, Any] | None = None
    by: str | None = None
    principal: str | None = None
    grants: tuple[StoredGrant, ...] = ()
    at: float


class ExpireConfirmations(Op[tuple[StoredConfirmation, ...]], frozen=True, kw_only=True):
    """Close every expired question."""

    at: float


class PutGrant(SessionOp[None], frozen=True, kw_only=True):
    grant: StoredGrant


class UseGrant(SessionOp[bool], frozen=True, kw_only=True):
    """Use a grant for a call; the result is False if the grant is used up, expired or gone."""

    grant: str
    call: str
    at: float


class RevokeGrants(SessionOp[int], frozen=True, kw_only=True):
    """Delete one grant, or all of the session; the result is the count."""

    grant: str | None = None


class PutBlob(Op[str], frozen=True, kw_only=True):
    """Store bytes that are too large for an event; the result is their SHA-256 in hex."""

    data: bytes


class DropBlob(Op[bool], frozen=True, kw_only=True):
    sha256: str


class PutEntry(Op[EntryReceipt], frozen=True, kw_only=True):
    """Set a shared entry, or only if its version is the expected one; 0: if there is none.

    A repeated op, as after a lost response, has the same result while its value
    is current.
    """

    kind: str
    name: str
    value: str
    expected: int | None = None
    id: str = msgspec.field(default_factory=ulid)
    """Identifies this attempt: another process may write the same value for the same version."""


class DropEntry(Op[EntryReceipt], frozen=True, kw_only=True):
    """Remove a shared entry, or only if its version is the expected one."""

    kind: str
    name: str
    expected: int | None = None


class Reap(Op[Reaped], frozen=True, kw_only=True):
    """Close the calls, questions and sessions of a dead process. No effect while it lives.

    Running calls fail as `interrupted`, once, and do not run again. Questions of direct
    calls are withdrawn. Questions of turns stay open, and allowed calls may still start.
    The records of the ended calls go to the outbox; the sessions become `CutSession`s.
    One op handles at most `most` sessions.
    """

    sole: ClassVar[bool] = True

    owner: str
    at: float
    most: int = 100
