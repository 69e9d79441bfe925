"""A disk that fails: an error that says so or a normal result, and nothing in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.core.events import CALLED, TERMINAL
from callgate.core.ids import session_id
from callgate.core.ops import Append, Fork, NewSession, Op, PutBlob
from callgate.core.stored import CallState, ConfirmationState
from callgate.core.stores import StoreError, StoreUnreadable, StoreUnwritable, Trouble
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.contract.stores import answer, append, ask, event, finish, new_session, start, types
from tests.kernel.storage.disks import Cache, Disk


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.unregister()


def _work(store: SqliteStore, session: str) -> list[tuple[Op[Any], ...]]:
    """Commits of every sort, in an order in which each can be applied."""
    call, question = start(store, session), ask(store, session)
    return [
        (NewSession(session=session, workspace="/w", at=1.0),),
        (Append(session=session, events=tuple(event(session, text="x" * 900) for _ in range(9))),),
        (call,),
        (finish(store, session, call.call), Append(session=session, events=(event(session),))),
        (question,),
        (answer(question, ConfirmationState.ALLOWED),),
        (PutBlob(data=bytes(20_000)),),
        (Fork(session=session, new=session_id(), at=1.0),),
    ]


_QUICK = [*range(1, 40), *range(40, 200, 7)]


@pytest.mark.parametrize("fault", ["ENOSPC", "EIO", "EMFILE"])
@pytest.mark.parametrize(
    "numbers", [_QUICK, pytest.param(range(1, 2_001, 2), marks=pytest.mark.soak)], ids=["few", "many"]
)
@pytest.mark.timeout(1700)
async def test_when_the_nth_operation_fails_nothing_is_half_done(
    tmp_path: Path, disk: Disk, fault: str, numbers: Any
) -> None:
    failed = 0
    for nth in numbers:
        home = tmp_path / f"{nth}"
        disk.done = 0
        disk.fail(fault, nth)
        async with asyncio.timeout(60):
            failed += await _work_once(home, disk)
    assert failed, "no operation was met: the test proves nothing"


async def _work_once(home: Path, disk: Disk) -> int:
    session, failures = session_id(), 0
    store = await SqliteStore.open(str(home), vfs=disk.name)
    done: list[tuple[Op[Any], ...]] = []
    for commit in _work(store, session):
        for _ in range(4):  # the disk fails once; a commit may meet that more than once
            try:
                await store.commit(*commit)
            except (StoreUnwritable, StoreUnreadable):
                failures += 1
            else:
                done.append(commit)
                break
        try:
            await store.read_events(session)
        except StoreError:
            failures += 1
    assert len(done) == len(_work(store, session)), "the store did not recover"
    await store.close()
    disk.heal()
    await _check(home, session, done)
    return failures


async def _check(home: Path, session: str, done: list[tuple[Op[Any], ...]]) -> None:
    """Everything that was acknowledged is there, once, and what belongs together agrees."""
    async with await SqliteStore.open(str(home)) as store:
        events = list(await store.read_events(session))
        expected = [each.id for commit in done for op in commit for each in op.recorded]
        assert [each.id for each in events] == expected
        calls = {e.payload["call_id"]: [] for e in events if e.type == CALLED}  # type: ignore[var-annotated]
        for each in events:
            if each.type in (CALLED, *TERMINAL):
                calls[each.payload["call_id"]].append(each.type)
        for id, seen in calls.items():
            stored = await store.get_call(id)
            assert stored is not None
            assert (stored.state is CallState.ENDED) == (seen[-1] in TERMINAL)
        fork = done[-1][0]
        assert isinstance(fork, Fork)
        assert (await store.get_session(fork.new)).last_seq == len(events)


@pytest.mark.parametrize(("fault", "reason"), [("ENOSPC", Trouble.FULL), ("EIO on writing", Trouble.IO)])
async def test_a_full_disk_refuses_writes_serves_reads_and_recovers(
    home: Path, disk: Disk, fault: str, reason: Trouble
) -> None:
    async with await SqliteStore.open(str(home), vfs=disk.name) as store:
        session = await new_session(store)
        await append(store, session, "before")
        disk.fail(fault, disk.done + 1, times=1_000_000)
        call = start(store, session)
        for op in (call, Append(session=session, events=(event(session),))):
            with pytest.raises(StoreUnwritable) as unwritable:
                await store.commit(op)
            assert unwritable.value.reason is reason
        assert await types(store, session) == ["before"]
        assert await store.get_call(call.call) is None
        disk.heal()
        (receipt,) = await store.commit(call)
        assert receipt.applied
        assert await types(store, session) == ["before", CALLED]


async def test_those_who_share_a_batch_with_a_failure_are_all_told(home: Path, disk: Disk) -> None:
    async with await SqliteStore.open(str(home), vfs=disk.name) as store:
        session = await new_session(store)
        disk.fail("EIO on writing", disk.done + 1, times=1_000_000)
        results = await asyncio.gather(*(append(store, session, str(n)) for n in range(30)), return_exceptions=True)
        assert {type(each) for each in results} == {StoreUnwritable}
        disk.heal()
        await append(store, session, "after")
        assert await types(store, session) == ["after"]


@pytest.mark.spec("T46")
@pytest.mark.parametrize("seed", range(3))
async def test_what_was_acknowledged_survives_a_loss_of_power(tmp_path: Path, home: Path, seed: int) -> None:
    cache, dice = Cache(), random.Random(seed)
    acknowledged: list[str] = []
    async with await SqliteStore.open(str(home), vfs=cache.name) as store:
        session = await new_session(store)

        async def write() -> None:
            for _ in range(12):
                one = event(session, text="x" * dice.randrange(3_000))
                await store.commit(Append(session=session, events=(one,)))
                acknowledged.append(one.id)

        writers = [asyncio.create_task(write()) for _ in range(4)]
        for cut in range(8):
            await asyncio.sleep(dice.uniform(0, 0.004))
            expected = list(acknowledged)
            cache.lose_power(home, tmp_path / str(cut))
            async with await SqliteStore.open(str(tmp_path / str(cut))) as after:
                found = {each.id for each in await after.read_events(session)}
                assert set(expected) <= found
        await asyncio.gather(*writers)
    cache.unregister()
    assert len(acknowledged) == 48
