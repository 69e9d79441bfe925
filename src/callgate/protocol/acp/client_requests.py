"""Requests of an agent to its client (permission, files, terminals, forms), and the answers.

As an agent callgate sends these requests, if the client declared them in `initialize`. As the
client of a third-party agent it reads the same requests and answers them. A request for permission
is read leniently, because unknown parts of it need approval and are never refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from callgate.protocol.acp.initialize import Received, Sent
from callgate.protocol.acp.updates import ToolFields

Count = Annotated[int, msgspec.Meta(ge=0)]


# Permission


class PermissionOption(Sent, frozen=True, kw_only=True):
    option_id: str
    name: str
    kind: Literal["allow_once", "allow_always", "reject_once", "reject_always"]


class RequestPermission(Sent, frozen=True, kw_only=True):
    session_id: str
    tool_call: ToolFields
    options: list[PermissionOption]


class Selected(Received, frozen=True, kw_only=True, tag_field="outcome", tag="selected"):
    option_id: str


class Cancelled(Received, frozen=True, kw_only=True, tag_field="outcome", tag="cancelled"):
    pass


class PermissionAnswer(Received, frozen=True, kw_only=True):
    outcome: Selected | Cancelled


# Files


class ReadTextFile(Sent, frozen=True, kw_only=True):
    session_id: str
    path: str
    """Absolute."""
    line: int | None = None
    """First line to read, from 1."""
    limit: int | None = None
    """Maximum number of lines."""


class TextFile(Received, frozen=True, kw_only=True):
    content: str


class WriteTextFile(Sent, frozen=True, kw_only=True):
    session_id: str
    path: str
    content: str


class Done(Received, frozen=True, kw_only=True):
    """An answer without content."""


# Terminals


class Variable(Sent, frozen=True, kw_only=True):
    name: str
    value: str


class CreateTerminal(Sent, frozen=True, kw_only=True):
    session_id: str
    command: str
    args: list[str] = []
    env: list[Variable] = []
    cwd: str | None = None
    """Absolute."""
    output_byte_limit: int | None = None
    """Limit of the output; its beginning is dropped."""


class TerminalMade(Received, frozen=True, kw_only=True):
    terminal_id: str


class _OfTerminal(Sent, frozen=True, kw_only=True):
    session_id: str
    terminal_id: str


class TerminalOutput(_OfTerminal, frozen=True, kw_only=True):
    pass


class WaitForExit(_OfTerminal, frozen=True, kw_only=True):
    pass


class KillTerminal(_OfTerminal, frozen=True, kw_only=True):
    pass


class ReleaseTerminal(_OfTerminal, frozen=True, kw_only=True):
    pass


class ExitStatus(Received, frozen=True, kw_only=True):
    forgives = True
    exit_code: Count | None = None
    signal: str | int | None = None
    """Name of the signal; some clients send its number."""


class Output(Received, frozen=True, kw_only=True):
    forgives = True
    output: str
    truncated: bool
    exit_status: ExitStatus | None = None
    """None while it runs."""


# Forms


class AskForm(Sent, frozen=True, kw_only=True, tag_field="mode", tag="form"):
    message: str
    requested_schema: dict[str, Any]
    """An object whose properties are texts, numbers, booleans or choices."""
    session_id: str | None = None
    """Either this, or the request that the form belongs to."""
    tool_call_id: str | None = None
    request_id: str | int | None = None


class AskUrl(Sent, frozen=True, kw_only=True, tag_field="mode", tag="url"):
    message: str
    elicitation_id: str
    url: str
    session_id: str | None = None
    tool_call_id: str | None = None
    request_id: str | int | None = None


class FormAnswer(Received, frozen=True, kw_only=True):
    action: str
    """`accept`, `decline` or `cancel`; any other value is no approval."""
    content: dict[str, Any] | None = None


METHODS: Mapping[type[Sent], tuple[str, type[Received]]] = {
    RequestPermission: ("session/request_permission", PermissionAnswer),
    ReadTextFile: ("fs/read_text_file", TextFile),
    WriteTextFile: ("fs/write_text_file", Done),
    CreateTerminal: ("terminal/create", TerminalMade),
    TerminalOutput: ("terminal/output", Output),
    WaitForExit: ("terminal/wait_for_exit", ExitStatus),
    KillTerminal: ("terminal/kill", Done),
    ReleaseTerminal: ("terminal/release", Done),
    AskForm: ("elicitation/create", FormAnswer),
    AskUrl: ("elicitation/create", FormAnswer),
}
"""Methods with the types of their results."""


PERMISSION = "session/request_permission"
READ_FILE = "fs/read_text_file"
WRITE_FILE = "fs/write_text_file"
CREATE_TERMINAL = "terminal/create"
TERMINAL_OUTPUT = "terminal/output"
WAIT_FOR_EXIT = "terminal/wait_for_exit"
KILL_TERMINAL = "terminal/kill"
RELEASE_TERMINAL = "terminal/release"

ToolState = dict[str, Any]
"""The fields of a tool call as an agent spells them."""

_ALLOWS = ("allow_once", "allow_always")
_REJECTS = ("reject_once", "reject_always")


class OfferedOption(Received, frozen=True, kw_only=True):
    option_id: str
    name: str = ""
    kind: str = ""


class PermissionRequest(Received, frozen=True, kw_only=True):
    session_id: str
    tool_call: ToolState
    options: list[OfferedOption]

    @property
    def tool_call_id(self) -> str:
        return str(self.tool_call.get("toolCallId", ""))

    def answer(self, *, allow: bool) -> dict[str, Any]:
        """Select the option for this single call. An agent that remembers an answer would not ask
        again, so such an option is selected only if there is no other."""
        for kind in _ALLOWS if allow else _REJECTS:
            for option in self.options:
                if option.kind == kind:
                    return {"outcome": {"outcome": "selected", "optionId": option.option_id}}
        return CANCELLED


CANCELLED: dict[str, Any] = {"outcome": {"outcome": "cancelled"}}
"""The answer if there is no approval, and no option that rejects."""


class OfTerminal(Received, frozen=True, kw_only=True):
    session_id: str
    terminal_id: str


class FileContent(Sent, frozen=True, kw_only=True):
    content: str


class TerminalCreated(Sent, frozen=True, kw_only=True):
    terminal_id: str


class TerminalExit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    exit_code: int | None
    signal: str | None


class TerminalState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    output: str
    truncated: bool
    exit_status: TerminalExit | None
    """None while it runs."""


def session_id_of(params: Any) -> str | None:
    """Return the session of a message, if it names one."""
    named = params.get("sessionId") if isinstance(params, dict) else None
    return named if isinstance(named, str) else None


def tool_state_of(update: Any) -> ToolState | None:
    """Return the fields of a tool call in an update about it; None for other updates."""
    if not isinstance(update, dict) or not isinstance(update.get("toolCallId"), str):
        return None
    if update.get("sessionUpdate") not in ("tool_call", "tool_call_update"):
        return None
    return {key: value for key, value in update.items() if value is not None}


def has_ended(state: ToolState) -> bool:
    """Whether a tool call has ended."""
    return state.get("status") in ("completed", "failed")


def has_failed(state: ToolState) -> bool:
    return state.get("status") == "failed"
