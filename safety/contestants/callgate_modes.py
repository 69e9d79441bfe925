"""callgate in a loop of the application's own: `gate.turn`, then `gate.respond` to each message."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from callgate import Gate, Mode, TextBlock, ToolContext, ToolDefinition, ToolOutput
from safety.contestants.ports import Reply, World
from safety.people import PersonKind, Reader
from safety.values import Call

_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Calls with effects wait for the disk, which is not what is measured here."""


class CallgateMode(msgspec.Struct, frozen=True):
    name: str
    title: str
    mode: str
    person_kind: PersonKind = "reader"

    def missing(self) -> str | None:
        return None if self.mode in list(Mode) else f"this callgate has no mode {self.mode}"

    @asynccontextmanager
    async def open(self, world: World, prompt: str, person: Reader) -> AsyncIterator[CallgateDoor]:
        with tempfile.TemporaryDirectory(prefix="safety-", dir=_MEMORY) as directory:
            tools = [_factory(world, definition) for definition in world.definitions]
            gate = Gate(
                workspace=directory,
                tools=tools,
                mode=self.mode,
                confirm=person.confirm,
                home=f"{directory}/.home",
            )
            async with gate, gate.turn(prompt):
                yield CallgateDoor(gate)


class CallgateDoor:
    """Speaks Anthropic's dialect to the gate, one tool use a message."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._count = 0

    async def call(self, call: Call) -> Reply:
        self._count += 1
        use = {
            "type": "tool_use",
            "id": f"use_{self._count}",
            "name": call.tool,
            "input": dict(call.arguments),
        }
        message = {"role": "assistant", "content": [use]}
        (result,) = await self._gate.respond(message, "anthropic")
        return Reply(ran=not _was_refused(result), text=_text(result))


class WorldTool:
    """One call of a tool of the world."""

    def __init__(self, world: World, definition: ToolDefinition) -> None:
        self._world = world
        self.definition = definition

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        reply = await self._world.run(Call(self.definition.name, input))
        value = msgspec.UNSET if reply.data is None else reply.data
        return ToolOutput(content=[TextBlock(text=reply.text)], value=value)

    async def cancel(self) -> bool:
        return False


def _factory(world: World, definition: ToolDefinition) -> Callable[[], WorldTool]:
    return lambda: WorldTool(world, definition)


def _was_refused(result: dict[str, Any]) -> bool:
    """Tools of a world never fail here, so an error is the gate's refusal."""
    return bool(result.get("is_error"))


def _text(result: dict[str, Any]) -> str:
    content = result.get("content", "")
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text", "")) for block in content)
