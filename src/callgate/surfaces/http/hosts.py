"""The hosts of the instance: how each is, and having one started anew."""

from __future__ import annotations

from typing import Any

from callgate.core.errors import ToolRegistrationError
from callgate.protocol.socket_v1.frames import HostEntry
from callgate.surfaces.http.doors import Door
from callgate.surfaces.http.operations import Asked, Operation
from callgate.surfaces.http.problems import conflict, not_found
from callgate.surfaces.http.values import Value


class HostTool(Value, frozen=True, kw_only=True):
    name: str
    effect: str
    changed: bool


class Host(Value, frozen=True, kw_only=True):
    name: str
    health: str
    command: list[str]
    tools: list[HostTool]
    problem: str | None
    ui_elements: list[dict[str, Any]]
    """What it has for screens, as it said it: untrusted."""


class HostList(Value, frozen=True, kw_only=True):
    hosts: list[Host]


async def listed(door: Door, asked: Asked) -> HostList:
    entries = [] if door.hosts is None else door.hosts.entries()
    return HostList(hosts=[_host(each) for each in entries])


async def restarted(door: Door, asked: Asked) -> Host:
    if door.hosts is None:
        raise not_found("host")
    try:
        return _host(await door.hosts.renew(asked.path["name"], forget=True))
    except KeyError:
        raise not_found("host") from None
    except ToolRegistrationError as error:
        raise conflict(str(error), "registration") from None


def _host(entry: HostEntry) -> Host:
    tools: list[Any] = [
        HostTool(name=each.name, effect=each.effect, changed=each.changed) for each in entry.tools
    ]
    return Host(
        name=entry.name,
        health=entry.health,
        command=entry.command,
        tools=tools,
        problem=entry.problem,
        ui_elements=entry.ui_elements,
    )


OPERATIONS = (
    Operation("GET", "/v1/hosts", "List the hosts.", listed, HostList),
    Operation(
        "POST", "/v1/hosts/{name}/restart", "End a host; its next call starts it again.",
        restarted, Host, errors=(404, 409),
    ),
)  # fmt: skip
