"""Confirmation of a call and its answer, as values, with the text that every surface shows. Pure.

A confirmation is built from the arguments that will run and carries their hash; an answer covers
exactly those bytes.

    arguments_text    every argument as it will run, unabridged
    requester_text    the requester: facts that a surface knows, then the client's own name
    preview_heading   author of the preview: callgate or the tool

All three return untrusted text: a surface makes invisible characters visible and selects the part
that fits. A mark replaces the remainder, which an approver must open before approving.

    command = "make test"
    message:
        A text of more than one line, or one with quotes.
        Each of its lines is indented, so that none passes for another argument.
    retries = 3
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from callgate.core.calls import CallerKind
from callgate.core.commands import CONNECT_HOST
from callgate.core.content import FileDiff
from callgate.core.effects import SideEffects
from callgate.core.events import Event
from callgate.core.sessions import Client
from callgate.core.stored import LOCAL, ConfirmationState
from callgate.policy.provenance.sources import Trace
from callgate.policy.rules import Outcome, Proposal


class Scope(StrEnum):
    ONCE = "once"
    RUN = "run"
    """The same host, until the process that contacts it ends. For other calls: once."""
    DESTINATION = "destination"
    """The same tool to the same destinations, for the rest of the session."""
    SESSION = "session"
    """The same tool, for the rest of the session."""
    ALWAYS = "always"
    """A saved rule, bound to a pattern of arguments."""


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """The question to an approver."""

    id: str
    event_id: str
    """The id of its `confirmation.requested` event."""
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
    """The reason for the question, in a sentence."""
    input_summary: str
    """Redacted and bounded."""
    preview: str | None = None
    """The effect of the call, in addition to the arguments. Untrusted text."""
    preview_is_ours: bool = False
    """Whether a built-in tool wrote the preview. Otherwise it is the tool's unverified claim."""
    diffs: tuple[FileDiff, ...] = ()
    """The preview as changes of text files, for clients that show them side by side."""
    projected_modifications: tuple[str, ...] = ()
    command_summary: str | None = None
    sandbox: str | None = None
    """The sandbox of its commands, if the tool runs any."""
    caller: CallerKind | None = None
    client: Client | None = None
    """The requesting client, as the surface identified it; never taken from the call itself."""
    always_ask: bool = False
    """Only an answer to this question counts; flags that allow calls do not."""
    provenance: tuple[Trace, ...] = ()
    """The sources of the argument values, as far as the conversation shows them."""
    provenance_lines: tuple[str, ...] = ()
    """The sources for an approver, a short line for each relevant value."""
    destinations: tuple[str, ...] = ()
    """The destinations that an answer with scope `destination` covers."""
    proposals: tuple[Proposal, ...] = ()
    """Patterns for an answer with scope `always`, each with its coverage; the narrowest first."""
    expires_at: float

    @property
    def scopes(self) -> frozenset[Scope]:
        """The scopes that an answer may have."""
        if self.tool == CONNECT_HOST:
            return frozenset(Scope) - {Scope.SESSION}
        left_out = {Scope.RUN, *(() if self.destinations else (Scope.DESTINATION,))}
        return frozenset(Scope) - left_out


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    decision: Outcome
    """`allow` or `deny`."""
    scope: Scope = Scope.ONCE
    arguments: Mapping[str, Any] | None = None
    """Arguments to run instead; they pass every check again."""
    pattern: str | None = None
    """For scope `always`: the pattern to save, as edited by the approver."""
    reason: str | None = None
    """Sent to the agent with a denial."""
    by: str = "user"
    """The approver and the client of the answer."""
    principal: str = LOCAL
    """The approver's principal."""

    @classmethod
    def read(cls, answer: Answer | bool | str, by: str = "user") -> Answer:
        """Convert any accepted form of an answer."""
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
    """False: another answer was first, and `answer` has it."""
    answer: Answer | None
    """None if the question expired or was withdrawn."""


class Closed(msgspec.Struct, frozen=True):
    """The end of a question."""

    state: ConfirmationState
    answer: Answer | None
    """None if the question expired or was withdrawn."""
    event: Event
    """The `confirmation.resolved` event."""


Confirmer = Callable[[Confirmation], Awaitable[Answer | bool | str]]


_INDENT = "    "
_LONGEST_VALUE = 80
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_HARD_TO_READ_QUOTED = re.compile(r'[\x00-\x1f"\\]')
_KINDS = {
    CallerKind.CLI: "command line",
    CallerKind.PLUGIN: "plugin",
    CallerKind.AGENT: "agent",
    CallerKind.LLM: "model",
    CallerKind.ACP: "editor",
    CallerKind.HTTP: "HTTP client",
    CallerKind.MCP: "MCP",
    CallerKind.LIBRARY: "program",
    CallerKind.RENDERER: "user interface",
    CallerKind.INTERNAL: "callgate itself",
}


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Return all arguments as unambiguous text: different arguments have different texts."""
    return "\n".join(_argument(name, value) for name, value in arguments.items())


def _argument(name: str, value: Any) -> str:
    label = name if _PLAIN_NAME.match(name) else _json(name)
    if isinstance(value, str) and _HARD_TO_READ_QUOTED.search(value):
        return "\n".join([f"{label}:", *(_INDENT + line for line in value.split("\n"))])
    return f"{label} = {_json(value)}"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _shortened(value: str) -> str:
    return value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - 1] + "…"


def destinations_text(question: Confirmation) -> str:
    """Return the destinations that an answer with scope `destination` covers."""
    shown = [_shortened(each.removesuffix("/")) for each in question.destinations]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


def requester_text(question: Confirmation) -> str:
    """Return a line about the requesting client."""
    kind = "unknown" if question.caller is None else _KINDS[question.caller]
    facts = [kind if question.turn_id is None else f"{kind} in session {question.session_id}"]
    client = question.client
    if client is None:
        return facts[0]
    if client.process is not None:
        program = "" if client.program is None else f" ({os.path.basename(client.program)})"
        facts.append(f"process {client.process}{program}")
    if client.directory is not None:
        facts.append(f"in {client.directory}")
    if client.address is not None:
        facts.append(f"from {client.address}")
    if client.name is not None:
        facts.append(f"calls itself {_json(client.name)} (not checked)")
    return ", ".join(facts)


def preview_heading(question: Confirmation) -> str:
    if question.preview_is_ours:
        return "what callgate expects to change"
    return "in the tool's own words (not checked)"
