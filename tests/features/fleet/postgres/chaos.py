"""Server processes that work while things break, and the count of what was lost, doubled or left out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from callgate.core.events import CALLED, COMPLETED, FAILED, TERMINAL
from callgate.core.ops import NewSession, PutGrant
from callgate.core.stored import StoredGrant
from callgate.core.stores import StoreError, reap_dead
from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.store import PostgresStore
from tests.features.fleet.postgres.children import process
from tests.kernel.storage.processes import Child, all_events

SHARED = "sess_shared"
USES = 40


class Servers:
    """Some processes, each born again when it dies; `heard` is what all of them said."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.living: dict[int, int] = {}
        """Process ids, by place."""
        self._zygotes: list[Child] = []
        self._lives = 0
        self.ending = False
        self._news = asyncio.Condition()

    def rebirth(self, place: int) -> None:
        self._lives += 1
        self._zygotes[place].tell(str(self._lives))

    async def listen(self, place: int, zygote: Child) -> None:
        assert zygote.process.stdout is not None
        self._zygotes.append(zygote)
        self.rebirth(place)
        while (said := await zygote.hear()) is not None:
            async with self._news:
                if "born" in said:
                    self.living[place] = said["born"]
                elif "died" in said:
                    self.living.pop(place, None)
                    if not self.ending:
                        self.rebirth(place)
                else:
                    self.heard.append(said)
                self._news.notify_all()

    async def until(self, condition: Callable[[], bool], limit_s: float = 60) -> None:
        async with asyncio.timeout(limit_s), self._news:
            await self._news.wait_for(condition)

    async def until_more(self, count: int, word: str = "ended") -> None:
        """So many more lines with a word."""
        before = self.count(word)
        await self.until(lambda: self.count(word) >= before + count)

    def count(self, word: str) -> int:
        return sum(word in said for said in self.heard)

    def kill(self, place: int) -> None:
        pid = self.living.pop(place, None)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    async def end(self) -> None:
        """Kill all, none is born again."""
        self.ending = True
        await self.until(lambda: len(self.living) == len(self._zygotes))
        for pid in self.living.values():
            os.kill(pid, signal.SIGKILL)
        await self.until(lambda: not self.living)


@contextlib.asynccontextmanager
async def servers(location: PostgresLocation, count: int, prefix: Sequence[str] = ()) -> AsyncIterator[Servers]:
    some = Servers()
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        tasks = []
        for place in range(count):
            zygote = await stack.enter_async_context(process("killed", location, SHARED, prefix=prefix))
            tasks.append(group.create_task(some.listen(place, zygote)))
        try:
            await some.until(lambda: len(some.living) == count)
            yield some
        finally:
            some.ending = True
            for pid in some.living.values():  # else nobody ends them: the zygotes are their parents
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for task in tasks:
                task.cancel()


async def prepare(store: PostgresStore) -> None:
    """The session that all processes share, with a grant that may be used a limited number of times."""
    await store.commit(NewSession(session=SHARED, workspace="/w", at=1.0))
    grant = StoredGrant(id="limited", session_id=SHARED, tool=None, decision="allow", uses=USES)
    await store.commit(PutGrant(session=SHARED, grant=grant))


class Follower:
    """Reads the events of all sessions as they come; `seen` are their places and ids."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.seen: list[tuple[str, int, str]] = []
        self._cursor: str | None = None
        self.problems: list[str] = []

    async def follow(self) -> None:
        while True:
            with contextlib.suppress(StoreError):
                await self.look()
            await asyncio.sleep(0.005)

    async def look(self) -> bool:
        """False if there was nothing."""
        behind = await self._store.behind(self._cursor)
        page = await self._store.read_all(self._cursor, limit=200)
        self._cursor = page.cursor
        found = [(e.session_id, seq, e.id) for e, seq in zip(page.events, page.seqs, strict=True)]
        self.seen += found
        if len(found) < 200 and behind.most > 0 and not found:
            self.problems.append("`behind` named events that are not there")
        return bool(found)

    async def finish(self) -> None:
        while await self.look():
            pass


async def reap_everything(store: PostgresStore) -> None:
    """Wait until all that died count as dead, and end what they left."""
    async with asyncio.timeout(60):
        while await _anything_open(store):
            with contextlib.suppress(StoreError):  # it may still recover
                await reap_dead(store, 0.0)
            await asyncio.sleep(0.05)


async def _anything_open(store: PostgresStore) -> bool:
    try:
        page = await store.list_sessions(limit=100_000)
        return bool(await store.open_calls()) or any(session.owner for session in page.sessions)
    except StoreError:
        return True


async def verify(store: PostgresStore, heard: list[dict[str, Any]], follower: Follower | None = None) -> dict[str, int]:
    """Figures; of what was lost, doubled or left out there must be none."""
    events = await all_events(store)
    written = Counter(each.id for some in events.values() for each in some)
    places = {each.id: (id, seq) for id, some in events.items() for seq, each in enumerate(some, 1)}
    acknowledged = [said for said in heard if "event" in said]
    of_calls = [e for some in events.values() for e in some if e.type in (CALLED, *TERMINAL)]
    starts = Counter(each.payload["call_id"] for each in of_calls if each.type == CALLED)
    ends = Counter(each.payload["call_id"] for each in of_calls if each.type in TERMINAL)
    completed = {e.payload["call_id"] for e in of_calls if e.type == COMPLETED}
    interrupted = {e.payload["call_id"] for e in of_calls if e.type == FAILED}
    effects = Counter(said["effect"] for said in heard if "effect" in said)
    [grant] = [each for each in await store.grants(SHARED) if each.id == "limited"]
    granted = [said["granted"] for said in heard if "granted" in said]

    def misplaced(said: dict[str, Any]) -> bool:
        return "seq" in said and places.get(said["event"]) != (said["session"], said["seq"])

    figures = {
        "acknowledged": len(acknowledged),
        "calls": len(starts),
        "interrupted": len(interrupted),
        "troubles": sum("trouble" in said for said in heard),
        "lost": sum(said["event"] not in written for said in acknowledged),
        "misplaced": sum(map(misplaced, acknowledged)),
        "doubled": sum(count - 1 for count in written.values()) + sum(n - 1 for n in starts.values()),
        "refused": sum(not said["applied"] for said in heard if "applied" in said),
        "calls without one end": sum(ends[call] != 1 for call in starts) + len(set(ends) - set(starts)),
        "ended otherwise": len({said["ended"] for said in heard if "ended" in said} - completed),
        "both ends": len(completed & interrupted),
        "effects twice": sum(count - 1 for count in effects.values()),
        "effects missing": len(completed - set(effects)),
        "grant overdrawn": max(0, len(grant.used_by) - USES) + len(set(granted) - set(grant.used_by)),
        "grant uses twice": len(granted) - len(set(granted)),
    }
    if follower is not None:
        figures |= _followed(follower, events)
    return figures


def _followed(follower: Follower, events: dict[str, list[Any]]) -> dict[str, int]:
    seen = [(session, seq) for session, seq, _ in follower.seen]
    last: dict[str, int] = {}
    disorder = 0
    for session, seq in seen:
        disorder += seq != last.get(session, 0) + 1
        last[session] = seq
    everything = {(id, seq) for id, some in events.items() for seq in range(1, len(some) + 1)}
    return {
        "followed": len(seen),
        "skipped": len(everything - set(seen)),
        "followed twice": len(seen) - len(set(seen)),
        "out of order": disorder,
        "false word": len(follower.problems),
    }


COUNTS = ("acknowledged", "calls", "interrupted", "troubles", "followed")


def faults(figures: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in figures.items() if count and name not in COUNTS}
