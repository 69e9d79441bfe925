"""A database that goes away: reading goes on, effects are refused, and all is caught up when it is back."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, tool
from callgate.audit.reading import newest_first
from callgate.core.errors import ToolErrorClass
from callgate.core.events import CALLED, TERMINAL
from callgate.dispatch import call_records
from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.store import PostgresStore
from tests import postgres
from tests.kernel.cli.instances import short_directory
from tests.kernel.cli.running import Ran, callgate, start
from tests.kernel.storage.processes import all_events, child
from tests.shared_stores import SECRETS

LIMIT_S = 30.0
AT_ONCE_S = 1.0
"""Far less than a time-out of a connection, far more than a busy machine needs."""


@pytest.fixture
def cluster() -> Iterator[postgres.Cluster]:
    with postgres.running() as cluster:
        yield cluster


@pytest.fixture
def location(cluster: postgres.Cluster, home: Path) -> PostgresLocation:
    location = cluster.location()
    write_settings(home, location)
    return location


def write_settings(home: Path, location: PostgresLocation) -> None:
    (home / "settings.toml").write_text(f'[store]\nurl = "{location.url}"\nschema = "{location.schema}"\n{SECRETS}')


class Used:
    """A gate with a tool that has effects and one that has none, and how each call went."""

    def __init__(self, gate: Gate, ran: list[int], asked: list[str]) -> None:
        self.gate = gate
        self.ran = ran
        self.asked = asked
        self.answered: list[str] = []
        """The calls that were answered, in this order."""
        self._next = 0

    async def call(self, name: str) -> Any:
        self._next += 1
        begin = time.monotonic()
        result = await self.gate.call(name, {"n": self._next})
        self.answered.append(result.call_id)
        return result, time.monotonic() - begin

    async def reads(self, times: int = 5) -> None:
        """Calls without effects are answered, and nobody waits for a database."""
        for _ in range(times):
            result, took = await self.call("think")
            assert result.ok and took < AT_ONCE_S

    async def refused(self) -> None:
        """A call with effects is refused with the reason, at once; nobody is asked."""
        before, asked = len(self.ran), len(self.asked)
        result, took = await self.call("put")
        assert result.error is not None
        assert result.error.error_class is ToolErrorClass.PERMISSION_DENIED
        # Without a copy of the shared rules it is not known what they say.
        words = {"store_unwritable": "cannot be reached", "settings_invalid": "is unreachable"}
        assert words[str(result.error.reason)] in result.error.message
        assert took < AT_ONCE_S
        assert (len(self.ran), len(self.asked)) == (before, asked)

    async def until_it_is_back(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not (await self.call("put"))[0].ok:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def used(home: Path, workspace: Path, before_answer: Callable[[], None] = lambda: None) -> AsyncIterator[Used]:
    ran: list[int] = []
    asked: list[str] = []

    @tool(side_effects="write")
    async def put(n: int) -> str:
        """Have an effect."""
        ran.append(n)
        return "done"

    @tool(side_effects="none")
    async def think(n: int) -> int:
        """Have none."""
        return n

    async def yes(question: Any) -> bool:
        asked.append(question.id)
        before_answer()
        return True

    async with Gate(workspace=workspace, tools=[put, think], home=home, confirm=yes) as gate:
        yield Used(gate, ran, asked)


async def assert_all_is_recorded(home: Path, location: PostgresLocation, answered: list[str]) -> None:
    """Each call has one end in the store, in the order of the answers, and one line in the log."""
    env = {"CALLGATE_HOME": str(home)}
    assert callgate("sessions", "list", cwd=home.parent, env=env).code == 0  # settles what is owed
    async with await PostgresStore.open(location) as store:
        [events] = (await all_events(store)).values()
        assert await store.outbox() == []
        assert [*await store.open_calls(), *await store.open_confirmations()] == []
    assert len({event.id for event in events}) == len(events)
    ends = [event.payload["call_id"] for event in events if event.type in TERMINAL]
    assert ends == answered
    assert max(Counter(e.payload["call_id"] for e in events if e.type == CALLED).values()) == 1
    lines = [line.call_id for line, _ in newest_first(str(home / "audit.jsonl"))]
    assert Counter(lines) == Counter(answered)
    verified = callgate("audit", "verify", cwd=home.parent, env=env)
    assert verified.code == 0, verified.out


async def test_reads_go_on_effects_are_refused_and_it_comes_back_by_itself(
    home: Path, tmp_path: Path, cluster: postgres.Cluster, location: PostgresLocation
) -> None:
    async with used(home, tmp_path) as use:
        await use.reads()
        assert (await use.call("put"))[0].ok
        for _ in range(2):
            cluster.stop()
            await use.reads()
            await use.refused()
            await use.reads()
            await use.refused()
            cluster.start()
            await use.until_it_is_back()
            await use.reads()
    await assert_all_is_recorded(home, location, use.answered)


async def test_records_that_are_in_the_log_are_cleared_once_it_is_back(
    home: Path,
    tmp_path: Path,
    cluster: postgres.Cluster,
    location: PostgresLocation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the process itself: it may live for months."""
    monkeypatch.setattr(call_records, "CLEAR_S", 0.0)  # while it is away
    async with used(home, tmp_path) as use:
        assert (await use.call("put"))[0].ok
        cluster.stop()
        for _ in range(5):
            await use.refused()
        cluster.start()
        await use.until_it_is_back()
        async with await PostgresStore.open(location) as store, asyncio.timeout(LIMIT_S):
            while await store.outbox() or len(await _ended(store)) < len(use.answered):
                await asyncio.sleep(0.05)


async def test_an_answer_that_cannot_be_kept_lets_nothing_run(
    home: Path, tmp_path: Path, cluster: postgres.Cluster, location: PostgresLocation
) -> None:
    """The database goes away while a person is asked."""

    def leave() -> None:
        if len(use.asked) == 1:
            cluster.stop()

    async with used(home, tmp_path, before_answer=lambda: leave()) as use:
        await use.reads()
        result, took = await use.call("put")
        assert result.error is not None and result.error.reason == "store_unwritable"
        assert took < LIMIT_S and use.ran == []
        cluster.start()
        await use.until_it_is_back()
        assert len(use.ran) == 1
    await assert_all_is_recorded(home, location, use.answered)


async def test_a_database_that_is_away_at_the_start_is_used_once_it_is_there(
    home: Path, tmp_path: Path, cluster: postgres.Cluster, location: PostgresLocation
) -> None:
    cluster.stop()
    async with used(home, tmp_path) as use:
        await use.reads()
        await use.refused()
        cluster.start()
        await use.until_it_is_back()
        await use.reads()
    await assert_all_is_recorded(home, location, use.answered)


async def test_what_was_answered_while_it_was_away_outlives_a_kill(
    home: Path, tmp_path: Path, cluster: postgres.Cluster, location: PostgresLocation
) -> None:
    cluster.stop()
    answered = []
    async with child("die", home, tmp_path, module="tests.kernel.gate.lives") as dying:
        while (call := await dying.hear()) is not None:
            answered.append(call["call"])
        assert await dying.process.wait() == -signal.SIGKILL
    assert len(answered) == 4
    cluster.start()
    await assert_all_is_recorded(home, location, answered)


async def test_whoever_starts_while_it_is_away_catches_up_for_the_dead_later(
    home: Path, tmp_path: Path, cluster: postgres.Cluster
) -> None:
    """An instance that is there before the database is."""
    cluster.stop()
    with short_directory() as base:
        home, workspace = base / "h", base / "ws"
        home.mkdir(mode=0o700)
        workspace.mkdir()
        location = cluster.location()
        write_settings(home, location)
        answered = []
        async with child("die", home, workspace, module="tests.kernel.gate.lives") as dying:
            while (call := await dying.hear()) is not None:
                answered.append(call["call"])
        serving = start("serve", "--no-http", cwd=workspace, env={"CALLGATE_HOME": str(home)})
        try:
            assert serving.stdout is not None
            assert serving.stdout.readline().startswith(b"callgate: listening on ")
            assert _call(home, workspace, "list_dir", "path=.").code == 0
            cluster.start()
            async with await PostgresStore.open(location) as store, asyncio.timeout(LIMIT_S):
                with store.wake() as hint:
                    while set(answered) - await _ended(store):
                        await hint.wait(0.5)
        finally:
            serving.terminate()
            _, said = serving.communicate(timeout=60)
        assert b"cannot be reached" in said
        assert callgate("audit", "verify", cwd=workspace, env={"CALLGATE_HOME": str(home)}).code == 0


async def _ended(store: PostgresStore) -> set[str]:
    found = await all_events(store)
    return {e.payload["call_id"] for events in found.values() for e in events if e.type in TERMINAL}


def _call(home: Path, workspace: Path, *words: str) -> Ran:
    return callgate("call", *words, "--json", cwd=workspace, env={"CALLGATE_HOME": str(home)})


async def test_an_instance_serves_on_and_comes_back_by_itself(cluster: postgres.Cluster) -> None:
    with short_directory() as base:
        home, workspace = base / "h", base / "ws"
        home.mkdir(mode=0o700)
        workspace.mkdir()
        location = cluster.location()
        write_settings(home, location)
        write = ("write_file", "path=a.txt", "content=x", "--yes")
        serving = start("serve", "--no-http", cwd=workspace, env={"CALLGATE_HOME": str(home)})
        try:
            assert serving.stdout is not None
            assert serving.stdout.readline().startswith(b"callgate: listening on ")
            assert _call(home, workspace, *write).code == 0
            (workspace / "a.txt").unlink()
            cluster.stop()
            for _ in range(3):
                read = _call(home, workspace, "list_dir", "path=.")
                assert read.code == 0 and read.json["answered_by"]["instance"] is not None
            refused = _call(home, workspace, *write)
            assert refused.code == 3
            assert refused.json["error"]["reason"] == "store_unwritable"
            assert not (workspace / "a.txt").exists()
            cluster.start()
            async with asyncio.timeout(LIMIT_S):
                while _call(home, workspace, *write).code != 0:
                    await asyncio.sleep(0.05)
        finally:
            serving.terminate()
            serving.communicate(timeout=60)
        async with await PostgresStore.open(location) as store:
            ended = await _ended(store)
        lines = [line.call_id for line, _ in newest_first(str(home / "audit.jsonl"))]
        assert len(lines) == len(set(lines)) and set(lines) == ended
        assert callgate("audit", "verify", cwd=workspace, env={"CALLGATE_HOME": str(home)}).code == 0
