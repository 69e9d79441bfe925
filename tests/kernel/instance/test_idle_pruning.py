"""An instance deletes old records when it has nothing else to do."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import callgate
from callgate.config.home import Home
from callgate.config.schema import RetentionTable, Settings
from callgate.core.stores import Store
from callgate.instance import maintenance
from callgate.instance.maintenance import IdlePruning
from tests.kernel.cli.stored import opened
from tests.kernel.cli.test_prune import old_session, sessions_of

LIMIT_S = 60.0


@pytest.fixture
def base() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="cg"))  # short enough for a socket
    (made / "ws").mkdir()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "FIRST_S", 0.0)
    monkeypatch.setattr(maintenance, "_LOOK_S", 0.0)


class FakeRuntime:
    """Has a call in flight until it is told otherwise."""

    def __init__(self, store: Store, *, busy: bool = False) -> None:
        self._store = store
        self.busy = busy
        self.looks = asyncio.Semaphore(0)
        self.sessions = self.calls = self

    async def store(self) -> Store:
        return self._store

    def in_flight(self) -> list[Any]:
        self.looks.release()
        return ["a call"] if self.busy else []


def _pruning(runtime: Any, home: Path, settings: Settings | None = Settings()) -> IdlePruning:
    return IdlePruning(runtime, Home(str(home)), lambda: settings)


async def test_a_serving_instance_deletes_what_is_old(base: Path) -> None:
    home = base / "h"
    async with opened(home) as store:
        await old_session(store)
        kept = await old_session(store, days=1)
    async with callgate.serve([base / "ws"], home=home), asyncio.timeout(LIMIT_S):
        while await sessions_of(home) != {kept}:
            await asyncio.sleep(0.05)


async def test_what_was_deleted_is_in_the_log_of_the_instance(tmp_path: Path, caplog: Any) -> None:
    """A warning, which instances log unless they are told otherwise."""
    async with opened(tmp_path) as store, asyncio.timeout(LIMIT_S):
        await old_session(store)
        with caplog.at_level("WARNING", "callgate.serve"):
            assert await _pruning(FakeRuntime(store), tmp_path).prune_if_due()
    (logged,) = caplog.messages
    assert logged.startswith("deleted old records: sessions 1, events 3, messages 1")
    assert "; bounds: sessions not used since " in logged


async def test_no_step_begins_while_a_call_runs(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        session = await old_session(store)
        runtime = FakeRuntime(store, busy=True)
        pruning = group.create_task(_pruning(runtime, tmp_path).prune_if_due())
        for _ in range(3):
            await runtime.looks.acquire()
        assert len(await store.read_events(session)) == 3
        runtime.busy = False
        assert await pruning
        assert list((await store.list_sessions()).sessions) == []


async def test_it_is_done_once_an_hour_whichever_process_does_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        runtime = FakeRuntime(store)
        assert await _pruning(runtime, tmp_path).prune_if_due()
        await old_session(store)
        assert not await _pruning(runtime, tmp_path).prune_if_due()
        os.utime(tmp_path / "run" / "pruned", (0, 0))
        assert await _pruning(runtime, tmp_path).prune_if_due()
        assert list((await store.list_sessions()).sessions) == []


@pytest.mark.parametrize("settings", [None, Settings(retention=RetentionTable(sessions_days=0, events_days=0))])
async def test_nothing_is_deleted_without_a_bound(tmp_path: Path, settings: Settings | None) -> None:
    async with opened(tmp_path) as store:
        session = await old_session(store)
        await _pruning(FakeRuntime(store), tmp_path, settings).prune_if_due()
        assert len(await store.read_events(session)) == 3


async def test_a_pass_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_STEPS", 2)
    async with opened(tmp_path) as store:
        for _ in range(150):
            await old_session(store)
        await _pruning(FakeRuntime(store), tmp_path).prune_if_due()
        assert 0 < len((await store.list_sessions(limit=1_000)).sessions) < 150
