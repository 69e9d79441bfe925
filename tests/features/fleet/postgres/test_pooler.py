"""Behind PgBouncer in transaction mode: with a direct connection for locks and hints, and with none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from callgate.core.ops import Acquire, Append, PutEntry
from callgate.core.stored import entries_key
from callgate.core.stores import SessionLocked, StoreUnwritable, Trouble
from callgate.features.fleet.postgres import POLLING, PostgresLocation
from callgate.features.fleet.postgres.connections import Connection
from callgate.features.fleet.postgres.store import PostgresStore
from tests.features.fleet.postgres.children import process
from tests.features.fleet.postgres.test_living import (
    connected,
    gone,
    has_both_locks,
    insist,
    locks_of,
    terminate,
    until,
)
from tests.kernel.contract.stores import World, event, new_session
from tests.kernel.contract.test_stores import (  # noqa: F401
    test_a_call_is_started_by_one_and_ended_once,
    test_a_commit_that_fails_harms_none_beside_it,
    test_a_grant_is_used_as_often_as_it_says,
    test_a_question_of_a_turn_outlives_its_process_and_runs_once,
    test_a_session_is_free_once_its_owner_is_gone,
    test_all_of_a_commit_is_written_or_nothing,
    test_all_sessions_are_one_stream_whose_cursor_skips_nothing,
    test_an_answer_in_one_process_reaches_the_one_that_waits,
    test_an_owner_that_lost_its_session_changes_nothing,
    test_numbers_have_no_gap_with_many_writers,
    test_of_a_hundred_answers_one_stands_and_the_others_learn_it,
    test_of_two_who_change_one_version_of_an_entry_one_does,
    test_the_same_event_committed_again_is_there_once,
    test_what_a_dead_process_ran_is_ended_as_interrupted_once,
)
from tests.needs import needs
from tests.pgbouncer import pooling
from tests.postgres import Cluster

pytestmark = needs("pgbouncer")
MODES = ["direct", POLLING]


@pytest.fixture(scope="module")
def pooler(cluster: Cluster) -> Iterator[str]:
    with pooling(cluster) as url:
        yield url


def _location(cluster: Cluster, pooler: str, mode: str, **more: Any) -> PostgresLocation:
    direct = cluster.location()
    listen_url = POLLING if mode == POLLING else direct.url
    return PostgresLocation(url=pooler, listen_url=listen_url, schema=direct.schema, **more)


@pytest.fixture(params=MODES)
async def world(request: pytest.FixtureRequest, cluster: Cluster, pooler: str) -> AsyncIterator[World]:
    location = _location(cluster, pooler, request.param)
    world = World(lambda: PostgresStore.open(location))
    yield world
    await world.close()


@pytest.fixture
async def store(world: World) -> Any:
    return await world.open()


@pytest.mark.parametrize("mode", MODES)
async def test_word_of_a_change_comes_within_300_ms(cluster: Cluster, pooler: str, mode: str) -> None:
    location = _location(cluster, pooler, mode)
    async with await PostgresStore.open(location) as one, await PostgresStore.open(location) as two:
        session = await new_session(one)
        took = []
        with two.wake(session) as hint, two.wake(entries_key("k")) as entries:
            for n in range(7):
                while await hint.wait(0.15):  # until the past is past
                    pass
                begin = time.monotonic()
                await one.commit(Append(session=session, events=(event(session),)))
                assert await hint.wait(5)
                took.append(time.monotonic() - begin)
                await one.commit(PutEntry(kind="k", name="n", value=str(n)))
                assert await entries.wait(5)
        assert sorted(took)[3] < 0.3, took


async def test_losing_one_direct_connection_after_the_other_costs_nothing(cluster: Cluster, pooler: str) -> None:
    location = _location(cluster, pooler, "direct", beat_s=0.2)
    async with await PostgresStore.open(location) as store, await PostgresStore.open(location) as rival:
        session = await new_session(store)
        await store.commit(Acquire(session=session, owner=store.owner, at=1.0))

        async def grab() -> None:
            while True:
                with pytest.raises(SessionLocked):
                    await rival.commit(Acquire(session=session, owner=rival.owner, at=1.0))

        await until(lambda: has_both_locks(cluster, store))
        grabbing = asyncio.create_task(grab())
        for turn in range(4):
            victim = locks_of(cluster, store)[turn % 2]
            terminate(cluster, victim)
            await until(lambda: has_both_locks(cluster, store, victim))
        assert not grabbing.done(), "a living process lost its session"
        grabbing.cancel()


@pytest.mark.parametrize("mode", MODES)
async def test_a_process_that_is_gone_counts_as_gone(cluster: Cluster, pooler: str, mode: str) -> None:
    location = _location(cluster, pooler, mode, beat_s=0.2, silent_s=1.5)
    async with await PostgresStore.open(location) as store:
        session = await new_session(store)
        async with process("hold", location, session) as holder:
            held = await holder.hear()
            assert await store.alive(held["owner"])
            holder.process.kill()
            await holder.process.wait()
            took = await until(lambda: gone(store, held["owner"]))
            assert took < (1 if mode == "direct" else 5)
            await store.commit(Acquire(session=session, owner=store.owner, at=1.0))


@pytest.mark.parametrize("mode", MODES)
async def test_nothing_of_one_that_was_taken_for_dead_is_applied(cluster: Cluster, pooler: str, mode: str) -> None:
    location = _location(cluster, pooler, mode, beat_s=1_000)
    strict = PostgresLocation(url=cluster.url, schema=location.schema, silent_s=0.3, beat_s=0.1)
    async with await PostgresStore.open(location) as late, await PostgresStore.open(strict) as store:
        session = await new_session(late)
        await late.commit(Acquire(session=session, owner=late.owner, at=1.0))
        await until(lambda: gone(store, late.owner))
        await store.commit(Acquire(session=session, owner=store.owner, at=1.0))
        for op in (Append(session=session, events=(event(session),)), PutEntry(kind="k", name="n", value="v")):
            with pytest.raises(StoreUnwritable) as refused:
                await late.commit(op)
            assert refused.value.reason is Trouble.TAKEN_FOR_DEAD
        assert list(await store.read_events(session)) == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_restart_behind_the_pooler_makes_nobody_dead(durable_cluster: Cluster, mode: str) -> None:
    with pooling(durable_cluster) as pooler:
        location = _location(durable_cluster, pooler, mode, beat_s=0.2)
        async with await PostgresStore.open(location) as store, await PostgresStore.open(location) as rival:
            session = await new_session(store)
            (fence,) = await store.commit(Acquire(session=session, owner=store.owner, at=1.0))
            for _ in range(2):
                durable_cluster.kill()
                durable_cluster.start()
                connected(durable_cluster).close()
                with pytest.raises(SessionLocked):
                    await insist(rival, Acquire(session=session, owner=rival.owner, at=1.0))
                await insist(store, Append(session=session, fence=fence, events=(event(session),)))
            assert len(await store.read_events(session)) == 2


async def test_no_lock_of_a_session_lies_on_a_pooled_connection(cluster: Cluster, pooler: str) -> None:
    location = _location(cluster, pooler, POLLING)
    async with await PostgresStore.open(location) as store:
        await new_session(store)
        await store.list_sessions()
        assert locks_of(cluster, store) == []
        with psycopg.connect(cluster.url) as db:
            idle = db.execute("select count(*) from pg_stat_activity where state = 'idle in transaction'").fetchone()
        assert idle == (0,)


async def test_a_process_that_stops_within_a_transaction_holds_nobody_up_for_long(
    cluster: Cluster, pooler: str
) -> None:
    location = _location(cluster, pooler, POLLING, answer_s=2.0)
    async with await PostgresStore.open(PostgresLocation(url=cluster.url, schema=location.schema)) as store:
        session = await new_session(store)
        stopped = Connection(location)
        stopped.begin()
        stopped.fetch("select 1 from cg.sessions where id = %s for update", session)
        begin = time.monotonic()
        await store.commit(Append(session=session, events=(event(session),)))
        assert 0.5 < time.monotonic() - begin < 10
        stopped.close()
