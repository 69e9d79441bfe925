"""One MCP server: its connections and its lifecycle (`lifecycle`).

There is one connection for each workspace in which sessions call: roots, working directory and
jail are those of the calling session. Of a program there may be two, one that can change files and
one that cannot (`Server.location`). The SDK is loaded with the first of them.
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
from callgate.core.task_sets import TaskSet, start_task
from callgate.core.tools import ToolContext
from callgate.dispatch.contexts import CallContext
from callgate.sources.lifecycle import Health, Kind, Lifecycle, ended
from callgate.sources.logs import LifeLog
from callgate.sources.mcp.asks import Asks
from callgate.sources.mcp.definitions import Beliefs
from callgate.sources.message_log import MessageLog

if TYPE_CHECKING:  # it loads the SDK
    from callgate.sources.mcp.connections import Connection

MOST_CONNECTIONS = 8
"""Connections at once; of those that nobody uses the oldest go first."""
_SERVER = Kind(noun="MCP server", reason="mcp", detail="server")
_NO_SDK = "it needs the package mcp, which is not installed: pip install 'mcp>=2.3'"


class ServerLocation(NamedTuple):
    """Where a server runs: the workspace and roots of a session, and whether it can write there."""

    workspace: str
    roots: tuple[Root, ...] = ()
    read_only: bool = False
    """It can change neither the workspace nor a root."""

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.workspace, *(root.path for root in self.roots))


TransportFactory = Callable[[ServerLocation, LifeLog], Awaitable[Callable[[], Any]]]
"""What makes a transport of the SDK for a location. Raises OSError or a `ToolError`."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[mcp.NAME]`, as far as it is about the server itself."""

    name: str
    command: tuple[str, ...]
    """All that says what is started or reached: what is approved is approved for this alone."""
    start_timeout_s: float = 30.0
    elicitation: bool = True
    sampling: bool = False
    only_in: str | None = None
    """The workspace whose settings brought it: no other may use it."""
    pin: str
    """The name of its pin."""
    accept: str | None = None
    """The command with which a person accepts what it says now, where it is not the usual one."""
    of_session: bool = False
    """It was brought by a session, and ends with it."""
    covered: Callable[[str], str] = str
    """Removes its secrets from a text."""
    beliefs: Beliefs = Beliefs()
    has_jail: bool = False
    """It is a program in the sandbox. One that is reached by an address runs elsewhere."""
    reach: TransportFactory


class Server:
    def __init__(
        self,
        settings: ServerSettings,
        log: LifeLog,
        asks: Asks | None = None,
        heard: Callable[[Connection], None] | None = None,
    ) -> None:
        """`heard` is told of each connection that was opened, and again when its tools change."""
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

    # --- what others may know -----------------------------------------------------------------

    @property
    def health(self) -> Health:
        return self.lifecycle.health(starting=bool(self._starting), running=bool(self.running))

    @property
    def running(self) -> list[Connection]:
        return [each for each in self._open.values() if each.is_open]

    @property
    def problem(self) -> str | None:
        """Why it does not run, if it should."""
        return self.lifecycle.problem

    # --- its life -----------------------------------------------------------------------------

    def location(self, context: ToolContext) -> ServerLocation:
        """Where to run a call of a session, which can write only if a call may that it serves.

        In mode read it never can. In other modes calls that change nothing go where it can, once
        it runs there: a server may remember what the calls before have done."""
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
        """The open connection, or a new one. Raises `ToolHostUnavailable`."""
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
            # In a context of its own: it outlives the call that happens to need it first.
            starting = start_task(self._start(location, delay), context=Context())
            self._starting[location] = starting
            starting.add_done_callback(lambda task: self._has_started(location, task))
        return await self.lifecycle.started(starting)

    async def restart(self) -> None:
        """Forget what happened, end it, and start it anew with the next call."""
        self.lifecycle.restarts()
        await self.close()

    def distrust(self, problem: str) -> str:
        """Give it up, because it did what it may not; the calls that run finish. Until when."""
        until = self.lifecycle.distrusted(problem)
        self.renew()
        return until

    def renew(self) -> None:
        """Let the next call have a new connection; calls that run finish in the old one."""
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
        """The error of a call whose server ended."""
        return self.lifecycle.died(_exit(connection))

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
        settings = self.settings
        self.lifecycle.starts(settings.command)
        try:
            # A second of work for whoever imports it first: the loop goes on meanwhile.
            connection_class = await asyncio.to_thread(_connection_class)
            transport = await settings.reach(location, self.log)
        except ImportError:
            raise self.lifecycle.failed(_NO_SDK) from None
        except (OSError, ToolError) as error:
            problem = getattr(error, "message", None) or f"it cannot be started: {error}"
            raise self.lifecycle.failed(problem) from error
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
                f"it did not answer within {settings.start_timeout_s:g} s"
            ) from None
        except asyncio.CancelledError:
            await self._end(connection)
            raise
        except Exception as error:  # the SDK's, the transport's, or what the server made of them
            await self._end(connection)
            raise self.lifecycle.failed(_why(error)) from error
        return connection

    async def _end(self, connection: Connection) -> None:
        connection.kill()
        await connection.close()

    async def _watch(self, location: ServerLocation, connection: Connection) -> None:
        await connection.disconnected.wait()
        self._lost(location, connection)
        await connection.close()

    def _lost(self, location: ServerLocation, connection: Connection) -> None:
        """It went away by itself: that is a crash, once."""
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
    """What ends the quarantine of a server."""
    if settings.of_session:
        return "the session is opened anew"
    if settings.accept is not None:
        return "the client that uses it is started anew"
    return f"callgate mcp restart {settings.name}"


def _exit(connection: Connection) -> Exit | None:
    return None if connection.link is None else connection.link.exit


def _why(error: Exception) -> str:
    """In words that name no secret: of a foreign error its first line, and not much of it."""
    if isinstance(error, ToolError):
        return error.message
    first = (str(error) or type(error).__name__).strip().split("\n")[0]
    return f"it cannot be used: {first[:300]}"


def _connection_class() -> type[Connection]:
    from callgate.sources.mcp.connections import Connection  # lazy: with the SDK, which is heavy  # noqa: PLC0415

    return Connection
