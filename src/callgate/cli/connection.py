"""The connection of a command to a running instance: choice of the instance, greeting, frames."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` itself is four times as large
import os
import select
from _socket import AF_UNIX, SOCK_STREAM, socket

from callgate.cli.ui.terminal import say
from callgate.config import instance_records
from callgate.config.home_check import home_path
from callgate.config.instance_records import is_own_peer
from callgate.protocol.json_texts import dumps, loads

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")


MAX_LINE = 8 * 1024 * 1024
_PIECE = 256 * 1024
_STOP_SIGNALS = tuple(getattr(_signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP"))


class ConnectionLost(Exception):
    """No instance listens, or the connection broke."""


class UnexpectedPeer(ConnectionLost):
    """The peer is not an instance of this user, or does not use callgate's protocol."""


class FrameTooLong(ValueError):
    """A frame exceeds the length of a line."""


class InstanceConnection:
    def __init__(self, path: str, patience_s: float) -> None:
        """Connect. A send to a peer that does not read fails after `patience_s`."""
        self._socket = socket(AF_UNIX, SOCK_STREAM)
        self._received = bytearray()
        self._searched = 0
        """Received bytes that contain no line end."""
        self._frames: list[dict[str, Any]] = []
        try:
            self._socket.settimeout(patience_s)
            self._connect(path, patience_s)
            if not is_own_peer(self._socket):
                raise UnexpectedPeer("it belongs to another user")
        except (OSError, ValueError) as error:
            self._socket.close()
            from callgate.client.link import why_not  # lazy: not where all is well  # noqa: PLC0415

            raise ConnectionLost(why_not(error)) from error
        except ConnectionLost:
            self._socket.close()
            raise

    def _connect(self, path: str, patience_s: float) -> None:
        try:
            self._socket.connect(path)
        except BlockingIOError:
            from callgate.client import link  # lazy: not where all is well  # noqa: PLC0415

            link.connect_again(self._socket, path, patience_s)

    def __enter__(self) -> InstanceConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, *frames: dict[str, Any]) -> None:
        """Send frames. After `ConnectionLost` the last one was not sent completely."""
        lines = [dumps(frame, compact=True).encode() + b"\n" for frame in frames]
        if any(len(line) > MAX_LINE for line in lines):
            raise FrameTooLong
        try:
            self._socket.sendall(b"".join(lines))
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from error

    def next(self) -> dict[str, Any] | None:
        """Take the next frame that has arrived; None if none is complete."""
        arrived = self.arrived()
        return arrived.pop(0) if arrived else None

    def arrived(self) -> list[dict[str, Any]]:
        """Return the complete frames that `next` has not taken yet."""
        while (end := self._received.find(b"\n", self._searched)) >= 0:
            line = bytes(self._received[:end]).strip(b" \t\r")
            del self._received[: end + 1]
            self._searched = 0
            if line:
                self._frames.append(_read(line))
        self._searched = len(self._received)
        if self._searched > MAX_LINE:
            raise UnexpectedPeer("its line is too long")
        return self._frames

    def wait(self, limit_s: float, also: int | None = None) -> bool:
        """Wait for data and receive it; return False after `limit_s` without data.

        A byte at the descriptor `also` also ends the wait.
        """
        waiting = select.poll()
        waiting.register(self._socket.fileno(), select.POLLIN)
        if also is not None:
            waiting.register(also, select.POLLIN)
        ready = [number for number, _ in waiting.poll(limit_s * 1000)]
        if self._socket.fileno() in ready:
            self.take()
        return bool(ready)

    def take(self) -> None:
        """Receive the available data."""
        try:
            piece = self._socket.recv(_PIECE)
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from error
        if not piece:
            raise ConnectionLost("it closed the connection")
        self._received += piece


class StopSignals:
    """Handler of Ctrl-C, SIGTERM and SIGHUP inside a `with` block.

    Signals interrupt nothing: a byte arrives at `descriptor`, and the waiting code takes the
    signal.
    """

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self.first: int | None = None
        """The first signal that was taken."""
        self.count = 0
        """Number of signals that were taken."""

    def __enter__(self) -> StopSignals:
        self.descriptor, self._wakeup = os.pipe()
        for each in (self.descriptor, self._wakeup):
            os.set_blocking(each, False)
        self._woke = _signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self._before = [(each, _signal.signal(each, self._hear)) for each in _STOP_SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before:
            _signal.signal(each, handler if handler is not None else _signal.SIG_DFL)
        _signal.set_wakeup_fd(self._woke)
        os.close(self.descriptor)
        os.close(self._wakeup)

    def take(self) -> int | None:
        """Return the next signal; None if there is none."""
        try:
            os.read(self.descriptor, 64)
        except BlockingIOError:
            pass
        if not self._waiting:
            return None
        number = self._waiting.pop(0)
        self.count += 1
        if self.first is None:
            self.first = number
        return number

    def _hear(self, number: int, _: Any) -> None:
        self._waiting.append(number)


def _read(line: bytes) -> dict[str, Any]:
    try:
        value = loads(line.decode())
    except (ValueError, RecursionError):
        raise UnexpectedPeer("its message is not JSON") from None
    if not isinstance(value, dict):
        raise UnexpectedPeer("its message is not a frame")
    return value


GREETING_S = 2.0
"""Time limit of an instance's answer about a directory."""
_TARGET = "target"


class InstanceDeclined(Exception):
    """The instance did not accept the request and has not run it."""

    def __init__(
        self, why: str, error_class: str, hint: str | None = None, *, aloud: bool = False
    ) -> None:
        """`aloud`: also inform a user who did not name an instance."""
        super().__init__(why)
        self.error_class = error_class
        self.hint = hint
        self.aloud = aloud


def through(options: Any, work: Callable[..., T]) -> T | None:
    """Run `work(connection, path, options, named=...)` with the named or first willing instance.

    Return None if no instance accepts the work and none was named.
    """
    if options.socket is None and options.instance is None:
        for path in instance_records.candidates(home_path()):
            try:
                return _with(path, options, work, named=False)
            except InstanceDeclined as refusal:
                if refusal.aloud or getattr(options, "verbose", False):
                    say(f"callgate: {refusal}; the command uses no instance")
        return None
    try:
        path = options.socket
        if path is None:
            path = _socket_of(options.instance)
        return _with(path, options, work, named=True)
    except InstanceDeclined as refusal:
        raise problem(str(refusal), refusal.error_class, "not_taken", refusal.hint) from None


def _socket_of(instance: str) -> str:
    """Return the socket of an instance from its process id or label."""
    try:
        return instance_records.named_socket(home_path(), instance)
    except instance_records.NoInstance:
        raise InstanceDeclined(
            f"no instance {instance!r} runs",
            "host_unavailable",
            "callgate status lists the running instances.",
        ) from None


def _with(path: str, options: Any, work: Callable[..., T], *, named: bool) -> T:
    try:
        connection = InstanceConnection(path, GREETING_S)
    except ConnectionLost as error:
        raise InstanceDeclined(
            f"no instance answers at {path}: {error}",
            "host_unavailable",
            "callgate status lists the running instances.",
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
    """Return the instance's `tools_list` for the chosen directory; `more` extends the request.

    A `named` instance is accepted even if it does not serve the directory or has older settings.
    """
    workspace = workspace_of(options)
    if options.debug or os.environ.get("CALLGATE_LOG"):
        raise InstanceDeclined(
            "--debug and CALLGATE_LOG have no effect on an instance, which has its own log",
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
    """Return `version`, `problem` and `restartFor` of the instance's settings."""
    found: dict[str, Any] = {"version": None, "problem": None, "restartFor": []}
    if isinstance(answer.get("settings"), dict):
        found.update(answer["settings"])
    return found


def ask(connection: InstanceConnection, path: str, request: dict[str, Any]) -> dict[str, Any]:
    """Return the instance's `tools_list`. Raises `InstanceDeclined`."""
    answer = _ask(connection, path, {"settings": True, **request})
    if not _is_readable(answer):
        raise InstanceDeclined(
            f"the instance at {path} has another version",
            "protocol_error",
            "Restart it.",
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
                raise ConnectionLost("no answer arrived")
        elif frame.get("type") == "error":
            return {}
        elif frame.get("requestId") == _TARGET:
            return frame


def _is_readable(answer: dict[str, Any]) -> bool:
    """Whether the answer is usable. Unknown fields of a newer instance do not matter."""
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
