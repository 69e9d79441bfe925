"""A process counts as gone exactly if it is: killed, stopped, cut off; never because of the database."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from callgate.core.events import FAILED
from callgate.core.ops import Acquire, Append, PutEntry, Reap
from callgate.core.stores import SessionLocked, StaleOwner, StoreUnreadable, StoreUnwritable, Trouble, reap_dead
from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.store import PostgresStore
from tests.features.fleet.postgres.children import process
from tests.kernel.contract.stores import event, new_session, start, within
from tests.postgres import Cluster


async def until(condition: Callable[[], Awaitable[bool]], limit_s: float = 20) -> float:
    """How long it took."""
    begin = time.monotonic()
    async with asyncio.timeout(limit_s):
        while not await condition():
            await asyncio.sleep(0.005)
    return time.monotonic() - begin


async def insist(store: Any, op: Any) -> Any:
    """The same op until there is an answer, as the database comes back."""
    async with asyncio.timeout(20):
        while True:
            try:
                (result,) = await store.commit(op)
                return result
            except StoreUnwritable as error:
                assert error.reason is Trouble.UNREACHABLE
                await asyncio.sleep(0.01)


async def read_once_back(read: Callable[[], Awaitable[Any]]) -> Any:
    """What is read, once the database is back: nobody waits for it while it is known to be away."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await read()
            except StoreUnreadable as error:
                assert error.reason is Trouble.UNREACHABLE
                await asyncio.sleep(0.01)


async def gone(store: Any, owner: str) -> bool:
    return not await store.alive(owner)


def locks_of(cluster: Cluster, store: Any) -> list[int]:
    """The backends that hold the lock of a store's process."""
    with psycopg.connect(cluster.url) as db:
        return [
            pid
            for (pid,) in db.execute(
                f"select l.pid from pg_locks l join {store.location.schema}.owners o"
                " on l.classid = ((o.key >> 32) & 4294967295)::oid and l.objid = (o.key & 4294967295)::oid"
                " where l.locktype = 'advisory' and o.id = %s",
                (store.owner,),
            )
        ]


async def has_both_locks(cluster: Cluster, store: Any, without: int = 0) -> bool:
    found = locks_of(cluster, store)
    return len(found) == 2 and without not in found


def connected(cluster: Cluster) -> psycopg.Connection[Any]:
    """As soon as it has recovered."""
    until_s = time.monotonic() + 30
    while True:
        try:
            return psycopg.connect(cluster.url)
        except psycopg.OperationalError:
            assert time.monotonic() < until_s
            time.sleep(0.01)


def terminate(cluster: Cluster, *pids: int) -> None:
    with psycopg.connect(cluster.url) as db:
        for pid in pids:
            db.execute("select pg_terminate_backend(%s)", (pid,))


async def test_a_killed_process_is_taken_over_at_once(cluster: Cluster) -> None:
    location = cluster.location()
    async with await PostgresStore.open(location) as store:
        session = await new_session(store)
        acquire = Acquire(session=session, owner=store.owner, at=1.0)
        async with process("hold", location, session) as holder:
            held = await holder.hear()
            with pytest.raises(SessionLocked):
                await store.commit(acquire)
            assert list(await store.dead_owners()) == []
            holder.process.kill()
            await holder.process.wait()
            took = await until(lambda: gone(store, held["owner"]))
            assert await store.commit(acquire) == (held["fence"] + 1,)
        assert took < 1, "a killed process kept its session"
        ends = [e.payload["call_id"] for e in await store.read_events(session) if e.type == FAILED]
        assert ends == [held["call"]]
        assert list(await store.open_calls()) == []


async def test_a_stopped_process_counts_as_gone_and_is_told_when_it_continues(cluster: Cluster) -> None:
    location = cluster.location(silent_s=1.0, beat_s=0.2)
    async with await PostgresStore.open(location) as store:
        session = await new_session(store)
        acquire = Acquire(session=session, owner=store.owner, at=1.0)
        async with process("hold", location, session) as holder:
            held = await holder.hear()
            os.kill(holder.process.pid, signal.SIGSTOP)
            with pytest.raises(SessionLocked):  # asleep is not dead
                await store.commit(acquire)
            took = await until(lambda: gone(store, held["owner"]))
            assert 0.5 < took < 5
            assert await store.commit(acquire) == (held["fence"] + 1,)
            before = [each.id for each in await store.read_events(session)]
            holder.tell("go on")
            os.kill(holder.process.pid, signal.SIGCONT)
            said = await holder.hear()
            assert said.pop("is_dead") is True
            assert set(said.values()) == {Trouble.TAKEN_FOR_DEAD}
        assert [each.id for each in await store.read_events(session)] == before
        assert list(await store.entries("k")) == []
        assert [each.id for each in (await store.list_sessions()).sessions] == [session]


async def test_a_stopped_process_that_nobody_missed_goes_on(cluster: Cluster) -> None:
    location = cluster.location(silent_s=0.5, beat_s=0.1)
    async with await PostgresStore.open(location) as store:
        session = await new_session(store)
        async with process("hold", location, session) as holder:
            held = await holder.hear()
            os.kill(holder.process.pid, signal.SIGSTOP)
            await until(lambda: gone(store, held["owner"]))
            os.kill(holder.process.pid, signal.SIGCONT)
            await until(lambda: store.alive(held["owner"]))
            holder.tell("go on")
            said = await holder.hear()
            assert not said.pop("is_dead")
            assert set(said.values()) == {"done"}


async def test_nothing_of_one_that_was_taken_for_dead_is_applied_before_it_knows(cluster: Cluster) -> None:
    location = cluster.location(beat_s=1_000)  # it says nothing, and hears nothing
    strict = PostgresLocation(url=cluster.url, schema=location.schema, silent_s=0.3, beat_s=0.1)
    async with await PostgresStore.open(location) as late, await PostgresStore.open(strict) as store:
        session, other = await new_session(late), await new_session(store)
        await late.commit(Acquire(session=session, owner=late.owner, at=1.0))
        await until(lambda: gone(store, late.owner))
        await store.commit(Acquire(session=session, owner=store.owner, at=1.0))
        assert not late.is_dead
        ops = [
            Append(session=other, events=(event(other),)),
            Append(session=session, events=(event(session),)),
            PutEntry(kind="k", name="late", value="v"),  # in a locked batch
            start(late, other),
        ]
        results = await asyncio.gather(*(late.commit(op) for op in ops), return_exceptions=True)
        assert [getattr(each, "reason", each) for each in results] == [Trouble.TAKEN_FOR_DEAD] * 4
        assert late.is_dead
        assert list(await store.read_events(other)) == []
        assert list(await store.open_calls()) == []
        assert list(await store.entries("k")) == []


async def test_an_op_with_a_stale_fence_never_applies(cluster: Cluster) -> None:
    location = cluster.location()
    async with await PostgresStore.open(location) as one, await PostgresStore.open(location) as two:
        session = await new_session(one)
        (fence,) = await one.commit(Acquire(session=session, owner=one.owner, at=1.0))
        await one.commit(Append(session=session, fence=fence, events=(event(session),)))
        terminate(cluster, *locks_of(cluster, one))  # gone for a moment
        while True:
            try:
                await two.commit(Acquire(session=session, owner=two.owner, at=1.0))
                break
            except SessionLocked:  # it was back at once: again
                terminate(cluster, *locks_of(cluster, one))
        with pytest.raises((StaleOwner, StoreUnwritable)):
            await one.commit(Append(session=session, fence=fence, events=(event(session),)))
        assert len(await two.read_events(session)) == 1


@pytest.fixture
async def rivals(cluster: Cluster) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    location = cluster.location(beat_s=0.1)
    async with await PostgresStore.open(location) as one, await PostgresStore.open(location) as two:
        yield one, two


async def test_losing_one_connection_after_the_other_costs_nothing(
    cluster: Cluster, rivals: tuple[PostgresStore, PostgresStore]
) -> None:
    store, rival = rivals
    session = await new_session(store)
    (fence,) = await store.commit(Acquire(session=session, owner=store.owner, at=1.0))
    await store.read_events(session)
    attempts = 0

    async def grab() -> None:
        nonlocal attempts
        while True:
            with pytest.raises(SessionLocked):
                await rival.commit(Acquire(session=session, owner=rival.owner, at=1.0))
            attempts += 1

    grabbing = asyncio.create_task(grab())
    await until(lambda: has_both_locks(cluster, store))
    for turn in range(6):
        victim = locks_of(cluster, store)[turn % 2]
        terminate(cluster, victim)
        await until(lambda: has_both_locks(cluster, store, victim))  # by itself, though it has nothing to write
    await store.commit(Append(session=session, fence=fence, events=(event(session),)))
    assert not grabbing.done(), "a living process lost its session"
    grabbing.cancel()
    assert attempts > 5
    assert len(await store.read_events(session)) == 1


async def test_a_reader_whose_connection_is_terminated_reads_on(cluster: Cluster) -> None:
    location = cluster.location()
    async with await PostgresStore.open(location) as store:
        session = await new_session(store)
        for _ in range(3):
            with psycopg.connect(cluster.url) as db:
                db.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'callgate'"
                    " and query like '%%last_seq%%'"
                )
            assert list(await store.read_events(session)) == []


async def test_hints_come_again_at_once_each_time_the_connection_for_them_is_lost(cluster: Cluster) -> None:
    location = cluster.location(beat_s=0.1)
    async with await PostgresStore.open(location) as one, await PostgresStore.open(location) as two:
        session = await new_session(one)
        pauses = []
        for _ in range(8):
            before = locks_of(cluster, two)
            terminate(cluster, *before)

            async def is_back(before: list[int] = before) -> bool:
                return bool(set(locks_of(cluster, two)) - set(before))

            pauses.append(await until(is_back))
            with two.wake(session) as hint:
                while await hint.wait(0.05):
                    pass
                await one.commit(Append(session=session, events=(event(session),)))
                assert await hint.wait(1.5)
        assert min(pauses[-4:]) < 1, "a pause that grows with each loss would be two seconds long by now"


async def test_a_process_with_thousands_of_open_files_is_heard_and_hears(cluster: Cluster) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4_096), hard))
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(1_200)]  # beyond what select() takes
    try:
        location = cluster.location(silent_s=0.5, beat_s=0.1)
        async with await PostgresStore.open(location) as one, await PostgresStore.open(location) as two:
            session = await new_session(one)
            with two.wake(session) as hint:
                while await hint.wait(0.1):
                    pass
                await one.commit(Append(session=session, events=(event(session),)))
                assert await hint.wait(1.5)
            await asyncio.sleep(0.8)  # longer than one may be silent
            assert await two.alive(one.owner)
    finally:
        for each in files:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _restart(cluster: Cluster) -> None:
    cluster.stop()
    cluster.start()


def _crash(cluster: Cluster) -> None:
    cluster.kill()
    cluster.start()


def _crash_one_backend(cluster: Cluster) -> None:
    """As the kernel does when memory is short: the server ends all other backends and recovers."""
    with psycopg.connect(cluster.url, autocommit=True) as other, psycopg.connect(cluster.url) as db:
        os.kill(db.info.backend_pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            while True:
                other.execute("select 1")
    connected(cluster).close()


HARMS = [_restart, _crash, _crash_one_backend]


@pytest.mark.parametrize("harm", HARMS)
async def test_after_a_restart_of_the_database_owners_come_back_and_keep_what_they_own(
    own_cluster: Cluster, harm: Callable[[Cluster], None]
) -> None:
    location = own_cluster.location(beat_s=0.2)
    hasty = own_cluster.location(location.schema, beat_s=0.2, grace_s=1.0)
    async with await PostgresStore.open(location) as store, await PostgresStore.open(hasty) as other:
        session = await new_session(store)
        acquire = Acquire(session=session, owner=store.owner, at=1.0)
        async with process("hold", location, session) as holder:
            held = await holder.hear()
            os.kill(holder.process.pid, signal.SIGSTOP)  # slow to come back
            harm(own_cluster)
            with pytest.raises(SessionLocked):  # nobody but us has been heard of since
                await insist(store, acquire)
            assert list(await store.dead_owners()) == []
            os.kill(holder.process.pid, signal.SIGCONT)
            holder.tell("go on")
            said = await holder.hear()
            assert not said.pop("is_dead")
            assert set(said.values()) == {"done"}
            with pytest.raises(SessionLocked):
                await store.commit(acquire)
            os.kill(holder.process.pid, signal.SIGSTOP)
            harm(own_cluster)
            assert await other.alive(held["owner"])
            await until(lambda: gone(other, held["owner"]))  # it had its time
            await other.commit(Acquire(session=session, owner=other.owner, at=1.0))
            os.kill(holder.process.pid, signal.SIGCONT)
            holder.tell("go on")
            said = await holder.hear()
            assert said["is_dead"]
            assert set(said.values()) == {True, Trouble.TAKEN_FOR_DEAD}


async def test_a_clock_that_is_wrong_after_a_failover_makes_nobody_dead(cluster: Cluster) -> None:
    location = cluster.location()
    async with await PostgresStore.open(location) as store:
        session = await new_session(store)
        with psycopg.connect(cluster.url, autocommit=True) as db:
            # As a server before this one would have left it, whose clock was a minute ahead.
            db.execute(
                f"insert into {location.schema}.owners (id, key, locks, format, boot, beat_at)"
                " values ('own_away', 1, true, 1, 'another', clock_timestamp() + interval '1 minute')"
            )
            db.execute(f"update {location.schema}.sessions set owner = 'own_away', touch = 1000")
        with pytest.raises(SessionLocked):
            await store.commit(Acquire(session=session, owner=store.owner, at=1.0))


async def test_closing_frees_the_sessions_and_is_no_alarm(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    location = cluster.location(beat_s=0.01)
    async with await PostgresStore.open(location) as other:
        for _ in range(5):
            store = await PostgresStore.open(location)
            session = await new_session(store)
            await store.commit(Acquire(session=session, owner=store.owner, at=1.0))
            await within(10, store.close())
            await other.commit(Acquire(session=session, owner=other.owner, at=1.0))
    assert caplog.records == []


async def test_many_processes_that_died_at_once_are_reaped_at_once(cluster: Cluster) -> None:
    location = cluster.location()
    async with await PostgresStore.open(location) as store:
        dead = [f"own_{n}" for n in range(60)]
        for owner in dead:
            session = await new_session(store)
            (fence,) = await store.commit(Acquire(session=session, owner=owner, at=1.0))
            await store.commit(start(store, session, owner=owner, fence=fence))
        assert sorted(await store.dead_owners()) == sorted(dead)
        reaped = await reap_dead(store, 1.0)
        assert sorted(each.owner for each in reaped) == sorted(dead)
        assert all(len(each.interrupted) == 1 for each in reaped)
        assert list(await store.dead_owners()) == []


async def test_a_batch_may_have_to_do_with_more_sessions_than_it_names_again_and_again(cluster: Cluster) -> None:
    async with await PostgresStore.open(cluster.location()) as store:
        ops = []
        for n in range(40):
            session = await new_session(store)
            owner = f"own_{n}"
            await store.commit(Acquire(session=session, owner=owner, at=1.0))
            ops.append(Reap(owner=owner, at=1.0))
        await store.commit(*ops)
        assert list(await store.dead_owners()) == []
