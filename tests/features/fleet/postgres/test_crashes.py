"""Whatever is killed, and however often: lost = doubled = gaps = 0."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from callgate.core.ops import Acquire, Append
from callgate.core.stores import SessionLocked, StoreUnreadable, StoreUnwritable, Trouble
from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.store import PostgresStore
from tests import postgres
from tests.features.fleet.postgres.chaos import (
    Follower,
    Servers,
    faults,
    prepare,
    reap_everything,
    servers,
    verify,
)
from tests.features.fleet.postgres.children import process
from tests.features.fleet.postgres.test_living import connected, insist
from tests.kernel.contract.stores import append, event, new_session
from tests.postgres import Cluster

MANY_KILLS = [pytest.param(250, seed, marks=pytest.mark.soak) for seed in range(1, 5)]
"""A thousand, in parts that run side by side."""


async def _kill_database(cluster: Cluster, some: Servers, dice: random.Random) -> None:
    cluster.kill()
    await asyncio.to_thread(cluster.start)


async def _kill_server(cluster: Cluster, some: Servers, dice: random.Random) -> None:
    some.kill(dice.randrange(3))


async def _terminate_backends(cluster: Cluster, some: Servers, dice: random.Random) -> None:
    with connected(cluster) as db:
        db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'callgate' and random() < 0.3"
        )


async def _kill_a_backend(cluster: Cluster, some: Servers, dice: random.Random) -> None:
    """The server then ends all the others, and recovers."""
    with connected(cluster) as db:
        os.kill(db.info.backend_pid, signal.SIGKILL)


HARMS: dict[Callable[[Cluster, Servers, random.Random], Awaitable[None]], int] = {
    _kill_server: 8,
    _terminate_backends: 6,
    _kill_database: 4,
    _kill_a_backend: 2,
}
"""How often each, of twenty."""


@pytest.mark.spec("T46")
@pytest.mark.timeout(1700)
@pytest.mark.parametrize(("kills", "seed"), [(20, 0), *MANY_KILLS])
async def test_what_was_acknowledged_survives_every_kill_once(durable_cluster: Cluster, kills: int, seed: int) -> None:
    dice = random.Random(seed)
    # As if a server were looked for soon after a restart; nobody waits for minutes here.
    location = durable_cluster.location(beat_s=0.2, silent_s=10.0, grace_s=3.0, answer_s=10.0)
    done: Counter[str] = Counter()
    async with await PostgresStore.open(location) as store:
        await prepare(store)
        follower = Follower(store)
        following = asyncio.create_task(follower.follow())
        async with servers(location, 3) as some:
            await some.until_more(20)
            harms = [harm for harm, weight in HARMS.items() for _ in range(weight * kills // 20)]
            dice.shuffle(harms)
            for harm in harms:
                await harm(durable_cluster, some, dice)
                done[harm.__name__] += 1
                await some.until_more(dice.randrange(1, 12), dice.choice(["ended", "event"]))
                await asyncio.sleep(dice.uniform(0, 0.02))  # any point of what they do next
            await some.end()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await reap_everything(store)
        await follower.finish()
        figures = await verify(store, some.heard, follower)
        assert list(await store.dead_owners()) == []
    print({"kills": done.total(), **done, **figures})
    assert done.total() == kills
    assert faults(figures) == {}
    assert figures["acknowledged"] > 10 * kills
    assert figures["interrupted"] > 0, "no kill hit a running call: the test proves nothing"
    assert figures["troubles"] > 0, "no kill hit a commit: the test proves nothing"


def _both(one: Cluster, two: Cluster, schema: str, **more: float) -> PostgresLocation:
    hosts = f"host={one.directory},{two.directory}&port={one.port},{two.port}"
    url = f"postgresql://callgate@/postgres?{hosts}&target_session_attrs=read-write"
    return PostgresLocation(url=url, schema=schema, **more)  # type: ignore[arg-type]


@pytest.mark.spec("T46")
async def test_a_failover_to_a_synchronous_standby_loses_nothing_and_makes_nobody_dead(
    durable_cluster: Cluster,
) -> None:
    standby = Cluster(durable_cluster.binaries, primary=durable_cluster, durable=True)
    try:
        standby.start()
        with psycopg.connect(durable_cluster.url, autocommit=True) as db:
            db.execute("alter system set synchronous_standby_names = '*'")
            db.execute("select pg_reload_conf()")
            while db.execute("select sync_state from pg_stat_replication").fetchone() != ("sync",):
                await asyncio.sleep(0.01)
        location = _both(durable_cluster, standby, "failing", beat_s=0.2, grace_s=20.0)
        async with await PostgresStore.open(location) as store:
            await prepare(store)
            session = await new_session(store)
            follower = Follower(store)
            following = asyncio.create_task(follower.follow())
            async with process("hold", location, session) as holder, servers(location, 2) as some:
                held = await holder.hear()
                await some.until_more(30)
                await _check_standby(standby, session)
                os.kill(holder.process.pid, signal.SIGSTOP)  # slow to come back
                durable_cluster.kill()
                await some.until_more(5, "trouble")
                standby.promote()
                await some.until_more(30)
                with pytest.raises(SessionLocked):
                    await insist(store, Acquire(session=session, owner=store.owner, at=1.0))
                os.kill(holder.process.pid, signal.SIGCONT)
                holder.tell("go on")
                said = await holder.hear()
                assert not said.pop("is_dead")
                assert set(said.values()) == {"done"}
                assert held["owner"] not in await _insist_reading(store.dead_owners)
                assert [said for said in some.heard if {"told_dead", "stale", "interrupted"} & set(said)] == []
                await some.end()
                holder.process.kill()
                await holder.process.wait()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        quick = PostgresLocation(url=standby.url, schema="failing", grace_s=0.0)
        async with await PostgresStore.open(quick) as store:
            await reap_everything(store)
            follower = Follower(store)
            await follower.finish()
            figures = await verify(store, [*some.heard, {"effect": held["call"]}], follower)
        print(figures)
        assert faults(figures) == {}
    finally:
        standby.remove()


async def _insist_reading(read: Callable[[], Awaitable[Any]]) -> Any:
    """What a store says once it knows that its database is back."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await read()
            except StoreUnreadable:
                await asyncio.sleep(0.02)


async def _check_standby(standby: Cluster, session: str) -> None:
    """Alone it can be read, but not written, nor followed: it does not know what is being committed."""
    for more in ("", "&target_session_attrs=read-write"):
        location = PostgresLocation(url=standby.url + more, schema="failing")
        async with await PostgresStore.open(location) as reading:
            with pytest.raises(StoreUnwritable) as unwritable:
                await append(reading, session, "note")
            assert unwritable.value.reason is Trouble.READ_ONLY
            with pytest.raises(StoreUnreadable) as unreadable:
                await reading.read_all()
            assert unreadable.value.reason is Trouble.READ_ONLY
            if not more:
                assert (await reading.get_session(session)).id == session
                assert list(await reading.dead_owners()) == []


@pytest.mark.parametrize("major", [pytest.param(major, marks=pytest.mark.soak) for major in postgres.installations()])
async def test_a_crash_of_every_version_keeps_what_was_acknowledged(major: int, tmp_path: Path) -> None:
    with postgres.running(major, durable=True) as cluster:
        location = cluster.location(beat_s=0.2)
        async with await PostgresStore.open(location) as store:
            session = await new_session(store)
            (fence,) = await store.commit(Acquire(session=session, owner=store.owner, at=1.0))
            ids = []
            for _ in range(5):
                note = event(session)
                await insist(store, Append(session=session, fence=fence, events=(note,)))
                ids.append(note.id)
                cluster.kill()
                cluster.start()
            assert [each.id for each in await store.read_events(session)] == ids
