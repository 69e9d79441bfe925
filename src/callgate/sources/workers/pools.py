"""The workers that are connected to this server, and which of them gets a call.

    connects -> generation -> init, tools -> joined: given calls ---lost---> calls end, or move on

A session stays with the worker that it began with while that is connected: what it wrote is there.
Any other call goes to the worker of the pool with the fewest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from callgate.core.errors import ToolError, ToolHostUnavailable, ToolNotFound
from callgate.core.sessions import PoolWorkspace
from callgate.core.stored import entries_key
from callgate.core.stores import Store, StoreError
from callgate.core.task_sets import TaskSet
from callgate.core.version import __version__
from callgate.protocol.host_v1.frames import GetToolSchemas, Init, Object
from callgate.protocol.host_v1.workers import Description
from callgate.sources.hosts.in_flight import HostError
from callgate.sources.workers import directory, fences, tokens
from callgate.sources.workers.directory import WorkerEntry
from callgate.sources.workers.links import WorkerIdentity, WorkerLink

_log = logging.getLogger("callgate.workers")

GREETING_S = 10.0
"""How long a worker may take to say what it has."""
FENCED = 4409
REVOKED = 4401
_MOST_BOUND = 10_000
"""Sessions whose worker is remembered; the oldest goes first."""


class CannotJoin(Exception):
    """A worker that is not taken; `str` says why, in a sentence for its terminal."""


class WorkerPools:
    """One for each runtime that is served over HTTP."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store
        self._links: dict[str, WorkerLink] = {}
        """By `pool/name`."""
        self._bound: dict[str, str] = {}
        """Session to worker."""
        self._changed = asyncio.Condition()
        self._tasks = TaskSet(_log, "the care for workers failed")
        self._watching: asyncio.Task[None] | None = None

    # --- who connects ---------------------------------------------------------------------------

    async def identify(self, token: str, pool: str, name: str, process: str) -> WorkerIdentity:
        """Who shows a token. Raises `CannotJoin`."""
        known = await tokens.find_token(await self._store(), token)
        if known is None:
            raise CannotJoin(
                "This worker token is not known, or was revoked. Make one with: callgate workers"
                f" token create --pool {pool}"
            )
        if pool not in known.pools:
            raise CannotJoin(
                f"The token {known.name!r} is not for pool {pool!r}, only for:"
                f" {', '.join(known.pools)}."
            )
        if not known.is_for(pool, name):
            raise CannotJoin(
                f"The token {known.name!r} is only for the worker {known.worker!r}, and this one is"
                f" called {name!r}."
            )
        return WorkerIdentity(pool, name, process, known.name)

    async def join(self, link: WorkerLink) -> None:
        """Take a worker in, and give it calls from now on. Raises `CannotJoin` or `StoreError`."""
        store, identity = await self._store(), link.identity
        link.generation = await fences.raise_fence(store, identity.key, identity.process)
        before = self._links.pop(identity.key, None)
        if before is not None:
            before.end(FENCED, "replaced")
        try:
            await self._greet(link)
        except (HostError, TimeoutError) as error:
            raise CannotJoin(
                f"The worker did not say what it has: {error or 'no answer'}"
            ) from None
        other = self._links.get(identity.key)
        if link.is_lost or (other is not None and other.generation > link.generation):
            raise CannotJoin("Another connection of this worker was quicker.")
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
        """The connection is gone. Idempotent."""
        link.lose()
        if self._links.get(link.identity.key) is link:
            del self._links[link.identity.key]
            _log.info("worker %s is gone", link.identity.key)
        await self._tell()
        if link.tools or link.description.version:
            try:
                store = await self._store()
                await directory.withdraw(store, self._entry(link, store.owner))
            except StoreError as error:  # who lists them will miss a living server, and so will we
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
        """Cut who was fenced by a connection to another server, and whose token was revoked."""
        with store.wake(entries_key(fences.KIND), entries_key(tokens.KIND)) as hint:
            while self._links:
                try:
                    await self._cut(store)
                except StoreError as error:  # looked at again soon
                    _log.warning("whose worker token was revoked is not known now: %s", error)
                await hint.wait()

    async def _cut(self, store: Store) -> None:
        """End the links of workers that were fenced, or whose token is gone."""
        raised = await fences.read_fences(store)
        known = {each.name: each for each in await tokens.list_tokens(store)}
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

    # --- who gets a call ------------------------------------------------------------------------

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
        """From now on calls of a session go there, while it is connected."""
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
        """The worker for a call. Raises `ToolHostUnavailable`, and `ToolNotFound` where none has
        the tool."""
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
        """A call has ended: another may have its slot."""
        self._tasks.start(self._tell())

    async def workspaces(self, pool: str) -> list[str]:
        """Those that the workers of a pool have, on any server."""
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
                f"No worker of pool {pool} has the tool {tool!r}: {names} have not."
            )
        here = [each for each in self._links.values() if each.identity.pool == pool]
        if here:
            served = sorted({name for each in here for name in each.description.workspaces})
            return ToolHostUnavailable(
                f"No worker of pool {pool} has the workspace {workspace.name!r}. There are:"
                f" {', '.join(served) or 'none'}.",
                reason="no_worker",
            )
        try:
            others = await directory.connected_workers(await self._store())
        except StoreError:  # which are elsewhere is not known now
            others = []
        elsewhere = sorted({each.server for each in others if each.pool == pool})
        where = f" Servers that have one: {', '.join(elsewhere)}." if elsewhere else ""
        return ToolHostUnavailable(
            f"No worker of pool {pool} is connected to this server.{where} Start one with: callgate"
            f" worker --server URL --pool {pool} --workspace DIR",
            reason="no_worker",
        )


def _config(link: WorkerLink) -> Object:
    """What a worker is told of itself."""
    identity = link.identity
    return {
        "pool": identity.pool,
        "name": identity.name,
        "generation": link.generation,
        "version": __version__,
    }
