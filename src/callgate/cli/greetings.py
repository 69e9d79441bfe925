"""Asks an instance whether it serves a directory, and under which mode, before anything else.

Light to import. What it cannot or should not do is `NotTaken`: then somebody else may.
"""

from __future__ import annotations

import os

from callgate.cli import targets
from callgate.cli.wires import Foreign, Lost, TooLong, Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GREETING_S = 2.0
"""How long an instance may take to say whether it serves a directory."""
_TARGET = "target"


class NotTaken(Exception):
    """The instance did not take what was asked and will not."""

    def __init__(self, why: str, error_class: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.error_class = error_class
        self.hint = hint


def workspace_of(options: Any) -> str:
    return os.path.abspath(os.path.expanduser(str(options.workspace)))


def greet(wire: Wire, path: str, options: Any, *, named: bool, **more: Any) -> dict[str, Any]:
    """The instance's `tools_list` for the chosen directory; `more` is asked beside it.

    One that was `named` by hand is asked whatever it serves.
    """
    workspace = workspace_of(options)
    if options.debug or os.environ.get("CALLGATE_LOG"):
        raise NotTaken("an instance keeps its own log: --debug and CALLGATE_LOG are for a "
                       "runtime of its own", "validation_error")  # fmt: skip
    if not named and not targets.knows_settings(path, targets.home(), workspace):
        raise NotTaken("the settings have changed since it started", "host_unavailable")
    answer = _ask(wire, path, {"clientInfo": {"caller": "cli", "cwd": workspace}, **more})
    if not _is_readable(answer):
        raise NotTaken(f"the instance at {path} is of another version", "protocol_error",
                       "Stop it and start it anew.")  # fmt: skip
    if answer["workspace"] is None and not named:
        raise NotTaken("it does not serve this directory", "permission_denied")
    mode = answer.get("mode")
    if options.mode not in (None, mode) and answer["workspace"] is not None:
        raise NotTaken(f"the instance runs in mode {mode}, not {options.mode}",
                       "permission_denied")  # fmt: skip
    return answer


def _ask(wire: Wire, path: str, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        wire.send({"type": "list_tools", "protocol": 1, "requestId": _TARGET, **asked})
        return _answer(wire)
    except (Lost, TooLong) as error:
        foreign = isinstance(error, Foreign)
        raise NotTaken(f"no instance answers at {path}: {error}",
                       "protocol_error" if foreign else "host_unavailable") from None  # fmt: skip


def _answer(wire: Wire) -> dict[str, Any]:
    while True:
        frame = wire.next()
        if frame is None:
            if not wire.wait(GREETING_S):
                raise Lost("it says nothing")
        elif frame.get("type") == "error":
            return {}
        elif frame.get("requestId") == _TARGET:
            return frame


def _is_readable(answer: dict[str, Any]) -> bool:
    """Whether we can use it; what a newer instance says beside it does not matter."""
    tools, workspace = answer.get("tools"), answer.get("workspace", 0)
    mode = answer.get("mode")
    return (
        (workspace is None or isinstance(workspace, str))
        and (mode is None or isinstance(mode, str))
        and isinstance(tools, list)
        and all(map(_is_tool, tools))
    )


def _is_tool(tool: Any) -> bool:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        return False
    schema = tool.get("inputSchema")
    return isinstance(schema, dict) and isinstance(schema.get("properties", {}), dict)
