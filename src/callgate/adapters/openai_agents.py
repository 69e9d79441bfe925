"""openai-agents: wraps the invocation of an agent's tools.

    agent = guarded_agent(agent, gate, effects={...})

The invocation is the only point where arguments can be changed: a guardrail and `needs_approval`
can only stop a call. They still apply, before callgate. Function tools and tools of MCP servers go
through the gate. A tool that is executed elsewhere (by the provider, a computer, a shell) raises
`ValueError` during wrapping, unless `unguarded` names it. A refusal is the text that the tool
returns.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from agents import Agent, FunctionTool
from agents.mcp import MCPServer
from agents.tool_context import ToolContext

from callgate.adapters.guard import Effects, GateError, Guard
from callgate.core.schemas import canonical_json
from callgate.gate import Gate


def guarded_agent(
    agent: Agent[Any],
    gate: Gate,
    effects: Effects | None = None,
    *,
    paths: Mapping[str, Iterable[str]] | None = None,
    timeout_s: float | None = None,
    unguarded: Collection[str] = (),
) -> Agent[Any]:
    """Return the agent with every tool behind a gate. Raises `ValueError` for unsupported tools.

    Agents in handoffs and agents as tools are not wrapped: wrap them as well. Tools that are added
    to the agent later are not wrapped either.
    """
    if getattr(agent, "capabilities", None):
        raise ValueError(
            f"a {type(agent).__name__} with capabilities adds tools while it runs, outside the "
            "gate. Remove its capabilities and pass their tools as tools"
        )
    guard = Guard(gate, effects, paths=paths, timeout_s=timeout_s)
    return agent.clone(
        tools=[_guarded(each, guard, unguarded) for each in agent.tools],
        mcp_servers=[guarded_server(each, guard) for each in agent.mcp_servers],
    )


def guarded_tool(tool: FunctionTool, guard: Guard) -> FunctionTool:
    """Return a copy of the tool that invokes its function through a gate."""
    invoke = tool.on_invoke_tool

    async def on_invoke_tool(ctx: ToolContext[Any], input: str) -> Any:
        async def run(judged: dict[str, Any]) -> Any:
            return await invoke(ctx, canonical_json(judged).decode())

        try:
            return await guard.call(
                tool.name,
                _arguments(input),
                run,
                description=tool.description,
                schema=tool.params_json_schema,
                call_id=ctx.tool_call_id,
                prompts=_prompts(ctx.turn_input),
            )
        except GateError as error:
            return str(error)

    wrapped = copy.copy(tool)
    wrapped.on_invoke_tool = on_invoke_tool
    return wrapped


def guarded_server(server: MCPServer, guard: Guard) -> MCPServer:
    """Return a copy of the server that calls its tools through a gate."""
    call_tool, list_tools = server.call_tool, server.list_tools
    described: dict[str, Any] = {}

    async def list_guarded(*args: Any, **more: Any) -> Any:
        tools = await list_tools(*args, **more)
        described.update((each.name, each) for each in tools)
        return tools

    async def call_guarded(
        tool_name: str, arguments: dict[str, Any] | None, *args: Any, **more: Any
    ) -> Any:
        async def run(judged: dict[str, Any]) -> Any:
            return await call_tool(tool_name, judged, *args, **more)

        tool = described.get(tool_name)
        return await guard.call(
            tool_name,
            arguments or {},
            run,
            description=getattr(tool, "description", None),
            schema=getattr(tool, "input_schema", None) or getattr(tool, "inputSchema", None),
            read=_read,
        )

    wrapped = copy.copy(server)
    wrapped.call_tool = call_guarded
    wrapped.list_tools = list_guarded
    return wrapped


def _guarded(tool: Any, guard: Guard, unguarded: Collection[str]) -> Any:
    if isinstance(tool, FunctionTool):
        return guarded_tool(tool, guard)
    name = getattr(tool, "name", type(tool).__name__)
    if name in unguarded:
        return tool
    raise ValueError(
        f"tool {name!r} is not a function tool, so callgate cannot check its calls. Name it in "
        "`unguarded` to use it without a gate"
    )


def _read(result: Any) -> tuple[Any, bool]:
    """Read a result of an MCP server. Versions of the SDK spell `is_error` differently."""
    texts = [each.text for each in result.content if hasattr(each, "text")]
    is_error = getattr(result, "is_error", False) or getattr(result, "isError", False)
    return "\n".join(texts), bool(is_error)


def _arguments(input: str) -> Any:
    """Decode the arguments. The gate refuses and records anything but a JSON object."""
    try:
        return json.loads(input) if input else {}
    except (ValueError, RecursionError):
        return input


def _prompts(items: Iterable[Any]) -> list[str]:
    found: list[str] = []
    for item in items:
        if not isinstance(item, Mapping) or item.get("role") != "user":
            continue
        content = item.get("content")
        if isinstance(content, str):
            found.append(content)
        else:
            blocks = [each for each in content or () if isinstance(each, Mapping)]
            found += [each["text"] for each in blocks if isinstance(each.get("text"), str)]
    return found
