"""The tools that a session sees, and why it does not see the others."""

from __future__ import annotations

from callgate.core.sessions import Mode, Session
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.routes import saved_rules, undo
from callgate.surfaces.http.routes.values import Input, Tool, Value, tool_of

_INTERNAL_TAGS = {undo.TAG, saved_rules.TAG}
"""Tags of tools that only routes of ours call."""


class ToolQuery(Input, frozen=True, kw_only=True):
    session: str | None = None


class ToolList(Value, frozen=True, kw_only=True):
    tools: list[Tool]


async def list_tools(context: Context, request: Request) -> ToolList:
    query: ToolQuery = request.query
    session = await _session(context, query.session)
    by_mode = "mode none runs no tool" if session.mode is Mode.NONE else None
    known = [
        tool_of(tool, hidden or by_mode)
        for tool, hidden in context.runtime.all_tools(session)
        if not tool.definition.required_tags & _INTERNAL_TAGS
    ]
    return ToolList(tools=sorted(known, key=lambda tool: tool.name))


async def _session(context: Context, id: str | None) -> Session:
    if id is None:
        return context.sessions.fresh()
    live = context.sessions.find(id)
    if live is not None:
        return live
    stored = await (await context.runtime.store()).get_session(id)
    return Session(
        workspace=stored.workspace,
        id=id,
        mode=stored.mode,
        tags=stored.tags,
        is_worker=stored.parent is not None,
    )


OPERATIONS = (
    Operation(
        "GET", "/v1/tools", "List the tools.", list_tools, ToolList, query=ToolQuery, errors=(404,)
    ),
)
