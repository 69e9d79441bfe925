"""Every event to everyone who wants it: read once from the store, written once, sent to many.

    store --page--> [events] --once for each kind of subscription--> bytes --> its clients
    bus ----------> what is not kept (deltas of chat), behind the events that came before it

A subscription first reads for itself what it missed (`subscriptions`) and joins where that meets
what is told here. Nobody waits for a client: what it does not read in time is its own loss. Many
events, or many clients, are told in fair turns, in one order for all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from callgate.core.events import UNKEPT, Event
from callgate.core.stores import POLL_S, EventPage, Store, StoreError
from callgate.core.turns import SLICE_S, Pace, fair_turns
from callgate.runtime import Runtime
from callgate.surfaces.http.frames import event_head, event_tail, packed, wants

_HELD_S = 1.0
"""How long a delta waits for the event before it, which may never be kept."""
_log = logging.getLogger("callgate.http")


class Client(Protocol):
    def put(self, data: bytes, count: int = 1) -> None: ...


class Kind(NamedTuple):
    """Subscriptions of one kind get the same bytes."""

    session: str | None
    types: frozenset[str] | None
    head: bytes

    @classmethod
    def of(cls, id: str, session: str | None, types: frozenset[str] | None) -> Kind:
        return cls(session, types, event_head(id))

    def wants(self, event: Event) -> bool:
        return self.session in (None, event.session_id) and wants(self.types, event)

    def write(self, tails: Iterable[bytes]) -> bytes:
        return b"".join([packed(self.head + tail) for tail in tails])


class Joined:
    """A subscription that hears what happens from now on."""

    __slots__ = ("client", "kind", "seq")

    def __init__(self, kind: Kind, client: Client, seq: int = 0) -> None:
        self.kind = kind
        self.client = client
        self.seq = seq
        """Of one session: it has read so far by itself, maybe further than was told here."""


class _Told(NamedTuple):
    """An event on its way, written when someone wants it."""

    event: Event
    seq: int | None
    tail: bytes


class Fanout:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._kinds: dict[Kind, dict[Joined, None]] = {}
        self._ahead: dict[Joined, None] = {}
        """Those who have read further than was told here."""
        self._users = 0
        self._reading: asyncio.Task[None] | None = None
        self._unlisten: Callable[[], None] | None = None
        self._moved = asyncio.Event()
        self.cursor = ""
        """Behind what was told."""
        self._seqs: dict[str, int] = {}
        """Of each session of which anything was told: up to where."""
        self._before: dict[str, str] = {}
        """By session: the last kept event that was heard, and is not told yet."""
        self._held: dict[str, list[Event]] = {}
        """By such an event: what is to be told after it."""
        self._telling: deque[Iterator[None]] = deque()
        """What is being told, client by client, and what follows."""
        self._told_all = asyncio.Event()
        self._told_all.set()
        self._starting = asyncio.Lock()

    async def enter(self) -> Store:
        """Begin to use it: from now on nothing that is kept escapes it. Leave it once."""
        self._users += 1
        try:
            async with self._starting:
                store = await self._runtime.store()
                if self._reading is None:
                    self.cursor = (await store.behind()).cursor
                    self._unlisten = self._runtime.listen(self._hear)
                    self._reading = asyncio.get_running_loop().create_task(self._read(store))
                return store
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        self._users -= 1
        if not self._users:
            self.close()

    def close(self) -> None:
        """Stop reading: nobody wants to know. Twice equals once."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        self._seqs.clear()
        self._before.clear()
        self._held.clear()
        self._telling.clear()
        self._told_all.set()

    def told(self, session: str) -> int:
        """The number up to which a session's events were told; 0 if none was since we read."""
        return self._seqs.get(session, 0)

    async def moved(self) -> None:
        """Wait until more was told, or for a while."""
        try:
            async with asyncio.timeout(POLL_S):
                await self._moved.wait()
        except TimeoutError:
            pass

    def join(self, joined: Joined) -> None:
        self._kinds.setdefault(joined.kind, {})[joined] = None
        if joined.seq > self.told(joined.kind.session or ""):
            self._ahead[joined] = None

    def quit(self, joined: Joined) -> None:
        members = self._kinds.get(joined.kind)
        if members is not None:
            members.pop(joined, None)
            if not members:
                del self._kinds[joined.kind]
        self._ahead.pop(joined, None)

    # Telling.

    async def _read(self, store: Store) -> None:
        with store.wake() as hint:
            while True:
                try:
                    page = await store.read_all(self.cursor)
                except StoreError as error:
                    _log.error("what happens cannot be read: %s", error)
                    await hint.wait()
                    continue
                if page.events:
                    self._tell_page(page, await _written(page))
                    await self._told_all.wait()
                else:
                    await hint.wait()

    def _tell_page(self, page: EventPage, tails: list[bytes]) -> None:
        """All at once as far as anybody knows: who joins from now on has read it already."""
        told: list[_Told] = []
        for event, seq, tail in zip(page.events, page.seqs, tails, strict=True):
            told.append(_Told(event, seq, tail))
            self._seqs[event.session_id] = seq
            if self._before:
                told += self._after(event.session_id, event.id)
        self.cursor = page.cursor
        self._tell(told)
        self._moved.set()
        self._moved = asyncio.Event()

    def _tell(self, told: list[_Told]) -> None:
        joined = [(kind, [*members]) for kind, members in self._kinds.items()]
        self._telling.append(self._tell_each(told, joined))
        if len(self._telling) == 1:
            self._told_all.clear()
            self._tell_on()

    def _tell_on(self) -> None:
        turns = fair_turns()
        until = turns.now() + SLICE_S
        while self._telling:
            for _ in self._telling[0]:
                if turns.now() > until:
                    turns.wait(self._tell_on)
                    return
            self._telling.popleft()
        self._told_all.set()

    def _tell_each(
        self, told: list[_Told], recipients: list[tuple[Kind, list[Joined]]]
    ) -> Iterator[None]:
        """Step by step; who has quit meanwhile is left out."""
        for kind, members in recipients:
            wanted = [each for each in told if kind.wants(each.event)]
            yield
            if not wanted:
                continue
            data = kind.write([each.tail for each in wanted])
            for joined in members:
                if joined not in self._kinds.get(kind, ()):
                    continue
                if joined in self._ahead:
                    self._tell_rest(joined, wanted)
                else:
                    joined.client.put(data, len(wanted))
                yield

    def _tell_rest(self, joined: Joined, wanted: list[_Told]) -> None:
        """What one who was ahead has not read by itself."""
        rest = [each.tail for each in wanted if each.seq is None or each.seq > joined.seq]
        if rest:
            joined.client.put(joined.kind.write(rest), len(rest))
        if self.told(joined.kind.session or "") >= joined.seq:
            self._ahead.pop(joined, None)

    # What is not kept.

    def _hear(self, event: Event) -> None:
        session = event.session_id
        if event.type not in UNKEPT:
            self._before[session] = event.id
        elif session in self._before:
            self._hold(event, self._before[session])
        else:
            self._tell([_unkept(event)])

    def _hold(self, event: Event, before: str) -> None:
        held = self._held.setdefault(before, [])
        held.append(event)
        if len(held) == 1:
            loop = asyncio.get_running_loop()
            loop.call_later(_HELD_S, self._let_go, event.session_id, before)

    def _let_go(self, session: str, before: str) -> None:
        if before in self._held:
            self._tell(self._after(session, before))

    def _after(self, session: str, before: str) -> list[_Told]:
        """What was held behind an event, which is told."""
        if self._before.get(session) == before:
            del self._before[session]
        return [_unkept(event) for event in self._held.pop(before, ())]


async def _written(page: EventPage) -> list[bytes]:
    """The tails of a page's events."""
    tails, pace = [], Pace()
    for event, seq, cursor in zip(page.events, page.seqs, page.cursors, strict=True):
        tails.append(event_tail(event, seq, cursor))
        await pace.step()
    return tails


def _unkept(event: Event) -> _Told:
    return _Told(event, None, event_tail(event, None, None))
