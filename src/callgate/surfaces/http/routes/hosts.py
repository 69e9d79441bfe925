"""The hosts and MCP servers of the instance: how each is, its log, a new start, approving
what a server says of its tools, and the messages between us and a server."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Any

from msgspec import Meta

from callgate.core.errors import ToolRegistrationError
from callgate.protocol.socket_v1.frames import HostEntry
from callgate.redaction.texts import redact
from callgate.sources.message_log import LoggedMessage
from callgate.sources.proposals import Proposal
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.dependencies import Hosting
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.problems import conflict, forbidden, not_found
from callgate.surfaces.http.routes.values import Input, Value


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


async def list_hosts(context: Context, request: Request) -> HostList:
    entries = [] if context.hosts is None else context.hosts.entries()
    return HostList(hosts=[_host(each) for each in entries])


async def restart_host(context: Context, request: Request) -> Host:
    try:
        return _host(await _hosts(context).renew(request.path["name"], forget=True))
    except KeyError:
        raise not_found("host") from None
    except ToolRegistrationError as error:
        raise conflict(str(error), "registration") from None


class LogQuery(Input, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=256 * 1024)] = 64 * 1024
    """Bytes of its end."""


class Log(Value, frozen=True, kw_only=True):
    text: str
    """Redacted. It is the word of the host."""
    cut: bool


class Approval(Input, frozen=True, kw_only=True):
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    """Of what was looked at."""


async def read_log(context: Context, request: Request) -> Log:
    query: LogQuery = request.query
    try:
        path = _hosts(context).log_path(request.path["name"])
    except KeyError:
        raise not_found("host") from None
    return await asyncio.to_thread(_end_of, path, query.limit)


def _end_of(path: str, limit: int) -> Log:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - limit, 0))
            data = file.read(limit)
    except FileNotFoundError:
        return Log(text="", cut=False)
    if size > limit:  # half a secret would not be known as one
        data = data.partition(b"\n")[2]
    return Log(text=redact(data.decode("utf-8", "backslashreplace")), cut=size > limit)


class MessageList(Value, frozen=True, kw_only=True):
    messages: list[LoggedMessage]
    """The last ones, oldest first."""


async def list_messages(context: Context, request: Request) -> MessageList:
    try:
        read = _hosts(context).messages(request.path["name"])
    except KeyError:
        raise not_found("host") from None
    _ensure_login(request, "reads what a server is sent, which may be private")
    return MessageList(messages=await asyncio.to_thread(read))


def _ensure_login(request: Request, does: str) -> None:
    if not request.browser:
        raise forbidden(f"Only somebody who is logged in to the page {does}.", "login")


async def look_at_server(context: Context, request: Request) -> Proposal:
    try:
        return await _hosts(context).look(request.path["name"], context.served.workspaces[0])
    except KeyError:
        raise not_found("host") from None


async def approve_server(context: Context, request: Request) -> Host:
    body: Approval = request.body
    _ensure_login(request, "approves, or callgate mcp approve")
    try:
        return _host(await _hosts(context).approve(request.path["name"], body.sha256))
    except KeyError:
        raise not_found("host") from None
    except ToolRegistrationError as error:
        raise conflict(str(error), "registration") from None


def _hosts(context: Context) -> Hosting:
    if context.hosts is None:
        raise not_found("host")
    return context.hosts


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


_ONE = "/v1/hosts/{name}"
OPERATIONS = (
    Operation("GET", "/v1/hosts", "List the hosts.", list_hosts, HostList),
    Operation(
        "POST",
        f"{_ONE}/restart",
        "End a host; its next call starts it again.",
        restart_host,
        Host,
        errors=(404, 409),
    ),
    Operation(
        "GET", f"{_ONE}/log", "The end of its log.", read_log, Log, query=LogQuery, errors=(404,)
    ),
    Operation(
        "GET",
        f"{_ONE}/messages",
        "The last requests and answers of an MCP server; for a browser that is logged in.",
        list_messages,
        MessageList,
        errors=(403, 404),
    ),
    Operation(
        "POST",
        f"{_ONE}/look",
        "Start an MCP server, and say what it wants to have approved.",
        look_at_server,
        Proposal,
        errors=(404, 500, 503),
    ),
    Operation(
        "POST",
        f"{_ONE}/approve",
        "Approve what was looked at; for a browser that is logged in.",
        approve_server,
        Host,
        body=Approval,
        errors=(403, 404, 409, 500, 503),
    ),
)
