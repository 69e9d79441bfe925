"""HTTP requests to a running instance of this home: its state, its termination, its hosts.

The port comes from a file, and after a crash any user of the machine may listen there. The
listener therefore proves that it has the token, before the token is sent on the same connection.
"""

from __future__ import annotations

import hmac
import http.client
import json
import os
import secrets
import signal
import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from callgate.cli.connection import (
    GREETING_S,
    ConnectionLost,
    InstanceConnection,
    InstanceDeclined,
    ask,
    settings_of,
)
from callgate.cli.errors import CliError
from callgate.cli.ui import provenance
from callgate.cli.ui.terminal import say
from callgate.config.home import Home
from callgate.config.instance_records import is_alive
from callgate.config.load import SettingsError, load_user
from callgate.config.schema import InstanceTable
from callgate.core.errors import ToolErrorClass
from callgate.protocol.socket_v1.frames import HostEntry
from callgate.socket.instances import InstanceRecord, lasting, live, proof_of, running, token_path

_LIMIT_S = 10.0
_LONGEST_PROOF = 1_000


class UnprovenListener(Exception):
    """Error: the process at the instance's address does not have its token."""


class InstanceHttp:
    def __init__(self, home: str, instance: InstanceRecord) -> None:
        self._home = home
        self.instance = instance

    def request(self, method: str, path: str, body: Any = None, limit_s: float = _LIMIT_S) -> Any:
        """Send a request, and return the body of the answer. Blocks.

        Raises `CliError`; a refusal has the message of the instance.
        """
        instance = self.instance
        try:
            connection, token = self._connect(limit_s)
            try:
                headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
                data = None if body is None else json.dumps(body).encode()
                connection.request(method, path, data, headers)
                answer = connection.getresponse()
                payload = json.loads(answer.read())
            finally:
                connection.close()
        except UnprovenListener as error:
            raise CliError(
                f"another process listens at {instance.http}, not instance {instance.pid}: nothing"
                " was sent to it",
                hint="callgate stop, then callgate serve, restarts the instance.",
                error_class=ToolErrorClass.PERMISSION_DENIED,
                reason="unproven_listener",
            ) from error
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            raise CliError(
                f"instance {instance.pid} does not answer at {instance.http}: {error}",
                hint="callgate status lists the running instances.",
                error_class=ToolErrorClass.EXECUTION_ERROR,
                reason="no_answer",
            ) from error
        if answer.status >= 300:
            raise _refusal(answer.status, payload)
        return payload

    def is_proven(self, limit_s: float = _LIMIT_S) -> bool | None:
        """Whether the instance itself answers at its address; None: nothing answers there."""
        try:
            self._connect(limit_s)[0].close()
        except UnprovenListener:
            return False
        except (OSError, http.client.HTTPException):
            return None
        return True

    def _connect(self, limit_s: float) -> tuple[http.client.HTTPConnection, str]:
        """Return a connection to the instance, and its token.

        Raises `UnprovenListener`, `OSError` or `HTTPException`.
        """
        url = self.instance.http or ""
        address = urlsplit(url)
        with open(token_path(self._home, self.instance.pid), encoding="ascii") as file:
            token = file.read().strip()
        connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=limit_s
        )
        nonce = secrets.token_hex(32)
        try:
            connection.request("GET", f"/v1/proof?nonce={nonce}")
            answer = connection.getresponse()
            connection.auto_open = 0  # the proof is valid only for this connection
            if not _has_proof(answer.read(_LONGEST_PROOF), proof_of(token, nonce, url)):
                raise UnprovenListener(url)
        except BaseException:
            connection.close()
            raise
        return connection, token


def _has_proof(data: bytes, expected: str) -> bool:
    try:
        found = json.loads(data)["proof"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return isinstance(found, str) and hmac.compare_digest(found.encode(), expected.encode())


def _refusal(status: int, payload: Any) -> CliError:
    error = payload.get("error") if isinstance(payload, dict) else None
    fields = error if isinstance(error, dict) else {}
    classes = {str(each): each for each in ToolErrorClass}
    return CliError(
        str(fields.get("message", f"the instance answered with status {status}")).rstrip("."),
        error_class=classes.get(str(fields.get("class")), ToolErrorClass.EXECUTION_ERROR),
        reason=str(fields.get("reason") or "refused"),
    )


def find_instance(home: str, wanted: str | None = None) -> InstanceHttp:
    """Return an instance that serves HTTP, with this label or process id if given."""
    running = [each for each in lasting(home) if wanted in (None, str(each.pid), each.label)]
    serving = [each for each in running if each.http is not None]
    if not serving:
        message = "the instance was started with --no-http" if running else "no instance runs"
        raise CliError(
            message,
            hint="Start one with callgate serve --detach.",
            error_class=ToolErrorClass.NOT_FOUND,
            reason="no_instance",
        )
    return InstanceHttp(home, serving[0])


_PATIENCE_S = 5.0
"""Time limit for the exit after the drain."""
_LOOK_EVERY_S = 0.02


def end_instance(home: str, instance: InstanceRecord, *, now: bool = False) -> None:
    """Stop an instance and wait until it has ended; `now`: without a drain. Raises `CliError`."""
    os.kill(instance.pid, signal.SIGINT if now else signal.SIGTERM)
    until = time.monotonic() + _PATIENCE_S + (0.0 if now else _drain_s())
    while any(each.pid == instance.pid for each in running(home)) or is_alive(instance.pid):
        if time.monotonic() > until:
            raise CliError(
                f"process {instance.pid} has not stopped in time; stop --now stops its calls",
                error_class=ToolErrorClass.TIMEOUT,
                reason="still_running",
            )
        time.sleep(_LOOK_EVERY_S)


def _drain_s() -> float:
    """Return the time that the instance waits for running calls, or its default."""
    try:
        return load_user(Home.from_environment())[0].instance.drain_seconds
    except SettingsError:
        return InstanceTable().drain_seconds


class InstanceState(NamedTuple):
    policy: str | None = None
    """The version of the policy in its first workspace."""
    problem: str | None = None
    """The reason why it does not answer or cannot use the settings."""
    restart_for: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        if self.problem is not None:
            return self.problem
        unread = ", ".join(self.restart_for)
        restart = f"; restart it, because {unread} changed in the settings" if unread else ""
        return f"policy {self.policy}{restart}"


def state_of(instance: InstanceRecord) -> InstanceState:
    if not instance.is_reachable:
        return InstanceState(problem="its socket no longer exists")
    info: dict[str, Any] = {"caller": "cli", "cwd": instance.cwd}
    try:
        with InstanceConnection(instance.socket, GREETING_S) as connection:
            answer = ask(connection, instance.socket, {"clientInfo": info, "names": []})
    except (ConnectionLost, InstanceDeclined) as error:
        return InstanceState(problem=f"it does not answer: {error}")
    found = settings_of(answer)
    problem = found["problem"]
    if problem is not None:
        problem = f"calls with effects are refused, because the settings are invalid: {problem}"
    return InstanceState(found["version"], problem, tuple(found["restartFor"]))


def note_provenance(instance: InstanceRecord) -> None:
    """Note for `-v` which instance and policy answered this command."""
    if provenance.is_wanted():
        provenance.from_instance_at(instance.socket, state_of(instance).policy)


_LIST_S = 2.0
_RENEW_S = 15.0
"""A host that ignores its termination takes five seconds."""
_ID = "hosts"


class Answer(NamedTuple):
    instance: InstanceRecord
    hosts: list[HostEntry]
    problem: str | None = None
    """The reason why there are no hosts."""


def hosts_of(home: str) -> Answer | None:
    """Return the hosts of the newest instance that answers."""
    for instance in live(home):
        answer = _ask(instance, {"type": "list_hosts"}, _LIST_S)
        if answer.problem is None:
            return answer
        say(f"callgate: instance {instance.pid} is skipped: {answer.problem}")
    return None


def renew(home: str, name: str, *, forget: bool) -> list[Answer]:
    """Restart a host in every instance of a home."""
    request = {"type": "renew_host", "name": name, "forget": forget}
    return [_ask(instance, request, _RENEW_S) for instance in live(home)]


def _ask(instance: InstanceRecord, request: dict[str, Any], patience_s: float) -> Answer:
    try:
        with InstanceConnection(instance.socket, patience_s) as connection:
            connection.send({"protocol": 1, "requestId": _ID, **request})
            frame = _answer(connection, time.monotonic() + patience_s)
        note_provenance(instance)
        if frame["type"] == "error":
            return Answer(instance, [], str(frame.get("message")))
        entries = frame["hosts"] if "hosts" in frame else [frame["host"]]
        return Answer(instance, msgspec.convert(entries, list[HostEntry]))
    except ConnectionLost as error:
        return Answer(instance, [], f"it does not answer: {error}")
    except (KeyError, msgspec.ValidationError):
        return Answer(instance, [], "it has another version")


def _answer(connection: InstanceConnection, until: float) -> dict[str, Any]:
    while True:
        frame = connection.next()
        if frame is None:
            if not connection.wait(max(until - time.monotonic(), 0.0)):
                raise ConnectionLost("no answer arrived")
        elif frame.get("requestId") == _ID:
            return frame
        elif frame.get("type") == "closing":
            raise ConnectionLost("it is stopping")
