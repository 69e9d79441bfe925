"""One MCP server: reached when it is first needed, reached again when it is gone, given up when
it keeps dying.

    resting --call--> starting --> running --crash--> waiting (0.1 s, doubling to 30)
                          |                              |  5 crashes in a minute
                          +-- failed: the same           +--> quarantined, until restart

There is one connection for each workspace in which sessions call: roots, working directory and
jail are those of the calling session. The SDK is loaded with the first of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from callgate.core.errors import ToolError, ToolHostUnavailable
from callgate.core.sessions import Root
from callgate.sources.hosts import crashes
from callgate.sources.hosts.crashes import Crashes
from callgate.sources.hosts.hosts import PATIENCE_S, Health
from callgate.sources.hosts.logs import PROBLEM, QUARANTINED, RESTARTED, STARTING, HostLog
from callgate.sources.mcp.asks import Asks
from callgate.sources.mcp.definitions import Beliefs

if TYPE_CHECKING:  # it loads the SDK
    from callgate.sources.mcp.connections import Connection

MOST_PLACES = 8
"""Connections at once; of those that nobody uses the oldest go first."""
_NO_SDK = "it needs a package that is not installed: pip install 'callgate[mcp]'"


class Place(NamedTuple):
    """Where a session works."""

    workspace: str
    roots: tuple[Root, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.workspace, *(root.path for root in self.roots))


Reach = Callable[[Place, HostLog], Awaitable[Callable[[], Any]]]
"""What makes a transport of the SDK for a place. Raises OSError or a `ToolError`."""


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
    """Under which name what it said of itself is kept."""
    accept: str | None = None
    """The command with which a person accepts what it says now, where it is not the usual one."""
    of_session: bool = False
    """It was brought by a session, and ends with it."""
    covered: Callable[[str], str] = str
    """Takes what it was given in secret out of a text."""
    beliefs: Beliefs = Beliefs()
    reach: Reach


class Server:
    def __init__(
        self,
        settings: ServerSettings,
        log: HostLog,
        asks: Asks | None = None,
        heard: Callable[[Connection], None] | None = None,
    ) -> None:
        """`heard` is told of each connection that was opened, and again when its tools change."""
        self.settings = settings
        self.log = log
        self.restarts = 0
        self._asks = asks
        self._heard = heard
        self._crashes = Crashes()
        self._open: dict[Place, Connection] = {}
        self._starting: dict[Place, asyncio.Task[Connection]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    # --- what others may know -----------------------------------------------------------------

    @property
    def health(self) -> Health:
        if self._crashes.quarantined:
            return Health.QUARANTINED
        if self._starting:
            return Health.STARTING
        if self.running:
            return Health.RUNNING
        return Health.WAITING if self._crashes.delay_s else Health.RESTING

    @property
    def running(self) -> list[Connection]:
        return [each for each in self._open.values() if each.is_open]

    @property
    def problem(self) -> str | None:
        """Why it does not run, if it should."""
        problem = self._crashes.problem
        if not self._crashes.quarantined:
            return problem
        until = f"callgate mcp restart {self.settings.name}"
        if self.settings.of_session:
            until = "the session is opened anew"
        elif self.settings.accept is not None:
            until = "the client that uses it is started anew"
        return (
            f"{problem}, for the {crashes.MOST}th time within {crashes.WITHIN_S:.0f} s; it is not "
            f"started again before {until}"
        )

    # --- its life -----------------------------------------------------------------------------

    async def connection(self, place: Place) -> Connection:
        """Open, made if there is none. Raises `ToolHostUnavailable`."""
        found = self._open.get(place)
        if found is not None:
            if found.is_open:
                return found
            self._lost(place, found)
        if self._crashes.quarantined:
            raise self.unavailable(str(self.problem), "mcp_quarantined")
        delay = self._crashes.delay_s
        if delay > PATIENCE_S:
            problem = f"{self.problem}; it is started again in {delay:.0f} s"
            raise self.unavailable(problem, "mcp_waiting")
        starting = self._starting.get(place)
        if starting is None:
            # In a context of its own: it outlives the call that happens to need it first.
            starting = asyncio.get_running_loop().create_task(
                self._start(place, delay), context=Context()
            )
            self._starting[place] = starting
            starting.add_done_callback(lambda task: self._has_started(place, task))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not starting.cancelled() or (task is not None and task.cancelling()):
                raise  # it is us who are cancelled
            problem = "it was closed, or restarted, while it was started"
            raise self.unavailable(problem, "mcp_not_started") from None

    async def restart(self) -> None:
        """Forget what happened, end it, and start it anew with the next call."""
        self.log.note(RESTARTED)
        await self.close()
        self._crashes = Crashes()

    def renew(self) -> None:
        """Let the next call have a new connection; calls that run finish in the old one."""
        kept, self._open = self._open, {}
        for connection in kept.values():
            self._end_later(connection)

    async def close(self) -> None:
        starting, self._starting = self._starting, {}
        for task in starting.values():
            task.cancel()
        if starting:
            await asyncio.wait(starting.values())
        kept, self._open = self._open, {}
        await asyncio.gather(*(each.close() for each in kept.values()))
        for ending in self._ending:
            ending.cancel()
        if self._ending:
            await asyncio.wait(self._ending)
        self.log.close()

    def unavailable(self, problem: str, reason: str) -> ToolHostUnavailable:
        name = self.settings.name
        return ToolHostUnavailable(
            f"MCP server {name!r} is not available: {problem}.",
            reason=reason,
            details={"server": name, "stderr": self._tail},
        )

    @property
    def _tail(self) -> str:
        return self.settings.covered(self.log.tail)

    def died(self, connection: Connection) -> ToolHostUnavailable:
        """What a caller is told whose server went away under its call."""
        shown = f"\n{self._tail}" if self._tail else ""
        name, exit = self.settings.name, None if connection.link is None else connection.link.exit
        return ToolHostUnavailable(
            f"MCP server {name!r} went away before it answered.{shown}",
            reason="mcp_died",
            details={
                "server": name,
                "exit_code": None if exit is None else exit.code,
                "signal": None if exit is None else exit.signal,
                "stderr": self._tail,
            },
        )

    def _has_started(self, place: Place, task: asyncio.Task[Connection]) -> None:
        wanted = self._starting.get(place) is task
        if wanted:
            del self._starting[place]
        if task.cancelled() or task.exception() is not None:
            return
        connection = task.result()
        if not wanted:
            self._end_later(connection)
            return
        self._open[place] = connection
        if self._heard is not None:
            self._heard(connection)
        self._own(self._watch(place, connection))
        idle = [each for each in self._open if not self._open[each].busy and each != place]
        for each in idle[: max(len(self._open) - MOST_PLACES, 0)]:
            self._end_later(self._open.pop(each))

    async def _start(self, place: Place, delay: float) -> Connection:
        await asyncio.sleep(delay)
        said = self.settings
        self.log.note(f"{STARTING}{' '.join(said.command)}")
        try:
            # A second of work for whoever imports it first: the loop goes on meanwhile.
            connections = await asyncio.to_thread(import_module, "callgate.sources.mcp.connections")
            transport = await said.reach(place, self.log)
        except ImportError:
            raise self._failed(_NO_SDK) from None
        except (OSError, ToolError) as error:
            problem = getattr(error, "message", None) or f"it cannot be started: {error}"
            raise self._failed(problem) from error
        connection: Connection = connections.Connection(
            said.name, transport, place.paths, self.log,
            asks=self._asks, elicitation=said.elicitation, sampling=said.sampling,
            relearned=self._heard,
        )  # fmt: skip
        try:
            async with asyncio.timeout(said.start_timeout_s):
                await connection.open()
        except TimeoutError:
            await self._end(connection)
            raise self._failed(f"it did not answer within {said.start_timeout_s:g} s") from None
        except asyncio.CancelledError:
            await self._end(connection)
            raise
        except Exception as error:  # the SDK's, the transport's, or what the server made of them
            await self._end(connection)
            raise self._failed(_why(error)) from error
        self.restarts += 1
        return connection

    async def _end(self, connection: Connection) -> None:
        connection.kill()
        await connection.close()

    def _failed(self, problem: str) -> ToolHostUnavailable:
        problem = self.settings.covered(problem)
        self._crashed(problem)
        return self.unavailable(problem, "mcp_not_started")

    async def _watch(self, place: Place, connection: Connection) -> None:
        await connection.gone.wait()
        self._lost(place, connection)
        await connection.close()

    def _lost(self, place: Place, connection: Connection) -> None:
        """It went away by itself: that is a crash, once."""
        if self._open.get(place) is not connection:
            return
        del self._open[place]
        exit = None if connection.link is None else connection.link.exit
        how = "it went away"
        if exit is not None and exit.signal is not None:
            how = f"it was ended by signal {exit.signal}"
        elif exit is not None and exit.code is not None:
            how = f"it exited with {exit.code}"
        self._crashed(how)

    def _crashed(self, problem: str) -> None:
        self._crashes.add(problem)
        self.log.note(PROBLEM + problem)
        if self._crashes.quarantined:
            self.log.note(QUARANTINED)

    def _end_later(self, connection: Connection) -> None:
        async def end() -> None:
            try:
                while connection.busy and connection.is_open:
                    await connection.quiet.wait()
            finally:
                await connection.close()

        self._own(end())

    def _own(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _why(error: Exception) -> str:
    """In words that name no secret: of a foreign error its first line, and not much of it."""
    if isinstance(error, ToolError):
        return error.message
    first = (str(error) or type(error).__name__).strip().split("\n")[0]
    return f"it cannot be used: {first[:300]}"
