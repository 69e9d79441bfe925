"""The workers that are connected to this server, and the choice of a worker for a call.

    connects -> generation -> init, tools -> joined: given calls ---lost---> calls end, or move on

A session stays with its first worker while that one is connected, because its files are there. All
other calls go to the worker of the pool with the fewest calls.

Each request over the connection of a worker has one outcome:

    ask(params)  ->  Returned, or `Refused`, `InvalidAnswer`, `WorkerLost`

If the connection ends, all requests in flight get their outcome immediately. Later frames, and
frames with an id that is not in flight, are ignored. The other end is `features.fleet.worker`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, NamedTuple

import msgspec

from callgate.core.errors import ToolError, ToolHostUnavailable, ToolNotFound
from callgate.core.sessions import PoolWorkspace
from callgate.core.stored import entries_key
from callgate.core.stores import Store, StoreError
from callgate.core.tasks import TaskSet
from callgate.core.version import __version__
from callgate.features.fleet import directory
from callgate.features.fleet.directory import WorkerEntry
from callgate.protocol.host_v1.frames import GetToolSchemas, Init, Object
from callgate.protocol.host_v1.runtime import RuntimeWire
from callgate.protocol.host_v1.workers import OF_WORKER, Description, RunTool, ask
from callgate.redaction.frame_log import FrameLog
from callgate.sources.host_links import (
    HostError,
    InvalidAnswer,
    OnEvent,
    Outcome,
    PendingRequests,
    new_outcome,
)

_log = logging.getLogger("callgate.workers")


class WorkerLost(HostError):
    """The connection ended before the worker answered."""


class WorkerIdentity(NamedTuple):
    """Identity of a worker, from its token and its request."""

    pool: str
    name: str
    process: str
    token: str
    """Name of its token."""

    @property
    def key(self) -> str:
        return f"{self.pool}/{self.name}"


class WorkerLink:
    def __init__(
        self,
        identity: WorkerIdentity,
        send: Callable[[bytes], None],
        hang_up: Callable[[int, str], None],
    ) -> None:
        """`send` takes one frame; `hang_up` takes a WebSocket close code and a reason."""
        self.identity = identity
        self.generation = 0
        self.description = Description(version="", platform="", workspaces=[])
        self.tools: frozenset[str] = frozenset()
        self.connected_at = time.time()
        self.heard_s: Callable[[], float] = lambda: 0.0
        """Seconds since the last message."""
        self.is_lost = False
        self._send = send
        self._hang_up = hang_up
        self._wire = RuntimeWire(OF_WORKER)
        self._frames = FrameLog("callgate.workers")
        self._requests = PendingRequests(self._wire)

    @property
    def calls(self) -> int:
        """Number of running calls."""
        return self._requests.calls

    @property
    def has_room(self) -> bool:
        return self.calls < max(1, self.description.slots)

    def ask(self, params: Any, on_event: OnEvent | None = None) -> tuple[str, Outcome]:
        """Send a request. Return its id and its outcome. Raises `Unsendable` if it does not fit in
        a frame.
        """
        id = self._requests.next_id()
        if self.is_lost:
            outcome = new_outcome()
            outcome.set_exception(WorkerLost("it is not connected"))
            return id, outcome
        data = self._wire.encode(ask(id, params))
        outcome = self._requests.add(id, on_event, is_call=isinstance(params, RunTool))
        self._frames.sent(data)
        self._send(data)
        return id, outcome

    async def value(self, params: Any, type: Any, limit_s: float) -> Any:
        """Send a request and return its result as a type. Raises `HostError` or `TimeoutError`."""
        id, outcome = self.ask(params)
        try:
            async with asyncio.timeout(limit_s):
                returned = await outcome
        finally:
            self.abandon(id)
        try:
            return msgspec.convert(returned.result.value, type)
        except msgspec.ValidationError as error:
            raise InvalidAnswer(f"its answer is invalid ({error})") from None

    def tell(self, params: Any) -> None:
        """Send a request and ignore its outcome."""
        _, outcome = self.ask(params)
        outcome.add_done_callback(lambda done: done.cancelled() or done.exception())

    def abandon(self, id: str) -> None:
        """Stop the wait for a request. Idempotent."""
        self._requests.abandon(id)

    def receive(self, data: bytes) -> None:
        """Take one frame."""
        if self.is_lost:
            return
        self._frames.received(data + b"\n")
        for received in self._wire.receive(data + b"\n"):
            if not self._requests.take(received):
                _log.debug("worker %s: ignored a frame", self.identity.key)
        if self._wire.hopeless is not None:
            self.end(1008, "noise")

    def end(self, code: int, reason: str) -> None:
        """Close the connection with a reason. Idempotent."""
        self._hang_up(code, reason)
        self.lose()

    def lose(self) -> None:
        """Fail all requests in flight, because the connection is lost. Idempotent."""
        self.is_lost = True
        for each in self._requests.fail_all(WorkerLost("its connection was lost")):
            each.exception()  # there may be no waiting caller


GREETING_S = 10.0
"""Time limit for a worker's description."""
FENCED = 4409
REVOKED = 4401
_MOST_BOUND = 10_000
"""Maximum number of sessions whose worker is stored; the oldest is dropped first."""


class CannotJoin(Exception):
    """A worker that is refused, with the reason as a sentence for its terminal."""


class WorkerPools:
    """The pools of a runtime with HTTP."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store
        self._links: dict[str, WorkerLink] = {}
        """Connections by `pool/name`."""
        self._bound: dict[str, str] = {}
        """Worker by session."""
        self._changed = asyncio.Condition()
        self._tasks = TaskSet(_log, "watching the workers failed")
        self._watching: asyncio.Task[None] | None = None

    # --- connections ----------------------------------------------------------------------------

    async def identify(self, token: str, pool: str, name: str, process: str) -> WorkerIdentity:
        """Return the identity of a worker with this token. Raises `CannotJoin`."""
        known = await directory.find_token(await self._store(), token)
        if known is None:
            raise CannotJoin(
                "This worker token is unknown or revoked. Create one with: callgate workers"
                f" token create --pool {pool}"
            )
        if pool not in known.pools:
            raise CannotJoin(
                f"The token {known.name!r} is not for pool {pool!r}, only for:"
                f" {', '.join(known.pools)}."
            )
        if not known.is_for(pool, name):
            raise CannotJoin(
                f"The token {known.name!r} is only for the worker {known.worker!r}, and the name of"
                f" this one is {name!r}."
            )
        return WorkerIdentity(pool, name, process, known.name)

    async def join(self, link: WorkerLink) -> None:
        """Add a worker to its pool. Raises `CannotJoin` or `StoreError`."""
        store, identity = await self._store(), link.identity
        link.generation = await directory.raise_fence(store, identity.key, identity.process)
        before = self._links.pop(identity.key, None)
        if before is not None:
            before.end(FENCED, "replaced")
        try:
            await self._greet(link)
        except (HostError, TimeoutError) as error:
            raise CannotJoin(
                f"The worker did not send its description: {error or 'no answer'}"
            ) from None
        other = self._links.get(identity.key)
        if link.is_lost or (other is not None and other.generation > link.generation):
            raise CannotJoin("A newer connection of this worker replaced this one.")
        if other is not None:
            other.end(FENCED, "replaced")
        self._links[identity.key] = link
        await directory.drop_dead(store)
        await directory.announce(store, self._entry(link, store.owner))
        if self._watching is None or self._watching.done():
            self._watching = self._tasks.start(self._watch(store))
        _log.info("worker %s joined, generation %d", identity.key, link.generation)
        link.tell(Init(config={**_config(link), "joined": True}))
        await self._tell()

    async def _greet(self, link: WorkerLink) -> None:
        link.description = await link.value(Init(config=_config(link)), Description, GREETING_S)
        schemas = await link.value(GetToolSchemas(), list[Object], GREETING_S)
        link.tools = frozenset(str(each.get("name")) for each in schemas)

    async def leave(self, link: WorkerLink) -> None:
        """Remove a lost connection. Idempotent."""
        link.lose()
        if self._links.get(link.identity.key) is link:
            del self._links[link.identity.key]
            _log.info("worker %s disconnected", link.identity.key)
        await self._tell()
        if link.tools or link.description.version:
            try:
                store = await self._store()
                await directory.withdraw(store, self._entry(link, store.owner))
            except StoreError as error:  # readers of the list ignore workers of a dead server
                _log.warning("worker %s is still announced: %s", link.identity.key, error)

    def _entry(self, link: WorkerLink, server: str) -> WorkerEntry:
        identity, described = link.identity, link.description
        return WorkerEntry(
            pool=identity.pool,
            name=identity.name,
            generation=link.generation,
            process=identity.process,
            server=server,
            version=described.version,
            platform=described.platform,
            workspaces=tuple(described.workspaces),
            tools=tuple(sorted(link.tools)),
            slots=described.slots,
            sandbox=described.sandbox,
            connected_at=link.connected_at,
        )

    async def _watch(self, store: Store) -> None:
        """Close connections that a connection to another server fenced, or whose token was
        revoked.
        """
        with store.wake(entries_key(directory.FENCES), entries_key(directory.TOKENS)) as hint:
            while self._links:
                try:
                    await self._cut(store)
                except StoreError as error:  # the next look repeats it
                    _log.warning("revoked worker tokens cannot be read: %s", error)
                await hint.wait()

    async def _cut(self, store: Store) -> None:
        """Close the links of workers that were fenced, or whose token is revoked."""
        raised = await directory.read_fences(store)
        known = {each.name: each for each in await directory.list_tokens(store)}
        for link in list(self._links.values()):
            identity = link.identity
            fence, token = raised.get(identity.key), known.get(identity.token)
            if fence is not None and fence.cuts(link.generation, identity.process):
                link.end(FENCED, "replaced")
            elif token is None or not token.is_for(identity.pool, identity.name):
                link.end(REVOKED, "token_revoked")

    async def close(self) -> None:
        for link in list(self._links.values()):
            link.end(1001, "stopping")
        self._tasks.cancel()
        await self._tasks.wait()

    # --- choice of a worker ---------------------------------------------------------------------

    def links(self) -> list[WorkerLink]:
        return list(self._links.values())

    def serving(self, workspace: PoolWorkspace) -> list[WorkerLink]:
        return [
            each
            for each in self._links.values()
            if each.identity.pool == workspace.pool
            and workspace.name in each.description.workspaces
        ]

    def bind(self, session: str, link: WorkerLink) -> None:
        """Bind a session to a worker while that is connected."""
        self._bound.pop(session, None)
        self._bound[session] = link.identity.key
        if len(self._bound) > _MOST_BOUND:
            del self._bound[next(iter(self._bound))]

    async def choose(
        self,
        workspace: PoolWorkspace,
        tool: str,
        session: str,
        without: Collection[WorkerLink] = (),
    ) -> WorkerLink:
        """Return the worker for a call. Raises `ToolHostUnavailable`, or `ToolNotFound` if none
        has the tool.
        """
        serving = [each for each in self.serving(workspace) if each not in without]
        able = [each for each in serving if tool in each.tools]
        if not able:
            raise await self._missing(workspace, tool, serving)
        bound = self._bound.get(session)
        for each in able:
            if each.identity.key == bound:
                return each
        chosen = min(able, key=lambda each: each.calls / max(1, each.description.slots))
        self.bind(session, chosen)
        return chosen

    async def room(self, link: WorkerLink) -> None:
        """Wait until a worker runs fewer calls than it has slots, or is lost."""
        async with self._changed:
            await self._changed.wait_for(lambda: link.is_lost or link.has_room)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def freed(self) -> None:
        """Wake a call that waits for a slot."""
        self._tasks.start(self._tell())

    async def workspaces(self, pool: str) -> list[str]:
        """Return the workspaces of a pool's workers, on all servers."""
        workers = await directory.connected_workers(await self._store())
        return sorted({name for each in workers if each.pool == pool for name in each.workspaces})

    async def _missing(
        self, workspace: PoolWorkspace, tool: str, serving: Collection[WorkerLink]
    ) -> ToolError:
        pool = workspace.pool
        if serving:
            names = ", ".join(
                f"{each.identity.name} ({each.description.version})" for each in serving
            )
            return ToolNotFound(
                f"No worker of pool {pool} has the tool {tool!r}. Connected: {names}."
            )
        here = [each for each in self._links.values() if each.identity.pool == pool]
        if here:
            served = sorted({name for each in here for name in each.description.workspaces})
            return ToolHostUnavailable(
                f"No worker of pool {pool} has the workspace {workspace.name!r}. Available:"
                f" {', '.join(served) or 'none'}.",
                reason="no_worker",
            )
        try:
            others = await directory.connected_workers(await self._store())
        except StoreError:  # the other workers are unknown now
            others = []
        elsewhere = sorted({each.server for each in others if each.pool == pool})
        where = f" Servers that have one: {', '.join(elsewhere)}." if elsewhere else ""
        return ToolHostUnavailable(
            f"No worker of pool {pool} is connected to this server.{where} Start one with: callgate"
            f" worker --server URL --pool {pool} --workspace DIR",
            reason="no_worker",
        )


def _config(link: WorkerLink) -> Object:
    """Return the configuration for a worker."""
    identity = link.identity
    return {
        "pool": identity.pool,
        "name": identity.name,
        "generation": link.generation,
        "version": __version__,
    }
