"""Requests over HTTP to a running instance of this home, as its user.

The port comes from a file, and after a crash any user of the machine may listen there. So the
listener proves that it has the token before the token is sent, on the same connection.
"""

from __future__ import annotations

import hmac
import http.client
import json
import secrets
from typing import Any
from urllib.parse import urlsplit

from callgate.cli.errors import CliError
from callgate.core.errors import ToolErrorClass
from callgate.surfaces.http.access import proof_of, token_path
from callgate.surfaces.socket.instances import InstanceRecord, live

_LIMIT_S = 10.0
_LONGEST_PROOF = 1_000


class UnprovenListener(Exception):
    """The process at the instance's address does not have its token."""


class InstanceHttp:
    def __init__(self, home: str, instance: InstanceRecord) -> None:
        self._home = home
        self.instance = instance

    def request(self, method: str, path: str, body: Any = None, limit_s: float = _LIMIT_S) -> Any:
        """What it answers. Blocks; raises `CliError`, for a refusal in the instance's own words."""
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
                hint="callgate status shows what runs.",
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
        """A connection to the instance, and its token. Raises `UnprovenListener`, `OSError` or
        `HTTPException`."""
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
            connection.auto_open = 0  # the proof is for this connection, not for the next one
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
        str(fields.get("message", f"the instance answers {status}")).rstrip("."),
        error_class=classes.get(str(fields.get("class")), ToolErrorClass.EXECUTION_ERROR),
        reason=str(fields.get("reason") or "refused"),
    )


def find_instance(home: str, wanted: str | None = None) -> InstanceHttp:
    """The instance of a home with this label or process id, or any, that serves HTTP."""
    running = [each for each in live(home) if wanted in (None, str(each.pid), each.label)]
    serving = [each for each in running if each.http is not None]
    if not serving:
        message = "the instance was started with --no-http" if running else "no instance runs"
        raise CliError(
            message,
            hint="callgate serve --detach starts one.",
            error_class=ToolErrorClass.NOT_FOUND,
            reason="no_instance",
        )
    return InstanceHttp(home, serving[0])
