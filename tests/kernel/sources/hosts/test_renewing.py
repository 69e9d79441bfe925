"""A host that is started anew while calls run, wait for their turn, or wait for its start."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from callgate.core.commands import Command, OnOutput, Running
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Mode
from callgate.protocol.host_v1 import frames
from callgate.sandbox.processes.broker_client import BrokerLauncher, BrokerProcess
from callgate.sources.host_provider import Hosts, HostSpec
from callgate.sources.hosts import Host, HostSettings
from callgate.sources.pins import Pinned
from tests.support import Bench

PLAIN = Path(__file__).with_name("plain_host.py")


class Shelf:
    """Pins in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, Pinned] = {}

    def read(self, name: str, command: tuple[str, ...]) -> Pinned | None:
        return self.kept.get(name)

    def write(self, name: str, pinned: Pinned) -> None:
        self.kept[name] = pinned

    def write_first(self, name: str, pinned: Pinned) -> None:
        self.kept.setdefault(name, pinned)

    def known(self) -> list[str]:
        return [*self.kept]

    def log_path(self, name: str) -> str:
        return f"/dev/null/{name}.log"


class Started:
    """Starts what it is told to, and tells when it did."""

    def __init__(self, process: BrokerProcess) -> None:
        self._launcher = BrokerLauncher(process, None)
        self.on_start: Callable[[], None] = lambda: None
        self.starts = 0

    async def start(self, command: Command, on_output: OnOutput) -> Running:
        running = await self._launcher.start(command, on_output)
        self.starts += 1
        self.on_start()
        return running


class Stand:
    """A host whose plugin can be edited, and which takes one call at a time."""

    def __init__(self, process: BrokerProcess, workspace: Path) -> None:
        self.plugin = workspace / "plain.py"
        # A call of `hang` ends when somebody has written into a pipe.
        self.plugin.write_text(PLAIN.read_text().replace("time.sleep(1_000)", 'text = open("go").read()'))
        os.mkfifo(workspace / "go")
        self.go = workspace / "go"
        self.launcher = Started(process)
        settings = HostSettings(
            name="plain",
            command=(sys.executable, "-I", str(self.plugin)),
            cwd=str(workspace),
            env={"PATH": os.environ["PATH"]},
            max_in_flight=1,
            config={"optional": {"format_tool_result": "for the model", "to_display_format": {"card": 1}}},
        )
        spec = HostSpec(settings=settings, effect=SideEffects.NONE, launcher=lambda: self.launcher)
        self.hosts = Hosts([spec], Shelf())
        self.bench = Bench(workspace, mode=Mode.WRITE)

    @property
    def host(self) -> Host:
        return self.hosts.hosts["plain"]

    async def open(self) -> None:
        self.hosts.pin_first("plain", await self.hosts.ask("plain"))
        for factory in self.hosts.factories("plain"):
            self.bench.dispatcher.register(factory)

    def call(self, tool: str) -> asyncio.Task[Any]:
        return asyncio.create_task(self.bench.run(tool, {"text": "hi"}))

    async def held(self) -> tuple[asyncio.Task[Any], int]:
        """A call under way, and the pipe that it reads."""
        call = self.call("hang")
        return call, await asyncio.to_thread(os.open, self.go, os.O_WRONLY)

    def once(self, work: Callable[[], None]) -> Callable[[], None]:
        def do() -> None:
            self.launcher.on_start = lambda: None
            work()

        return do

    def change(self) -> None:
        self.plugin.write_text(self.plugin.read_text().replace('"A tool."', '"Another tool."'))


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    process = BrokerProcess()
    stand = Stand(process, tmp_path)
    await stand.open()
    yield stand
    await stand.hosts.close()
    process.close()


async def settled() -> None:
    """Let every task go on as far as it can without the host."""
    for _ in range(100):
        await asyncio.sleep(0)


async def around_a_renewal(stand: Stand) -> tuple[Any, Any]:
    """A call that runs when the host is renewed, and one that waits for its turn then."""
    first, pipe = await stand.held()
    second = stand.call("echo")
    await settled()
    stand.host.renew()
    os.write(pipe, b"end")
    os.close(pipe)
    return await first, await second


async def test_calls_that_run_and_calls_that_wait_survive_a_renewal(stand: Stand) -> None:
    first, second = await around_a_renewal(stand)
    assert (first.value, second.value, stand.launcher.starts) == ("end", "hi", 2)


async def test_a_call_that_waited_is_not_run_by_a_tool_that_changed_meanwhile(stand: Stand) -> None:
    stand.change()
    first, second = await around_a_renewal(stand)
    assert first.value == "end"
    assert second.error.reason == "definition_changed"
    assert stand.hosts.changed("plain") == {each.name for each in stand.bench.dispatcher.registry} - {"connect_host"}


async def test_a_process_that_was_being_started_is_not_used_after_a_renewal(stand: Stand) -> None:
    stand.host.renew()
    stand.launcher.on_start = stand.once(stand.host.renew)
    pid = await stand.call("pid")
    assert (pid.ok, stand.launcher.starts) == (True, 3)


async def renewed_while_it_ran(stand: Stand) -> Any:
    """What a call gives whose host is renewed before it ends."""
    call, pipe = await stand.held()
    stand.host.renew()
    os.write(pipe, b"end")
    os.close(pipe)
    return await call


@pytest.mark.spec("S1-39", "S1-44")
async def test_a_result_is_formatted_though_its_host_was_renewed_meanwhile(stand: Stand) -> None:
    for _ in range(2):
        result = await renewed_while_it_ran(stand)
        assert (result.value, [block.text for block in result.content]) == ("end", ["for the model"])
        assert result.meta["display"] == {"card": 1}
    await stand.host.restart()
    assert (await stand.call("echo")).meta["display"] == {"card": 1}


async def test_a_version_that_nobody_has_seen_formats_no_result(stand: Stand) -> None:
    stand.change()
    result = await renewed_while_it_ran(stand)
    assert (result.value, [block.text for block in result.content]) == ("end", ["end"])


async def test_a_result_is_not_lost_with_the_host_that_should_format_it(stand: Stand) -> None:
    stand.plugin.write_text("import sys; sys.exit('no paper')")
    result = await renewed_while_it_ran(stand)
    assert (result.ok, result.value) == (True, "end")


async def test_a_call_that_waits_for_a_start_fails_when_the_host_is_restarted(stand: Stand) -> None:
    stand.host.renew()
    begun = asyncio.Event()
    stand.launcher.on_start = stand.once(begun.set)
    waiting = stand.call("pid")
    await begun.wait()
    await stand.host.restart()
    after = await stand.call("pid")
    result = await waiting
    assert (result.error.error_class, result.error.reason) == (ToolErrorClass.HOST_UNAVAILABLE, "host_not_started")
    assert (after.ok, stand.host.problem) == (True, None)


async def test_a_process_in_retirement_ends_though_its_last_request_is_never_answered(stand: Stand) -> None:
    link = await stand.host.link()
    id, _ = link.ask(frames.ExecuteTool(tool_name="hang", arguments={}))
    stand.host.renew()
    link.abandon(id)
    async with asyncio.timeout(60):
        await link.ended()
    assert link.exit is not None


async def test_no_more_calls_run_at_once_than_may_after_a_host_died(stand: Stand) -> None:
    link = await stand.host.link()
    calls = [stand.call("hang") for _ in range(2)]
    await settled()
    link.kill()
    assert (await calls[0]).error.error_class is ToolErrorClass.HOST_UNAVAILABLE
    pipe = await asyncio.to_thread(os.open, stand.go, os.O_WRONLY)  # the second runs by now
    calls.append(stand.call("hang"))
    await settled()
    assert len(await stand.host.link()) == 1
    for call in calls[1:]:
        os.write(pipe, b"end")
        os.close(pipe)
        assert (await call).value == "end"
        if call is not calls[-1]:
            pipe = await asyncio.to_thread(os.open, stand.go, os.O_WRONLY)
