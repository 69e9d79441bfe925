"""The two simplest gates: none, and a list of the tool names that the application needs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from safety.contestants.ports import Reply, World
from safety.people import PersonKind, Reader
from safety.values import Call


class Plain(msgspec.Struct, frozen=True):
    """Everything runs, or everything whose tool is on the list of the application."""

    name: str
    title: str
    listed_only: bool = False
    person_kind: PersonKind = "reader"

    def missing(self) -> str | None:
        return None

    @asynccontextmanager
    async def open(self, world: World, prompt: str, person: Reader) -> AsyncIterator[PlainDoor]:
        yield PlainDoor(world, world.used_by_tasks if self.listed_only else None)


class PlainDoor:
    def __init__(self, world: World, allowed: frozenset[str] | None) -> None:
        self._world = world
        self._allowed = allowed

    async def call(self, call: Call) -> Reply:
        if self._allowed is not None and call.tool not in self._allowed:
            return Reply(ran=False, text=f"The tool {call.tool} is not on the allow-list.")
        return Reply(ran=True, text=(await self._world.run(call)).text)
