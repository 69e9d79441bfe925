"""What an agent asks of a client, read by us as that client, and our answers.

The same messages as in `client`, seen from the other side: there we send the requests, here we
receive them. Files and terminals are read as `client` spells them; a question about permission is
read with forgiveness, because what cannot be understood of it is asked about and never refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from callgate.protocol.acp.reading import Received, Sent

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
        """Select the option that says so for this once. An agent that remembers an answer asks
        no more, so one that is remembered is chosen only where there is no other."""
        for kind in _ALLOWS if allow else _REJECTS:
            for option in self.options:
                if option.kind == kind:
                    return {"outcome": {"outcome": "selected", "optionId": option.option_id}}
        return CANCELLED


CANCELLED: dict[str, Any] = {"outcome": {"outcome": "cancelled"}}
"""Nobody answered, or there is no option that says no."""


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
    """The session that a message is about, if it names one."""
    named = params.get("sessionId") if isinstance(params, dict) else None
    return named if isinstance(named, str) else None


def tool_state_of(update: Any) -> ToolState | None:
    """The fields of a tool call that an update announces or changes; None for other updates."""
    if not isinstance(update, dict) or not isinstance(update.get("toolCallId"), str):
        return None
    if update.get("sessionUpdate") not in ("tool_call", "tool_call_update"):
        return None
    return {key: value for key, value in update.items() if value is not None}


def has_ended(state: ToolState) -> bool:
    """Whether a tool call has come to its end."""
    return state.get("status") in ("completed", "failed")


def has_failed(state: ToolState) -> bool:
    return state.get("status") == "failed"
