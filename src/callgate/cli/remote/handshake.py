"""Finds an instance that takes a request: asks whether it serves the directory, in which mode.

    named by hand -> that one, or an error
    else          -> the first of the candidates that takes it, or none

Light to import. `InstanceDeclined` says that an instance cannot or should not do the work;
another instance, or an embedded runtime, may do it then.
"""

from __future__ import annotations

import os

from callgate.cli.remote.connection import (
    ConnectionLost,
    FrameTooLong,
    InstanceConnection,
    UnexpectedPeer,
)
from callgate.cli.ui.terminal import say
from callgate.config import instance_records
from callgate.config.home_check import home_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")

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


def through(options: Any, work: Callable[..., T]) -> T | None:
    """Have `work(connection, path, options, named=...)` done with the instance that was named, or
    with the first that takes it. None: none takes it, and none was named."""
    if options.socket is None and options.instance is None:
        for path in instance_records.candidates(home_path()):
            try:
                return _with(path, options, work, named=False)
            except InstanceDeclined as refusal:
                if refusal.aloud or getattr(options, "verbose", False):
                    say(f"callgate: {refusal}; a runtime of its own is used")
        return None
    try:
        path = options.socket
        if path is None:
            path = _socket_of(options.instance)
        return _with(path, options, work, named=True)
    except InstanceDeclined as refusal:
        raise problem(str(refusal), refusal.error_class, "not_taken", refusal.hint) from None


def _socket_of(instance: str) -> str:
    """Where an instance listens that was named by its pid or label."""
    try:
        return instance_records.named_socket(home_path(), instance)
    except instance_records.NoInstance:
        raise InstanceDeclined(
            f"no instance {instance!r} runs",
            "host_unavailable",
            "callgate status shows what runs.",
        ) from None


def _with(path: str, options: Any, work: Callable[..., T], *, named: bool) -> T:
    try:
        connection = InstanceConnection(path, GREETING_S)
    except ConnectionLost as error:
        raise InstanceDeclined(
            f"no instance answers at {path}: {error}",
            "host_unavailable",
            "callgate status shows what runs.",
            aloud=instance_records.is_live_socket(home_path(), path),
        ) from None
    with connection:
        return work(connection, path, options, named=named)


def workspace_of(options: Any) -> str:
    if str(options.workspace).startswith("pool:"):  # on remote workers (`core.sessions`)
        return str(options.workspace)
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


def problem(message: str, error_class: str, reason: str, hint: str | None) -> Exception:
    from callgate.cli.errors import CliError  # lazy: only for errors  # noqa: PLC0415
    from callgate.core.errors import ToolErrorClass  # lazy: only for errors  # noqa: PLC0415

    return CliError(message, hint=hint, error_class=ToolErrorClass(error_class), reason=reason)
