"""What every gate is to the scripted model: a door, opened for one run of one task."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from callgate import ToolDefinition
from safety.people import Reader
from safety.values import Call


class Reply(msgspec.Struct, frozen=True):
    ran: bool
    text: str


class World(Protocol):
    """The tools as they are without any gate."""

    @property
    def definitions(self) -> Sequence[ToolDefinition]: ...

    @property
    def used_by_tasks(self) -> frozenset[str]:
        """The tools that some task of the application needs."""
        ...

    async def run(self, call: Call) -> str:
        """Run a tool. Failures come back as text, as a model would be told of them."""
        ...


class Door(Protocol):
    async def call(self, call: Call) -> Reply: ...


class Contestant(Protocol):
    name: str
    """For the command line and the JSON."""
    title: str
    """For the table."""

    def missing(self) -> str | None:
        """Why it cannot take part here; None where it can."""
        ...

    def open(
        self, world: World, prompt: str, person: Reader
    ) -> AbstractAsyncContextManager[Door]: ...

    person_kind: str
