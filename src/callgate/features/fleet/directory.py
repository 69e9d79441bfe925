"""The directory of servers and workers, as entries of the store.

    start, an approver comes or goes ---> an entry of kind `server`, named like the store's owner
    end ---> withdrawn; other servers drop the entry of a process that died

An entry counts while its owner is alive according to the store. Servers send each other no messages
about it: every server reads the store.

Each server announces its connected workers. A token admits workers to some pools and has no other
right. It is displayed once; the store has its hash, so every server accepts it.

    fence: connects -> generation n + 1, in the store -> older connections of other processes
    are closed

A replaced worker, or one that continues after a suspension, can neither answer nor get a call. One
process may be connected to several servers: it does not fence itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from callgate.core.ops import DropEntry, PutEntry
from callgate.core.sessions import Session, is_pool_name
from callgate.core.stored import SharedEntry
from callgate.core.stores import Store, StoreError
from callgate.core.tasks import TaskSet
from callgate.protocol.carried_requests import Carried, Verifier

KIND = "server"
EVERYONE = ""
"""Key in `people` for approvers of all sessions."""
MOST_SKEW_S = 2.0
"""Clock difference in seconds above which a server warns."""
_AGAIN_S = 5.0
"""Seconds until a failed write of the entry is repeated."""
_TOLD_S = 2.0
"""Time limit of the wait for a write."""
_WARN_EVERY_S = 600.0
_log = logging.getLogger("callgate.servers")


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a server, from itself. Unknown fields come from newer versions."""

    url: str
    version: str
    label: str
    started_at: float
    people: Mapping[str, int] = {}
    """Number of approvers by session; `EVERYONE`: for all sessions."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    """Name of its process in the store."""
    about: Description

    @property
    def url(self) -> str:
        return self.about.url

    @property
    def label(self) -> str:
        return self.about.label


class Servers:
    """This server and the others. One per instance."""

    def __init__(
        self,
        store: Callable[[], Awaitable[Store]],
        about: Description,
        find_key: Callable[[Store], Awaitable[bytes]],
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """`find_key` returns the key that all servers of the store share. `may_write`: whether the
        home still exists; otherwise nothing is written.
        """
        self._find_key = find_key
        self._may_write = may_write
        self._store = store
        self._about = about
        self._people: Counter[str] = Counter()
        self._tasks = TaskSet(_log, "a server is not announced")
        self._changed = asyncio.Event()
        self._written = asyncio.Event()
        self.is_announced = False
        """Whether other servers can find this one."""
        self._known: dict[str, Server] = {}
        """Cached servers: an owner's address never changes."""
        self._key: bytes | None = None
        self._verifier: Verifier | None = None
        self._warned: dict[str, float] = {}

    @property
    def about(self) -> Description:
        return msgspec.structs.replace(self._about, people=dict(self._people))

    # Announcing this server.

    def start(self) -> None:
        self._changed.set()
        self._tasks.start(self._announce())

    async def close(self) -> None:
        """Withdraw the entry. Idempotent."""
        self._tasks.cancel()
        await self._tasks.wait()
        if not self.is_announced or not self._may_write():
            return
        self.is_announced = False
        try:
            store = await self._store()
            await store.commit(DropEntry(kind=KIND, name=store.owner))
        except StoreError as error:  # others notice that the process has ended
            _log.info("the entry of this server stays: %s", error)

    @contextmanager
    def present(self, session: str | None) -> Iterator[None]:
        """Register an approver for one session or all, within the context."""
        key = session or EVERYONE
        self._people[key] += 1
        self._tell()
        try:
            yield
        finally:
            self._people[key] -= 1
            if not self._people[key]:
                del self._people[key]
            self._tell()

    async def wait_announced(self) -> None:
        """Wait until the last change is visible to others, at most for the time limit."""
        try:
            async with asyncio.timeout(_TOLD_S):
                await self._written.wait()
        except TimeoutError:
            pass

    def _tell(self) -> None:
        self._written.clear()
        self._changed.set()

    async def _announce(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not self._may_write():
                continue
            try:
                store = await self._store()
                value = msgspec.json.encode(self.about).decode()
                await store.commit(PutEntry(kind=KIND, name=store.owner, value=value))
            except StoreError as error:
                _log.warning("this server cannot be announced to others: %s", error)
                self._changed.set()
                await asyncio.sleep(_AGAIN_S)
                continue
            self.is_announced = True
            if not self._changed.is_set():
                self._written.set()

    # Finding others.

    async def find(self, owner: str | None) -> Server | None:
        """Return the live server with this name; None: there is none, or it is this one."""
        store = await self._store()
        if owner is None or owner == store.owner or not await store.alive(owner):
            return None
        if owner not in self._known:
            await self._read(store)
        return self._known.get(owner)

    async def others(self) -> list[Server]:
        """Return every other live server, and drop the entries of dead ones."""
        store = await self._store()
        found = []
        for entry in await self._read(store):
            if entry.name == store.owner or entry.name not in self._known:
                continue
            if await store.alive(entry.name):
                found.append(self._known[entry.name])
            else:
                self._drop(store, entry)
        return found

    async def labels(self) -> dict[str, str]:
        """Return the labels of all servers, this one included, by owner."""
        store = await self._store()
        labels = {store.owner: self._about.label}
        return labels | {each.owner: each.about.label for each in await self.others()}

    async def has_person_for(self, session: Session) -> bool:
        """Whether another server has an approver for a call of this session."""
        keys = (session.id, session.parent, EVERYONE)
        return any(
            each.about.people.get(key)
            for each in await self.others()
            for key in keys
            if key is not None
        )

    async def _read(self, store: Store) -> list[SharedEntry]:
        entries = [*await store.entries(KIND)]
        self._known = {}
        for entry in entries:
            try:
                about = msgspec.json.decode(entry.value, type=Description)
            except (ValueError, RecursionError) as error:
                _log.warning("the entry of server %s is unreadable: %s", entry.name, error)
                continue
            self._known[entry.name] = Server(owner=entry.name, about=about)
        return entries

    def _drop(self, store: Store, entry: SharedEntry) -> None:
        async def drop() -> None:
            try:
                await store.commit(DropEntry(kind=KIND, name=entry.name, expected=entry.version))
            except StoreError as error:
                _log.info("the entry of the dead server %s stays: %s", entry.name, error)

        self._tasks.start(drop())

    # Signed requests.

    async def key(self) -> bytes:
        """Return the key that all servers of the store share. Raises `StoreError`."""
        if self._key is None:
            self._key = await self._find_key(await self._store())
        return self._key

    async def owner(self) -> str:
        return (await self._store()).owner

    async def accept(self, header: str, method: str, target: str) -> Carried:
        """Verify a request that another server forwarded. Raises `BadSignature`."""
        if self._verifier is None:
            self._verifier = Verifier(await self.owner(), await self.key())
        now = time.time()
        carried = self._verifier.accept(header, method, target, now)
        self.note_skew(carried.sender, carried.at - now)
        return carried

    def note_skew(self, owner: str, skew_s: float) -> None:
        """Log a warning about a different clock, at most every ten minutes."""
        now = time.monotonic()
        if abs(skew_s) > MOST_SKEW_S and self._warned.get(owner, now) <= now:
            self._warned[owner] = now + _WARN_EVERY_S
            _log.warning(
                "the clock of server %s differs from this one by %+.1f s: synchronize them",
                owner,
                skew_s,
            )


WORKER_KIND = "worker"


class WorkerEntry(msgspec.Struct, frozen=True, kw_only=True):
    pool: str
    name: str
    generation: int
    process: str
    server: str
    """The owner's name, in the store, of its server."""
    version: str
    platform: str
    workspaces: tuple[str, ...]
    tools: tuple[str, ...]
    slots: int
    sandbox: str
    connected_at: float

    @property
    def key(self) -> str:
        return f"{self.pool}/{self.name}/{self.server}"


async def announce(store: Store, entry: WorkerEntry) -> None:
    value = msgspec.json.encode(entry).decode()
    await store.commit(PutEntry(kind=WORKER_KIND, name=entry.key, value=value))


async def withdraw(store: Store, entry: WorkerEntry) -> None:
    """Remove an entry, unless a later connection was announced under the same name."""
    known = {each.name: each for each in await store.entries(WORKER_KIND)}.get(entry.key)
    if known is not None and _read(known.value).generation == entry.generation:
        await store.commit(DropEntry(kind=WORKER_KIND, name=entry.key, expected=known.version))


async def connected_workers(store: Store) -> list[WorkerEntry]:
    """Return the workers of all live servers."""
    entries = [_read(each.value) for each in await store.entries(WORKER_KIND)]
    alive = {each.server: await store.alive(each.server) for each in entries}
    return [each for each in entries if alive[each.server]]


async def drop_dead(store: Store) -> None:
    """Remove the entries of dead servers."""
    for each in await store.entries(WORKER_KIND):
        if not await store.alive(_read(each.value).server):
            await store.commit(DropEntry(kind=WORKER_KIND, name=each.name, expected=each.version))


def _read(value: str) -> WorkerEntry:
    return msgspec.json.decode(value, type=WorkerEntry)


TOKENS = "worker_token"
PREFIX = "cgw_"


class WorkerToken(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    sha256: str
    pools: tuple[str, ...]
    created_at: float
    worker: str = ""
    """The only worker that may use it; empty: every worker of its pools."""

    def is_for(self, pool: str, worker: str) -> bool:
        return pool in self.pools and self.worker in ("", worker)


class TokenError(ValueError):
    """A token that cannot be created, with the reason as text."""


async def create_token(
    store: Store, name: str, pools: tuple[str, ...], worker: str | None = None
) -> str:
    """Create a token, which cannot be looked up later. `worker` binds it to the worker of that
    name. Raises `TokenError`.
    """
    for each in (name, *pools, *(() if worker is None else (worker,))):
        if not is_pool_name(each):
            raise TokenError(
                f"{each!r} is not a valid name: use at most 64 letters, digits and . _ - with a"
                " letter or digit first"
            )
    if not pools:
        raise TokenError("a worker token needs at least one pool")
    token = PREFIX + secrets.token_urlsafe(32)
    value = WorkerToken(
        name=name,
        sha256=_hash(token),
        pools=pools,
        created_at=time.time(),
        worker=worker or "",
    )
    put = PutEntry(kind=TOKENS, name=name, value=msgspec.json.encode(value).decode(), expected=0)
    (receipt,) = await store.commit(put)
    if not receipt.applied:
        raise TokenError(
            f"there is already a worker token {name!r}: revoke it, or choose another name"
        )
    return token


async def list_tokens(store: Store) -> list[WorkerToken]:
    entries = await store.entries(TOKENS)
    return [msgspec.json.decode(each.value, type=WorkerToken) for each in entries]


async def revoke_token(store: Store, name: str) -> bool:
    """Revoke a token. False if there was none."""
    known = any(each.name == name for each in await store.entries(TOKENS))
    await store.commit(DropEntry(kind=TOKENS, name=name))
    return known


async def find_token(store: Store, token: str) -> WorkerToken | None:
    """Return the entry of a token; None if it is unknown."""
    given = _hash(token)
    for each in await list_tokens(store):
        if hmac.compare_digest(given, each.sha256):
            return each
    return None


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


FENCES = "worker_generation"


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    generation: int
    process: str
    """Random name of a worker's process."""

    def cuts(self, generation: int, process: str) -> bool:
        """Whether a connection is outdated."""
        return process != self.process and generation < self.generation


async def raise_fence(store: Store, worker: str, process: str) -> int:
    """Raise the fence of a worker. Return the generation of its new connection."""
    while True:
        entries = {each.name: each for each in await store.entries(FENCES)}
        known = entries.get(worker)
        generation = 1 if known is None else _read_fence(known.value).generation + 1
        value = msgspec.json.encode(Fence(generation=generation, process=process)).decode()
        version = 0 if known is None else known.version
        (receipt,) = await store.commit(
            PutEntry(kind=FENCES, name=worker, value=value, expected=version)
        )
        if receipt.applied:
            return generation


async def read_fences(store: Store) -> dict[str, Fence]:
    """Return the fences by worker (`pool/name`)."""
    return {each.name: _read_fence(each.value) for each in await store.entries(FENCES)}


def _read_fence(value: str) -> Fence:
    return msgspec.json.decode(value, type=Fence)
