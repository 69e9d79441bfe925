"""Values that every route uses: the instance, its peers, its readiness, an operation, a request.

    Context ---> Peers: other servers that share the store (none here; `fleet` derives from it)
    Operation ---> `run(context, request)`

    request about a session, call or pool ---> `Peers.answer`: here, or by the server that owns it
    overview of all servers ---> `Peers.others`, `ask` each of them, merge the answers
    request with a server's signature ---> `Peers.accept`

Light to import: an instance creates a `Context` when it listens. Its cached properties load more
for the first visitor (`serving`).

Readiness is one of a few words, never the text of an error, which would name files or machines:

    settings   the files are readable and valid
    store      answers a small read within `LIMIT_S`
    work       the instance is not draining

At most one read of the store is in flight, and its result counts for `FRESH_S`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from callgate.audit.forward import Position
from callgate.core.sessions import Client, Mode, Session
from callgate.core.stored import LOCAL
from callgate.core.stores import StoreClosed, StoreError, StoreTooNew
from callgate.core.tasks import start_task
from callgate.features.web.access import Access, Names
from callgate.instance.instance import Draining
from callgate.protocol.socket_v1.frames import HostEntry
from callgate.runtime import Runtime
from callgate.socket.buffers import Unfinished

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from callgate.config.schema import Settings
    from callgate.features.chat.agent.agent import Agent
    from callgate.features.chat.live_sessions import LiveSessions
    from callgate.features.reporting.prometheus import CallMetrics
    from callgate.features.web.fanout import Fanout
    from callgate.protocol.carried_requests import Carried
    from callgate.sources.logs import LoggedMessage
    from callgate.sources.pins import Proposal
    from callgate.sources.skills import Skills
    from callgate.workspace.undo.history import History


class BoundTo(Enum):
    """The part of a request that names a session, call or pool, which one server owns."""

    SESSION_IN_PATH = auto()
    SESSION_IN_BODY = auto()
    """The session of a new call. If it has none, any server may answer."""
    CALL_IN_PATH = auto()
    AMENDED_CALL = auto()
    """The call whose arguments an answer changes. If it changes none, any server may answer."""
    POOL_IN_BODY = auto()


class Peer(Protocol):
    """Another live server."""

    @property
    def owner(self) -> str:
        """The name of its process in the store."""
        ...

    @property
    def label(self) -> str: ...


class Peers:
    """The other servers of a store that is not shared: none. One object per HTTP surface."""

    def __init__(self, context: Context) -> None:
        self.context = context

    async def close(self) -> None:
        """Idempotent."""

    # Requests that an owner answers.

    async def accept(self, header: str, method: str, target: str) -> Carried | None:
        """Verify a request that another server forwards to this one; None if there are no others.

        Raises `BadSignature` or `StoreError`.
        """
        return None

    async def answer(self, operation: Operation, request: ParsedRequest) -> Any:
        """Answer a request here, or forward it to the server that owns its subject."""
        return await operation.run(self.context, request)

    async def cancel_turn(self, session: str, turn: str | None) -> bool:
        """Ask the owner of a session to cancel its turn, or this turn; return whether it does."""
        return False

    async def cancel_call(self, request: ParsedRequest) -> bool:
        """Ask the other servers to cancel a call that is not stored; return whether one did."""
        return False

    async def settle(self, session: str) -> None:
        """Flush the events of a session to the store, also on the server that owns it."""
        await self.context.runtime.sessions.conversations.flush()

    # Overviews.

    async def others(self) -> Sequence[Peer]:
        return ()

    async def owner_of(self, session: str) -> Peer | None:
        """Return the other server that owns a session."""
        return None

    async def labels(self) -> Mapping[str, str]:
        """Return the labels of all servers, including this one, by owner."""
        return {}

    async def ask(self, peer: Peer, target: str, limit_s: float) -> bytes | None:
        """GET from another server; None if it does not answer with 200 in time."""
        return None

    # Clients of the event stream.

    async def announce(self, session: str | None, attached: ExitStack) -> None:
        """Announce an approver to other servers, until `attached` closes."""

    async def watch(self, session: str | None, attached: ExitStack) -> None:
        """Receive unstored events of one session, or of all, until `attached` closes."""

    # Remote workers.

    async def pool_workspaces(self, pool: str) -> Sequence[str] | None:
        """Return the workspaces of the connected workers; None if none can connect."""
        return None

    async def pool_changes(self, id: str, undoing: Session) -> Sequence[str]:
        """Return the calls of a session that changed files on a worker, oldest first.

        Bind the session `undoing` to that worker.
        """
        return ()


Method = Literal["GET", "POST", "PATCH", "DELETE"]


class ParsedRequest(NamedTuple):
    """A parsed request."""

    path: Mapping[str, str]
    query: Any
    body: Any
    accepts: str
    disconnected: Callable[[], Awaitable[None]]
    """Returns when the client has disconnected."""
    client: Client
    browser: bool
    """Whether the client is a logged-in page of the dashboard."""
    target: str = ""
    """Path and query, unchanged."""
    raw: bytes = b""
    """The body, unchanged."""
    carried: bool = False
    """Whether another server sent it, for its own client or for itself."""
    principal: str = LOCAL
    traceparent: str = ""
    tracestate: str = ""
    request_id: str = ""
    """The `x-request-id` of the client."""


class Operation(NamedTuple):
    method: Method
    path: str
    summary: str
    run: Callable[[Context, ParsedRequest], Awaitable[Any]]
    answer: Any
    """The type of a successful answer."""
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    status: int = 200
    errors: tuple[int, ...] = ()
    """Error statuses in addition to the usual ones of its method."""
    short: bool = False
    """Whether the route also exists without `/v1`."""
    unlocked: bool = False
    """Whether the route needs no token."""
    events: bool = False
    """Whether the route also answers with server-sent events."""
    declined: Any = None
    """The type of a 409 answer that is not a plain error."""
    bound_to: BoundTo | None = None
    """The part of the request that determines the answering server; None: any server."""
    for_servers: bool = False
    """Whether other servers request it on their own behalf."""
    malformed: int = 422
    """The status for a JSON body of the wrong type."""
    while_draining: bool = False
    """Whether it is accepted during a drain, although it is neither GET nor DELETE."""

    @property
    def paths(self) -> list[str]:
        return [self.path, self.path.removeprefix("/v1")] if self.short else [self.path]

    @property
    def begins_work(self) -> bool:
        return self.method in ("POST", "PATCH") and not self.while_draining


class Routes(NamedTuple):
    """Routes that a feature adds."""

    operations: tuple[Operation, ...] = ()
    sockets: Mapping[str, Callable[[Context], ASGIApp]] = {}
    """WebSocket applications by path. Each verifies the token of its clients."""


class Hosting(Protocol):
    """The hosts of a runtime; `sources.host_provider.HostedTools` is one."""

    def entries(self) -> list[HostEntry]: ...

    async def renew(self, name: str, *, forget: bool) -> HostEntry:
        """Raises `KeyError`, `ToolError` or `ToolRegistrationError`."""
        ...

    def log_path(self, name: str) -> str:
        """Raises `KeyError`."""
        ...

    def messages(self, name: str) -> Callable[[], list[LoggedMessage]]:
        """Return a function that reads the last messages of an MCP server; it blocks.

        Raises `KeyError`, also for a host that is not an MCP server.
        """
        ...

    async def look(self, name: str, workspace: str) -> Proposal:
        """Compare a server's present tools with the approved ones.

        Raises `KeyError` or `ToolError`.
        """
        ...

    async def approve(self, name: str, sha256: str) -> HostEntry:
        """Approve the proposal with this hash.

        Raises `KeyError`, `ToolError` or `ToolRegistrationError`.
        """
        ...


class Served(NamedTuple):
    """Start parameters of the instance."""

    pid: int
    version: str
    started_at: float
    workspaces: list[str]
    mode: Mode
    ceiling: Mode | None
    """The widest permitted mode of sessions."""
    model: str | None
    models: list[str]
    home: str
    audit: str
    """The path of the audit log."""
    search_above: int = 0
    """Number of tools above which MCP clients get a search instead of a list; 0: never."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """Shared values of all routes; one object per HTTP surface."""

    runtime: Runtime
    open_session: Callable[[str | None, str], Session]
    open_agent: Callable[[str | None], Agent]
    hosts: Hosting | None
    served: Served
    settings: Settings
    """The user's settings at the start of the instance."""
    access: Access
    names: Names
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments for `make_application`."""
    skills: Callable[[], Skills] | None = None
    refresh: Callable[[], None] | None = None
    """Reads the settings and the saved rules immediately."""
    unfinished: Unfinished | None = None
    """Limit of partial requests, shared with other surfaces."""
    draining: Draining = field(default_factory=Draining)
    """Drain state, shared with other surfaces."""
    open_peers: Callable[[Context], Peers] = Peers
    chain: Callable[[], str | None] = lambda: None
    """Returns the chain of this process in the audit log, whose calls the metrics count."""
    counted_from: Position | None = None
    """The start of the counted records; None: the end of the log at the first read of metrics."""

    @cached_property
    def sessions(self) -> LiveSessions:
        from callgate.features.chat.live_sessions import LiveSessions  # lazy: first visitor  # noqa: PLC0415

        return LiveSessions(self.runtime, self.open_session, self.open_agent, self.served.ceiling)

    @cached_property
    def fanout(self) -> Fanout:
        from callgate.features.web.fanout import Fanout  # lazy: as above  # noqa: PLC0415

        return Fanout(self.runtime)

    @cached_property
    def history(self) -> History:
        from callgate.config.home import Home  # lazy: as above  # noqa: PLC0415
        from callgate.config.undo_store import open_history  # lazy: as above  # noqa: PLC0415

        return open_history(Home(self.served.home), self.settings)

    @cached_property
    def readiness(self) -> Readiness:
        # lazy: as above

        return Readiness(self.runtime, self.draining, self.served.workspaces[0])

    @cached_property
    def metrics(self) -> CallMetrics:
        from callgate.features.reporting.prometheus import (  # lazy: as above  # noqa: PLC0415
            CallMetrics,
        )

        return CallMetrics(self.served.audit, self.chain, self.counted_from)

    @cached_property
    def peers(self) -> Peers:
        return self.open_peers(self)


LIMIT_S = 1.0
"""Time limit of the store's answer."""
FRESH_S = 1.0
"""Time for which the store's answer is reused."""
OK = "ok"
_KIND = "readyz"
"""A kind of shared entries that does not exist, for a read with an empty result."""


class Readiness:
    def __init__(
        self,
        runtime: Runtime,
        draining: Draining,
        workspace: str,
        *,
        limit_s: float = LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`workspace`: its settings are checked in addition to the user's."""
        self._runtime = runtime
        self._draining = draining
        self._workspace = workspace
        self._limit_s = limit_s
        self._clock = clock
        self._reading: asyncio.Task[str] | None = None
        self._began = 0.0
        self._found = OK
        self._fresh_until = -1.0

    async def checks(self) -> Mapping[str, str]:
        """Return `OK` or one word for the problem, for each check."""
        settings = self._runtime.permission.settings_state(self._workspace)
        return {
            "settings": OK if settings.problem is None else "unusable",
            "store": await self._store(),
            "work": "draining" if self._draining.has_begun else OK,
        }

    async def _store(self) -> str:
        now = self._clock()
        if self._reading is None:
            if now < self._fresh_until:
                return self._found
            self._began = now
            self._reading = start_task(self._read())
        # Concurrent callers wait for the same read.
        left_s = self._began + self._limit_s - now
        done, _ = await asyncio.wait({self._reading}, timeout=max(left_s, 0.0))
        return self._found if done else "no_answer"

    async def _read(self) -> str:
        try:
            store = await self._runtime.sessions.store()
            await store.entries(_KIND)
            self._found = OK
        except StoreTooNew:
            self._found = "too_new"
        except StoreClosed:
            self._found = "closed"
        except StoreError:
            self._found = "unreachable"
        finally:
            self._reading = None
            self._fresh_until = self._clock() + FRESH_S
        return self._found
