"""Asks an instance whether it serves a directory, and under which mode, before anything else.

Light to import. Raises `InstanceDeclined` if the instance cannot or should not make the call;
another instance, or an embedded runtime, may make it then.
"""

from __future__ import annotations

import os

from callgate.cli.fast.connection import (
    ConnectionLost,
    FrameTooLong,
    InstanceConnection,
    UnexpectedPeer,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

GREETING_S = 2.0
"""How long an instance may take to say whether it serves a directory."""
_TARGET = "target"


class InstanceDeclined(Exception):
    """The instance did not accept the request and has not run it."""

    def __init__(
        self, why: str, error_class: str, hint: str | None = None, *, aloud: bool = False
    ) -> None:
        """`aloud`: tell the person, who would else believe that the instance made the call."""
        super().__init__(why)
        self.error_class = error_class
        self.hint = hint
        self.aloud = aloud


def workspace_of(options: Any) -> str:
    return os.path.abspath(os.path.expanduser(str(options.workspace)))


def greet(
    connection: InstanceConnection, path: str, options: Any, *, named: bool, **more: Any
) -> dict[str, Any]:
    """The instance's `tools_list` for the chosen directory; `more` is asked beside it.

    One that was `named` by hand is asked whatever it serves, and by whichever settings.
    """
    workspace = workspace_of(options)
    if options.debug or os.environ.get("CALLGATE_LOG"):
        raise InstanceDeclined(
            "an instance keeps its own log: --debug and CALLGATE_LOG are for a runtime of its own",
            "validation_error",
        )
    answer = ask(connection, path, {"clientInfo": {"caller": "cli", "cwd": workspace}, **more})
    if answer["workspace"] is None and not named:
        raise InstanceDeclined(
            f"the instance at {path} does not serve this directory", "permission_denied"
        )
    unread = ", ".join(settings_of(answer)["restartFor"])
    if unread and not named:
        raise InstanceDeclined(
            f"the instance at {path} started before {unread} changed in the settings",
            "host_unavailable",
            aloud=True,
        )
    mode = answer.get("mode")
    if options.mode not in (None, mode) and answer["workspace"] is not None:
        raise InstanceDeclined(
            f"the instance runs in mode {mode}, not {options.mode}", "permission_denied"
        )
    return answer


def settings_of(answer: dict[str, Any]) -> dict[str, Any]:
    """By what it decides: `version`, `problem` and `restartFor`."""
    found: dict[str, Any] = {"version": None, "problem": None, "restartFor": []}
    if isinstance(answer.get("settings"), dict):
        found.update(answer["settings"])
    return found


def answered_by_words(answered_by: Mapping[str, str | None]) -> str:
    """Who made a call, and by which policy, for a person."""
    where = answered_by["instance"]
    runtime = "embedded runtime" if where is None else f"instance at {where}"
    return f"{runtime}, policy {answered_by['policy']}"


def ask(connection: InstanceConnection, path: str, request: dict[str, Any]) -> dict[str, Any]:
    """The instance's `tools_list`."""
    answer = _ask(connection, path, {"settings": True, **request})
    if not _is_readable(answer):
        raise InstanceDeclined(
            f"the instance at {path} is of another version",
            "protocol_error",
            "Stop it and start it anew.",
            aloud=True,
        )
    return answer


def _ask(connection: InstanceConnection, path: str, request: dict[str, Any]) -> dict[str, Any]:
    try:
        connection.send({"type": "list_tools", "protocol": 1, "requestId": _TARGET, **request})
        return _answer(connection)
    except (ConnectionLost, FrameTooLong) as error:
        foreign = isinstance(error, UnexpectedPeer)
        raise InstanceDeclined(
            f"no instance answers at {path}: {error}",
            "protocol_error" if foreign else "host_unavailable",
            aloud=True,
        ) from None


def _answer(connection: InstanceConnection) -> dict[str, Any]:
    while True:
        frame = connection.next()
        if frame is None:
            if not connection.wait(GREETING_S):
                raise ConnectionLost("it says nothing")
        elif frame.get("type") == "error":
            return {}
        elif frame.get("requestId") == _TARGET:
            return frame


def _is_readable(answer: dict[str, Any]) -> bool:
    """Whether we can use it; what a newer instance says beside it does not matter."""
    tools, workspace = answer.get("tools"), answer.get("workspace", 0)
    mode = answer.get("mode")
    settings = settings_of(answer)
    if workspace is not None and settings["version"] is None:
        return False
    return (
        isinstance(settings["restartFor"], list)
        and all(isinstance(each, str) for each in settings["restartFor"])
        and all(isinstance(settings[key], str | None) for key in ("version", "problem"))
        and (workspace is None or isinstance(workspace, str))
        and (mode is None or isinstance(mode, str))
        and isinstance(tools, list)
        and all(map(_is_tool, tools))
    )


def _is_tool(tool: Any) -> bool:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        return False
    schema = tool.get("inputSchema")
    return isinstance(schema, dict) and isinstance(schema.get("properties", {}), dict)
