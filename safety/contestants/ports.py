"""What every gate is to the scripted model: a door, opened for one run of one task."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

import msgspec

from callgate import ToolDefinition
from safety.people import PersonKind, Reader
from safety.values import Call


class Reply(msgspec.Struct, frozen=True):
    ran: bool
    text: str
    withheld: bool = False
    """The text is the gate's, in place of the tool's."""


class Output(NamedTuple):
    text: str
    """As a model is shown it."""
    data: Any = None
    """The same as data, where the tool returns any."""


class World(Protocol):
    """The tools as they are without any gate."""

    @property
    def definitions(self) -> Sequence[ToolDefinition]: ...

    @property
    def used_by_tasks(self) -> frozenset[str]:
        """The tools that some task of the application needs."""
        ...

    async def run(self, call: Call) -> Output:
        """Run a tool. Failures come back as text, as a model would be told of them."""
        ...


class Door(Protocol):
    async def call(self, call: Call) -> Reply: ...


class Contestant(Protocol):
    @property
    def name(self) -> str:
        """For the command line and the JSON."""
        ...

    @property
    def title(self) -> str:
        """For the table."""
        ...

    @property
    def person_kind(self) -> PersonKind: ...

    def missing(self) -> str | None:
        """Why it cannot take part here; None where it can."""
        ...

    def open(
        self, world: World, prompt: str, person: Reader
    ) -> AbstractAsyncContextManager[Door]: ...
