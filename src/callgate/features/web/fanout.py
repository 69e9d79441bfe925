"""Distribution of events to subscriptions: read once from the store, serialized once, sent to many.

    store --page--> [events] --once for each kind of subscription--> bytes --> its clients
    bus ----------> unstored events (deltas of chat), after the events before them
    other servers -> unstored events of their sessions (`remote_deltas`), which may be late

A subscription first reads the past events itself (`websocket`), and joins when it has caught up. A
slow client delays no other client: events that it does not read in time are dropped for it. All
clients get events in the same order, in fair time slices.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from callgate.core.events import (
    CHAT,
    SESSION_RESUMED,
    TURN_CANCELLED,
    TURN_COMPLETED,
    UNKEPT,
    Event,
)
from callgate.core.stores import POLL_S, EventPage, Store, StoreError
from callgate.core.tasks import start_task
from callgate.core.turns import SLICE_S, Pace, fair_turns
from callgate.features.web.frames import event_head, event_tail, packed, wants
from callgate.runtime import Runtime

_DEFER_S = 1.0
"""Time that a delta waits for the event before it, which may never be stored."""
_PENDING_S = 0.02
"""Delay before another read if the store has uncommitted events."""
_CLOSING = frozenset({CHAT, TURN_COMPLETED, TURN_CANCELLED})
"""Events with a complete text or an end; no delta may follow them."""
_REMEMBERED = 8_192
"""Number of sent events that are remembered."""
_log = logging.getLogger("callgate.http")


class StreamClient(Protocol):
    def put(self, data: bytes, count: int = 1) -> None: ...


class Kind(NamedTuple):
    """Kind of subscriptions, which all get the same bytes."""

    session: str | None
    types: frozenset[str] | None
    head: bytes

    @classmethod
    def of(cls, id: str, session: str | None, types: frozenset[str] | None) -> Kind:
        return cls(session, types, event_head(id))

    def wants(self, event: Event) -> bool:
        return self.session in (None, event.session_id) and wants(self.types, event)

    def wants_type(self, type: str) -> bool:
        return self.types is None or type in self.types

    def write(self, tails: Iterable[bytes]) -> bytes:
        return b"".join([packed(self.head + tail) for tail in tails])


class Joined:
    """A subscription that receives new events."""

    __slots__ = ("client", "kind", "seq")

    def __init__(self, kind: Kind, client: StreamClient, seq: int = 0) -> None:
        self.kind = kind
        self.client = client
        self.seq = seq
        """For one session: the last event that it read itself, maybe later than `last_sent`."""


class _Outgoing(NamedTuple):
    """An event to send, serialized for subscriptions that want it."""

    event: Event
    seq: int | None
    tail: bytes


class Fanout:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._kinds: dict[Kind, dict[Joined, None]] = {}
        self._ahead: dict[Joined, None] = {}
        """Subscriptions that read later events than were sent."""
        self._users = 0
        self._reading: asyncio.Task[None] | None = None
        self._unlisten: Callable[[], None] | None = None
        self._moved = asyncio.Event()
        self.cursor = ""
        """The position after the last sent event."""
        self._seqs: dict[str, int] = {}
        """The number of the last sent event of each session."""
        self._before: dict[str, str] = {}
        """The last event of each session that the bus reported and that is not sent yet."""
        self._deferred: dict[str, list[Event]] = {}
        """The unstored events to send after such an event, by its id."""
        self.hears_elsewhere = False
        """Whether deltas of other servers can arrive."""
        self.on_resumed: Callable[[Event], None] | None = None
        """Called when a session gets another owner."""
        self._sent: dict[str, int] = {}
        """The order of the last sent events, by id; only if `hears_elsewhere`."""
        self._closed: dict[str, int] = {}
        """The order of the last event that closes a text, by session."""
        self._count = 0
        self._sending: deque[Iterator[None]] = deque()
        """Pending sends, each client by client."""
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._starting = asyncio.Lock()

    async def acquire(self) -> Store:
        """Start receiving every stored event from now on. Call `release` once."""
        self._users += 1
        try:
            async with self._starting:
                store = await self._runtime.sessions.store()
                if self._reading is None:
                    self.cursor = (await store.behind()).cursor
                    self._unlisten = self._runtime.sessions.listen(self._hear)
                    self._reading = start_task(self._read(store))
                return store
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        self._users -= 1
        if not self._users:
            self.close()

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        self._seqs.clear()
        self._before.clear()
        self._deferred.clear()
        self._sent.clear()
        self._closed.clear()
        self._sending.clear()
        self._all_sent.set()

    def last_sent(self, session: str) -> int:
        """Return the number of a session's last sent event; 0 if none was sent yet."""
        return self._seqs.get(session, 0)

    async def moved(self) -> None:
        """Wait until more events are sent, or until a timeout."""
        try:
            async with asyncio.timeout(POLL_S):
                await self._moved.wait()
        except TimeoutError:
            pass

    def join(self, joined: Joined) -> None:
        self._kinds.setdefault(joined.kind, {})[joined] = None
        if joined.seq > self.last_sent(joined.kind.session or ""):
            self._ahead[joined] = None

    def quit(self, joined: Joined) -> None:
        members = self._kinds.get(joined.kind)
        if members is not None:
            members.pop(joined, None)
            if not members:
                del self._kinds[joined.kind]
        self._ahead.pop(joined, None)

    # Sending.

    async def _read(self, store: Store) -> None:
        with store.wake() as hint:
            while True:
                try:
                    page = await store.read_all(self.cursor)
                except StoreError as error:
                    _log.error("the events cannot be read: %s", error)
                    await hint.wait()
                    continue
                if page.events:
                    self._send_page(page, await _encode_page(page))
                    await self._all_sent.wait()
                else:
                    await hint.wait(_PENDING_S if page.pending else POLL_S)

    def _send_page(self, page: EventPage, tails: list[bytes]) -> None:
        """Send a page. It counts as sent now: later subscriptions have read it themselves."""
        outgoing: list[_Outgoing] = []
        for event, seq, tail in zip(page.events, page.seqs, tails, strict=True):
            outgoing.append(_Outgoing(event, seq, tail))
            self._seqs[event.session_id] = seq
            if self.hears_elsewhere:
                self._remember(event.id)
                if event.type == SESSION_RESUMED and self.on_resumed is not None:
                    self.on_resumed(event)
                if event.type in _CLOSING:
                    self._closed[event.session_id] = self._count
            if self._before or self._deferred:
                outgoing += self._after(event.session_id, event.id)
        self.cursor = page.cursor
        self._send(outgoing)
        self._moved.set()
        self._moved = asyncio.Event()

    def _send(self, outgoing: list[_Outgoing]) -> None:
        joined = [(kind, [*members]) for kind, members in self._kinds.items()]
        self._sending.append(self._send_each(outgoing, joined))
        if len(self._sending) == 1:
            self._all_sent.clear()
            self._send_on()

    def _send_on(self) -> None:
        turns = fair_turns()
        until = turns.now() + SLICE_S
        while self._sending:
            for _ in self._sending[0]:
                if turns.now() > until:
                    turns.wait(self._send_on)
                    return
            self._sending.popleft()
        self._all_sent.set()

    def _send_each(
        self, outgoing: list[_Outgoing], recipients: list[tuple[Kind, list[Joined]]]
    ) -> Iterator[None]:
        """Send in steps, except to subscriptions that have quit since."""
        for kind, members in recipients:
            wanted = [each for each in outgoing if kind.wants(each.event)]
            yield
            if not wanted:
                continue
            data = kind.write([each.tail for each in wanted])
            for joined in members:
                if joined not in self._kinds.get(kind, ()):
                    continue
                if joined in self._ahead:
                    self._send_unread(joined, wanted)
                else:
                    joined.client.put(data, len(wanted))
                yield

    def _send_unread(self, joined: Joined, wanted: list[_Outgoing]) -> None:
        """Send the events that a subscription which was ahead has not read itself."""
        unread = [each.tail for each in wanted if each.seq is None or each.seq > joined.seq]
        if unread:
            joined.client.put(joined.kind.write(unread), len(unread))
        if self.last_sent(joined.kind.session or "") >= joined.seq:
            self._ahead.pop(joined, None)

    # Unstored events.

    def _hear(self, event: Event) -> None:
        session = event.session_id
        if event.type not in UNKEPT:
            self._before[session] = event.id
        elif session in self._before:
            self._defer(event, self._before[session])
        else:
            self._send([_unstored(event)])

    def hear_elsewhere(self, event: Event, before: str | None) -> None:
        """Send a delta of another server after the stored event `before` of its session.

        A delta that arrives after the end of its text is dropped.
        """
        if before is None:
            self._send([_unstored(event)])
        elif before not in self._sent:
            self._defer(event, before)
        elif self._sent[before] >= self._closed.get(event.session_id, 0):
            self._send([_unstored(event)])

    def _remember(self, id: str) -> None:
        self._count += 1
        self._sent[id] = self._count
        if len(self._sent) > _REMEMBERED:
            del self._sent[next(iter(self._sent))]

    def _defer(self, event: Event, before: str) -> None:
        deferred = self._deferred.setdefault(before, [])
        deferred.append(event)
        if len(deferred) == 1:
            loop = asyncio.get_running_loop()
            loop.call_later(_DEFER_S, self._let_go, event.session_id, before)

    def _let_go(self, session: str, before: str) -> None:
        if before in self._deferred:
            if self.hears_elsewhere:
                self._remember(before)  # sent before the reading began, or never stored
            self._send(self._after(session, before))

    def _after(self, session: str, before: str) -> list[_Outgoing]:
        """Take the events that were deferred until `before` is sent."""
        if self._before.get(session) == before:
            del self._before[session]
        return [_unstored(event) for event in self._deferred.pop(before, ())]


async def _encode_page(page: EventPage) -> list[bytes]:
    """Return the serialized tails of a page's events."""
    tails, pace = [], Pace()
    for event, seq, cursor in zip(page.events, page.seqs, page.cursors, strict=True):
        tails.append(event_tail(event, seq, cursor))
        await pace.step()
    return tails


def _unstored(event: Event) -> _Outgoing:
    return _Outgoing(event, None, event_tail(event, None, None))
