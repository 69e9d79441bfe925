"""How commits share transactions, and what one can do to another."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from callgate.core.ops import Append, DeleteSession, PutBlob
from callgate.core.stores import StoreUnwritable, Trouble
from callgate.storage.sqlite.store import SqliteStore, Writer
from callgate.storage.threaded_store import BATCH_OPS, Commit, batches
from tests.kernel.contract.stores import append, event, new_session, start, types


def _commit(*ops: Any) -> Commit:
    return Commit(ops, {}, None)


def test_commits_are_batched_in_their_order_up_to_a_bound() -> None:
    blob = PutBlob(data=b"")
    commits = [_commit(*[blob] * size) for size in (100, 100, 100, 300, 56, 200)]
    got = list(batches(commits))
    assert [[len(commit.ops) for commit in batch] for batch in got] == [
        [100, 100],
        [100],
        [300],
        [56, 200],
    ]
    assert [commit for batch in got for commit in batch] == commits
    assert BATCH_OPS == 256


def test_a_deletion_is_committed_alone() -> None:
    blob, delete = PutBlob(data=b""), DeleteSession(session="s")
    commits = [_commit(blob), _commit(blob, delete), _commit(blob), _commit(blob)]
    assert [len(batch) for batch in batches(commits)] == [1, 1, 2]
    assert list(batches([])) == []


@pytest.fixture
async def store(home: Path) -> Any:
    store = await SqliteStore.open(str(home))
    yield store
    await store.close()


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of commits in each transaction."""
    sizes: list[int] = []
    transact = Writer._transact

    def counted(self: Writer, batch: list[Commit]) -> Any:
        sizes.append(len(batch))
        return transact(self, batch)

    monkeypatch.setattr(Writer, "_transact", counted)
    return sizes


async def test_those_who_commit_at_once_share_a_transaction(store: SqliteStore, transactions: list[int]) -> None:
    sessions = [await new_session(store) for _ in range(4)]
    transactions.clear()

    async def write(session: str) -> None:
        for _ in range(5):
            await append(store, session, "note")

    await asyncio.gather(*(write(sessions[n % 4]) for n in range(64)))
    assert transactions == [64] * 5


async def test_an_op_that_cannot_be_written_harms_none_beside_it(store: SqliteStore, transactions: list[int]) -> None:
    session = await new_session(store)
    transactions.clear()
    poison = replace(event(session), id="\ud800")
    results = await asyncio.gather(
        *(
            store.commit(Append(session=session, events=(each,)))
            for each in (event(session, "before"), poison, event(session, "after"))
        ),
        return_exceptions=True,
    )
    assert transactions == [3, 1, 1, 1]
    assert [type(each) for each in results] == [tuple, UnicodeEncodeError, tuple]
    assert await types(store, session) == ["before", "after"]


async def test_a_waiter_that_gives_up_does_not_disturb_the_writer(store: SqliteStore) -> None:
    session = await new_session(store)
    waiting = [asyncio.ensure_future(append(store, session, str(n))) for n in range(50)]
    await asyncio.sleep(0)
    for task in waiting[::2]:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await append(store, session, "last")
    assert await types(store, session) == [*(str(n) for n in range(50)), "last"]


async def test_a_writer_that_is_kept_waiting_says_so_and_goes_on_later(home: Path) -> None:
    async with await SqliteStore.open(str(home), wait_s=0.05) as store:
        session = await new_session(store)
        other = apsw.Connection(str(home / "callgate.db"))
        other.execute("begin immediate")
        call = start(store, session)
        with pytest.raises(StoreUnwritable) as refused:
            await store.commit(call)
        assert refused.value.reason is Trouble.BUSY
        assert await types(store, session) == []
        other.execute("rollback")
        other.close()
        (receipt,) = await store.commit(call)
        assert receipt.applied


async def test_a_writer_waits_while_another_process_writes(home: Path) -> None:
    async with await SqliteStore.open(str(home)) as store:
        session = await new_session(store)
        other = apsw.Connection(str(home / "callgate.db"))
        other.execute("begin immediate")
        waiting = asyncio.ensure_future(append(store, session, "waited"))
        assert await types(store, session) == []  # reading does not wait
        assert not waiting.done()
        other.execute("rollback")
        other.close()
        await waiting
        assert await types(store, session) == ["waited"]


async def test_reading_goes_on_while_a_transaction_is_open(home: Path) -> None:
    async with await SqliteStore.open(str(home)) as store:
        session = await new_session(store)
        await append(store, session, "before")
        other = apsw.Connection(str(home / "callgate.db"))
        other.execute("begin exclusive; delete from events")
        assert await types(store, session) == ["before"]
        other.execute("rollback")
        other.close()


async def test_a_closed_store_leaves_no_thread(home: Path) -> None:
    before = set(threading.enumerate())
    store = await SqliteStore.open(str(home))
    session = await new_session(store)
    with store.wake(session) as hint:
        await hint.wait(0.01)
    await store.close()
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert [name for name in left if name.startswith("callgate")] == []


async def test_many_events_are_written_by_few_statements(store: SqliteStore) -> None:
    sessions = [await new_session(store) for _ in range(30)]
    statements: list[str] = []
    assert store._writer._db is not None
    store._writer._db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda trace: statements.append(trace["sql"]))
    events = [event(each) for each in sessions for _ in range(23)]
    await asyncio.gather(*(store.commit(Append(session=each.session_id, events=(each,))) for each in events))
    assert len(statements) < len(events) / 10  # with each the thread gives the interpreter away
    stored = [each for session in sessions for each in await store.read_events(session)]
    assert [each.id for each in stored] == [each.id for each in events]
    assert [(await store.get_session(each)).last_seq for each in sessions] == [23] * 30


@pytest.mark.parametrize("count", [1, 49, 50, 51, 120])
async def test_events_that_are_written_together_are_read_in_their_order_and_once(
    store: SqliteStore, count: int
) -> None:
    session = await new_session(store)
    events = tuple(event(session, "test.counted", n=n) for n in range(count))
    [first] = await store.commit(Append(session=session, events=events))
    more = tuple(event(session, "test.counted", n=count + n) for n in range(60))
    [again] = await store.commit(Append(session=session, events=(*events, *more)))
    assert again[:count] == first
    kept = [each for each in await store.read_events(session, limit=1_000) if each.type == "test.counted"]
    assert kept == [*events, *more]
