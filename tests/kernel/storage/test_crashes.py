"""Processes that are killed, that fight and that share: nothing is lost, doubled or stuck."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from callgate.core.events import CALLED, COMPLETED, FAILED, TERMINAL
from callgate.core.ops import Acquire, Append
from callgate.core.stores import SessionLocked, StaleOwner, reap_dead
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.contract.stores import append, event, new_session
from tests.kernel.storage.processes import MANY_KILLS, all_events, child, kill_again_and_again


@pytest.mark.spec("T46")
@pytest.mark.timeout(1700)
@pytest.mark.parametrize(("kills", "seed"), [(40, 0), *MANY_KILLS])
async def test_what_was_acknowledged_survives_every_kill_once(home: Path, kills: int, seed: int) -> None:
    heard = await kill_again_and_again(child("killed", home), kills, seed=seed)
    async with await SqliteStore.open(str(home)) as store:
        for reaped in await reap_dead(store, 0.0):
            heard += [{"interrupted": call.id} for call in reaped.interrupted]
        events = await all_events(store)
        assert list(await store.open_calls()) == []
        assert list(await store.dead_owners()) == []

    written = {each.id: each for some in events.values() for each in some}
    assert len(written) == sum(map(len, events.values())), "an event is there twice"
    acknowledged = [said for said in heard if "event" in said]
    assert len(acknowledged) > kills
    assert [said for said in acknowledged if said["event"] not in written] == []
    assert all(said["applied"] for said in heard if "applied" in said)
    for said in acknowledged:
        if "seq" in said:
            assert events[said["session"]][said["seq"] - 1].id == said["event"]

    of_calls = [e for some in events.values() for e in some if e.type in (CALLED, *TERMINAL)]
    starts = Counter(each.payload["call_id"] for each in of_calls if each.type == CALLED)
    ends = Counter(each.payload["call_id"] for each in of_calls if each.type in TERMINAL)
    assert set(starts.values()) == {1}
    assert ends == starts, "a call has no end, or two"
    finished = {said["ended"] for said in heard if "ended" in said}
    completed = {e.payload["call_id"] for e in of_calls if e.type == COMPLETED}
    interrupted = {e.payload["call_id"] for e in of_calls if e.type == FAILED}
    assert finished <= completed
    assert interrupted.isdisjoint(completed)
    assert interrupted >= {said["interrupted"] for said in heard if "interrupted" in said}
    assert interrupted, "no kill hit a running call: the test proves nothing"


async def test_processes_that_share_a_file_all_write_what_they_have(home: Path) -> None:
    async with await SqliteStore.open(str(home)) as store:
        session = await new_session(store)
        async with (
            child("append", home, session, 25) as one,
            child("append", home, session, 25) as two,
            child("append", home, session, 25) as three,
        ):
            said = [await each.hear() for each in (one, two, three)]
        ids = [id for each in said for id in each["ids"]]
        assert len(ids) == 300
        read = [each.id for each in await store.read_events(session)]
        assert sorted(read) == sorted(ids)
        for each in said:  # nobody is overtaken by himself
            assert len(each["ids"]) == 100


async def test_processes_that_fight_for_a_session_have_it_one_after_the_other(
    home: Path,
) -> None:
    async with await SqliteStore.open(str(home)) as store:
        session = await new_session(store)
        async with (
            child("fight", home, session, 15) as one,
            child("fight", home, session, 15) as two,
        ):
            fences = [(await each.hear())["fences"] for each in (one, two)]
        assert sorted(fences[0] + fences[1]) == list(range(1, 31))
        written = [(each.payload["fence"], each.payload["owner"]) for each in await store.read_events(session)]
        assert [fence for fence, _ in written] == [n for n in range(1, 31) for _ in range(3)]
        assert len(set(written)) == 30


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_session_is_free_once_its_holder_was_killed_and_not_before(home: Path, stopped: bool) -> None:
    async with await SqliteStore.open(str(home)) as store:
        session = await new_session(store)
        acquire = Acquire(session=session, owner=store.owner, at=1.0)
        async with child("hold", home, session) as holder:
            held = await holder.hear()
            if stopped:  # asleep is not dead
                os.kill(holder.process.pid, signal.SIGSTOP)
            with pytest.raises(SessionLocked) as locked:
                await store.commit(acquire)
            assert locked.value.owner == held["owner"]
            assert list(await store.dead_owners()) == []
            holder.process.kill()
            await holder.process.wait()
            assert list(await store.dead_owners()) == [held["owner"]]
            assert await store.commit(acquire) == (held["fence"] + 1,)
        ends = [e.payload["call_id"] for e in await store.read_events(session) if e.type == FAILED]
        assert ends == [held["call"]]
        with pytest.raises(StaleOwner):
            late = Append(session=session, fence=held["fence"], events=(event(session),))
            await store.commit(late)


async def test_a_commit_in_another_process_wakes_those_who_wait_here(home: Path) -> None:
    async with await SqliteStore.open(str(home)) as store:
        session = await new_session(store)
        await append(store, session, "first")
        async with child("answer", home, session) as other:
            await other.hear()
            with store.wake(session) as hint:
                while await hint.wait(0.2):  # until the past is past
                    pass
                for count in range(2, 5):
                    other.tell("now")
                    assert await hint.wait(60)
                    assert len(await store.read_events(session)) == count
