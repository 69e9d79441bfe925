"""What an adapter adds to a tool call of its framework, beside a call of our own gate.

    .build/frameworks/bin/python benchmarks/adapters.py [--rounds 40] [--calls 200] [--json]

In every round each framework has its tool called bare, behind its adapter, and by `Gate.call` in a
tool of our own that does nothing but make the bare call: so both roads have the same work inside,
and wait as it does. What counts is what the adapter adds to the bare call, as a multiple of what
`Gate.call` adds, within a round. A framework that is not installed is named and left out. The clock
is CPU time of the process, as in `run.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from callgate import Gate, tool

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # not this directory: it has an `http`

from scripts.frameworks import FRAMEWORKS, installed  # noqa: E402

PACKAGES = {"pydantic-ai": "pydantic-ai-slim"}
Call = Callable[[], Awaitable[Any]]
EFFECTS = {"add": "none"}
ARGUMENTS = {"a": 20, "b": 22}


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def pydantic_ai(gate: Gate) -> tuple[Call, Call]:
    from pydantic_ai import RunContext
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.toolsets import FunctionToolset
    from pydantic_ai.usage import RunUsage

    from callgate.adapters.guard import Guard
    from callgate.adapters.pydantic_ai import GuardedToolset

    toolset = FunctionToolset([add])
    guarded = GuardedToolset(toolset, Guard(gate, EFFECTS))
    ctx = RunContext(deps=None, model=TestModel(), usage=RunUsage(), prompt="add", tool_call_id="c")
    found = (await toolset.get_tools(ctx))["add"]
    return (
        lambda: toolset.call_tool("add", dict(ARGUMENTS), ctx, found),
        lambda: guarded.call_tool("add", dict(ARGUMENTS), ctx, found),
    )


async def openai_agents(gate: Gate) -> tuple[Call, Call]:
    from agents import function_tool
    from agents.tool_context import ToolContext

    from callgate.adapters.guard import Guard
    from callgate.adapters.openai_agents import guarded_tool

    bare = function_tool(add)
    guarded, text = guarded_tool(bare, Guard(gate, EFFECTS)), json.dumps(ARGUMENTS)
    said: list[Any] = [{"role": "user", "content": "add"}]
    ctx = ToolContext(None, tool_name="add", tool_call_id="c", tool_arguments=text, turn_input=said)
    return lambda: bare.on_invoke_tool(ctx, text), lambda: guarded.on_invoke_tool(ctx, text)


async def langchain(gate: Gate) -> tuple[Call, Call]:
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import StructuredTool
    from langgraph.prebuilt.tool_node import ToolCallRequest

    from callgate.adapters.langchain import GateMiddleware

    bare = StructuredTool.from_function(coroutine=add)
    middleware = GateMiddleware(gate, EFFECTS)
    call: Any = {"name": "add", "args": ARGUMENTS, "id": "c", "type": "tool_call"}
    state = {"messages": [HumanMessage("add")]}
    request = ToolCallRequest(tool_call=call, tool=bare, state=state, runtime=None)  # type: ignore[arg-type]

    async def handler(request: Any) -> Any:
        return await bare.ainvoke(request.tool_call)

    return lambda: handler(request), lambda: middleware.awrap_tool_call(request, handler)


async def agno(gate: Gate) -> tuple[Call, Call]:
    from agno.run.base import RunContext
    from agno.tools import Function
    from agno.tools.function import FunctionCall

    from callgate.adapters.agno import gate_hooks

    async def passing(function_call: Any, arguments: dict[str, Any]) -> Any:
        return await function_call(**arguments)

    def prepared(hooks: list[Any]) -> Any:
        """Both have as many hooks: calling one is Agno's own cost."""
        function = Function.from_callable(add)
        function.process_entrypoint()
        function.tool_hooks = hooks
        function._agent = SimpleNamespace(tool_hooks=hooks, tools=[add])
        function._run_context = RunContext(run_id="r", session_id="s", messages=[])
        return function

    # As ours: without it, Agno works the signature out for every question about it.
    passing.__signature__ = inspect.signature(passing)  # type: ignore[attr-defined]
    bare, guarded = prepared([passing, passing]), prepared(gate_hooks(gate, EFFECTS))
    return (
        lambda: FunctionCall(function=bare, arguments=dict(ARGUMENTS)).aexecute(),
        lambda: FunctionCall(function=guarded, arguments=dict(ARGUMENTS)).aexecute(),
    )


async def fastmcp(gate: Gate) -> tuple[Call, Call]:
    from fastmcp import FastMCP
    from fastmcp.server.middleware import MiddlewareContext
    from mcp_types import CallToolRequestParams

    from callgate.adapters.fastmcp import GateMiddleware

    server = FastMCP("sums")
    server.tool(add)
    middleware = GateMiddleware(gate, EFFECTS)
    message = CallToolRequestParams(name="add", arguments=ARGUMENTS)
    context: Any = MiddlewareContext(
        message=message, fastmcp_context=SimpleNamespace(fastmcp=server)
    )  # type: ignore[arg-type]

    async def call_next(context: Any) -> Any:
        found = await server.get_tool("add")
        return await found.run(context.message.arguments)

    return lambda: call_next(context), lambda: middleware.on_call_tool(context, call_next)


async def inspect_ai(gate: Gate) -> tuple[Call, Call]:
    from inspect_ai.model import ChatMessageUser
    from inspect_ai.tool import ToolCall, ToolCallView

    from callgate.adapters.inspect_ai import gate_approver

    approve = gate_approver(EFFECTS, gate=gate)
    call, history = (
        ToolCall(id="c", function="add", arguments=ARGUMENTS),
        [ChatMessageUser(content="add", source="input")],
    )

    async def nothing() -> None:
        pass

    return nothing, lambda: approve("", call, ToolCallView(), history)


async def claude_agent_sdk(gate: Gate) -> tuple[Call, Call]:
    from callgate.adapters.claude_agent_sdk import gate_options

    hooks = gate_options(gate, None, EFFECTS).hooks or {}
    before, after = hooks["PreToolUse"][0].hooks[0], hooks["PostToolUse"][0].hooks[0]
    event: Any = {
        "tool_name": "add",
        "tool_input": ARGUMENTS,
        "tool_use_id": "c",
        "session_id": "s",
    }

    async def waiting() -> None:
        """As a call waits for the hook after it."""
        await asyncio.sleep(0)

    async def both() -> None:
        answer: Any = await before(event, "c", None)  # type: ignore[arg-type]
        assert answer["hookSpecificOutput"]["permissionDecision"] == "allow"
        await after({**event, "tool_response": 42}, "c", None)  # type: ignore[arg-type]

    return waiting, both


MAKERS = {
    "pydantic-ai": pydantic_ai,
    "openai-agents": openai_agents,
    "langchain": langchain,
    "inspect-ai": inspect_ai,
    "agno": agno,
    "claude-agent-sdk": claude_agent_sdk,
    "fastmcp": fastmcp,
}


async def batch(call: Call, calls: int) -> float:
    """Microseconds of one call."""
    began = time.process_time()
    for _ in range(calls):
        await call()
    return (time.process_time() - began) / calls * 1e6


def own_tool(bare: Call) -> Any:
    async def own(a: int, b: int) -> str:
        """Make the bare call."""
        await bare()
        return "42"

    return tool(own, side_effects="none")


async def measure(rounds: int, calls: int) -> dict[str, dict[str, float]]:
    rows: dict[str, list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        contestants: dict[str, tuple[Call, Call, Call]] = {}
        async with AsyncExitStack() as gates:
            for name, make in MAKERS.items():
                if not installed(name):
                    continue
                home = Path(directory, name)
                home.mkdir(mode=0o700)
                gate = await gates.enter_async_context(Gate(directory, [], home=home))
                bare, guarded = await make(gate)
                gate.register(own_tool(bare))
                contestants[name] = (bare, partial(gate.call, "own", ARGUMENTS), guarded)
            for three in contestants.values():
                for call in three:
                    await batch(call, 20)
            for _ in range(rounds):
                for name, (bare, own, guarded) in contestants.items():
                    row = (
                        await batch(bare, calls),
                        await batch(own, calls),
                        await batch(guarded, calls),
                    )
                    rows.setdefault(name, []).append(row)
    return {
        name: {
            "bare_us": statistics.median(bare for bare, _, _ in found),
            "gate_us": statistics.median(own for _, own, _ in found),
            "adapter_us": statistics.median(guarded for _, _, guarded in found),
            "ratio": statistics.median(
                (guarded - bare) / (own - bare) for bare, own, guarded in found
            ),
        }
        for name, found in rows.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = asyncio.run(measure(options.rounds, options.calls))
    if options.json:
        print(json.dumps(rows))
        return
    roads = "bare, µs | in `Gate.call`, µs | by its adapter, µs | added, to `Gate.call`"
    print(f"| framework | version | {roads} |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, row in rows.items():
        cells = " | ".join(f"{row[key]:.1f}" for key in ("bare_us", "gate_us", "adapter_us"))
        print(f"| {name} | {version(PACKAGES.get(name, name))} | {cells} | {row['ratio']:.2f} |")
    for name in FRAMEWORKS.keys() - rows.keys():
        print(f"Not measured, because it is not installed: {name}")


if __name__ == "__main__":
    main()
