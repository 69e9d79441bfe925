"""What happens in sessions gets to the store in order, once, and whatever the disk does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from callgate.core.events import EVENTS_LOST, OUTPUT_DELTA, SESSION_CREATED, Event
from callgate.core.ids import ulid
from callgate.core.ops import Append, Op, UpdateSession
from callgate.core.sessions import Session
from callgate.core.stores import (
    SessionLocked,
    StaleOwner,
    StoreDamaged,
    StoreError,
    StoreUnwritable,
    Trouble,
)
from callgate.events import log as module
from callgate.events.log import SessionLog
from tests.memory_store import MemoryStore, Tables


class Moody(MemoryStore):
    """A store whose disk is full while it says so."""

    full = False

    def commit(self, *ops: Op[Any]) -> asyncio.Future[tuple[Any, ...]]:
        if not self.full:
            return super().commit(*ops)
        future = asyncio.get_running_loop().create_future()
        future.set_exception(StoreUnwritable("callgate.db", Trouble.FULL))
        return future


class Desk:
    def __init__(self, tables: Tables | None = None) -> None:
        self.tables = tables or Tables()
        self.store = Moody(self.tables)
        self.log = SessionLog(self._open)
        self.session = Session(workspace="/w", title="a title")

    async def _open(self) -> MemoryStore:
        return self.store

    def event(self, type: str = "note", **payload: Any) -> Event:
        return Event(
            id=ulid(),
            timestamp=1.0,
            session_id=self.session.id,
            type=type,
            actor="user",
            payload=payload,
        )

    async def types(self) -> list[str]:
        return [event.type for event in await self.store.read_events(self.session.id, limit=20_000)]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    desk.store.full = False
    await desk.log.close()


async def test_a_session_is_made_with_the_first_thing_said_of_it(desk: Desk) -> None:
    desk.log.append(desk.session, desk.event("first"))
    await desk.log.flush()
    assert await desk.types() == [SESSION_CREATED, "first"]
    stored = await desk.store.get_session(desk.session.id)
    assert (stored.title, stored.workspace, stored.owner) == ("a title", "/w", desk.store.owner)


async def test_what_is_said_and_what_is_waited_for_keep_their_order(desk: Desk) -> None:
    for round in range(3):
        desk.log.append(desk.session, desk.event(f"{round} before"))
        waited = Append(session=desk.session.id, events=(desk.event(f"{round} waited"),))
        future = desk.log.commit(desk.session, waited)
        desk.log.append(desk.session, desk.event(f"{round} behind"))
        await future
    await desk.log.flush()
    said = [f"{round} {what}" for round in range(3) for what in ("before", "waited", "behind")]
    assert await desk.types() == [SESSION_CREATED, *said]


async def test_what_nobody_waits_for_waits_for_company_and_keeps_its_order(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DELAY_S", 1_000_000.0)
    await desk.log.commit(desk.session, UpdateSession(session=desk.session.id, title="first", at=1.0))
    alone = desk.log.commit(desk.session, UpdateSession(session=desk.session.id, title="second", at=2.0), soon=True)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not alone.done()
    desk.log.append(desk.session, desk.event("third"))
    waited = desk.log.commit(desk.session, UpdateSession(session=desk.session.id, title="fourth", at=3.0))
    await waited
    assert alone.done() and (await desk.store.get_session(desk.session.id)).title == "fourth"
    assert await desk.types() == [SESSION_CREATED, "third"]


async def test_events_get_there_by_themselves(desk: Desk) -> None:
    desk.log.append(desk.session, desk.event())
    with desk.store.wake() as hint:
        assert await hint.wait(60)
    assert "note" in await desk.types()


async def test_on_a_full_disk_events_wait_and_what_is_waited_for_is_told(desk: Desk) -> None:
    desk.store.full = True
    desk.log.append(desk.session, desk.event("kept"))
    rename = UpdateSession(session=desk.session.id, title="never", at=1.0)
    with pytest.raises(StoreUnwritable):
        await desk.log.commit(desk.session, rename)
    insisted = UpdateSession(session=desk.session.id, title="later", at=1.0)
    with pytest.raises(StoreUnwritable):
        await desk.log.commit(desk.session, insisted, insist=True)
    desk.store.full = False
    desk.log.append(desk.session, desk.event("after"))
    await desk.log.flush()
    assert await desk.types() == [SESSION_CREATED, "kept", "after"]
    assert (await desk.store.get_session(desk.session.id)).title == "later"


async def test_what_a_full_disk_refused_in_several_pieces_keeps_its_order(desk: Desk) -> None:
    desk.store.full = True
    for name in ("first", "second", "third"):
        desk.log.append(desk.session, desk.event(name))
        desk.log.commit(desk.session, UpdateSession(session=desk.session.id, at=1.0, title=name))
    await desk.log.flush()
    desk.store.full = False
    await desk.log.flush()
    assert await desk.types() == [SESSION_CREATED, "first", "second", "third"]


async def test_what_a_full_disk_cost_is_counted_in_its_place(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BOUND", 5)
    desk.store.full = True
    desk.log.append(desk.session, desk.event())
    await desk.log.flush()
    for _ in range(9):
        desk.log.append(desk.session, desk.event())
    desk.store.full = False
    await desk.log.flush()
    events = await desk.store.read_events(desk.session.id)
    assert [event.type for event in events] == [SESSION_CREATED, *["note"] * 5, EVENTS_LOST]
    assert events[-1].payload == {"missed": 5}


async def test_nothing_more_is_written_by_an_owner_who_lost_the_session() -> None:
    tables = Tables()
    one, two = Desk(tables), Desk(tables)
    two.session = one.session
    one.log.append(one.session, one.event("mine"))
    await one.log.flush()
    rename = UpdateSession(session=one.session.id, title="x", at=1.0)
    with pytest.raises(SessionLocked):
        await two.log.commit(two.session, rename)
    with pytest.raises(SessionLocked):  # and it stays so
        await two.log.commit(two.session, rename)
    await one.store.close()  # as a crash does
    other = Desk(tables)
    other.session = one.session
    other.log.append(other.session, other.event("taken over"))
    await other.log.flush()
    one.store = Moody(tables)
    one.log._store = one.store
    with pytest.raises(StaleOwner):
        await one.log.commit(one.session, rename)


async def test_without_a_store_nobody_waits_in_vain() -> None:
    async def broken() -> MemoryStore:
        raise StoreDamaged("callgate.db")

    log, session = SessionLog(broken), Session(workspace="/w")
    log.append(session, Desk().event())
    with pytest.raises(StoreError):
        await log.commit(session, UpdateSession(session=session.id, at=1.0))
    with pytest.raises(StoreDamaged):
        await log.store()
    await log.close()


async def test_old_output_is_dropped_and_leaves_its_place(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_OUTPUT", 20)
    monkeypatch.setattr(module, "_STEP", 10)
    for n in range(100):
        desk.log.append(desk.session, desk.event(OUTPUT_DELTA, text=f"{n}", stream="stdout"))
        await desk.log.flush()
    await desk.log.flush()
    events = await desk.store.read_events(desk.session.id)
    texts = [event.payload.get("text") for event in events if event.type == OUTPUT_DELTA]
    assert len(texts) == 100
    assert texts[-20:] == [str(n) for n in range(80, 100)]
    assert set(texts[:60]) == {None}


async def test_a_session_that_is_let_go_with_its_last_words_is_written_about_no_more(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "KEPT_OUTPUT", 20)
    monkeypatch.setattr(module, "_STEP", 10)
    for n in range(100):
        desk.log.append(desk.session, desk.event(OUTPUT_DELTA, text=f"{n}", stream="stdout"))
    await desk.log.release(desk.session.id)
    await desk.log.flush()
    assert len(await desk.store.read_events(desk.session.id)) == 101
    assert caplog.records == []


class Lines:
    """A journal that is told how far the store has come."""

    def __init__(self) -> None:
        self.position = (1, 10)
        self.told: list[tuple[int, int]] = []
        self.heard = asyncio.Event()

    def stored(self, place: tuple[int, int]) -> None:
        self.told.append(place)
        self.heard.set()


async def test_the_journal_is_told_how_far_the_store_has_followed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKPOINT_S", 0.0)
    lines, desk = Lines(), Desk()
    log = SessionLog(desk._open, lines)
    log.append(desk.session, desk.event())
    async with asyncio.timeout(60):
        await lines.heard.wait()
    assert lines.told[0] == (1, 10)
    await log.close()
    assert log.is_settled


async def test_a_journal_is_not_told_of_what_no_store_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKPOINT_S", 0.0)
    lines, desk = Lines(), Desk()

    async def open_store() -> MemoryStore:
        raise StoreDamaged("/w/callgate.db")

    log = SessionLog(open_store, lines)
    log.append(desk.session, desk.event())
    await log.flush()
    await log.close()
    assert (lines.told, log.is_settled) == ([], False)


async def test_what_was_dropped_is_left_in_the_journal_for_whoever_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BOUND", 2)
    lines, desk = Lines(), Desk()
    log = SessionLog(desk._open, lines)
    desk.store.full = True
    log.append(desk.session, desk.event("waits"))
    await log.flush()
    for _ in range(3):
        log.append(desk.session, desk.event("waits, or is dropped"))
    desk.store.full = False
    await log.flush()
    assert (await desk.types())[-1] == EVENTS_LOST
    log.append(desk.session, desk.event("later"))
    await log.flush()
    await log.close()
    assert (lines.told, log.is_settled) == ([], False)
