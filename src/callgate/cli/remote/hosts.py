"""The hosts of running instances: asking every one of them, and what each answers."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import msgspec

from callgate.cli.remote.connection import ConnectionLost, InstanceConnection
from callgate.cli.remote.instance_states import note_provenance
from callgate.cli.ui.terminal import say
from callgate.protocol.socket_v1.frames import HostEntry
from callgate.surfaces.socket.instances import InstanceRecord, live

_LIST_S = 2.0
_RENEW_S = 15.0
"""A host that does not want to end takes five."""
_ID = "hosts"


class Answer(NamedTuple):
    instance: InstanceRecord
    hosts: list[HostEntry]
    problem: str | None = None
    """Why there are none."""


def hosts_of(home: str) -> Answer | None:
    """The hosts of the newest instance that tells of them."""
    for instance in live(home):
        answer = _ask(instance, {"type": "list_hosts"}, _LIST_S)
        if answer.problem is None:
            return answer
        say(f"callgate: instance {instance.pid} is passed over: {answer.problem}")
    return None


def renew(home: str, name: str, *, forget: bool) -> list[Answer]:
    """Have every instance of a home start a host anew."""
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
        return Answer(instance, [], "it is of another version")


def _answer(connection: InstanceConnection, until: float) -> dict[str, Any]:
    while True:
        frame = connection.next()
        if frame is None:
            if not connection.wait(max(until - time.monotonic(), 0.0)):
                raise ConnectionLost("it says nothing")
        elif frame.get("requestId") == _ID:
            return frame
        elif frame.get("type") == "closing":
            raise ConnectionLost("it is stopping")
