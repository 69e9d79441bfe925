"""Tools, and the hosts and MCP servers that provide them: state, log, restart, approval."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Any

from msgspec import Meta

from callgate.core.errors import ToolRegistrationError
from callgate.core.sessions import Mode, Session
from callgate.dispatch.tools.sources import AGENT_HOOKS
from callgate.features.web.contexts import Context, Hosting, Operation, ParsedRequest
from callgate.features.web.responses import conflict, forbidden, not_found
from callgate.features.web.routes import approvals, changes
from callgate.features.web.routes.values import Input, Tool, Value, tool_of
from callgate.protocol.socket_v1.frames import HostEntry
from callgate.redaction.texts import redact
from callgate.runtime import Registered
from callgate.sources.logs import LoggedMessage
from callgate.sources.pins import Proposal


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
    """Its elements for user interfaces, unchanged and untrusted."""


class HostList(Value, frozen=True, kw_only=True):
    hosts: list[Host]


async def list_hosts(context: Context, request: ParsedRequest) -> HostList:
    entries = [] if context.hosts is None else context.hosts.entries()
    return HostList(hosts=[_host(each) for each in entries])


async def restart_host(context: Context, request: ParsedRequest) -> Host:
    try:
        return _host(await _hosts(context).renew(request.path["name"], forget=True))
    except KeyError:
        raise not_found("host") from None
    except ToolRegistrationError as error:
        raise conflict(str(error), "registration") from None


class LogQuery(Input, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=256 * 1024)] = 64 * 1024
    """Maximum bytes, from the end of the log."""


class Log(Value, frozen=True, kw_only=True):
    text: str
    """Redacted output of the host, which is untrusted."""
    cut: bool


class Approval(Input, frozen=True, kw_only=True):
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    """Hash of the proposal that was shown."""


async def read_log(context: Context, request: ParsedRequest) -> Log:
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
    if size > limit:  # redaction would miss a truncated secret
        data = data.partition(b"\n")[2]
    return Log(text=redact(data.decode("utf-8", "backslashreplace")), cut=size > limit)


class MessageList(Value, frozen=True, kw_only=True):
    messages: list[LoggedMessage]
    """The last messages, oldest first."""


async def list_messages(context: Context, request: ParsedRequest) -> MessageList:
    try:
        read = _hosts(context).messages(request.path["name"])
    except KeyError:
        raise not_found("host") from None
    _ensure_login(request, "read the messages of a server, which may be private")
    return MessageList(messages=await asyncio.to_thread(read))


def _ensure_login(request: ParsedRequest, does: str) -> None:
    if not request.browser:
        raise forbidden(f"Only a user logged in to the dashboard may {does}.", "login")


async def look_at_server(context: Context, request: ParsedRequest) -> Proposal:
    try:
        return await _hosts(context).look(request.path["name"], context.served.workspaces[0])
    except KeyError:
        raise not_found("host") from None


async def approve_server(context: Context, request: ParsedRequest) -> Host:
    body: Approval = request.body
    _ensure_login(request, "approve here; in a terminal use callgate mcp approve")
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
        "Stop a host; its next call starts it again.",
        restart_host,
        Host,
        errors=(404, 409),
    ),
    Operation(
        "GET",
        f"{_ONE}/log",
        "Read the end of a host's log.",
        read_log,
        Log,
        query=LogQuery,
        errors=(404,),
    ),
    Operation(
        "GET",
        f"{_ONE}/messages",
        "List the last messages of an MCP server; only for a logged-in browser.",
        list_messages,
        MessageList,
        errors=(403, 404),
    ),
    Operation(
        "POST",
        f"{_ONE}/look",
        "Start an MCP server, and show the tools that need approval.",
        look_at_server,
        Proposal,
        errors=(404, 500, 503),
    ),
    Operation(
        "POST",
        f"{_ONE}/approve",
        "Approve the shown tools; only for a logged-in browser.",
        approve_server,
        Host,
        body=Approval,
        errors=(403, 404, 409, 500, 503),
    ),
)


_INTERNAL_TAGS = {changes.UNDO_TAG, approvals.RULE_TAG}
"""Tags of tools that only routes of callgate call."""

_OF_AGENTS = (
    "it represents the tools of a third-party agent with hooks; run: callgate protect claude"
)


class ToolQuery(Input, frozen=True, kw_only=True):
    session: str | None = None


class ToolList(Value, frozen=True, kw_only=True):
    tools: list[Tool]


async def list_tools(context: Context, request: ParsedRequest) -> ToolList:
    query: ToolQuery = request.query
    session = await _session(context, query.session)
    by_mode = "mode none runs no tool" if session.mode is Mode.NONE else None
    known = [
        tool_of(tool, _why_hidden(tool, hidden) or by_mode)
        for tool, hidden in context.runtime.tools.with_reasons(session)
        if not tool.definition.required_tags & _INTERNAL_TAGS
    ]
    return ToolList(tools=sorted(known, key=lambda tool: tool.name))


def _why_hidden(tool: Registered, reason: str | None) -> str | None:
    """Return the reason for people, with the command that makes the tool available."""
    is_of_agents = reason is not None and AGENT_HOOKS in tool.definition.required_tags
    return _OF_AGENTS if is_of_agents else reason


async def _session(context: Context, id: str | None) -> Session:
    if id is None:
        return context.sessions.fresh()
    live = context.sessions.find(id)
    if live is not None:
        return live
    stored = await (await context.runtime.sessions.store()).get_session(id)
    return Session(
        workspace=stored.workspace,
        id=id,
        mode=stored.mode,
        tags=stored.tags,
        is_worker=stored.parent is not None,
    )


TOOL_OPERATIONS = (
    Operation(
        "GET", "/v1/tools", "List the tools.", list_tools, ToolList, query=ToolQuery, errors=(404,)
    ),
)
