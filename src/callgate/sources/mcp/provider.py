"""An MCP server as a provider of tools: what it says of itself, and the tools that this makes."""

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
from callgate.sources.logs import LifeLog
from callgate.sources.mcp.asks import Asks
from callgate.sources.mcp.definitions import definitions, names_of
from callgate.sources.mcp.extras import Extra, extras
from callgate.sources.mcp.servers import Server, ServerLocation, ServerSettings
from callgate.sources.mcp.tools import tool_factory
from callgate.sources.pins import LARGEST, Pinned, Pins, fingerprint
from callgate.sources.providers import ProviderKind, Providers

ACCEPT = "callgate mcp approve"


class ServerProvider:
    """One MCP server of the settings, with its connections."""

    def __init__(self, settings: ServerSettings, pins: Pins, asks: Asks | None) -> None:
        self._settings = settings
        self.name, self.pin, self.command = settings.name, settings.pin, settings.command
        self.process = Server(settings, LifeLog(pins.log_path(settings.pin)), asks)

    async def ask(self, location: ServerLocation) -> Pinned:
        """Start it read-only and return what it says of itself. Raises a `ToolError`."""
        connection = await self.process.connection(location._replace(read_only=True))
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                beside = await connection.beside()
        except TimeoutError:
            beside = []
        pinned = Pinned(command=self.command, schemas=connection.tools, tags=beside)
        if len(msgspec.json.encode(pinned)) > LARGEST:
            raise ToolError(f"It says more than {LARGEST} bytes of itself.", reason="mcp_schema")
        return pinned

    def factories(self, pinned: Pinned) -> list[ToolFactory]:
        prints = _prints(pinned.schemas, self.name)
        server, beliefs = self.process, self._settings.beliefs
        tools = [
            tool_factory(server, tool, definition, prints[tool])
            for tool, definition in definitions(pinned.schemas, self.name, beliefs)
        ]
        return [*tools, *starmap(partial(_extra, server), extras(server, pinned.tags, beliefs))]

    def definitions(self, pinned: Pinned) -> list[ToolDefinition]:
        return [definition for _, definition in self.named_definitions(pinned)]

    def named_definitions(self, pinned: Pinned) -> list[tuple[str, ToolDefinition]]:
        """With the names that the server gives them."""
        beliefs = self._settings.beliefs
        tools = definitions(pinned.schemas, self.name, beliefs)
        return [*tools, *extras(self.process, pinned.tags, beliefs)]

    def changed(self, pinned: Pinned) -> set[str]:
        """The tools that a running server describes differently than they are pinned, by the
        names that we give them."""
        running = self.process.running
        if not running:
            return set()
        known = _prints(pinned.schemas, self.name)
        return {
            definition.name
            for tool, definition in definitions(pinned.schemas, self.name, self._settings.beliefs)
            if any(each.prints.get(tool) != known[tool] for each in running)
        }

    def compare(self, before: Pinned | None, after: Pinned) -> Changes:
        return compare(self.name, before, after, names_of)


class Servers(Providers[Server]):
    def __init__(
        self, settings: Iterable[ServerSettings], pins: Pins, asks: Asks | None = None
    ) -> None:
        providers = [ServerProvider(each, pins, asks) for each in settings]
        super().__init__(ProviderKind("MCP server", ACCEPT), providers, pins)
        self._named_definitions = {each.name: each.named_definitions for each in providers}

    def definitions_of(self, name: str, pinned: Pinned) -> list[tuple[str, ToolDefinition]]:
        """With the names that the server gives them."""
        return self._named_definitions[name](pinned)

    def only_in(self, name: str) -> str | None:
        """The workspace whose settings brought it: no other may use it."""
        return self.hosts[name].settings.only_in


def _extra(server: Server, name: str, definition: ToolDefinition) -> ToolFactory:
    return lambda: Extra(server, name, definition)


def _prints(schemas: list[dict[str, Any]], server: str) -> dict[str, str]:
    """By the names that their server gives them."""
    try:
        names = names_of(schemas, server)
    except ToolRegistrationError:
        return {}
    return dict(zip(names, map(fingerprint, schemas), strict=True))
