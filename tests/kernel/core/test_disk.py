"""Work that waits for the disk: begun or cancelled, never both; and syncs that many share."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from callgate.core.local import disk, environment
from callgate.core.local.disk import BackgroundSync, SharedSyncs, disk_jobs
from callgate.core.local.environment import off_loop
from tests.support import LIMIT_S, HeldWork

name: ContextVar[str] = ContextVar("name")


async def test_work_has_the_context_of_its_caller_and_gives_its_result_or_error() -> None:
    name.set("caller")
    assert await off_loop(name.get) == "caller"
    with pytest.raises(ZeroDivisionError):
        await off_loop(lambda: 1 // 0)


async def test_many_jobs_end_each_with_its_own_result() -> None:
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        jobs = [group.create_task(off_loop(lambda n=n: n)) for n in range(200)]  # type: ignore[misc]
    assert [job.result() for job in jobs] == list(range(200))
    assert not disk_jobs


async def test_work_that_has_begun_is_waited_for_however_often_its_caller_is_cancelled() -> None:
    work = HeldWork()
    task = asyncio.create_task(off_loop(work))
    assert await asyncio.to_thread(work.begun.acquire, timeout=LIMIT_S)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    work.free.release()
    async with asyncio.timeout(LIMIT_S):
        await task


async def test_work_that_was_cancelled_before_it_began_is_never_done() -> None:
    held = [HeldWork() for _ in range(environment.DISK_THREADS)]
    busy = [asyncio.create_task(off_loop(work)) for work in held]
    for work in held:
        assert await asyncio.to_thread(work.begun.acquire, timeout=LIMIT_S)
    late = HeldWork()
    task = asyncio.create_task(off_loop(late))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for work in held:
        work.free.release()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*busy)
        await off_loop(lambda: None)  # behind the one that was cancelled
    assert late.count == 0


def in_threads(count: int, work: object) -> list[threading.Thread]:
    started = [threading.Thread(target=work) for _ in range(count)]  # type: ignore[arg-type]
    for thread in started:
        thread.start()
    return started


def test_who_comes_while_a_directory_is_synced_shares_the_next_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    joined, wait = threading.Semaphore(0), disk._Sync.wait

    def announced(sync: disk._Sync) -> None:
        joined.release()
        wait(sync)

    monkeypatch.setattr(disk._Sync, "wait", announced)
    syncs, sync = SharedSyncs(), HeldWork()
    first = in_threads(1, lambda: syncs.run("a", sync))
    assert sync.begun.acquire(timeout=LIMIT_S)
    later = in_threads(10, lambda: syncs.run("a", sync))
    for _ in range(9):  # the tenth does it for them
        assert joined.acquire(timeout=LIMIT_S)
    syncs.run("b", lambda: None)  # another directory waits for none of them
    sync.free.release(2)
    for thread in [*first, *later]:
        thread.join(LIMIT_S)
    assert sync.count == 2
    assert (syncs._next, syncs._running) == ({}, {})


def test_a_sync_that_fails_fails_for_all_who_shared_it_and_the_next_one_is_tried() -> None:
    syncs, held = SharedSyncs(), HeldWork()
    failures: list[str] = []

    def fail() -> None:
        held()
        raise OSError(5, "no")

    def run() -> None:
        try:
            syncs.run("a", fail)
        except OSError as error:
            failures.append(str(error))

    threads = in_threads(1, run)
    assert held.begun.acquire(timeout=LIMIT_S)
    held.free.release()
    threads[0].join(LIMIT_S)
    assert failures == ["[Errno 5] no"]
    syncs.run("a", lambda: None)


def test_a_background_sync_is_done_once_and_raises_for_who_waits() -> None:
    done: list[int] = []
    sync = BackgroundSync(lambda: done.append(1))
    sync.wait()
    sync.end()
    assert done == [1]
    failing = BackgroundSync(lambda: 1 // 0)
    failing.end()
    with pytest.raises(ZeroDivisionError):
        failing.wait()
