"""Events that wait for a reader: every reader, in any process, sees them."""

from __future__ import annotations

import asyncio
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from callgate import Gate, tool
from callgate.core.events import CALLED, TERMINAL, Event
from callgate.events import log
from callgate.storage.sqlite import flush_requests
from callgate.storage.sqlite.flush_requests import FlushClient, FlushRequests
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.gate.lives import think
from tests.kernel.storage.processes import Child, child

LIVES = "tests.kernel.gate.lives"


@pytest.fixture
def home() -> Iterator[Path]:
    """A path that is short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="cg-") as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine changes no outcome."""
    monkeypatch.setattr(flush_requests, "ANSWER_S", 30.0)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "HOLD_S", 1e9)
    monkeypatch.setattr(log, "CHECKPOINT_S", 1e9)


async def held_calls(holding: Child, count: int) -> list[str]:
    calls = []
    for _ in range(count):
        holding.tell("call")
        said = await holding.hear()
        assert said["held"], "the events were written promptly: the test proves nothing"
        calls.append(said["call"])
    return calls


def ended(events: list[Event]) -> set[str]:
    return {event.payload["call_id"] for event in events if event.type in TERMINAL}


@pytest.mark.spec("T48")
async def test_a_reader_in_another_process_sees_the_events_that_wait(home: Path, tmp_path: Path) -> None:
    async with child("hold", home, tmp_path, module=LIVES) as holding:
        session = (await holding.hear())["session"]
        calls = await held_calls(holding, 3)
        async with await SqliteStore.open(str(home)) as store:
            assert set(calls) <= ended(list(await store.read_events(session)))


async def test_a_reader_in_another_process_that_waits_is_told_of_each_later_event(home: Path, tmp_path: Path) -> None:
    async with child("hold", home, tmp_path, module=LIVES) as holding, await SqliteStore.open(str(home)) as store:
        session = (await holding.hear())["session"]
        with store.wake(session) as hint:
            calls = await held_calls(holding, 1)
            async with asyncio.timeout(30):
                while not set(calls) <= ended(list(await store.read_events(session))):
                    await hint.wait()
                holding.tell("call")
                calls.append((await holding.hear())["call"])
                while not set(calls) <= ended(list(await store.read_events(session))):
                    await hint.wait()


@pytest.mark.spec("T46")
async def test_events_that_waited_when_their_process_was_killed_are_recovered(home: Path, tmp_path: Path) -> None:
    async with child("hold", home, tmp_path, module=LIVES) as holding:
        session = (await holding.hear())["session"]
        calls = await held_calls(holding, 3)
        holding.process.send_signal(signal.SIGKILL)
        await holding.process.wait()
    async with Gate(workspace=tmp_path, tools=[], home=home) as gate:
        store = await gate._wired.log.store()
        assert set(calls) <= ended(list(await store.read_events(session)))


@pytest.mark.usefixtures("endless")
async def test_a_reader_in_the_same_process_sees_the_events_that_wait(home: Path, tmp_path: Path) -> None:
    async with Gate(workspace=tmp_path, tools=[think], home=home) as gate:
        await gate.call("think", {"n": 1})
        await gate._wired.log.flush()
        calls = {(await gate.call("think", {"n": n})).call_id for n in (1, 2)}
        assert gate._wired.log._is_holding, "the events were written promptly: the test proves nothing"
        store = await gate._wired.log.store()
        assert calls <= ended(list(await store.read_events(gate.session.id)))


@pytest.mark.usefixtures("endless")
async def test_a_call_that_takes_longer_is_stored_while_it_runs(home: Path, tmp_path: Path) -> None:
    go = asyncio.Event()

    @tool(side_effects="none")
    async def wonder() -> None:
        """Wait."""
        await go.wait()

    async with Gate(workspace=tmp_path, tools=[think, wonder], home=home) as gate:
        await gate.call("think", {"n": 1})
        await gate._wired.log.flush()
        await gate.call("think", {"n": 1})
        call = asyncio.create_task(gate.call("wonder", {}))
        db = apsw.Connection(str(home / "callgate.db"), flags=apsw.SQLITE_OPEN_READONLY)
        async with asyncio.timeout(30):
            while db.execute("select count(*) from events where body like ?", (f"%{CALLED}%",)).fetchone() != (3,):
                await asyncio.sleep(0)
        db.close()
        go.set()
        assert (await call).ok


def test_the_socket_of_a_dead_writer_is_removed(home: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(home / "own_dead.wake"))
    FlushClient(str(home), "own_reader").request()
    assert list(home.iterdir()) == []


def test_a_writer_that_does_not_answer_delays_one_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush_requests, "ANSWER_S", 0.01)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(home / "own_silent.wake"))
        silent.listen()
        client = FlushClient(str(home), "own_reader")
        client.request()
        monkeypatch.setattr(flush_requests, "ANSWER_S", 1e9)
        monkeypatch.setattr(flush_requests, "RENEW_S", 0.0)
        client.request()
        silent.accept()[0].close()
        silent.close()
        client.request()  # answered: the writer is asked again, and is gone
    assert list(home.iterdir()) == []


async def test_no_event_waits_where_readers_cannot_connect(home: Path) -> None:
    async def flush() -> None:
        raise AssertionError

    long = home / ("x" * 100)
    long.mkdir()
    with pytest.raises(OSError, match="too long"):
        FlushRequests(str(long), "own_writer", flush)
    async with await SqliteStore.open(str(long)) as store:
        assert not store.may_hold(flush)
