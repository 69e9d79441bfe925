"""The MCP servers of the settings, and the tools that they bring.

settings -> `factories(name)`  what is pinned, without starting anything
         -> `ask(name)`        start it once, and hear what it says now
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from itertools import starmap
from typing import Any

import msgspec

from callgate.core.errors import ToolError, ToolRegistrationError
from callgate.core.tools import ToolDefinition, ToolFactory
from callgate.sources.changes import Changes, compare
from callgate.sources.logs import LifeLog, Trouble, trouble
from callgate.sources.mcp.asks import Asks
from callgate.sources.mcp.definitions import definitions, names_of
from callgate.sources.mcp.extras import Extra, extras
from callgate.sources.mcp.servers import Server, ServerLocation, ServerSettings
from callgate.sources.mcp.tools import tool_factory
from callgate.sources.pins import LARGEST, PinDoubt, Pinned, Pins, fingerprint


class Servers:
    """Same interface as `sources.hosts.source.Hosts`, for MCP."""

    noun = "MCP server"
    accept = "callgate mcp approve"

    def __init__(
        self, settings: Iterable[ServerSettings], pins: Pins, asks: Asks | None = None
    ) -> None:
        self._pins = pins
        self._asks = asks
        self._settings = {each.name: each for each in settings}
        self.hosts = {name: self._make(name) for name in self._settings}

    def _make(self, name: str) -> Server:
        settings = self._settings[name]
        return Server(settings, LifeLog(self.log_path(name)), self._asks)

    def pinned(self, name: str) -> Pinned | None:
        """None where it was never approved. Raises `PinDoubt`."""
        settings = self._settings[name]
        return self._pins.read(settings.pin, settings.command)

    def doubt(self, name: str) -> PinDoubt | None:
        """Why what is pinned cannot be gone by; None where it can, or nothing is."""
        try:
            self.pinned(name)
        except PinDoubt as doubt:
            return doubt
        return None

    def unknown(self) -> list[str]:
        """Those that nobody has approved yet."""
        return [name for name in self._settings if not self.doubt(name) and not self.pinned(name)]

    def in_order(self) -> list[str]:
        """Those first that were approved first: a name belongs to who had it first."""
        known = {pin: position for position, pin in enumerate(self._pins.known())}
        return sorted(
            self._settings, key=lambda name: known.get(self._settings[name].pin, len(known))
        )

    def pin(self, name: str, pinned: Pinned) -> None:
        self._pins.write(self._settings[name].pin, pinned)

    def pin_first(self, name: str, pinned: Pinned) -> None:
        self._pins.write_first(self._settings[name].pin, pinned)

    async def ask(self, name: str, location: ServerLocation) -> Pinned:
        """Start a server read-only and return what it says of itself. Raises a `ToolError`."""
        connection = await self.hosts[name].connection(location._replace(read_only=True))
        settings = self._settings[name]
        try:
            async with asyncio.timeout(settings.start_timeout_s):
                beside = await connection.beside()
        except TimeoutError:
            beside = []
        pinned = Pinned(command=settings.command, schemas=connection.tools, tags=beside)
        if len(msgspec.json.encode(pinned)) > LARGEST:
            raise ToolError(f"It says more than {LARGEST} bytes of itself.", reason="mcp_schema")
        return pinned

    def factories(self, name: str) -> list[ToolFactory]:
        """The tools of a server, as it is pinned; none if it is not."""
        pinned = self.pinned(name)
        return [] if pinned is None else self.factories_of(name, pinned)

    def factories_of(self, name: str, pinned: Pinned) -> list[ToolFactory]:
        prints = _prints(pinned.schemas, name)
        server, beliefs = self.hosts[name], self._settings[name].beliefs
        tools = [
            tool_factory(server, tool, definition, prints[tool])
            for tool, definition in definitions(pinned.schemas, name, beliefs)
        ]
        return [*tools, *starmap(partial(_extra, server), extras(server, pinned.tags, beliefs))]

    def definitions(self, name: str) -> list[ToolDefinition]:
        """As it is pinned; none if it is not."""
        pinned = self.pinned(name)
        if pinned is None:
            return []
        return [definition for _, definition in self.definitions_of(name, pinned)]

    def definitions_of(self, name: str, pinned: Pinned) -> list[tuple[str, ToolDefinition]]:
        """With the names that the server gives them."""
        beliefs = self._settings[name].beliefs
        tools = definitions(pinned.schemas, name, beliefs)
        return [*tools, *extras(self.hosts[name], pinned.tags, beliefs)]

    def changed(self, name: str) -> set[str]:
        """The tools that a running server describes differently than they are pinned, by the
        names that we give them."""
        pinned, running = self.pinned(name), self.hosts[name].running
        if pinned is None or not running:
            return set()
        known = _prints(pinned.schemas, name)
        return {
            definition.name
            for tool, definition in definitions(pinned.schemas, name, self._settings[name].beliefs)
            if any(each.prints.get(tool) != known[tool] for each in running)
        }

    def compare(self, name: str, before: Pinned | None, after: Pinned) -> Changes:
        return compare(name, before, after, names_of)

    def only_in(self, name: str) -> str | None:
        return self._settings[name].only_in

    def trouble(self, name: str) -> Trouble | None:
        """What went wrong with a server last, in whichever process, by its log."""
        return trouble(self.log_path(name))

    def command(self, name: str) -> tuple[str, ...]:
        return self._settings[name].command

    def log_path(self, name: str) -> str:
        return self._pins.log_path(self._settings[name].pin)

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self.hosts.values()))


def _extra(server: Server, name: str, definition: ToolDefinition) -> ToolFactory:
    return lambda: Extra(server, name, definition)


def _prints(schemas: list[dict[str, Any]], server: str) -> dict[str, str]:
    """By the names that their server gives them."""
    try:
        names = names_of(schemas, server)
    except ToolRegistrationError:
        return {}
    return dict(zip(names, map(fingerprint, schemas), strict=True))
