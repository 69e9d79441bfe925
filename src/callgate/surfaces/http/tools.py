"""The tools that a session sees, and why it does not see the others."""

from __future__ import annotations

from callgate.core.sessions import Mode, Session
from callgate.surfaces.http import saved_rules, undo
from callgate.surfaces.http.doors import Door
from callgate.surfaces.http.operations import Asked, Operation
from callgate.surfaces.http.values import Input, Tool, Value, tool_of

_OWN = {undo.TAG, saved_rules.TAG}
"""Tags of tools that only routes of ours call."""


class ToolQuery(Input, frozen=True, kw_only=True):
    session: str | None = None


class ToolList(Value, frozen=True, kw_only=True):
    tools: list[Tool]


async def listed(door: Door, asked: Asked) -> ToolList:
    query: ToolQuery = asked.query
    session = await _session(door, query.session)
    by_mode = "mode none runs no tool" if session.mode is Mode.NONE else None
    known = [
        tool_of(tool, hidden or by_mode)
        for tool, hidden in door.runtime.all_tools(session)
        if not tool.definition.required_tags & _OWN
    ]
    return ToolList(tools=sorted(known, key=lambda tool: tool.name))


async def _session(door: Door, id: str | None) -> Session:
    if id is None:
        return door.sessions.fresh()
    held = door.sessions.find(id)
    if held is not None:
        return held
    stored = await (await door.runtime.store()).get_session(id)
    return Session(
        workspace=stored.workspace, id=id, mode=stored.mode, tags=stored.tags,
        is_worker=stored.parent is not None,
    )  # fmt: skip


OPERATIONS = (
    Operation(
        "GET", "/v1/tools", "List the tools.", listed, ToolList, query=ToolQuery, errors=(404,)
    ),
)
