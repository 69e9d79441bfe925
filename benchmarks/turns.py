"""What an agent loop adds to a model: one turn with a model that answers at once.

    python benchmarks/turns.py [--rounds N] [--turns N] [--tools N] [--quick] [--json]

A turn is two requests: the model asks for one tool, gets its result, and says a sentence. Wall
and CPU time of one request in microseconds: half a turn's. In every round each contestant does
a batch, in turn, and ratios are taken within a round. Ours runs the call through the whole
dispatcher and keeps the conversation, the events and the audit record on the disk; `native` is
a model that calls tools, `text` one that writes its calls as text. The peers keep nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import report
from callgate import Gate, ToolUseBlock
from callgate.core.content import Message, ToolResultBlock
from callgate.core.effects import SideEffects
from callgate.core.models import Piece, Price, Prompt, Reply, TextDelta
from callgate.features.chat.agent.agent import Agent
from callgate.sources.functions import tool

Once = Callable[[], Awaitable[Any]]


class Cost(NamedTuple):
    """Of one request, in microseconds."""

    wall: float
    cpu: float


SAID = "It is done."
DOCUMENT = json.dumps(
    {
        "toolCalls": [
            {"type": "send_chat", "id": "c", "operation": "say", "parameters": {"content": SAID}},
            {"type": "end_turn", "id": "e", "operation": "end_turn", "parameters": {}},
        ]
    }
)
ASKED = json.dumps(
    {
        "toolCalls": [
            {"type": "tool_0", "id": "a", "operation": "run", "parameters": {"what": "it"}},
        ]
    }
)


def make(number: int) -> Callable[..., Any]:
    """One of many tools: a name, a description and two parameters."""

    async def work(what: str, times: int = 1) -> str:
        return what * times

    work.__name__ = f"tool_{number}"
    work.__doc__ = f"Do the thing number {number} to what is named, as often as is said."
    return work


class Instant:
    """A model that answers at once."""

    def __init__(self, *, native: bool) -> None:
        self.name = "instant"
        self.images = False
        self.native_tools = native
        self.constrained = False
        self.small = False
        self.catalogue_names = False
        self.context_tokens = 1_000_000_000
        self.price: Price | None = None

    async def stream(self, prompt: Prompt) -> AsyncIterator[Piece]:
        last = prompt.messages[-1].content[0]
        if self.native_tools:
            again = isinstance(last, ToolResultBlock)
            if again:
                yield TextDelta(SAID)
                yield Reply(message=Message.text("assistant", SAID), stop="end_turn")
            else:
                use = ToolUseBlock("a", "tool_0", {"what": "it"})
                yield Reply(message=Message(role="assistant", content=[use]), stop="tool_use")
            return
        text = DOCUMENT if last.text.startswith("[Results") else ASKED  # type: ignore[union-attr]
        yield TextDelta(text)
        yield Reply(message=Message.text("assistant", text), stop="end_turn")

    async def close(self) -> None:
        pass


@contextlib.asynccontextmanager
async def ours(directory: Path, tools: int, *, native: bool) -> AsyncIterator[Once]:
    workspace = directory / f"ws-{native}"
    workspace.mkdir()
    made = [tool(side_effects=SideEffects.NONE)(make(number)) for number in range(tools)]
    async with Gate(workspace, made, home=directory / f"home-{native}") as gate:
        runtime = gate.runtime
        agent = Agent(runtime, Instant(native=native))

        async def once() -> None:
            session = gate._wired.session(str(workspace))  # a new one: no history to carry
            end = await agent.turn(session, "Do it.")
            assert (end.stop, end.text, end.calls) == ("end_turn", SAID, 1), end

        yield once


@contextlib.asynccontextmanager
async def pydantic_ai(directory: Path, tools: int) -> AsyncIterator[Once]:
    from pydantic_ai import Agent as PydanticAgent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    def answer(messages: list[Any], info: Any) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse(parts=[TextPart(SAID)])
        return ModelResponse(parts=[ToolCallPart("tool_0", {"what": "it"}, "a")])

    agent = PydanticAgent(FunctionModel(answer), tools=[make(n) for n in range(tools)])

    async def once() -> None:
        result = await agent.run("Do it.")
        assert result.output == SAID

    yield once


@contextlib.asynccontextmanager
async def openai_agents(directory: Path, tools: int) -> AsyncIterator[Once]:
    import agents
    from agents.models.interface import Model
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    agents.set_tracing_disabled(True)

    class InstantModel(Model):
        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            given = kwargs.get("input", args[1] if len(args) > 1 else None)
            output: Any = ResponseFunctionToolCall(
                type="function_call", call_id="a", name="tool_0", arguments='{"what": "it"}'
            )
            if not isinstance(given, str) and len(given) > 1:
                text = ResponseOutputText(type="output_text", text=SAID, annotations=[])
                output = ResponseOutputMessage(
                    id="m", type="message", role="assistant", status="completed", content=[text]
                )
            return agents.ModelResponse(output=[output], usage=agents.Usage(), response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    agent = agents.Agent(
        name="bench",
        model=InstantModel(),
        tools=[agents.function_tool(make(n)) for n in range(tools)],
    )

    async def once() -> None:
        result = await agents.Runner.run(agent, "Do it.")
        assert result.final_output == SAID

    yield once


async def batch(once: Once, turns: int) -> Cost:
    began, spent = time.perf_counter(), time.process_time()
    for _ in range(turns):
        await once()
    wall, cpu = time.perf_counter() - began, time.process_time() - spent
    return Cost(wall / turns / 2 * 1e6, cpu / turns / 2 * 1e6)


async def measure(rounds: int, turns: int, tools: int) -> dict[str, list[Cost]]:
    figures: dict[str, list[Cost]] = {}
    async with contextlib.AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contestants: dict[str, Once] = {}
        for name, made in (
            ("callgate, native", ours(directory, tools, native=True)),
            ("callgate, text", ours(directory, tools, native=False)),
            ("pydantic-ai", pydantic_ai(directory, tools)),
            ("openai-agents", openai_agents(directory, tools)),
        ):
            try:
                contestants[name] = await stack.enter_async_context(made)
            except ImportError as error:
                print(f"{name} is not measured: {error}", file=sys.stderr)
        for once in contestants.values():
            await batch(once, 5)
        for _ in range(rounds):
            for name, once in contestants.items():
                figures.setdefault(name, []).append(await batch(once, turns))
    return figures


def rows(figures: dict[str, list[Cost]]) -> Iterable[list[str]]:
    ours_cpu = [cost.cpu for cost in figures["callgate, native"]]
    for name, rounds in figures.items():
        cpu = [cost.cpu for cost in rounds]
        ratio = median(a / b for a, b in zip(cpu, ours_cpu, strict=True))
        wall = median(cost.wall for cost in rounds)
        yield [name, f"{wall:,.0f}", f"{median(cpu):,.0f}", f"{ratio:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--tools", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="few rounds: does it run at all?")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds, turns = (3, 5) if options.quick else (options.rounds, options.turns)
    figures = asyncio.run(measure(rounds, turns, options.tools))
    if options.json:
        medians = {
            name: [median(each) for each in zip(*costs, strict=True)]
            for name, costs in figures.items()
        }
        print(json.dumps(medians))
    else:
        head = ["one request of an instant model", "wall, µs", "CPU, µs", "CPU to ours"]
        print(report.table(head, rows(figures)))


if __name__ == "__main__":
    main()
