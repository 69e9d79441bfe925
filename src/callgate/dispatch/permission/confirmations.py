"""The question to a person about a call, and the answer, as values.

A question is built from the arguments that will run and carries their hash; an answer covers
exactly those bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from callgate.core.calls import CallerKind
from callgate.core.clients import Client
from callgate.core.content import FileDiff
from callgate.core.effects import SideEffects
from callgate.core.events import Event
from callgate.core.stored import LOCAL, ConfirmationState
from callgate.policy.provenance.sources import Trace
from callgate.policy.rules import Outcome


class Scope(StrEnum):
    ONCE = "once"
    DESTINATION = "destination"
    """The same tool to the same destinations, for the rest of the session."""
    SESSION = "session"
    """The same tool, for the rest of the session."""
    ALWAYS = "always"
    """A saved rule, bound to a pattern of arguments."""


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """The question."""

    id: str
    event_id: str
    """Of the event with which it was asked."""
    call_id: str
    tool_use_id: str
    session_id: str
    turn_id: str | None
    tool: str
    side_effects: SideEffects
    destructive: bool
    arguments: Mapping[str, Any]
    arguments_sha256: str
    workspace: str
    why: str
    """Why it is asked, in a sentence."""
    input_summary: str
    """Redacted and bounded."""
    preview: str | None = None
    """What will happen, beside the arguments and never in their place. Untrusted text."""
    preview_is_ours: bool = False
    """A built-in tool worked it out; else it is the tool's own word for what it will do."""
    diffs: tuple[FileDiff, ...] = ()
    """The same for whoever shows changes of text files side by side."""
    projected_modifications: tuple[str, ...] = ()
    command_summary: str | None = None
    sandbox: str | None = None
    """What its commands will run in, where the tool runs any."""
    caller: CallerKind | None = None
    client: Client | None = None
    """Who asks, as the surface found it; never from the message of a call."""
    always_ask: bool = False
    """Only an answer to this very question counts: no flag that allows calls gives one."""
    provenance: tuple[Trace, ...] = ()
    """Where the values of the arguments come from, as far as the conversation is known."""
    provenance_lines: tuple[str, ...] = ()
    """The same for a person, a short line for each value that matters."""
    destinations: tuple[str, ...] = ()
    """Where it goes: what an answer with scope `destination` covers."""
    expires_at: float


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    decision: Outcome
    """`allow` or `deny`."""
    scope: Scope = Scope.ONCE
    arguments: Mapping[str, Any] | None = None
    """What to run instead; it goes through every check again."""
    pattern: str | None = None
    """With scope always: the pattern to save, as the person edited it."""
    reason: str | None = None
    """Told to the agent with a no."""
    by: str = "user"
    """Who answered, through which client."""
    principal: str = LOCAL
    """Who answered, as the session's owner knows people."""

    @classmethod
    def read(cls, answer: Answer | bool | str, by: str = "user") -> Answer:
        """Take an answer in any of the words people use for it."""
        if isinstance(answer, Answer):
            return answer
        if answer is True or answer == "allow":
            return cls(decision=Outcome.ALLOW, by=by)
        if answer == "always-allow-this-tool":
            return cls(decision=Outcome.ALLOW, scope=Scope.SESSION, by=by)
        if answer is False or answer == "deny":
            return cls(decision=Outcome.DENY, by=by)
        raise ValueError(f"not an answer: {answer!r}")


class Receipt(msgspec.Struct, frozen=True):
    applied: bool
    """False: someone else was first, and `answer` is theirs."""
    answer: Answer | None
    """None where the question ran out of time or was withdrawn."""


class Closed(msgspec.Struct, frozen=True):
    """How a question ended."""

    state: ConfirmationState
    answer: Answer | None
    """None where nobody answered."""
    event: Event
    """The one that says so."""


Confirmer = Callable[[Confirmation], Awaitable[Answer | bool | str]]
