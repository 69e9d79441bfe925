"""What we ask of a client (permission, files, terminals, forms), and its answers.

Nothing here may be asked unless the client said in its greeting that it can.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from callgate.protocol.acp.reading import Received, Sent
from callgate.protocol.acp.values import ToolFields

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
    """The first that is wanted, from 1."""
    limit: int | None = None
    """Lines."""


class TextFile(Received, frozen=True, kw_only=True):
    content: str


class WriteTextFile(Sent, frozen=True, kw_only=True):
    session_id: str
    path: str
    content: str


class Done(Received, frozen=True, kw_only=True):
    """The answer where there is nothing to say."""


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
    """What is more is dropped from the beginning."""


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
    """Its name; some send its number."""


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
    """This, or the request that it belongs to."""
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
    """`accept`, `decline` or `cancel`; whatever else there may be is no yes."""
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
"""By what is asked: its method, and what answers it."""
