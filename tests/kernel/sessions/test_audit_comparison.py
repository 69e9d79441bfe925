"""The store and the audit log compared: after pruning they still agree, and what is wrong is found."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from callgate.audit.log import AuditLog
from callgate.audit.records import CallRecord, all_segments, closed_segments
from callgate.audit.verify import verify
from callgate.core.events import COMPLETED, Event
from callgate.core.ids import call_id, session_id, ulid
from callgate.core.ops import Append, DeleteSession, Fork, NewSession
from callgate.core.stores import EventPage, SessionPage
from callgate.sessions.audit_comparison import Comparison, compare
from callgate.sessions.pruning import Bounds, Pruning
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.cli.stored import opened

DAY_S = 86_400.0
OLD, NEW = 100.0, 1.0
"""Days."""


class Records:
    """A store and the log beside it."""

    def __init__(self, home: Path, store: SqliteStore) -> None:
        self.home = home
        self.store = store
        self.path = str(home / "audit.jsonl")

    async def session(self, *days: float) -> list[CallRecord]:
        """One with a call that ended so many days ago, each."""
        session = session_id()
        times = [time.time() - each * DAY_S for each in days]
        await self.store.commit(NewSession(session=session, workspace="/w", at=min(times)))
        ends = [_end(session, at) for at in times]
        for end in ends:
            await self.store.commit(Append(session=session, events=(end,)))
        return self.write([_line(end) for end in ends])

    def write(self, lines: Sequence[CallRecord]) -> list[CallRecord]:
        log = AuditLog(self.path)
        for line in lines:
            log.append(line)
        log.close()
        return [*lines]

    async def prune(self, **bounds: float) -> None:
        audit = AuditLog(self.path)
        at = {name: time.time() - days * DAY_S for name, days in bounds.items()}
        async for _ in Pruning(self.store, Bounds(**at), str(self.home / "artifacts"), audit).steps():
            pass
        audit.close()

    async def compare(self) -> Comparison:
        return await compare(self.store, self.path, str(self.home / "run"))

    async def problems(self) -> list[str]:
        return [each.what for each in (await self.compare()).problems]


def _end(session: str, at: float) -> Event:
    return Event(
        id=ulid(),
        timestamp=at,
        session_id=session,
        type=COMPLETED,
        actor="agent",
        payload={"call_id": call_id()},
    )


def _line(end: Event, **more: Any) -> CallRecord:
    return CallRecord(
        id=more.pop("id", f"audit_{end.id}"),
        ts=int(end.timestamp * 1000),
        caller="cli",
        principal="local",
        tool="read_file",
        decision="allow",
        call_id=more.pop("call_id", end.payload["call_id"]),
        session=end.session_id,
        cwd="/w",
        args="",
    )


@pytest.fixture
async def records(tmp_path: Path) -> Any:
    async with opened(tmp_path) as store:
        yield Records(tmp_path, store)


async def _prune_sessions(records: Records) -> list[CallRecord]:
    await records.session(OLD)
    kept = await records.session(NEW, NEW)
    await records.session(OLD, OLD)
    before = len((await records.store.list_sessions()).sessions)
    await records.prune(sessions=50)
    assert len((await records.store.list_sessions()).sessions) == before - 2
    return kept


async def _prune_events(records: Records) -> list[CallRecord]:
    kept = await records.session(OLD, OLD, NEW, NEW)
    await records.session(OLD, OLD, NEW)
    await records.prune(events=50)
    assert len((await records.store.read_all()).events) == 3
    return kept[2:]


async def _prune_all_events(records: Records) -> list[CallRecord]:
    await records.session(OLD, OLD)
    await records.prune(events=50)
    return await records.session(NEW, NEW)


async def _prune_files(records: Records) -> list[CallRecord]:
    await records.session(OLD, OLD)
    _close(records.path, 1)
    await records.session(OLD)
    _close(records.path, 2)
    kept = await records.session(NEW, NEW)
    await records.prune(audit=50)
    assert all_segments(records.path) == [closed_segments(records.path)[0], records.path]
    return kept


async def _prune_the_only_file(records: Records) -> list[CallRecord]:
    """It is closed for that, and leaves an empty one with its number."""
    await records.session(OLD, OLD)
    await records.prune(audit=50)
    (closed,) = closed_segments(records.path)
    assert os.path.getsize(closed) == 0
    return await records.session(NEW, NEW)


async def _prune_everything(records: Records) -> list[CallRecord]:
    await _prune_events(records)
    await _prune_sessions(records)
    return await _prune_the_only_new_file(records)


async def _prune_the_only_new_file(records: Records) -> list[CallRecord]:
    _close(records.path, 1)
    await records.prune(audit=0.5)
    return await records.session(0.0, 0.0)


async def _prune_nothing(records: Records) -> list[CallRecord]:
    return await records.session(OLD, NEW)


def _close(path: str, number: int) -> None:
    os.rename(path, path.replace(".jsonl", f".{number:06d}.jsonl"))


PRUNES = (
    _prune_nothing,
    _prune_sessions,
    _prune_events,
    _prune_all_events,
    _prune_files,
    _prune_the_only_file,
    _prune_everything,
)
Prune = Callable[[Records], Any]


@pytest.mark.parametrize("prune", PRUNES)
async def test_what_was_pruned_is_not_missed(prune: Prune, records: Records) -> None:
    await prune(records)
    assert await records.problems() == []
    assert verify(records.path).ok


@pytest.mark.parametrize("prune", PRUNES)
async def test_a_line_that_is_missing_is_found(prune: Prune, records: Records) -> None:
    """Where files were dropped, what ended before the first chain that is left, or in its first
    minute, is not judged."""
    last = (await prune(records))[-1]
    end = _end(last.session, time.time() + 61)
    await records.store.commit(Append(session=last.session, events=(end,)))
    assert await records.problems() == [f"call {end.payload['call_id']} of {last.session} has no line"]


@pytest.mark.parametrize("prune", PRUNES)
async def test_lines_that_are_doubled_contradictory_or_of_no_call_are_found(prune: Prune, records: Records) -> None:
    first, second = (await prune(records))[-2:]
    records.write(
        [
            replace(first),
            replace(second, id="audit_other"),
            replace(second),
            replace(second, id="audit_new", call_id="tu_new", ts=second.ts + 1_000),
        ]
    )
    assert await records.problems() == [
        f"call {first.call_id} has a line before this one",
        f"call {second.call_id} ended otherwise in the store",
        f"call {second.call_id} has a line before this one",
        "call tu_new has no end in the store",
    ]


async def test_calls_of_deleted_sessions_and_copies_in_forks_are_not_missed(records: Records) -> None:
    gone, kept = await records.session(NEW), await records.session(NEW, NEW)
    await records.store.commit(Fork(session=kept[0].session, new=session_id(), at=time.time()))
    await records.store.commit(DeleteSession(session=gone[0].session))
    assert await records.compare() == Comparison(2, ())


async def test_no_more_than_a_hundred_problems_are_listed(records: Records) -> None:
    session = session_id()
    await records.store.commit(NewSession(session=session, workspace="/w", at=1.0))
    ends = [_end(session, time.time()) for _ in range(150)]
    await records.store.commit(Append(session=session, events=tuple(ends)))
    records.write([_line(ends[0])])
    found = await records.compare()
    assert (found.calls, len(found.problems)) == (150, 100)


class Generated:
    """A store of many ended calls, none of which it keeps in memory."""

    PAGE = 500

    def __init__(self, count: int) -> None:
        self._count = count

    def end(self, number: int) -> Event:
        id = f"{number:026d}"
        return Event(
            id=id, timestamp=1.0, session_id="s", type=COMPLETED, actor="agent", payload={"call_id": f"tu_{id}"}
        )

    async def list_sessions(self, **_: Any) -> SessionPage:
        return SessionPage(sessions=[], cursor=None)

    async def audited_from(self) -> str | None:
        return None

    async def outbox(self) -> list[Any]:
        return []

    async def read_all(self, after: str | None = None) -> EventPage:
        begin = int(after or 0)
        end = min(begin + self.PAGE, self._count)
        numbers = range(begin, end)
        cursors = [str(number + 1) for number in numbers]
        return EventPage(events=[*map(self.end, numbers)], cursor=str(end), cursors=cursors, begin=str(begin))


async def test_of_each_call_little_is_kept_in_memory(tmp_path: Path) -> None:
    count = 20_000
    store = Generated(count)
    log = AuditLog(str(tmp_path / "audit.jsonl"))
    for number in range(count):
        log.append(_line(store.end(number)))
    log.close()
    tracemalloc.start()
    try:
        found = await compare(store, log.path, str(tmp_path / "run"))  # type: ignore[arg-type]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == Comparison(count, ())
    assert peak < count * 180 + 2_000_000


def _empty(home: Path, how: str) -> None:
    """Lose what the store had, as by a restored backup or a stray `rm`."""
    path = home / "callgate.db"
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    if how == "removed":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(b"")
    else:
        db = apsw.Connection(str(path))
        for table in ("sessions", "events", "messages", "calls", "confirmations", "outbox"):
            db.execute(f"delete from {table}")
        db.close()


@pytest.mark.parametrize("how", ["removed", "truncated", "deleted rows"])
async def test_a_store_that_was_emptied_is_reported_for_ever(tmp_path: Path, how: str) -> None:
    async with await SqliteStore.open(str(tmp_path)) as store:
        records = Records(tmp_path, store)
        await records.session(OLD, NEW)
        await records.session(NEW)
        assert await records.problems() == []
    _empty(tmp_path, how)
    async with await SqliteStore.open(str(tmp_path)) as store:
        records = Records(tmp_path, store)
        (problem,) = await records.problems()
        assert "was emptied or replaced" in problem and "3 lines" in problem
        for _ in range(5):
            await records.session(0.0)
        assert len(await records.problems()) == 1


async def test_a_store_whose_sessions_were_all_deleted_was_not_emptied(tmp_path: Path) -> None:
    async with await SqliteStore.open(str(tmp_path)) as store:
        records = Records(tmp_path, store)
        lines = [*await records.session(OLD, NEW), *await records.session(NEW)]
        for session in {each.session for each in lines}:
            await store.commit(DeleteSession(session=session))
        assert await records.problems() == []
        await records.session(0.0)
        assert await records.problems() == []
