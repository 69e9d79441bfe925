"""Servers of two adjacent versions run side by side while they are replaced one by one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import psycopg
import pytest

from callgate.core.ops import Acquire, Append, PutEntry
from callgate.core.stores import StoreTooNew
from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.connections import Connection
from callgate.features.fleet.postgres.schema import FORMAT, MIGRATIONS, Migration, migrate
from callgate.features.fleet.postgres.store import PostgresStore
from tests.kernel.contract.stores import append, event, finish, new_session, start
from tests.postgres import Cluster

NEXT = "alter table cg.sessions add column extra int not null default 7; create table cg.extras (id int primary key)"
OLDEST = MIGRATIONS[-1].oldest
ADDS: Sequence[Migration] = (*MIGRATIONS, Migration(NEXT, OLDEST))
BREAKS: Sequence[Migration] = (*ADDS, Migration("alter table cg.extras add column name text", FORMAT + 2))


def _migrate(location: PostgresLocation, migrations: Sequence[Migration]) -> None:
    db = Connection(location)
    try:
        migrate(db, migrations)
    finally:
        db.close()


async def test_a_server_goes_on_while_a_newer_one_adds_to_the_tables(cluster: Cluster) -> None:
    location = cluster.location()
    async with await PostgresStore.open(location) as old:
        session = await new_session(old)
        (fence,) = await old.commit(Acquire(session=session, owner=old.owner, at=1.0))
        going = True

        async def work() -> int:
            count = 0
            while going:
                call = start(old, session, fence=fence)
                await old.commit(call)
                await old.commit(finish(old, session, call.call, fence=fence))
                count += 2
            return count

        working = asyncio.create_task(work())
        await asyncio.to_thread(_migrate, location, ADDS)
        async with await PostgresStore.open(location) as another:  # of the old version, started later
            await append(another, session, "note")
            await another.commit(PutEntry(kind="k", name="n", value="v"))
            new = await new_session(another)
            going = False
            count = await working
            events = await another.read_events(session, limit=10_000)
        assert len(events) == count + 1
        assert count > 0
        assert (await old.snapshot(new)).session.id == new
    with psycopg.connect(cluster.url) as db:
        found = db.execute(f"select version, oldest from {location.schema}.format").fetchall()
    assert found == [(FORMAT + 1, OLDEST)]


async def test_a_server_that_cannot_work_with_newer_tables_commits_nothing_more(cluster: Cluster) -> None:
    location = cluster.location(beat_s=0.1)
    async with await PostgresStore.open(location) as old, await PostgresStore.open(location) as silent:
        session = await new_session(old)
        await silent.read_events(session)
        await asyncio.to_thread(_migrate, location, BREAKS)
        for _ in range(2):
            with pytest.raises(StoreTooNew, match=rf"format {FORMAT + 2}; this one knows {FORMAT}"):
                await old.commit(Append(session=session, events=(event(session),)))
            with pytest.raises(StoreTooNew):  # in a locked batch
                await old.commit(PutEntry(kind="k", name="n", value="v"))
        assert not old.is_dead
        with pytest.raises(StoreTooNew):
            await PostgresStore.open(location)
    with psycopg.connect(cluster.url) as db:
        assert db.execute(f"select count(*) from {location.schema}.events").fetchall() == [(0,)]
        assert db.execute(f"select count(*) from {location.schema}.entries").fetchall() == [(0,)]


def test_of_servers_that_start_at_once_one_makes_the_tables(cluster: Cluster) -> None:
    for _ in range(4):
        location = cluster.location()
        ready = threading.Barrier(4)
        failures: list[BaseException] = []

        def make(location: PostgresLocation = location, ready: threading.Barrier = ready) -> None:
            try:
                db = Connection(location)
                ready.wait(20)
                migrate(db, ADDS)
                db.close()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=make) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(30)
        assert failures == []  # a table that is made twice is an error
        with psycopg.connect(cluster.url) as db:
            assert db.execute(f"select version, oldest from {location.schema}.format").fetchall() == [
                (FORMAT + 1, OLDEST)
            ]


async def test_a_migration_that_fails_leaves_the_tables_as_they_were(cluster: Cluster) -> None:
    location = cluster.location()
    async with await PostgresStore.open(location) as store:
        session = await new_session(store)
        broken = (*MIGRATIONS, Migration(NEXT + "; select nonsense", OLDEST))
        with pytest.raises(psycopg.ProgrammingError):
            await asyncio.to_thread(_migrate, location, broken)
        await append(store, session, "note")
        await asyncio.to_thread(_migrate, location, ADDS)
        await append(store, session, "note")
