"""The MCP servers that an editor named for one session: a source that it alone has.

    session/new -> each is started by itself, and nothing waits for it
                -> when it is ready, the session has its tools
    session/close, delete, the end -> `close`: its processes, connections and tools are gone

Nobody has approved its tools: what a server said when the session was opened is what counts. A tool
that is described differently later is not used in this session any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from callgate.core.errors import ToolError, ToolRegistrationError
from callgate.core.sessions import Session
from callgate.core.task_sets import start_task
from callgate.core.tools import ToolDefinition, ToolFactory
from callgate.dispatch.tools.registry import Registry
from callgate.dispatch.tools.sources import Disabled, ForSession, Source, SourceTool
from callgate.sources.logs import LifeLog
from callgate.sources.mcp.asks import Asks
from callgate.sources.mcp.definitions import definitions
from callgate.sources.mcp.extras import Extra, extras
from callgate.sources.mcp.servers import Server, ServerLocation, ServerSettings
from callgate.sources.mcp.tools import tool_factory

if TYPE_CHECKING:  # it loads the SDK
    from callgate.sources.mcp.connections import Connection

PATIENCE_S = 5.0
"""How long the first prompt waits for servers that are being started."""
_MOST_LISTED = 10
_CHANGED = "it is described differently than when this session was opened"
_NOT_LISTED = "its MCP server does not list it any more"
_log = logging.getLogger("callgate.acp")

Tell = Callable[[str], None]


class SessionServers(Source):
    """Those of one session."""

    def __init__(
        self,
        session: Session,
        chosen: Iterable[ServerSettings],
        registry: Registry,
        asks: Asks | None,
        tell: Tell,
    ) -> None:
        super().__init__()
        self._session = session
        self._registry = registry
        self._tell = tell
        self._tools: list[SourceTool] = []
        self._refused: set[SourceTool] = set()
        self._hidden: dict[str, str] = {}
        """Why a tool is not to be used at the moment, by its name."""
        self._source = ForSession(Disabled(self, self._hidden), session.id)
        registry.add(self._source)
        self.when_closed: Callable[[], None] = lambda: None
        self._servers = [_SessionServer(each, asks, self) for each in chosen]
        self._starting = {each.name: start_task(each.start()) for each in self._servers}
        self._waiting: asyncio.Task[object] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._waited = False

    @property
    def place(self) -> ServerLocation:
        return ServerLocation(self._session.workspace, self._session.extra_roots, read_only=True)

    @property
    def _slow(self) -> list[str]:
        """Those that are being started."""
        return [name for name, task in self._starting.items() if not task.done()]

    def tools(self) -> Sequence[SourceTool]:
        return self._tools

    def refused(self, tool: SourceTool, error: ToolRegistrationError) -> None:
        self._refused.add(tool)
        _log.info("MCP tool %s is left out: %s", tool.factory().definition.name, error)

    async def settled(self) -> None:
        """Wait a little, once, for those that are being started."""
        if self._waited or not self._slow:
            return
        self._waited = True
        waiting = asyncio.wait([self._starting[name] for name in self._slow], timeout=PATIENCE_S)
        self._waiting = start_task(waiting)
        await asyncio.wait([self._waiting])
        if self._slow and not self._waiting.cancelled():
            names = ", ".join(self._slow)
            self._tell(f"Still being started, and used when they are ready: {names}.")
        self._waiting = None

    def hurry(self) -> None:
        """Whoever waits for them does not want to any more."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def close(self) -> None:
        """Nothing of them is left. It goes on also if nobody waits for it."""
        if self._closing is None:
            self._closing = start_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._registry.remove(self._source)
        for task in self._starting.values():
            task.cancel()
        if self._starting:
            await asyncio.wait(self._starting.values())
        await asyncio.gather(*(each.server.close() for each in self._servers))
        self.when_closed()

    # --- for each of them ----------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._closing is not None

    def add(self, factories: Iterable[ToolFactory]) -> list[bool]:
        """Have these tools, too; whether each could be registered."""
        new = [SourceTool(factory=each) for each in factories]
        self._tools += new
        self.changed()
        return [each not in self._refused for each in new]

    def hide(self, tool: str, why: str | None) -> None:
        """None: show it again."""
        if why is None:
            self._hidden.pop(tool, None)
        else:
            self._hidden[tool] = why

    def tell(self, message: str) -> None:
        if not self.is_closed:
            self._tell(message)


class _SessionServer:
    """One of them, with what it said when the session was opened."""

    def __init__(self, settings: ServerSettings, asks: Asks | None, owner: SessionServers) -> None:
        self.name = settings.name
        self.server = Server(settings, LifeLog(), asks, self._heard)
        self._owner = owner
        self._ready = False
        self._pins: dict[str, str] = {}
        self._names: dict[str, str] = {}
        """What its tools are called by us."""
        self._quarantined: set[str] = set()

    async def start(self) -> None:
        """Start it, and give its tools to the session."""
        try:
            connection = await self.server.connection(self._owner.place)  # which only looks
        except ToolError as error:
            self._owner.tell(error.message)
            return
        beside = await _beside(connection)
        self._ready = True
        self._offer(connection)
        server = self.server
        self._add(
            (name, definition, _extra(server, name, definition))
            for name, definition in extras(server, beside, server.settings.beliefs)
        )
        _log.info("MCP server %s: %d tools", self.name, len(self._names))

    def _heard(self, connection: Connection) -> None:
        """It was reached again, or has changed what it lists."""
        if not self._ready or self._owner.is_closed:
            return
        changed: list[str] = []
        for tool, pin in self._pins.items():
            now, name = connection.prints.get(tool), self._names.get(tool)
            if name is None or name in self._quarantined:
                continue
            if now is not None and now != pin:
                self._quarantined.add(name)
                changed.append(tool)
                self._owner.hide(name, _CHANGED)
            else:
                self._owner.hide(name, _NOT_LISTED if now is None else None)
        if changed:
            self._owner.tell(
                f"MCP server {self.name} describes tools differently than it did: {_few(changed)}. "
                "They are not used before the session is opened anew."
            )
        self._offer(connection)

    def _offer(self, connection: Connection) -> None:
        """Give the tools that it did not list before."""
        new = [each for each in connection.tools if each["name"] not in self._pins]
        self._pins |= {each["name"]: connection.prints[each["name"]] for each in new}
        server = self.server
        self._add(
            (tool, definition, tool_factory(server, tool, definition, self._pins[tool]))
            for tool, definition in definitions(new, self.name, server.settings.beliefs)
        )

    def _add(self, offered: Iterable[tuple[str, ToolDefinition, ToolFactory]]) -> None:
        tools = list(offered)
        registered = self._owner.add(factory for _, _, factory in tools)
        left_out: list[str] = []
        for (tool, definition, _), is_registered in zip(tools, registered, strict=True):
            if is_registered:
                self._names[tool] = definition.name
            else:
                left_out.append(tool)
        if left_out:
            self._owner.tell(
                f"Tools of MCP server {self.name} that cannot be used (their names are taken, or "
                f"their schemas wrong): {_few(left_out)}."
            )


async def _beside(connection: Connection) -> list[str]:
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await connection.beside()
    except TimeoutError:
        return []
    except Exception as error:  # the SDK's, of a connection that was lost meanwhile
        _log.info("an MCP server was lost: %s", type(error).__name__)
        return []


def _extra(server: Server, name: str, definition: ToolDefinition) -> ToolFactory:
    return lambda: Extra(server, name, definition)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more
