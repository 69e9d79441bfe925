from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from agno.agent import Agent
from agno.models.base import Model
from agno.models.response import ModelResponse

from callgate import Answer, Gate, Outcome
from callgate.adapters.agno import gate_hooks
from tests.features.agents.frameworks.contract import *  # noqa: F403
from tests.features.agents.frameworks.contract import gate_for
from tests.features.agents.frameworks.world import EFFECTS, PROMPT, Person, World


@dataclass
class ScriptedModel(Model):
    id: str = "scripted"
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)

    def reply(self, messages: list[Any]) -> ModelResponse:
        if any(each.role == "tool" for each in messages):
            return ModelResponse(role="assistant", content="done")
        function = {"name": self.tool, "arguments": json.dumps(self.arguments)}
        return ModelResponse(role="assistant", tool_calls=[{"id": "c1", "type": "function", "function": function}])

    def invoke(self, messages: list[Any], *args: Any, **more: Any) -> ModelResponse:
        return self.reply(messages)

    async def ainvoke(self, messages: list[Any], *args: Any, **more: Any) -> ModelResponse:
        return self.reply(messages)

    def invoke_stream(self, messages: list[Any], *args: Any, **more: Any) -> Iterator[ModelResponse]:
        yield self.reply(messages)

    async def ainvoke_stream(self, messages: list[Any], *args: Any, **more: Any) -> AsyncIterator[ModelResponse]:
        yield self.reply(messages)

    def _parse_provider_response(self, response: Any, **more: Any) -> ModelResponse:
        return response

    def _parse_provider_response_delta(self, response: Any) -> ModelResponse:
        return response


def returned(messages: list[Any]) -> list[str]:
    return [str(each.content) for each in messages if each.role == "tool"]


class Harness:
    shows_errors = True

    async def run(
        self, gate: Gate | None, world: World, tool: str, arguments: dict[str, Any], *, stream: bool = False
    ) -> list[str]:
        agent = Agent(
            model=ScriptedModel(tool=tool, arguments=arguments),
            tools=[world.look, world.send_mail, world.fail, world.wait],
            tool_hooks=None if gate is None else gate_hooks(gate, EFFECTS),
            telemetry=False,
        )
        if not stream:
            return returned((await agent.arun(PROMPT)).messages)
        last: Any = None
        async for event in agent.arun(PROMPT, stream=True, yield_run_output=True):
            last = event
        return returned(last.messages)


@pytest.fixture
def harness() -> Harness:
    return Harness()


async def test_behind_another_hook_it_refuses_because_other_arguments_would_run(home: Path, tmp_path: Path) -> None:
    world = World()

    async def rewrite(function_call: Any, arguments: dict[str, Any]) -> Any:
        return await function_call(to="harmless")

    async with gate_for(tmp_path, home) as gate:
        agent = Agent(
            model=ScriptedModel(tool="look", arguments={"to": "ann"}),
            tools=[world.look],
            tool_hooks=[rewrite, *gate_hooks(gate, EFFECTS)],
            telemetry=False,
        )
        (told,) = returned((await agent.arun(PROMPT)).messages)
    assert "first" in told and world.ran == []


async def test_arguments_cannot_be_added_to_a_call_without_any(home: Path, tmp_path: Path) -> None:
    ran: list[str] = []

    def ping(host: str = "localhost") -> str:
        """Ping a host."""
        ran.append(host)
        return host

    person = Person(Answer(decision=Outcome.ALLOW, arguments={"host": "other"}))
    async with gate_for(tmp_path, home, person) as gate:
        agent = Agent(model=ScriptedModel(tool="ping"), tools=[ping], tool_hooks=gate_hooks(gate), telemetry=False)
        (told,) = returned((await agent.arun(PROMPT)).messages)
    assert ran == [] and "not run" in told


def agent_for(gate: Gate, world: World, name: str, hooks: Any = None, **arguments: Any) -> Agent:
    return Agent(
        model=ScriptedModel(tool=name, arguments=arguments),
        tools=[world.look, world.send_mail],
        tool_hooks=hooks or gate_hooks(gate, EFFECTS),
        telemetry=False,
    )


async def test_a_synchronous_run_in_the_loop_of_the_gate_runs_nothing_and_names_arun(
    home: Path, tmp_path: Path
) -> None:
    world = World()
    async with gate_for(tmp_path, home) as gate:
        (told,) = returned(agent_for(gate, world, "look", to="ann").run(PROMPT).messages)
    assert "`arun`" in told and world.ran == []


def test_a_synchronous_run_works_with_a_gate_that_has_its_own_loop(home: Path, tmp_path: Path) -> None:
    world, person = World(), Person(Answer(decision=Outcome.ALLOW, arguments={"to": "bob", "subject": "hi"}))
    with gate_for(tmp_path, home, person) as gate:
        run = agent_for(gate, world, "send_mail", to="ann", subject=None).run(PROMPT)
        assert returned(run.messages) == ["sent to bob"]
    assert world.ran == [("send_mail", "bob", "hi")]


def test_a_synchronous_run_tells_the_model_of_a_refusal(home: Path, tmp_path: Path) -> None:
    world, person = World(), Person(Answer(decision=Outcome.DENY, reason="not to them"))
    with gate_for(tmp_path, home, person) as gate:
        (told,) = returned(agent_for(gate, world, "send_mail", to="ann", subject=None).run(PROMPT).messages)
    assert "not to them" in told and world.ran == []


def test_behind_another_hook_a_synchronous_run_refuses(home: Path, tmp_path: Path) -> None:
    world = World()

    def rewrite(function_call: Any, arguments: dict[str, Any]) -> Any:
        return function_call(to="harmless")

    with gate_for(tmp_path, home) as gate:
        hooks = [rewrite, *gate_hooks(gate, EFFECTS)]
        (told,) = returned(agent_for(gate, world, "look", hooks, to="ann").run(PROMPT).messages)
    assert "first" in told and world.ran == []


async def test_a_later_hook_that_passes_other_arguments_on_changes_nothing(home: Path, tmp_path: Path) -> None:
    world = World()

    async def rewrite(function_call: Any, arguments: dict[str, Any]) -> Any:
        return await function_call(to="somebody else")

    async with gate_for(tmp_path, home) as gate:
        agent = Agent(
            model=ScriptedModel(tool="look", arguments={"to": "ann"}),
            tools=[world.look],
            tool_hooks=[*gate_hooks(gate, EFFECTS), rewrite],
            telemetry=False,
        )
        await agent.arun(PROMPT)
    assert world.ran == [("look", "ann")]
