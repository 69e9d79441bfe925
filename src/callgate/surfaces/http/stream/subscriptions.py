"""One subscription: what was missed is read from the store, then it joins those who hear all.

    since --page, page, ...--> as far as the fan-out has sent --join--> sent by it from now on

A session's events have numbers without a gap, so it is known where the two meet. Of all sessions
it is the cursor of the fan-out that is met on the way. Nothing is sent twice or left out,
whatever happens meanwhile; a client that reads slowly is waited for here, and only here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from callgate.core.events import Event
from callgate.core.stores import Store, pruned_upto
from callgate.surfaces.http.stream.fanout import Client, Fanout, Joined, Kind
from callgate.surfaces.http.stream.frames import event_tail

MOST_REPLAYED = 10_000
_PAGE = 250


class Patient(Client, Protocol):
    """A client that can be waited for."""

    async def drained(self) -> None: ...


class Subscription:
    def __init__(self, kind: Kind, client: Patient, fanout: Fanout, store: Store) -> None:
        self._kind = kind
        self._client = client
        self._fanout = fanout
        self._store = store
        self._joined: Joined | None = None

    async def follow_session(self, session: str, after: int, last: int) -> None:
        """From number `after` on; there were `last` events when the fan-out was acquired."""
        while after < last or after < self._fanout.last_sent(session):
            events = await self._store.read_events(session, after, _PAGE)
            upto = pruned_upto(events, after)
            if upto:  # one stands for them all
                self._show([(events[0], upto, None)])
                after = upto
                continue
            self._show([(each, after + n, None) for n, each in enumerate(events, 1)])
            after += len(events)
            await self._client.drained()
        self._join(after)

    async def follow_all(self, cursor: str) -> None:
        while cursor != self._fanout.cursor:
            page = await self._store.read_all(cursor, _PAGE)
            if not page.events:  # we are ahead of it
                await self._fanout.moved()
                continue
            sent = self._fanout.cursor
            upto = page.cursors.index(sent) + 1 if sent in page.cursors else len(page.events)
            entries = zip(page.events, page.seqs, page.cursors, strict=True)
            self._show([*entries][:upto])
            cursor = page.cursors[upto - 1]
            if cursor != sent:
                await self._client.drained()
        self._join(0)

    def quit(self) -> None:
        if self._joined is not None:
            self._fanout.quit(self._joined)
            self._joined = None

    def _join(self, seq: int) -> None:
        self._joined = Joined(self._kind, self._client, seq)
        self._fanout.join(self._joined)

    def _show(self, entries: Sequence[tuple[Event, int, str | None]]) -> None:
        tails = [event_tail(*each) for each in entries if self._kind.wants(each[0])]
        if tails:
            self._client.put(self._kind.write(tails), len(tails))
