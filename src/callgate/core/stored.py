"""The values in a store."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode, Root

LOCAL = "local"
"""The principal if there is only one person."""


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    workspace: str
    mode: Mode = Mode.ASK
    title: str | None = None
    parent: str | None = None
    """The session that started this sub-agent's session, which session lists omit."""
    parent_call: str | None = None
    forked_from: str | None = None
    extra_roots: tuple[Root, ...] = ()
    tags: frozenset[str] = frozenset()
    turn_id: str | None = None
    """The running turn."""
    meta: Mapping[str, Any] = {}
    """Other data of the session; opaque to the store."""
    labels: Mapping[str, str] = {}
    """Labels of content that it has read, private or untrusted, each with the first call that read
    it.
    """
    principal: str = LOCAL
    """The principal that created it."""
    created_at: float
    updated_at: float
    """Time of its last activity."""
    last_seq: int = 0
    """Number of its events, and the number of the last event."""
    messages: int = 0
    owner: str | None = None
    """The owner of its lock, or the last one if that process is dead."""
    fence: int = 0
    """Increases with each change of the lock's owner."""
    acquired_seq: int = 0
    """`last_seq` when the owner took the lock: later events are from this owner."""

    @property
    def key(self) -> str:
        return self.id


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation, unchanged: unlike events, it is not redacted."""

    id: str
    turn_id: str | None = None
    body: Mapping[str, Any]
    """Opaque to the store."""


class CallState(StrEnum):
    WAITING = "waiting"
    """Waits for approval; it has not started."""
    RUNNING = "running"
    ENDED = "ended"


class StoredCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    session_id: str
    state: CallState
    owner: str
    """The process that runs it, or requests its approval."""
    attempt: int = 1
    caller: str = ""
    tool: str = ""
    tool_use_id: str = ""
    turn_id: str | None = None
    side_effects: SideEffects | None = None
    arguments_sha256: str = ""
    summary: str = ""
    """Redacted summary of the arguments."""
    principal: str = ""
    """The principal that made the call."""
    confirmation: str | None = None
    """Id of its latest question."""
    called: str | None = None
    """Id of the event with which it started."""
    ended: str | None = None
    """Id of the event with which it ended."""

    @property
    def key(self) -> str:
        return self.id


class OutboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The audit record of an ended call, until its line is in the audit log."""

    call_id: str
    owner: str
    """The process that writes the line; if it is dead, another one can. Empty: no process yet."""
    record: str
    """As JSON; opaque to the store."""

    @property
    def key(self) -> str:
        return self.call_id


class CutSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session whose owner died: its events may lack the end of calls without effects."""

    session_id: str
    owners: tuple[str, ...]
    """The dead owners."""
    after: int
    upto: int
    """The owners' events are those after `after`, up to this one."""

    @property
    def key(self) -> str:
        return self.session_id


class SharedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A value for all processes that share the store: a rule, a pin, a server's address."""

    kind: str
    name: str
    value: str
    """As JSON; opaque to the store."""
    version: int = 1
    """Increases with each change."""
    put_by: str = ""
    """Id of the op that set it, if that op expected a version."""

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name


def entries_key(kind: str) -> str:
    """Return the argument of `Store.wake` for changes of the entries of one kind."""
    return f"@{kind}"


class ConfirmationState(StrEnum):
    PENDING = "pending"
    ALLOWED = "allowed"
    DENIED = "denied"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


class StoredConfirmation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    session_id: str
    call_id: str
    arguments_sha256: str
    expires_at: float
    question: Mapping[str, Any]
    """The displayed question; opaque to the store."""
    state: ConfirmationState = ConfirmationState.PENDING
    amended_sha256: str | None = None
    """Hash of the arguments that the approver substituted."""
    answer: Mapping[str, Any] | None = None
    by: str | None = None
    principal: str | None = None
    """The principal that answered."""
    resolved: str | None = None
    """Id of the event that closed it."""

    @property
    def key(self) -> str:
        return self.id


class StoredGrant(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    session_id: str
    tool: str | None
    """None covers every tool of the session."""
    decision: str
    arguments_sha256: str | None = None
    """Covers exactly these arguments; None: any."""
    uses: int | None = None
    """Total number of uses; None: unlimited."""
    used_by: tuple[str, ...] = ()
    """The calls that have used it; not stored if there is no limit."""
    expires_at: float | None = None
    covers_rules: bool = True
    """Whether it answers questions that rules raise."""
    network: bool = False
    """Whether the approved call was a command that requests network access."""
    destinations: tuple[str, ...] = ()
    """Destinations of the approved call."""
    is_narrow: bool = False
    """It covers only calls to these destinations."""
    principal: str = LOCAL
    """The principal that gave it."""

    @property
    def key(self) -> str:
        return self.id
