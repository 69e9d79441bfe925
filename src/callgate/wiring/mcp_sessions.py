"""From the MCP servers that an editor names for a session to tools that this session alone has.

    session/new -> `EditorServers.open` -> each is started by itself, and nothing waits for it
                                        -> when it is ready, its tools are given to the session
    session/close, delete, the end      -> `close`: its processes, connections and tools are gone

What an editor names is what its user has set up there, so it may start: in the sandbox, as far as
`[acp.mcp]` lets it reach. Nobody has approved its tools: each can do the worst that there is,
whatever it says of itself, and what it said when the session was opened is what counts. A tool
that is described differently later is not used in this session any more.

Loaded only where a session names servers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.mcp import McpTable, name_for
from callgate.config.schema import Settings
from callgate.core.errors import ToolError, ToolRegistrationError
from callgate.core.sessions import Session
from callgate.core.task_sets import start_task
from callgate.core.tools import ToolDefinition, ToolFactory
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.dispatch.registry import Registry
from callgate.protocol.acp.requests import McpServer
from callgate.redaction.texts import redact
from callgate.runtime import Runtime
from callgate.sources.logs import LifeLog
from callgate.sources.mcp.asks import Asks
from callgate.sources.mcp.definitions import definitions
from callgate.sources.mcp.extras import Extra, extras
from callgate.sources.mcp.servers import Server, ServerLocation, ServerSettings
from callgate.sources.mcp.tools import tool_factory
from callgate.wiring.mcp import make_asks, reach_address, short_hash, tables
from callgate.wiring.mcp_programs import reach_process, start_timeout_s
from callgate.wiring.packages import ServerPackages, limits_of

if TYPE_CHECKING:  # it loads the SDK
    from callgate.sources.mcp.connections import Connection

MOST_SERVERS = 32
START_S = 60.0
"""How long a server may take to start: some are fetched first."""
PATIENCE_S = 5.0
"""How long the first prompt waits for servers that are being started."""
_SHORTEST_SECRET = 6
_MOST_LISTED = 10
_CHANGED = "it is described differently than when this session was opened"
_NOT_LISTED = "its MCP server does not list it any more"
_log = logging.getLogger("callgate.acp")

Tell = Callable[[str], None]


class EditorServers:
    """Those of all sessions of one runtime."""

    def __init__(self, home: Home, settings: Settings, sandbox: Sandbox, runtime: Runtime) -> None:
        self._home = home
        self._settings = settings
        self._sandbox = sandbox
        self._registry = runtime.dispatcher.registry
        self._asks = make_asks(home, settings, runtime)
        self._open: set[SessionServers] = set()
        self._closed = False

    def open(self, session: Session, wanted: Sequence[McpServer], tell: Tell) -> SessionServers:
        """Begin to start servers for a session; `tell` hears what its user should know."""
        if self._closed:
            raise ToolError("The agent is being closed.")
        chosen: dict[str, ServerSettings] = {}
        taken = self._configured(session.workspace)
        for each in wanted[:MOST_SERVERS]:
            name = name_for(each.name)
            problem = "another one is called the same" if name in chosen else None
            if name in taken:
                problem = "your settings have one of this name, which is used instead"
            try:
                if problem is None:
                    chosen[name] = self._server(name, each)
            except ValueError as error:
                problem = str(error)
            if problem is not None:
                tell(f"MCP server {name} of the editor is left out: {problem}.")
        if len(wanted) > MOST_SERVERS:
            tell(f"Of the editor's MCP servers only {MOST_SERVERS} are used.")
        servers = SessionServers(session, chosen.values(), self._registry, self._asks, tell)
        self._open.add(servers)
        servers.when_closed = lambda: self._open.discard(servers)
        return servers

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(each.close() for each in list(self._open)))

    def _configured(self, workspace: str) -> Iterable[str]:
        try:
            return tables(self._home, self._settings, workspace)
        except SettingsError:  # of the workspace, which brings none then
            return self._settings.mcp

    def _server(self, name: str, wanted: McpServer) -> ServerSettings:
        """Raises `ValueError` with what is wrong."""
        table = self._table(wanted)
        if (problem := table.problem()) is not None:
            raise ValueError(f"its {problem[0]} {problem[1]}")
        if table.url is None:
            owner = f"{name}@{short_hash(repr((table.command, table.args)))}"
            packages = ServerPackages(self._home.path, owner, limits_of(table), self._sandbox)
            reach = reach_process(table, self._sandbox, packages, _literally)
        else:
            reach = reach_address(table, self._home, name, None, _literally)
        return ServerSettings(
            name=name,
            # Without its arguments, which may be secret: it stands in logs, and is not pinned.
            command=("http", "") if table.url is not None else ("stdio", str(table.command)),
            start_timeout_s=max(START_S, start_timeout_s(table)),
            pin=name,
            of_session=True,
            covered=_cover(_secrets(table)),
            has_jail=table.url is None and self._sandbox.surroundings.profile is not None,
            reach=reach,
        )

    def _table(self, wanted: McpServer) -> McpTable:
        if wanted.type == "sse":
            raise ValueError("it speaks the old SSE transport, which we do not")
        if wanted.type not in ("stdio", "http") and wanted.command is None:
            raise ValueError("it is reached in a way that we do not know")
        if wanted.type == "http":
            headers = {each.name: each.value for each in wanted.headers or ()}
            return McpTable(url=wanted.url, headers=headers, oauth=False)
        env = {each.name: each.value for each in wanted.env or ()}
        if any(not name or "=" in name or "\0" in name + value for name, value in env.items()):
            raise ValueError("one of its variables cannot be set")
        around = self._settings.acp.mcp
        return McpTable(
            command=wanted.command,
            args=wanted.args or [],
            set_env=env,
            network=around.network,
            profile=around.profile,
            writable=around.writable,
        )


class SessionServers:
    """Those of one session."""

    def __init__(
        self,
        session: Session,
        chosen: Iterable[ServerSettings],
        registry: Registry,
        asks: Asks | None,
        tell: Tell,
    ) -> None:
        self._session = session
        self._registry = registry
        self._tell = tell
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
        self._registry.take_back(self._session.id)
        for task in self._starting.values():
            task.cancel()
        if self._starting:
            await asyncio.wait(self._starting.values())
        await asyncio.gather(*(each.server.close() for each in self._servers))
        self._registry.take_back(self._session.id)
        self.when_closed()

    # --- for each of them ----------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._closing is not None

    def give(self, factory: ToolFactory) -> str:
        """Raises `ToolRegistrationError`."""
        return self._registry.give(self._session.id, factory).name

    def withhold(self, tool: str, why: str | None) -> None:
        self._registry.withhold(self._session.id, tool, why)

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
        self._ours: dict[str, str] = {}
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
        self._give(
            (name, definition, _extra(server, name, definition))
            for name, definition in extras(server, beside, server.settings.beliefs)
        )
        _log.info("MCP server %s: %d tools", self.name, len(self._ours))

    def _heard(self, connection: Connection) -> None:
        """It was reached again, or has changed what it lists."""
        if not self._ready or self._owner.is_closed:
            return
        changed: list[str] = []
        for tool, pin in self._pins.items():
            now, ours = connection.prints.get(tool), self._ours.get(tool)
            if ours is None or ours in self._quarantined:
                continue
            if now is not None and now != pin:
                self._quarantined.add(ours)
                changed.append(tool)
                self._owner.withhold(ours, _CHANGED)
            else:
                self._owner.withhold(ours, _NOT_LISTED if now is None else None)
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
        self._give(
            (tool, definition, tool_factory(server, tool, definition, self._pins[tool]))
            for tool, definition in definitions(new, self.name, server.settings.beliefs)
        )

    def _give(self, offered: Iterable[tuple[str, ToolDefinition, ToolFactory]]) -> None:
        left_out: list[str] = []
        for tool, definition, factory in offered:
            try:
                self._ours[tool] = self._owner.give(factory)
            except ToolRegistrationError as error:
                _log.info("MCP server %s: %s is left out: %s", self.name, definition.name, error)
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


def _literally(key: str, values: Mapping[str, str]) -> dict[str, str]:
    """An editor says what it means: nothing in it stands for a variable of ours."""
    return dict(values)


def _secrets(table: McpTable) -> Iterator[str]:
    """What may be one."""
    yield from table.set_env.values()
    for value in table.headers.values():
        yield value
        yield value.partition(" ")[2]
    if table.url is not None:
        yield urlsplit(table.url).query


def _cover(secrets: Iterable[str]) -> Callable[[str], str]:
    found = sorted({each for each in secrets if len(each) >= _SHORTEST_SECRET}, key=len)

    def cover(text: str) -> str:
        for each in reversed(found):
            text = text.replace(each, "[REDACTED]")
        return redact(text)

    return cover


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more
