"""Unstored events (deltas of chat) of sessions that another server owns, for the clients here.

    a client watches a session --> its owner sends the deltas of that session
    a client watches all -------> every server sends all of its deltas

There is one stream from each of these servers, from the first such client to the last. The sessions
of a stream change with the clients. A line contains a delta and the id of the stored event before
it, which defines its position. A slow reader or a broken stream loses deltas, never stored events:
those come from the store.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator

import msgspec

from callgate.core.events import CHAT_DELTA, UNKEPT, Event
from callgate.core.stored import entries_key
from callgate.core.stores import SessionNotFound, StoreError
from callgate.core.tasks import TaskSet
from callgate.features.fleet.carrying import Carrier, Lost, Moved, Outgoing, Unsent
from callgate.features.fleet.directory import KIND, Server, Servers
from callgate.features.web.fanout import Fanout
from callgate.features.web.responses import Problem
from callgate.runtime import Runtime

MOST_WAITING = 10_000
"""Maximum number of deltas that wait for a slow server."""
READY = b"{}\n"
"""The first line: the stream is complete from here on."""


class Delta(msgspec.Struct, frozen=True):
    event: Event
    before: str | None = None


class DeltaStream:
    def __init__(self, runtime: Runtime, sessions: frozenset[str] | None) -> None:
        self.sessions = sessions
        """Sessions of the stream; None: all. May change during the stream."""
        self._before: dict[str, str] = {}
        """The last stored event, by session."""
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._unlisten = runtime.sessions.listen(self._hear)

    def close(self) -> None:
        """End the stream. Idempotent."""
        self._unlisten()
        self._waiting.put_nowait(None)

    async def lines(self) -> AsyncIterator[bytes]:
        yield READY
        while (line := await self._waiting.get()) is not None:
            lines = [line]
            while not self._waiting.empty() and (more := self._waiting.get_nowait()) is not None:
                lines.append(more)
            yield b"".join(lines)

    def _hear(self, event: Event) -> None:
        session = event.session_id
        if self.sessions is not None and session not in self.sessions:
            self._before.pop(session, None)
        elif event.type not in UNKEPT:
            self._before[session] = event.id
        elif event.type == CHAT_DELTA and self._waiting.qsize() < MOST_WAITING:
            delta = Delta(event, self._before.get(session))
            self._waiting.put_nowait(msgspec.json.encode(delta) + b"\n")


_TARGET = "/v1/server/deltas"
_READY_S = 1.0
"""Time limit for the streams of other servers when a client connects."""
_AGAIN_S = 1.0
"""Seconds until a broken stream is opened again."""
_log = logging.getLogger("callgate.servers")

Wanted = frozenset[str] | None
"""Sessions, or all."""


class RemoteDeltas:
    def __init__(
        self, runtime: Runtime, servers: Servers, carrier: Carrier, fanout: Fanout
    ) -> None:
        self._runtime = runtime
        self._servers = servers
        self._carrier = carrier
        self._fanout = fanout
        self._watched: Counter[str | None] = Counter()
        self._owners: dict[str, Server | None] = {}
        """The other server that owns each watched session."""
        self._streams: dict[str, _PeerStream] = {}
        self._tasks = TaskSet(_log, "deltas of other servers are lost")
        self._changed = asyncio.Event()
        self._reconciling = asyncio.Lock()

    async def watch(self, session: str | None) -> None:
        """Add a client for one session, or for all. Each call needs one `forget`."""
        self._watched[session] += 1
        if not self._fanout.hears_elsewhere:
            self._fanout.hears_elsewhere = True
            self._fanout.on_resumed = self._resumed
            self._tasks.start(self._follow())
        if self._watched[session] > 1:
            return
        try:
            async with asyncio.timeout(_READY_S):
                await self._reconcile()
                for stream in list(self._streams.values()):
                    await stream.ready.wait()
        except TimeoutError:
            _log.info("deltas of other servers may be missing initially")

    def forget(self, session: str | None) -> None:
        self._watched[session] -= 1
        if not self._watched[session]:
            del self._watched[session]
            self._changed.set()
        if not self._watched:
            self._stop()

    def _stop(self) -> None:
        self._tasks.cancel()
        self._streams.clear()
        self._owners.clear()
        self._fanout.hears_elsewhere = False
        self._fanout.on_resumed = None

    async def close(self) -> None:
        self._stop()
        await self._tasks.wait()

    # Servers.

    def _resumed(self, event: Event) -> None:
        """Update the streams after a session changed its owner."""
        if self._owners.pop(event.session_id, None) is not None or self._watched[event.session_id]:
            self._changed.set()

    async def _follow(self) -> None:
        """Update the streams when servers and sessions appear or disappear."""
        store = await self._runtime.sessions.store()
        with store.wake(entries_key(KIND)) as hint:
            while True:
                async with asyncio.TaskGroup() as group:
                    waits = {
                        group.create_task(hint.wait()),
                        group.create_task(self._changed.wait()),
                    }
                    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    for each in waits - done:
                        each.cancel()
                if self._changed.is_set() or any(each.result() for each in done):
                    self._changed.clear()
                    await self._reconcile()

    async def _reconcile(self) -> None:
        async with self._reconciling:
            try:
                wanted = await self._wanted()
            except StoreError as error:
                _log.warning("deltas of other servers are lost: %s", error)
                return
            for owner in self._streams.keys() - wanted.keys():
                self._streams.pop(owner).close()
            for owner, (server, sessions) in wanted.items():
                stream = self._streams.get(owner)
                if stream is None:
                    stream = _PeerStream(self._carrier, server, self._fanout, sessions)
                    self._streams[owner] = stream
                    stream.task = self._tasks.start(self._read(stream))
                elif stream.sessions != sessions:
                    await stream.change(sessions)

    async def _wanted(self) -> dict[str, tuple[Server, Wanted]]:
        if self._watched[None]:
            return {each.owner: (each, None) for each in await self._servers.others()}
        found: dict[str, tuple[Server, set[str]]] = {}
        for session in [each for each in self._watched if each is not None]:
            server = await self._owner(session)
            if server is not None:
                found.setdefault(server.owner, (server, set()))[1].add(session)
        return {owner: (server, frozenset(some)) for owner, (server, some) in found.items()}

    async def _owner(self, session: str) -> Server | None:
        if session not in self._owners:
            store = await self._runtime.sessions.store()
            try:
                stored = await store.get_session(session)
            except SessionNotFound:
                return None
            self._owners[session] = await self._servers.find(stored.owner)
        return self._owners[session]

    async def _read(self, stream: _PeerStream) -> None:
        """Read a stream until it breaks; then request a new one if it is still needed."""
        await stream.run()
        await asyncio.sleep(_AGAIN_S)
        if self._streams.get(stream.server.owner) is stream:
            del self._streams[stream.server.owner]
            self._owners.clear()
            self._changed.set()


class _PeerStream:
    """The deltas of one other server."""

    def __init__(self, carrier: Carrier, server: Server, fanout: Fanout, sessions: Wanted) -> None:
        self.server = server
        self.sessions = sessions
        self.ready = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._id = secrets.token_urlsafe(16)
        self._carrier = carrier
        self._fanout = fanout

    def close(self) -> None:
        if self.task is not None:
            self.task.cancel()

    async def change(self, sessions: Wanted) -> None:
        """Change the sessions of the stream."""
        self.sessions = sessions
        body = msgspec.json.encode({"sessions": _listed(sessions)})
        try:
            async with asyncio.timeout(_READY_S):
                await self._carrier.carry(
                    self.server, Outgoing("POST", f"{_TARGET}/{self._id}", body)
                )
        except (Unsent, Moved, Lost, Problem, TimeoutError) as error:
            _log.info("%s does not answer: %r", self.server.url, error)

    async def run(self) -> None:
        body = msgspec.json.encode({"id": self._id, "sessions": _listed(self.sessions)})
        try:
            async with self._carrier.open(self.server, Outgoing("POST", _TARGET, body)) as pieces:
                async for line in _lines(pieces):
                    if line == READY.strip():
                        self.ready.set()
                        continue
                    delta = msgspec.json.decode(line, type=Delta)
                    self._fanout.hear_elsewhere(delta.event, delta.before)
        except (Unsent, Moved, Lost, Problem, ValueError, RecursionError) as error:
            _log.info("deltas of %s are lost: %r", self.server.url, error)


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    remainder = b""
    async for piece in pieces:
        *lines, remainder = (remainder + piece).split(b"\n")
        for line in lines:
            yield line


def _listed(sessions: Wanted) -> list[str] | None:
    return None if sessions is None else sorted(sessions)
