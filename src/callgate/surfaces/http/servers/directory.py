"""Which servers share the store, where each is reached, and who is at each of them to be asked.

    start, a person comes or goes ---> an entry of kind `server`, named like the store's owner
    end ---> withdrawn; the entry of a process that died is dropped by whoever finds it

An entry counts while the store says that its owner is alive. Nothing here is kept up by messages
between servers: whoever needs to know reads the store.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from callgate.core.ops import DropEntry, PutEntry
from callgate.core.sessions import Session
from callgate.core.stored import SharedEntry
from callgate.core.stores import Store, StoreError
from callgate.core.task_sets import TaskSet
from callgate.protocol.carried_requests import Carried, Verifier

KIND = "server"
EVERYONE = ""
"""In `people`: those who answer questions of any session."""
MOST_SKEW_S = 2.0
"""Clocks that differ by more are warned of."""
_AGAIN_S = 5.0
"""When an entry that could not be written is tried again."""
_TOLD_S = 2.0
"""How long it is waited for."""
_WARN_EVERY_S = 600.0
_log = logging.getLogger("callgate.servers")


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself; unknown members are those of a newer version."""

    url: str
    version: str
    label: str
    started_at: float
    people: Mapping[str, int] = {}
    """How many are there to be asked, by session; `EVERYONE`: about any."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    """The store's name of its process."""
    about: Description

    @property
    def url(self) -> str:
        return self.about.url


class Servers:
    """This server among the others. One per instance."""

    def __init__(
        self,
        store: Callable[[], Awaitable[Store]],
        about: Description,
        find_key: Callable[[Store], Awaitable[bytes]],
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """`find_key` finds the key that all servers of the store share. `may_write`: whether its
        home is still there; else nothing is written."""
        self._find_key = find_key
        self._may_write = may_write
        self._store = store
        self._about = about
        self._people: Counter[str] = Counter()
        self._tasks = TaskSet(_log, "a server is not announced")
        self._changed = asyncio.Event()
        self._written = asyncio.Event()
        self.is_announced = False
        """Whether others can know of this server."""
        self._known: dict[str, Server] = {}
        """Servers found before: what an owner says of its address never changes."""
        self._key: bytes | None = None
        self._verifier: Verifier | None = None
        self._warned: dict[str, float] = {}

    @property
    def about(self) -> Description:
        return msgspec.structs.replace(self._about, people=dict(self._people))

    # Being known.

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
        except StoreError as error:  # others see that the process is gone
            _log.info("the entry of this server stays: %s", error)

    @contextmanager
    def present(self, session: str | None) -> Iterator[None]:
        """Somebody is here to be asked, about one session or any."""
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

    async def told(self) -> None:
        """Wait until others can know what changed here, or for a while."""
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
                _log.warning("other servers do not know of this one: %s", error)
                self._changed.set()
                await asyncio.sleep(_AGAIN_S)
                continue
            self.is_announced = True
            if not self._changed.is_set():
                self._written.set()

    # Knowing others.

    async def find(self, owner: str | None) -> Server | None:
        """The living server with this name; None: there is none, or it is this one."""
        store = await self._store()
        if owner is None or owner == store.owner or not await store.alive(owner):
            return None
        if owner not in self._known:
            await self._read(store)
        return self._known.get(owner)

    async def others(self) -> list[Server]:
        """Every other server that is alive; entries of dead ones are dropped."""
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
        """By owner: what the servers are called, this one too."""
        store = await self._store()
        own = {store.owner: self._about.label}
        return own | {each.owner: each.about.label for each in await self.others()}

    async def has_person_for(self, session: Session) -> bool:
        """Whether somebody at another server could be asked about a call in a session."""
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
                _log.warning("server %s cannot be understood: %s", entry.name, error)
                continue
            self._known[entry.name] = Server(owner=entry.name, about=about)
        return entries

    def _drop(self, store: Store, entry: SharedEntry) -> None:
        async def drop() -> None:
            try:
                await store.commit(DropEntry(kind=KIND, name=entry.name, expected=entry.version))
            except StoreError as error:
                _log.info("the entry of %s, which is gone, stays: %s", entry.name, error)

        self._tasks.start(drop())

    # Trusting others.

    async def key(self) -> bytes:
        """Return the key that all servers of the store share. Raises `StoreError`."""
        if self._key is None:
            self._key = await self._find_key(await self._store())
        return self._key

    async def owner(self) -> str:
        return (await self._store()).owner

    async def accept(self, header: str, method: str, target: str) -> Carried:
        """A request that another server carries to this one. Raises `BadSignature`."""
        if self._verifier is None:
            self._verifier = Verifier(await self.owner(), await self.key())
        now = time.time()
        carried = self._verifier.accept(header, method, target, now)
        self.note_skew(carried.sender, carried.at - now)
        return carried

    def note_skew(self, owner: str, skew_s: float) -> None:
        """Warn of a clock that differs from ours, now and then."""
        now = time.monotonic()
        if abs(skew_s) > MOST_SKEW_S and self._warned.get(owner, now) <= now:
            self._warned[owner] = now + _WARN_EVERY_S
            _log.warning(
                "the clock of server %s differs from ours by %+.1f s: set them right", owner, skew_s
            )
