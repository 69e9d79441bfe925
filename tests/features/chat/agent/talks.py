"""A session with an agent whose model says what a test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from callgate import Answer, Gate, Outcome, ToolUseBlock, tool
from callgate.core.content import Message, TextBlock
from callgate.core.events import Event
from callgate.core.models import (
    ModelError,
    Piece,
    Price,
    Prompt,
    Reply,
    StopReason,
    TextDelta,
    Usage,
)
from callgate.features.chat.agent.agent import Agent
from callgate.features.chat.agent.turns import TurnLimits
from callgate.sessions.shows import Said, Show, TurnEnd

Step = Reply | ModelError | Callable[[Prompt], Any]


def call(type: str, id: str = "", priority: float | None = None, **parameters: Any) -> dict[str, Any]:
    """One call in the text format."""
    said = {"type": type, "id": id or type, "operation": type, "parameters": parameters}
    return said if priority is None else {**said, "priority": priority}


def calls(*some: dict[str, Any]) -> Reply:
    """A reply of a model that writes its calls as text."""
    return text(json.dumps({"toolCalls": some}))


def text(said: str, stop: StopReason = "end_turn", **usage: int) -> Reply:
    return Reply(message=Message.text("assistant", said), stop=stop, usage=Usage(**usage))


def uses(*some: tuple[str, str, Any], said: str = "") -> Reply:
    """A reply with native calls: id, name and input of each."""
    blocks = [TextBlock(said)] if said else []
    message = Message(role="assistant", content=[*blocks, *(ToolUseBlock(*each) for each in some)])
    return Reply(message=message, stop="tool_use")


END = call("end_turn")


class PlayedModel:
    """Plays replies in order, in small pieces."""

    def __init__(self, steps: Sequence[Step], *, native: bool, chunk: int = 7) -> None:
        self.name = "played"
        self.images = True
        self.native_tools = native
        self.constrained = False
        self.small = False
        self.catalogue_names = False
        self.context_tokens = 100_000
        self.price: Price | None = None
        self.prompts: list[Prompt] = []
        self._steps = list(steps)
        self._chunk = chunk

    async def stream(self, prompt: Prompt) -> AsyncIterator[Piece]:
        self.prompts.append(prompt)
        assert self._steps, "the model is asked once too often"
        step = self._steps.pop(0)
        if callable(step):
            step = step(prompt)
        if isinstance(step, ModelError):
            raise step
        if not isinstance(step, Reply):  # pieces of its own
            async for piece in step:
                yield piece
            return
        for block in step.message.content:
            if isinstance(block, TextBlock):
                for at in range(0, len(block.text), self._chunk):
                    yield TextDelta(block.text[at : at + self._chunk])
                    await asyncio.sleep(0)
        yield step

    async def close(self) -> None:
        pass


class Bench:
    """What happens in the turns of one session."""

    def __init__(self, gate: Gate, model: PlayedModel, limits: TurnLimits) -> None:
        self.gate = gate
        self.model = model
        runtime = gate.runtime
        self.agent = Agent(runtime, model, limits=limits)
        self.shows: list[Show] = []
        self.events: list[Event] = []
        runtime.sessions.listen(self.events.append)

    async def turn(self, prompt: str = "go") -> TurnEnd:
        return await self.agent.turn(self.gate.session, prompt, self.shows.append)

    @property
    def said(self) -> str:
        """What the user has read; sayings end in a line break."""
        some = [show for show in self.shows if isinstance(show, Said)]
        return "".join(show.text + ("\n" if show.ends else "") for show in some)

    def of(self, *types: str) -> list[Event]:
        return [event for event in self.events if event.type in types]

    def last_told(self) -> str:
        """The text of the last message that the model was shown."""
        blocks = self.model.prompts[-1].messages[-1].content
        return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))

    def results(self) -> list[dict[str, Any]]:
        """What a model that writes text was told of its last calls."""
        head, _, told = self.last_told().partition("\n")
        assert head == "[Results of your calls]"
        results, _ = json.JSONDecoder().raw_decode(told)
        assert isinstance(results, list)
        return results


async def yes(question: Any) -> Answer:
    return Answer(decision=Outcome.ALLOW)


LOG: list[str] = []
"""What the tools below did, in order."""


@tool(side_effects="read")
async def look(what: str) -> str:
    """Look at something."""
    LOG.append(f"look {what}")
    return f"seen {what}"


@tool(side_effects="write", requires_workspace=False)
async def put(what: str) -> str:
    """Put something down."""
    LOG.append(f"put {what}")
    return f"done {what}"


@tool(side_effects="none")
async def fail(what: str = "") -> str:
    """Fail."""
    raise RuntimeError(what)


@tool(side_effects="none")
async def much(count: int) -> str:
    """Say much."""
    return "x" * count


TOOLS = (look, put, fail, much)


@asynccontextmanager
async def talk(
    tmp_path: Path,
    *steps: Step,
    native: bool = False,
    tools: Sequence[Any] = TOOLS,
    limits: TurnLimits = TurnLimits(),  # noqa: B008
    mode: str = "ask",
    confirm: Any = yes,
) -> AsyncIterator[Bench]:
    LOG.clear()
    workspace = tmp_path / "workspace"
    workspace.mkdir(exist_ok=True)
    home = tmp_path / "home"
    model = PlayedModel(steps, native=native)
    async with Gate(workspace, tools, mode=mode, confirm=confirm, home=home) as gate:
        yield Bench(gate, model, limits)
