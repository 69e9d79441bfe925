"""MCP servers that an editor names for one session: a tool source visible to this session only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from callgate.config.load import SettingsError
from callgate.core.errors import ToolError, ToolRegistrationError
from callgate.core.sessions import Session
from callgate.core.tasks import start_task
from callgate.core.tools import ToolDefinition, ToolFactory
from callgate.dispatch.tools.registry import Registry
from callgate.dispatch.tools.sources import Disabled, ForSession, Source, SourceTool
from callgate.features.mcp.client.definitions import definitions
from callgate.features.mcp.client.server_requests import Asks
from callgate.features.mcp.client.server_tools import Extra, extras, tool_factory
from callgate.features.mcp.client.servers import Server, ServerLocation, ServerSettings
from callgate.features.mcp.settings import EnclosureTable, McpSettings, McpTable, name_for
from callgate.features.mcp.wiring import ServerBuilder, make_asks, make_builder, tables
from callgate.instance.wiring.runtime import Wired
from callgate.protocol.acp.requests import McpServer
from callgate.sources.logs import LifeLog

if TYPE_CHECKING:
    from callgate.features.mcp.client.connections import Connection


PATIENCE_S = 5.0
"""Time limit of the first prompt's wait for starting servers."""
_MOST_LISTED = 10
_CHANGED = "its definition has changed since this session was opened"
_NOT_LISTED = "its MCP server does not list it any more"
_log = logging.getLogger("callgate.acp")

Tell = Callable[[str], None]


class SessionServers(Source):
    """MCP servers of one session, as a source of tools."""

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
        """Tool name -> why the tool is disabled at the moment."""
        self._source = ForSession(Disabled(self, self._hidden), session.id)
        registry.add(self._source)
        self.when_closed: Callable[[], None] = lambda: None
        self._servers = [_SessionServer(each, asks, self) for each in chosen]
        self._starting = {each.name: start_task(each.start()) for each in self._servers}
        self._waiting: asyncio.Task[object] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._waited = False

    @property
    def location(self) -> ServerLocation:
        return ServerLocation(self._session.workspace, self._session.extra_roots, read_only=True)

    @property
    def _slow(self) -> list[str]:
        """Names of the servers that are still starting."""
        return [name for name, task in self._starting.items() if not task.done()]

    def tools(self) -> Sequence[SourceTool]:
        return self._tools

    def refused(self, tool: SourceTool, error: ToolRegistrationError) -> None:
        self._refused.add(tool)
        _log.info("MCP tool %s is not offered: %s", tool.factory().definition.name, error)

    async def settled(self) -> None:
        """Wait once, for at most `PATIENCE_S`, until the starting servers are ready."""
        if self._waited or not self._slow:
            return
        self._waited = True
        waiting = asyncio.wait([self._starting[name] for name in self._slow], timeout=PATIENCE_S)
        self._waiting = start_task(waiting)
        await asyncio.wait([self._waiting])
        if self._slow and not self._waiting.cancelled():
            names = ", ".join(self._slow)
            self._tell(f"MCP servers still starting: {names}. Their tools follow when ready.")
        self._waiting = None

    def hurry(self) -> None:
        """Stop waiting in `settled`."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def close(self) -> None:
        """Remove the tools and stop the servers. A cancelled caller does not interrupt this."""
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

    # --- used by each server -------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._closing is not None

    def add(self, factories: Iterable[ToolFactory]) -> list[bool]:
        """Add tools and return, for each, whether it was registered."""
        new = [SourceTool(factory=each) for each in factories]
        self._tools += new
        self.changed()
        return [each not in self._refused for each in new]

    def hide(self, tool: str, why: str | None) -> None:
        """Disable a tool for the reason `why`; None enables it again."""
        if why is None:
            self._hidden.pop(tool, None)
        else:
            self._hidden[tool] = why

    def tell(self, message: str) -> None:
        if not self.is_closed:
            self._tell(message)


class _SessionServer:
    """One server, with the tool definitions from the start of the session as pins."""

    def __init__(self, settings: ServerSettings, asks: Asks | None, owner: SessionServers) -> None:
        self.name = settings.name
        self.server = Server(settings, LifeLog(), asks, self._heard)
        self._owner = owner
        self._ready = False
        self._pins: dict[str, str] = {}
        self._names: dict[str, str] = {}
        """Name on the server -> name in callgate, of each registered tool."""
        self._quarantined: set[str] = set()

    async def start(self) -> None:
        """Start the server and add its tools to the session."""
        try:
            connection = await self.server.connection(self._owner.location)  # read-only
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
        """Compare the tools with the pins after a new connection or a changed list."""
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
                f"MCP server {self.name} changed the definitions of tools: {_few(changed)}. "
                "They are disabled until the session is reopened."
            )
        self._offer(connection)

    def _offer(self, connection: Connection) -> None:
        """Add the tools that the server did not list before."""
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
                f"Some tools of MCP server {self.name} are not offered because of a duplicate name "
                f"or an invalid schema: {_few(left_out)}."
            )


async def _beside(connection: Connection) -> list[str]:
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await connection.beside()
    except TimeoutError:
        return []
    except Exception as error:  # from the SDK: the connection was lost
        _log.info("an MCP server was lost: %s", type(error).__name__)
        return []


def _extra(server: Server, name: str, definition: ToolDefinition) -> ToolFactory:
    return lambda: Extra(server, name, definition)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more


MOST_SERVERS = 32


class EditorServers:
    """MCP servers of all sessions of one runtime, as an editor names them."""

    def __init__(
        self,
        build: ServerBuilder,
        around: EnclosureTable,
        configured: Callable[[str], Collection[str]],
        registry: Registry,
        asks: Asks,
    ) -> None:
        """`configured` returns the names of the servers in the settings, for a workspace."""
        self._build = build
        self._around = around
        self._configured = configured
        self._registry = registry
        self._asks = asks
        self._open: set[SessionServers] = set()
        self._closed = False

    def open(self, session: Session, wanted: Sequence[McpServer], tell: Tell) -> SessionServers:
        """Begin to start servers for a session. `tell` receives notices for its user."""
        if self._closed:
            raise ToolError("callgate is shutting down, so no MCP server is started.")
        chosen: dict[str, ServerSettings] = {}
        taken = self._configured(session.workspace)
        for each in wanted[:MOST_SERVERS]:
            name = name_for(each.name)
            problem = "another server has the same name" if name in chosen else None
            if name in taken:
                problem = "your settings name a server of this name, which is used instead"
            try:
                if problem is None:
                    chosen[name] = self._server(name, each)
            except ValueError as error:
                problem = str(error)
            if problem is not None:
                tell(f"The editor's MCP server {name} is not used: {problem}.")
        if len(wanted) > MOST_SERVERS:
            tell(f"The editor names too many MCP servers: the first {MOST_SERVERS} are used.")
        servers = SessionServers(session, chosen.values(), self._registry, self._asks, tell)
        self._open.add(servers)
        servers.when_closed = lambda: self._open.discard(servers)
        return servers

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(each.close() for each in list(self._open)))

    def _server(self, name: str, wanted: McpServer) -> ServerSettings:
        """Raises `ValueError` if the server cannot be used."""
        table = self._table(wanted)
        if (problem := table.problem()) is not None:
            raise ValueError(f"its {problem[0]} {problem[1]}")
        return self._build.session_settings(name, table)

    def _table(self, wanted: McpServer) -> McpTable:
        if wanted.type == "sse":
            raise ValueError("callgate does not support its transport, the old SSE")
        if wanted.type not in ("stdio", "http") and wanted.command is None:
            raise ValueError("callgate does not support its transport")
        if wanted.type == "http":
            headers = {each.name: each.value for each in wanted.headers or ()}
            return McpTable(url=wanted.url, headers=headers, oauth=False)
        env = {each.name: each.value for each in wanted.env or ()}
        if any(not name or "=" in name or "\0" in name + value for name, value in env.items()):
            raise ValueError("one of its environment variables has an invalid name or value")
        return McpTable(
            command=wanted.command,
            args=wanted.args or [],
            set_env=env,
            network=self._around.network,
            profile=self._around.profile,
            writable=self._around.writable,
            unix_sockets=self._around.unix_sockets,
        )


class WiredEditorServers(EditorServers):
    def __init__(self, wired: Wired, enclosure: EnclosureTable) -> None:
        home, settings = wired.home, wired.settings

        def configured(workspace: str) -> Collection[str]:
            try:
                return tables(home, settings, workspace)
            except SettingsError:  # invalid settings of the workspace: they add no servers
                return settings.of(McpSettings).mcp

        super().__init__(
            make_builder(home, wired.sandbox),
            enclosure,
            configured,
            wired.registry,
            make_asks(wired),
        )
