"""The tools of a session, for `list_tools` and for `callgate tools`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from msgspec import UNSET

from callgate.core.sessions import Mode, Session
from callgate.protocol.socket_v1.descriptors import describe
from callgate.protocol.socket_v1.frames import ListTools, ToolsList
from callgate.runtime import Registered, Runtime


def list_tools(runtime: Runtime, session: Session, request: ListTools) -> ToolsList:
    tools = runtime.tools(session)
    if request.names is not None:
        find = partial(runtime.find_tool, session=session)
        tools = _named(find, tools, request.names)
    return ToolsList(
        request_id=request.request_id,
        tools=[describe(tool.definition, tool.timeout_s) for tool in tools],
        workspace=session.workspace,
        mode=session.mode,
        whole=every(runtime, session) if request.whole else UNSET,
        settings=runtime.settings_state(session.workspace) if request.settings else UNSET,
    )


def every(runtime: Runtime, session: Session) -> list[dict[str, Any]]:
    """Every registered tool with all there is to say of it: also why it is not visible."""
    by_mode = "mode none runs no tool" if session.mode is Mode.NONE else None
    known = sorted(runtime.all_tools(session), key=lambda each: each[0].name)
    return [_described(tool, hidden or by_mode) for tool, hidden in known]


def _named(
    find: Callable[[str], Registered | None],
    visible: Collection[Registered],
    names: Collection[str],
) -> list[Registered]:
    seen = {tool.name: tool for tool in visible}
    found = dict.fromkeys(tool.name for each in names if (tool := find(each)))
    return [seen[name] for name in found if name in seen]


def _described(tool: Registered, hidden: str | None) -> dict[str, Any]:
    definition = tool.definition
    return {
        "name": tool.name,
        "side_effects": tool.effect,
        "capabilities": sorted(tool.capabilities),
        "description": definition.description,
        "input_schema": definition.input_schema,
        "aliases": list(definition.aliases),
        "source": definition.source,
        "timeout_s": tool.timeout_s,
        "visible": hidden is None,
        "hidden_because": hidden,
    }
