"""The hosts, or the MCP servers, of the settings: the process of each, and what is pinned of it.

settings -> `factories(name)`  the tools that are pinned, without starting anything
         -> `ask(name)`        start it once, and return what it says of itself now

What differs between a host and an MCP server is in its `Provider`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from callgate.core.tools import ToolDefinition, ToolFactory
from callgate.sources.changes import Changes
from callgate.sources.lifecycle import Health
from callgate.sources.logs import LifeLog, Trouble, trouble
from callgate.sources.pins import PinDoubt, Pinned, Pins


class Process(Protocol):
    """What runs: a host, or an MCP server."""

    log: LifeLog

    @property
    def health(self) -> Health: ...
    @property
    def problem(self) -> str | None: ...
    def renew(self) -> None: ...
    async def restart(self) -> None: ...
    async def close(self) -> None: ...


P = TypeVar("P", bound=Process, covariant=True)


class Provider(Protocol[P]):
    """One of them, and what is believed of its tools."""

    @property
    def name(self) -> str: ...
    @property
    def pin(self) -> str:
        """The name of its pin."""
        ...

    @property
    def command(self) -> tuple[str, ...]:
        """What is started or reached: what is pinned is pinned for this alone."""
        ...

    @property
    def process(self) -> P: ...
    @property
    def ask(self) -> Callable[..., Awaitable[Pinned]]:
        """Start it, and return what it says of itself. Raises a `ToolError`."""
        ...

    def factories(self, pinned: Pinned) -> list[ToolFactory]: ...
    def definitions(self, pinned: Pinned) -> list[ToolDefinition]: ...
    def changed(self, pinned: Pinned) -> set[str]:
        """The tools that a process describes differently than they are pinned."""
        ...

    def compare(self, before: Pinned | None, after: Pinned) -> Changes: ...


class ProviderKind(NamedTuple):
    noun: str
    accept: str
    """The command with which a person accepts what one says now."""


class Providers(Generic[P]):
    def __init__(self, kind: ProviderKind, providers: Iterable[Provider[P]], pins: Pins) -> None:
        self.kind = kind
        self._pins = pins
        self._providers = {each.name: each for each in providers}
        self.hosts: Mapping[str, P] = {name: each.process for name, each in self._providers.items()}

    # --- pins ---------------------------------------------------------------------------------

    def pinned(self, name: str) -> Pinned | None:
        """None where it was never seen, or approved. Raises `PinDoubt`."""
        provider = self._providers[name]
        return self._pins.read(provider.pin, provider.command)

    def doubt(self, name: str) -> PinDoubt | None:
        """Why what is pinned cannot be gone by; None where it can, or nothing is."""
        try:
            self.pinned(name)
        except PinDoubt as doubt:
            return doubt
        return None

    def unknown(self) -> list[str]:
        """Those of which nothing is pinned yet."""
        return [name for name in self._providers if not self.doubt(name) and not self.pinned(name)]

    def in_order(self) -> list[str]:
        """Those first that were pinned first: a name belongs to who had it first."""
        known = {pin: position for position, pin in enumerate(self._pins.known())}
        pins = {name: each.pin for name, each in self._providers.items()}
        return sorted(pins, key=lambda name: known.get(pins[name], len(known)))

    def pin(self, name: str, pinned: Pinned) -> None:
        self._pins.write(self._providers[name].pin, pinned)

    def pin_first(self, name: str, pinned: Pinned) -> None:
        """Pin one that is new; what another process pinned since stays."""
        self._pins.write_first(self._providers[name].pin, pinned)

    # --- what they say ------------------------------------------------------------------------

    async def ask(self, name: str, *location: Any) -> Pinned:
        """Start one and return what it says of itself. Raises a `ToolError`."""
        return await self._providers[name].ask(*location)

    def compare(self, name: str, before: Pinned | None, after: Pinned) -> Changes:
        return self._providers[name].compare(before, after)

    def changed(self, name: str) -> set[str]:
        """The tools that its process describes differently than they are pinned."""
        pinned = self.pinned(name)
        return set() if pinned is None else self._providers[name].changed(pinned)

    # --- tools --------------------------------------------------------------------------------

    def factories(self, name: str) -> list[ToolFactory]:
        """The tools of one, as it is pinned; none if it is not."""
        pinned = self.pinned(name)
        return [] if pinned is None else self.factories_of(name, pinned)

    def factories_of(self, name: str, pinned: Pinned) -> list[ToolFactory]:
        return self._providers[name].factories(pinned)

    def definitions(self, name: str) -> list[ToolDefinition]:
        """As it is pinned; none if it is not."""
        pinned = self.pinned(name)
        return [] if pinned is None else self._providers[name].definitions(pinned)

    # --- processes ----------------------------------------------------------------------------

    def trouble(self, name: str) -> Trouble | None:
        """What went wrong with one last, in whichever process, by its log."""
        return trouble(self.log_path(name))

    def command(self, name: str) -> tuple[str, ...]:
        return self._providers[name].command

    def log_path(self, name: str) -> str:
        return self._pins.log_path(self._providers[name].pin)

    async def close(self) -> None:
        """Idempotent."""
        await asyncio.gather(*(process.close() for process in self.hosts.values()))
