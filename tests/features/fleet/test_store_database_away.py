"""While the database is known to be away nobody waits for it, and nothing changes its order."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
import pytest

from callgate.config.schema import StoreTable
from callgate.core.ops import Append
from callgate.core.stores import StoreUnreadable, StoreUnwritable, Trouble
from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.store import PostgresStore
from callgate.features.fleet.shared_homes import postgres_location
from tests import postgres
from tests.kernel.contract.stores import append, event, new_session

LIMIT_S = 30.0
AT_ONCE_S = 1.0
"""Less than the time-out of a connection."""
ANSWER_S = 1.0


@pytest.fixture
def cluster() -> Iterator[postgres.Cluster]:
    with postgres.running() as cluster:
        yield cluster


def impatient(cluster: postgres.Cluster) -> PostgresLocation:
    return cluster.location(answer_s=ANSWER_S, connect_s=2.0)


@contextmanager
def frozen(cluster: postgres.Cluster) -> Iterator[None]:
    """It takes connections and bytes, and answers nothing."""
    assert cluster._process is not None
    pids = [cluster._process.pid]
    os.kill(pids[0], signal.SIGSTOP)  # first: now it makes no further ones
    pids += postgres._children(pids[0])
    for pid in pids[1:]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):  # one whose client had left
                os.kill(pid, signal.SIGCONT)


async def _back(store: PostgresStore, session: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                await store.get_session(session)
                await append(store, session, "back")
                return
            except (StoreUnreadable, StoreUnwritable):
                await asyncio.sleep(0.02)


async def test_a_read_of_a_database_that_does_not_answer_ends(cluster: postgres.Cluster) -> None:
    async with await PostgresStore.open(impatient(cluster)) as store:
        session = await new_session(store)
        await store.get_session(session)
        with frozen(cluster):
            begin = time.monotonic()
            with pytest.raises(StoreUnreadable) as failed:
                await store.get_session(session)
            assert failed.value.reason is Trouble.UNREACHABLE
            assert time.monotonic() - begin < 10
            for _ in range(20):
                begin = time.monotonic()
                with pytest.raises(StoreUnreadable):
                    await store.get_session(session)
                assert time.monotonic() - begin < AT_ONCE_S
        await _back(store, session)


async def test_a_write_to_a_database_that_stopped_waits_no_longer_than_the_settings_say(
    cluster: postgres.Cluster,
) -> None:
    assert postgres_location(StoreTable(url=cluster.url)).answer_s == 10
    table = StoreTable(url=cluster.url, schema=cluster.location().schema, answer_timeout_s=ANSWER_S)
    location = msgspec.structs.replace(postgres_location(table), connect_s=2.0)
    async with await PostgresStore.open(location) as store:
        session = await new_session(store)
        with frozen(cluster):
            async with asyncio.timeout(9.0):  # less than the default
                with pytest.raises(StoreUnwritable) as failed:
                    await append(store, session, "one")
            assert (failed.value.reason, failed.value.outcome_unknown) == (Trouble.UNREACHABLE, True)
        await _back(store, session)


async def test_once_it_is_known_commits_are_refused_at_once_and_in_their_order(
    cluster: postgres.Cluster,
) -> None:
    async with await PostgresStore.open(impatient(cluster)) as store:
        session = await new_session(store)
        events = [event(session, str(n)) for n in range(40)]
        refused: list[int] = []
        with frozen(cluster):
            commits = []
            for n, each in enumerate(events[:20]):
                commits.append(store.commit(Append(session=session, events=(each,))))
                commits[-1].add_done_callback(lambda _, n=n: refused.append(n))
                await asyncio.sleep(0)  # in batches of their own
            failures = await asyncio.gather(*commits, return_exceptions=True)
            for n, each in enumerate(events[20:], 20):
                begin = time.monotonic()
                commit = store.commit(Append(session=session, events=(each,)))
                commit.add_done_callback(lambda _, n=n: refused.append(n))
                with pytest.raises(StoreUnwritable) as failed:
                    await commit
                assert failed.value.reason is Trouble.UNREACHABLE
                assert time.monotonic() - begin < AT_ONCE_S
        assert {type(each) for each in failures} == {StoreUnwritable}
        assert refused == list(range(40))
        await _back(store, session)
        # Some may have been written after all; committed again, in any case none is there twice.
        for each in events:
            await store.commit(Append(session=session, events=(each,)))
        found = [each.id for each in await store.read_events(session)]
        assert len(found) == len(set(found)) and set(found) >= {each.id for each in events}


async def test_opening_a_store_whose_database_is_away_says_so_and_goes_on(cluster: postgres.Cluster) -> None:
    location = impatient(cluster)
    cluster.stop()
    async with await PostgresStore.open(location) as store:
        with pytest.raises(StoreUnreadable):
            await store.list_sessions()
        with pytest.raises(StoreUnwritable):
            await new_session(store)
        cluster.start()
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    assert (await store.list_sessions()).sessions == []
                    break
                except StoreUnreadable:
                    await asyncio.sleep(0.02)
        await append(store, await new_session(store), "one")


async def test_a_store_whose_database_is_away_can_be_closed(cluster: postgres.Cluster) -> None:
    store = await PostgresStore.open(impatient(cluster))
    session = await new_session(store)
    with frozen(cluster):
        with pytest.raises(StoreUnwritable):
            await append(store, session, "one")
        async with asyncio.timeout(LIMIT_S):
            await store.close()
