"""Requests over HTTP to a running instance of this home, as its user."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from callgate.cli.errors import CliError
from callgate.core.errors import ToolErrorClass
from callgate.surfaces.http.access import token_path
from callgate.surfaces.socket.instances import InstanceRecord, live

_LIMIT_S = 10.0


class InstanceHttp:
    def __init__(self, home: str, instance: InstanceRecord) -> None:
        self._home = home
        self.instance = instance

    def request(self, method: str, path: str, body: Any = None, limit_s: float = _LIMIT_S) -> Any:
        """What it answers. Blocks; raises `CliError`, for a refusal in the instance's own words."""
        instance, address = self.instance, urlsplit(self.instance.http or "")
        try:
            with open(token_path(self._home, instance.pid), encoding="ascii") as file:
                token = file.read().strip()
            connection = http.client.HTTPConnection(
                address.hostname or "", address.port, timeout=limit_s
            )
            try:
                headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
                data = None if body is None else json.dumps(body).encode()
                connection.request(method, path, data, headers)
                answer = connection.getresponse()
                payload = json.loads(answer.read())
            finally:
                connection.close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise CliError(
                f"instance {instance.pid} does not answer at {instance.http}: {error}",
                hint="callgate status shows what runs.",
                error_class=ToolErrorClass.EXECUTION_ERROR,
                reason="no_answer",
            ) from error
        if answer.status >= 300:
            raise _refusal(answer.status, payload)
        return payload


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
