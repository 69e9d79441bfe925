"""The values that a store keeps."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode, Root

LOCAL = "local"
"""The principal where there is only one person."""


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    workspace: str
    mode: Mode = Mode.ASK
    title: str | None = None
    parent: str | None = None
    """The session that a worker's session works for; such a session is not listed."""
    parent_call: str | None = None
    forked_from: str | None = None
    extra_roots: tuple[Root, ...] = ()
    tags: frozenset[str] = frozenset()
    turn_id: str | None = None
    """The turn under way."""
    meta: Mapping[str, Any] = {}
    """Whatever else belongs to the session; the store does not look inside."""
    labels: Mapping[str, str] = {}
    """What it has read, private or untrusted, and by which call first."""
    principal: str = LOCAL
    """Who made it."""
    created_at: float
    updated_at: float
    """When something last happened in it."""
    last_seq: int = 0
    """The number of its events, and the number of the last."""
    messages: int = 0
    owner: str | None = None
    """Who holds its lock, or held it last if that process is gone."""
    fence: int = 0
    """Grows each time the lock changes hands."""
    acquired_seq: int = 0
    """`last_seq` when its owner took the lock: events after it are that owner's."""

    @property
    def key(self) -> str:
        return self.id


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation, as it was said: unlike events, nothing is redacted."""

    id: str
    turn_id: str | None = None
    body: Mapping[str, Any]
    """The store does not look inside."""


class CallState(StrEnum):
    WAITING = "waiting"
    """A person is asked; it has not started."""
    RUNNING = "running"
    ENDED = "ended"


class StoredCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    session_id: str
    state: CallState
    owner: str
    """The process that runs it, or asks about it."""
    attempt: int = 1
    caller: str = ""
    tool: str = ""
    tool_use_id: str = ""
    turn_id: str | None = None
    side_effects: SideEffects | None = None
    arguments_sha256: str = ""
    summary: str = ""
    """Of the arguments, redacted."""
    principal: str = ""
    """Who made the call."""
    confirmation: str | None = None
    """The last question about it."""
    called: str | None = None
    """The id of the event with which it started."""
    ended: str | None = None
    """The id of the event with which it ended."""

    @property
    def key(self) -> str:
        return self.id


class OutboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a call that has ended, until its line is in the audit log."""

    call_id: str
    owner: str
    """The process that writes the line; if it is gone, another one may. Empty: nobody yet."""
    record: str
    """As JSON; the store does not look inside."""

    @property
    def key(self) -> str:
        return self.call_id


class CutSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session whose owner died: calls without effects may have no end among its events."""

    session_id: str
    owners: tuple[str, ...]
    """Those who are gone."""
    after: int
    upto: int
    """Their events are those after `after`, up to this one."""

    @property
    def key(self) -> str:
        return self.session_id


class SharedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A value that every process which shares the store sees: a rule, a pin, a server's address."""

    kind: str
    name: str
    value: str
    """As JSON; the store does not look inside."""
    version: int = 1
    """Grows with each change."""
    put_by: str = ""
    """The id of the op that set it, where that expected a version."""

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name


def entries_key(kind: str) -> str:
    """What `Store.wake` takes in place of a session, for changes of the entries of one kind."""
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
    """What is shown; the store does not look inside."""
    state: ConfirmationState = ConfirmationState.PENDING
    amended_sha256: str | None = None
    """The arguments that the answer put in place of the question's."""
    answer: Mapping[str, Any] | None = None
    by: str | None = None
    principal: str | None = None
    """Who answered."""
    resolved: str | None = None
    """The id of the event that closed it."""

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
    """Exactly these arguments; None covers any."""
    uses: int | None = None
    """In all; None means without limit."""
    used_by: tuple[str, ...] = ()
    """The calls that used it up so far; not kept where there is no limit."""
    expires_at: float | None = None
    covers_rules: bool = True
    """Whether it answers a question that a rule asks."""
    network: bool = False
    """Whether it was given to a command that asks for the network."""
    destinations: tuple[str, ...] = ()
    """Where the call went that the person allowed."""
    is_narrow: bool = False
    """Only calls that go to these destinations are covered."""
    principal: str = LOCAL
    """Who gave it."""

    @property
    def key(self) -> str:
        return self.id


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """The definition under which a tool of a host or an MCP server was approved."""

    source: str
    tool: str
    sha256: str
    definition: Mapping[str, Any] = {}
    """What was approved, to show what has changed."""
    at: float

    @property
    def key(self) -> tuple[str, str]:
        return self.source, self.tool
