"""Whoever follows the events of all sessions skips none and gets those of one session in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import psycopg
import pytest

from callgate.core.ops import Append
from callgate.features.fleet.postgres.connections import Connection
from callgate.features.fleet.postgres.store import PostgresStore
from callgate.storage.encoding import read_cursor
from tests.features.fleet.postgres.chaos import Follower
from tests.features.fleet.postgres.children import process
from tests.kernel.contract.stores import event, new_session
from tests.kernel.storage.processes import Child
from tests.postgres import Cluster

_BIG = 100_000


async def _finished(processes: list[Child]) -> list[str]:
    ids: list[str] = []
    for each in processes:
        while "ids" in (said := await each.hear()):
            ids += said["ids"]
        assert said == {"done": True}
    return ids


@pytest.mark.parametrize("count", [25, pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(1700)])])
async def test_a_follower_of_three_writers_skips_nothing(cluster: Cluster, count: int) -> None:
    location = cluster.location()
    samples: list[tuple[str, int]] = []

    async def sample(store: PostgresStore) -> None:
        """What `behind` says is committed, and how much of it can be read at that moment."""
        while True:
            cursor = (await store.behind()).cursor
            samples.append((cursor, len((await store.read_last(None, cursor, _BIG)).events)))
            await asyncio.sleep(0.002 * count)  # each look reads all of it

    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(await PostgresStore.open(location))
        sessions = [await new_session(store) for _ in range(6)]
        with (
            psycopg.connect(cluster.url) as snapshot,
            psycopg.connect(cluster.url, autocommit=True) as locking,
        ):
            # Foreign transactions and locks that last longer than all of it.
            snapshot.execute("set transaction isolation level repeatable read")
            snapshot.execute("select txid_current(), count(*) from pg_class")
            locking.execute("select pg_advisory_lock(1), pg_advisory_lock(2, 3), pg_advisory_lock_shared(-5)")
            processes = [
                await stack.enter_async_context(process("append", location, count, *sessions)) for _ in range(3)
            ]
            follower = Follower(store)
            following, sampling = asyncio.create_task(follower.follow()), asyncio.create_task(sample(store))
            written = await _finished(processes)
            sampling.cancel()
            following.cancel()
            await asyncio.gather(following, sampling, return_exceptions=True)
            await follower.finish()  # though the foreign ones are still there
            seen = [id for _, _, id in follower.seen]
            assert len(written) > 3 * 8 * count
            assert sorted(seen) == sorted(written)
            last: dict[str, int] = {}
            for session, seq, _ in follower.seen:
                assert seq == last.get(session, 0) + 1
                last[session] = seq
            assert follower.problems == []
            assert len(samples) > 2
            for cursor, visible in samples:
                assert len((await store.read_last(None, cursor, _BIG)).events) == visible


@pytest.fixture
async def store(cluster: Cluster) -> AsyncIterator[PostgresStore]:
    async with await PostgresStore.open(cluster.location()) as store:
        yield store


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_what_comes_after_numbers_that_may_still_be_committed_waits_for_them(
    store: PostgresStore, ending: str
) -> None:
    session, other = await new_session(store), await new_session(store)
    [first] = (await store.commit(Append(session=session, events=(event(session),))))[0]
    before = await store.read_all()
    slow = Connection(store.location)  # as the transaction of another server would
    slow.run("begin")
    slow.run(f"select pg_advisory_xact_lock_shared({slow.draw_base} + last_value) from cg.event_numbers")
    [(ord,)] = slow.fetch("select ord from cg.sessions where id = %s", other)
    note = event(other)
    slow.run(
        "insert into cg.events (ord, seq, n, id, body) values (%s, 1, nextval('cg.event_numbers'), %s, %s)",
        *(ord, note.id, "{}"),
    )
    await store.commit(Append(session=session, events=(event(session),)))
    page = await store.read_all(before.cursor)
    assert (list(page.events), page.cursor, page.pending) == ([], before.cursor, True)
    behind = await store.behind()
    assert (behind.most, behind.cursor) == (1, before.cursor)
    assert len((await store.read_last()).events) == 1
    assert len(await store.read_events(session)) == 2  # its own order does not wait
    slow.run(ending)
    slow.close()
    page = await store.read_all(before.cursor)
    assert page.seqs == ([1, 2] if ending == "commit" else [2])
    assert not page.pending
    assert first == 1


async def test_numbers_of_a_crashed_transaction_are_not_behind_a_cursor(store: PostgresStore) -> None:
    session = await new_session(store)
    await store.commit(Append(session=session, events=(event(session),)))
    before = await store.behind()
    gone = Connection(store.location)
    gone.fetch("select nextval('cg.event_numbers') from generate_series(1, 50)")  # drawn, never committed
    gone.close()
    assert await store.behind() == before
    await store.commit(Append(session=session, events=(event(session),)))
    after = await store.behind(before.cursor)
    assert read_cursor("e", after.cursor) - read_cursor("e", before.cursor) == 51
    assert len((await store.read_all(before.cursor)).events) == 1
