"""callgate in a loop of the application's own: `gate.turn`, then `gate.call_all`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from callgate import Gate, Mode, TextBlock, ToolContext, ToolDefinition, ToolOutput, ToolResult
from safety.contestants.ports import Reply, World
from safety.people import PersonKind, Reader
from safety.values import Call

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
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
        with tempfile.TemporaryDirectory(prefix="safety-", dir=MEMORY) as directory:
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
    """Passes one tool use a message to the gate. Tools of a world never fail, so that an error is
    the gate's refusal."""

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
        (result,) = await self._gate.call_all({"role": "assistant", "content": [use]})
        raise_defect(result)
        return Reply(ran=result.ok, text=result.text)


def raise_defect(result: ToolResult) -> None:
    """Raise if callgate itself failed, which must not count as a refusal."""
    if result.error is not None and result.error.reason == "internal":
        raise RuntimeError(f"callgate met a defect in a call: {result.text}")


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
