from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, WebSearchTool, function_tool
from agents.mcp import MCPServer
from agents.sandbox import SandboxAgent
from mcp_types import CallToolResult, TextContent, Tool
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from callgate import Answer, Gate, Outcome
from callgate.adapters.openai_agents import guarded_agent
from tests.features.agents.frameworks.contract import *  # noqa: F403
from tests.features.agents.frameworks.contract import gate_for
from tests.features.agents.frameworks.world import EFFECTS, PROMPT, Person, World


class ScriptedModel(Model):
    def __init__(self, tool: str, arguments: dict[str, Any]) -> None:
        self.tool, self.arguments = tool, arguments

    def reply(self, items: Any) -> list[Any]:
        if isinstance(items, list) and any(item.get("type") == "function_call_output" for item in items):
            text = ResponseOutputText(annotations=[], text="done", type="output_text")
            return [ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")]
        call = ResponseFunctionToolCall(
            arguments=json.dumps(self.arguments), call_id="c1", name=self.tool, type="function_call"
        )
        return [call]

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **more: Any) -> ModelResponse:
        return ModelResponse(output=self.reply(input), usage=Usage(), response_id=None)

    async def stream_response(
        self, system_instructions: Any, input: Any, *args: Any, **more: Any
    ) -> AsyncIterator[Any]:
        response = Response(
            id="r",
            created_at=0,
            model="m",
            object="response",
            output=self.reply(input),
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=False,
        )
        yield ResponseCompletedEvent(response=response, sequence_number=0, type="response.completed")


def returned(items: list[Any]) -> list[str]:
    return [str(item.output) for item in items if item.type == "tool_call_output_item"]


class Harness:
    shows_errors = False  # a tool's exception is text before an adapter sees it

    async def run(
        self, gate: Gate | None, world: World, tool: str, arguments: dict[str, Any], *, stream: bool = False
    ) -> list[str]:
        tools = [function_tool(each) for each in (world.look, world.send_mail, world.fail, world.wait)]
        agent = Agent("a", tools=tools, model=ScriptedModel(tool, arguments))
        if gate is not None:
            agent = guarded_agent(agent, gate, EFFECTS)
        config = RunConfig(tracing_disabled=True)
        if not stream:
            return returned((await Runner.run(agent, PROMPT, run_config=config)).new_items)
        result = Runner.run_streamed(agent, PROMPT, run_config=config)
        async for _ in result.stream_events():
            pass
        return returned(result.new_items)


@pytest.fixture
def harness() -> Harness:
    return Harness()


async def test_a_tool_that_something_else_executes_is_refused_unless_named(home: Path, tmp_path: Path) -> None:
    agent = Agent("a", tools=[WebSearchTool()])
    async with gate_for(tmp_path, home) as gate:
        with pytest.raises(ValueError, match="web_search"):
            guarded_agent(agent, gate)
        assert guarded_agent(agent, gate, unguarded={"web_search"}).tools == agent.tools


async def test_what_is_no_json_object_is_refused_and_recorded(home: Path, tmp_path: Path) -> None:
    world = World()
    model = ScriptedModel("look", {})
    async with gate_for(tmp_path, home) as gate:
        agent = guarded_agent(Agent("a", tools=[function_tool(world.look)], model=model), gate, EFFECTS)
        for arguments in ([], "text", 5):
            model.arguments = arguments
            (told,) = returned((await Runner.run(agent, PROMPT, run_config=RunConfig(tracing_disabled=True))).new_items)
            assert "object" in told
    assert world.ran == []


class Server(MCPServer):
    """An MCP server in memory, with one tool."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[Any] = []

    name = "memory"

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_prompts(self) -> Any: ...

    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Tool]:
        schema = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
        return [Tool(name="ring", description="Ring somebody up.", input_schema=schema)]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> CallToolResult:
        self.called.append((tool_name, arguments))
        return CallToolResult(content=[TextContent(type="text", text=f"rang {arguments['to']}")])


async def test_tools_of_mcp_servers_are_judged_alike(home: Path, tmp_path: Path) -> None:
    for answer, called in (
        (False, []),
        (Answer(decision=Outcome.ALLOW, arguments={"to": "bob"}), [("ring", {"to": "bob"})]),
    ):
        server, person = Server(), Person(answer)
        async with gate_for(tmp_path, home, person) as gate:
            agent = Agent("a", mcp_servers=[server], model=ScriptedModel("ring", {"to": "ann"}))
            agent = guarded_agent(agent, gate)
            (told,) = returned((await Runner.run(agent, PROMPT, run_config=RunConfig(tracing_disabled=True))).new_items)
        assert server.called == called
        assert [each.tool for each in person.asked] == ["ring"]
        assert ("rang bob" in told) is bool(called)


async def test_an_agent_that_gets_tools_while_it_runs_is_refused(home: Path, tmp_path: Path) -> None:
    async with gate_for(tmp_path, home) as gate:
        with pytest.raises(ValueError, match="SandboxAgent"):
            guarded_agent(SandboxAgent("a"), gate)


async def test_the_frameworks_own_approval_comes_before_ours(home: Path, tmp_path: Path) -> None:
    world, person = World(), Person()
    async with gate_for(tmp_path, home, person) as gate:
        tool = function_tool(world.send_mail, needs_approval=True)
        agent = guarded_agent(
            Agent("a", tools=[tool], model=ScriptedModel("send_mail", {"to": "ann", "subject": None})), gate, EFFECTS
        )
        config = RunConfig(tracing_disabled=True)
        result = await Runner.run(agent, PROMPT, run_config=config)
        assert (len(result.interruptions), world.ran, person.asked) == (1, [], [])
        state = result.to_state()
        state.approve(result.interruptions[0])
        await Runner.run(agent, state, run_config=config)
    assert (len(person.asked), len(world.ran)) == (1, 1)


@pytest.mark.parametrize(("answer", "ran"), [(True, [("send_mail", "ann", None)]), (False, [])])
def test_run_sync_works_with_a_gate_that_has_its_own_loop(
    home: Path, tmp_path: Path, answer: bool, ran: list[Any]
) -> None:
    world = World()
    with gate_for(tmp_path, home, Person(answer)) as gate:
        model = ScriptedModel("send_mail", {"to": "ann", "subject": None})
        agent = guarded_agent(Agent("a", tools=[function_tool(world.send_mail)], model=model), gate, EFFECTS)
        items = Runner.run_sync(agent, PROMPT, run_config=RunConfig(tracing_disabled=True)).new_items
    assert (returned(items) == ["sent to ann"]) is answer
    assert world.ran == ran
