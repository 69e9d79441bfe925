"""The line of a call with effects follows the store, and is written whatever the store does."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from callgate.audit.records import CallRecord
from callgate.core.calls import ToolResult
from callgate.core.effects import SideEffects
from callgate.core.events import TERMINAL
from callgate.core.ops import FinishCall, Reap
from callgate.core.sessions import Mode
from callgate.core.stored import CallState, OutboxRecord
from callgate.core.stores import Lease, StaleOwner, StoreError, StoreUnwritable, Trouble
from tests.memory_store import MemoryStore
from tests.support import Bench, make_tool


class Store(MemoryStore):
    """Holds the commits of ends back, or refuses them."""

    held: asyncio.Event | None = None
    trouble: Exception | None = None

    def commit(self, *ops: Any) -> asyncio.Future[tuple[Any, ...]]:
        if not any(isinstance(op, FinishCall) for op in ops):
            return super().commit(*ops)
        loop = asyncio.get_running_loop()
        if self.trouble is not None:
            failed = loop.create_future()
            failed.set_exception(self.trouble)
            return failed
        return loop.create_task(self._later(ops)) if self.held is not None else super().commit(*ops)

    async def _later(self, ops: Any) -> tuple[Any, ...]:
        assert self.held is not None
        await self.held.wait()
        return await super().commit(*ops)


@pytest.fixture
def bench() -> Bench:
    class Held(Bench):
        async def _open_store(self) -> MemoryStore:
            self.store = Store(self.tables)
            return self.store

    return Held("/", make_tool("put", SideEffects.WRITE), make_tool("look", SideEffects.NONE), mode=Mode.WRITE)


async def test_the_line_is_written_once_the_end_is_committed_and_then_the_caller_is_answered(bench: Any) -> None:
    await bench.log.store()
    bench.store.held = asyncio.Event()
    call = bench.start("put")
    await bench.recorder.seen("tool.completed")
    assert (bench.recorder.records, call.done()) == ([], False)
    bench.store.held.set()
    result = await call
    assert [record.call_id for record in bench.recorder.records] == [result.call_id]
    (row,) = bench.tables.all(OutboxRecord)
    line = msgspec.json.decode(row.record, type=CallRecord)
    assert line == bench.recorder.records[0], "the line says what was committed"
    assert line.principal == "local"
    await bench.dispatcher.close()
    await bench.log.close()
    assert bench.tables.all(OutboxRecord) == []


async def test_an_end_that_the_store_cannot_take_has_its_line_all_the_same(bench: Any) -> None:
    await bench.log.store()
    bench.store.trouble = StoreUnwritable("callgate.db", Trouble.FULL)
    result = await bench.run("put")
    assert result.ok
    assert [record.call_id for record in bench.recorder.records] == [result.call_id]
    bench.store.trouble = None
    await bench.log.flush()
    assert (await bench.store.get_call(result.call_id)).state is CallState.ENDED
    assert len(bench.recorder.records) == 1


async def test_a_call_that_another_process_ended_has_no_second_line(bench: Any) -> None:
    await bench.log.store()
    bench.store.held = asyncio.Event()
    call = bench.start("put")
    await bench.recorder.seen("tool.completed")
    other = MemoryStore(bench.tables)
    del bench.tables.living[bench.store.owner]  # taken for dead
    await other.commit(Reap(owner=bench.store.owner, at=1.0))
    bench.store.held.set()
    assert unknown(await call)
    assert bench.recorder.records == []
    (row,) = await other.outbox(of_dead=True)
    assert msgspec.json.decode(row.record)["reason"] == "interrupted"


@pytest.mark.parametrize(
    "error", [StaleOwner("s"), StoreUnwritable("db", Trouble.TAKEN_FOR_DEAD)], ids=["fence", "dead"]
)
@pytest.mark.parametrize("is_leased", [True, False])
async def test_an_end_in_a_session_that_was_lost_is_unknown(bench: Any, error: StoreError, is_leased: bool) -> None:
    await bench.log.store()
    bench.log.lease = lease_for(1_000 if is_leased else 0)
    bench.store.trouble = error
    assert unknown(await bench.run("put"))
    assert bench.recorder.records == [], "the process that ended it owes the line"


async def test_an_end_that_cannot_be_committed_is_unknown_once_the_lease_is_over(bench: Any) -> None:
    await bench.log.store()
    bench.store.trouble = StoreUnwritable("db", Trouble.UNREACHABLE)
    bench.log.lease = lease_for(1_000)
    known = await bench.run("put")
    assert known.ok and len(bench.recorder.records) == 1
    bench.log.lease = lease_for(0)
    late = await bench.run("put")
    assert unknown(late) and len(bench.recorder.records) == 1
    bench.store.trouble = None
    await bench.log.flush()
    assert (await bench.store.get_call(late.call_id)).state is CallState.ENDED, "it is tried again"
    assert late.call_id in [record.call_id for record in await bench.store.outbox()], "its line is owed"


async def test_a_call_without_effects_ends_in_the_store_first_once_the_lease_is_over(bench: Any) -> None:
    await bench.log.store()
    bench.log.lease = lease_for(0)
    result = await bench.run("look")
    assert result.ok
    assert (await bench.store.get_call(result.call_id)).state is CallState.ENDED
    bench.store.trouble = StoreUnwritable("db", Trouble.UNREACHABLE)
    away = await bench.run("look")
    assert away.ok, "while the database is away they are answered"
    bench.store.trouble = StaleOwner("s")
    lost = await bench.run("look")
    assert unknown(lost)
    lines = [(each.call_id, each.reason) for each in bench.recorder.records]
    assert lines == [(result.call_id, None), (away.call_id, None), (lost.call_id, "outcome_unknown")]


def lease_for(seconds: float) -> Lease:
    lease = Lease(seconds)
    lease.renew(Lease.now())
    return lease


def unknown(result: ToolResult) -> bool:
    return not result.ok and result.error is not None and result.error.reason == "outcome_unknown"


async def test_a_line_that_could_not_be_written_is_written_with_the_next(bench: Any) -> None:
    first = await bench.run("put")
    append, bench.recorder.append = bench.recorder.append, _full
    second = await bench.run("put")
    assert second.ok
    assert second.call_id in [record.call_id for record in await bench.store.outbox()]
    bench.recorder.append = append
    third = await bench.run("put")
    lines = [record.call_id for record in bench.recorder.records]
    assert lines == [first.call_id, second.call_id, third.call_id]
    await bench.dispatcher.close()
    await bench.log.close()
    assert bench.tables.all(OutboxRecord) == []


def _full(record: CallRecord) -> None:
    raise OSError(28, "No space left on device")


async def test_the_line_of_a_call_without_effects_is_there_before_the_store_may_have_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench("/", make_tool("look", SideEffects.READ))
    append, lines_at_end = bench.log.append, []

    def handed_over(session: Any, event: Any, **named: Any) -> None:
        if event.type in TERMINAL:
            lines_at_end.append(len(bench.recorder.records))
        append(session, event, **named)

    monkeypatch.setattr(bench.log, "append", handed_over)
    await bench.run("look")
    await bench.run("look", {"unknown": 1})
    assert lines_at_end == [1, 2]
