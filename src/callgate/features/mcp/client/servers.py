"""One MCP server: its connections and its lifecycle (`sources.lifecycle`).

Each workspace has its own connection, with the roots, working directory and jail of the calling
session. A local program may have two connections for a workspace, one of them read-only
(`Server.location`). The first connection imports the SDK.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from callgate.core.commands import Exit
from callgate.core.errors import ToolError, ToolHostUnavailable
from callgate.core.sessions import Mode, Root
from callgate.core.tasks import TaskSet, start_task
from callgate.core.tools import ToolContext
from callgate.dispatch.environments import CallContext
from callgate.features.mcp.client.definitions import Beliefs
from callgate.features.mcp.client.fetches import NOT_FETCHED
from callgate.features.mcp.client.server_requests import Asks
from callgate.sources.lifecycle import Health, Kind, Lifecycle, ended
from callgate.sources.logs import LifeLog, MessageLog

if TYPE_CHECKING:  # it loads the SDK
    from callgate.features.mcp.client.connections import Connection

MOST_CONNECTIONS = 8
"""Maximum number of open connections; beyond it, the oldest idle ones are closed."""
_SERVER = Kind(noun="MCP server", reason="mcp", detail="server")
_NO_SDK = "the package mcp is not installed: run pip install 'mcp>=2.3'"


class ServerLocation(NamedTuple):
    """Location of a server process: workspace and roots of a session, and write access."""

    workspace: str
    roots: tuple[Root, ...] = ()
    read_only: bool = False
    """Whether the server can change neither the workspace nor a root."""

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.workspace, *(root.path for root in self.roots))


TransportFactory = Callable[[ServerLocation, LifeLog], Awaitable[Callable[[], Any]]]
"""Prepares a transport of the SDK for a location. Raises `OSError` or `ToolError`."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The part of `[mcp.NAME]` about the server itself."""

    name: str
    command: tuple[str, ...]
    """Everything that identifies the server. An approval covers only this value."""
    start_timeout_s: float = 30.0
    elicitation: bool = True
    sampling: bool = False
    only_in: str | None = None
    """The workspace whose settings name the server; no other may use it. None: all may."""
    pin: str
    """Name of the server's pin."""
    accept: str | None = None
    """The approval command, if it is not `callgate mcp approve`."""
    of_session: bool = False
    """Whether the server belongs to one session and ends with it."""
    covered: Callable[[str], str] = str
    """Masks the server's secrets in a text."""
    beliefs: Beliefs = Beliefs()
    has_jail: bool = False
    """Whether the server is a sandboxed local program. A server with a URL runs elsewhere."""
    reach: TransportFactory


class Server:
    def __init__(
        self,
        settings: ServerSettings,
        log: LifeLog,
        asks: Asks | None = None,
        heard: Callable[[Connection], None] | None = None,
    ) -> None:
        """`heard` is called after a connection is opened and after its tools change."""
        self.settings = settings
        self.log = log
        self._asks = asks
        self._heard = heard
        self.lifecycle = Lifecycle(
            _SERVER, settings.name, log, until=_until(settings), covered=settings.covered
        )
        self.messages = MessageLog(settings.covered)
        self._open: dict[ServerLocation, Connection] = {}
        self._starting: dict[ServerLocation, asyncio.Task[Connection]] = {}
        self._ending = TaskSet()

    # --- state --------------------------------------------------------------------------------

    @property
    def health(self) -> Health:
        return self.lifecycle.health(starting=bool(self._starting), running=bool(self.running))

    @property
    def running(self) -> list[Connection]:
        return [each for each in self._open.values() if each.is_open]

    @property
    def problem(self) -> str | None:
        """Why the server does not run although it should."""
        return self.lifecycle.problem

    # --- lifecycle ----------------------------------------------------------------------------

    def location(self, context: ToolContext) -> ServerLocation:
        """Return the location for a call. It is writable only for calls that may write.

        In mode `read` it is always read-only. In other modes a read-only call uses a writable
        connection if one is open, because the server may have state from earlier calls.
        """
        session = context.call.session if isinstance(context, CallContext) else None
        roots = () if session is None else session.extra_roots
        location = ServerLocation(context.workspace_path, roots)
        if context.may_write or not self.settings.has_jail:
            return location
        writing = self._open.get(location)
        is_reading = session is None or session.mode in (Mode.NONE, Mode.READ)
        follows = not is_reading and writing is not None and writing.is_open
        return location._replace(read_only=not follows)

    async def connection(self, location: ServerLocation) -> Connection:
        """Return the open connection, or open one. Raises `ToolHostUnavailable`."""
        if not self.settings.has_jail:
            location = location._replace(read_only=False)
        found = self._open.get(location)
        if found is not None:
            if found.is_open:
                return found
            self._lost(location, found)
        delay = self.lifecycle.delay_s()
        starting = self._starting.get(location)
        if starting is None:
            # In a separate context: the connection outlives the call that opens it.
            starting = start_task(self._start(location, delay), context=Context())
            self._starting[location] = starting
            starting.add_done_callback(lambda task: self._has_started(location, task))
        return await self.lifecycle.started(starting)

    async def restart(self) -> None:
        """Stop the server and clear its crashes; the next call starts it again."""
        self.lifecycle.restarts()
        await self.close()

    def distrust(self, problem: str) -> str:
        """Quarantine the server after a forbidden action. Running calls finish.

        Returns what ends the quarantine.
        """
        until = self.lifecycle.distrusted(problem)
        self.renew()
        return until

    def renew(self) -> None:
        """Open a new connection for the next call. Running calls finish in the old one."""
        connections, self._open = self._open, {}
        for connection in connections.values():
            self._end_later(connection)

    async def close(self) -> None:
        starting, self._starting = self._starting, {}
        for task in starting.values():
            task.cancel()
        if starting:
            await asyncio.wait(starting.values())
        connections, self._open = self._open, {}
        await asyncio.gather(*(each.close() for each in connections.values()))
        self._ending.cancel()
        await self._ending.wait()
        self.log.close()

    def died(self, connection: Connection) -> ToolHostUnavailable:
        """Return the error of a call whose server ended."""
        return self.lifecycle.died(_exit(connection), connection.explain(self.log.tail))

    def _has_started(self, location: ServerLocation, task: asyncio.Task[Connection]) -> None:
        wanted = self._starting.get(location) is task
        if wanted:
            del self._starting[location]
        if task.cancelled() or task.exception() is not None:
            return
        connection = task.result()
        if not wanted:
            self._end_later(connection)
            return
        self._open[location] = connection
        if self._heard is not None:
            self._heard(connection)
        self._spawn(self._watch(location, connection))
        idle = [each for each in self._open if not self._open[each].busy and each != location]
        for each in idle[: max(len(self._open) - MOST_CONNECTIONS, 0)]:
            self._end_later(self._open.pop(each))

    async def _start(self, location: ServerLocation, delay: float) -> Connection:
        await asyncio.sleep(delay)
        self.lifecycle.starts(self.settings.command)
        # The first import takes a second, so the process starts concurrently.
        loading = start_task(asyncio.to_thread(_connection_class))
        try:
            transport = await self._reach(location)
            try:
                return await self._connect(await loading, transport, location)
            finally:
                if (abandon := getattr(transport, "abandon", None)) is not None:
                    await abandon()
        except ImportError:
            raise self.lifecycle.failed(_NO_SDK) from None
        finally:
            loading.cancel()

    async def _reach(self, location: ServerLocation) -> Callable[[], Any]:
        try:
            return await self.settings.reach(location, self.log)
        except (OSError, ToolError) as error:
            problem = getattr(error, "message", None) or f"it cannot be started: {error}"
            unfetched = getattr(error, "reason", None) == NOT_FETCHED
            reason = NOT_FETCHED if unfetched else None
            raise self.lifecycle.failed(problem, reason=reason) from error

    async def _connect(
        self, connection_class: type[Connection], transport: Any, location: ServerLocation
    ) -> Connection:
        settings = self.settings
        connection = connection_class(
            settings.name,
            transport,
            location.paths,
            self.log,
            asks=self._asks,
            elicitation=settings.elicitation,
            sampling=settings.sampling,
            messages=self.messages.connection(),
            relearned=self._heard,
            distrust=self.distrust if location.read_only else None,
        )
        try:
            async with asyncio.timeout(settings.start_timeout_s):
                await connection.open()
        except TimeoutError:
            await self._end(connection)
            raise self.lifecycle.failed(
                f"it did not answer within {settings.start_timeout_s:g} s",
                connection.explain(self.log.tail),
            ) from None
        except asyncio.CancelledError:
            await self._end(connection)
            raise
        except Exception as error:  # from the SDK or the transport, caused by the server
            await self._end(connection)
            refused = connection.explain(self.log.tail)
            raise self.lifecycle.failed(_why(error), refused) from error
        return connection

    async def _end(self, connection: Connection) -> None:
        connection.kill()
        await connection.close()

    async def _watch(self, location: ServerLocation, connection: Connection) -> None:
        await connection.disconnected.wait()
        self._lost(location, connection)
        await connection.close()

    def _lost(self, location: ServerLocation, connection: Connection) -> None:
        """Record the crash of a connection that closed unexpectedly, once."""
        if self._open.get(location) is not connection:
            return
        del self._open[location]
        self.lifecycle.crashed(f"it {ended(_exit(connection))}")

    def _end_later(self, connection: Connection) -> None:
        async def end() -> None:
            try:
                while connection.busy and connection.is_open:
                    await connection.quiet.wait()
            finally:
                await connection.close()

        self._spawn(end())

    def _spawn(self, work: Any) -> None:
        self._ending.start(work, context=Context())


def _until(settings: ServerSettings) -> str:
    """Return what ends the quarantine of a server."""
    if settings.of_session:
        return "the session is reopened"
    if settings.accept is not None:
        return "the client that uses it is restarted"
    return f"callgate mcp restart {settings.name}"


def _exit(connection: Connection) -> Exit | None:
    return None if connection.link is None else connection.link.exit


def _why(error: Exception) -> str:
    """Return a short text without secrets; of a foreign error, part of its first line."""
    if isinstance(error, ToolError):
        return error.message
    first = (str(error) or type(error).__name__).strip().split("\n")[0]
    return f"it cannot be used: {first[:300]}"


def _connection_class() -> type[Connection]:
    from callgate.features.mcp.client.connections import (  # lazy: with the SDK, which is heavy  # noqa: PLC0415
        Connection,
    )

    return Connection
