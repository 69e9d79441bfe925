"""The protocol requires three methods: whatever a host does with the others, it serves its tools."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate.core.effects import SideEffects
from callgate.core.errors import ToolError
from callgate.core.sessions import Mode
from callgate.sandbox.processes.broker_client import BrokerLauncher, BrokerProcess
from callgate.sources import host_handshake, host_provider, host_tools
from callgate.sources.host_provider import Hosts, HostSpec
from callgate.sources.hosts import HostSettings
from callgate.sources.lifecycle import Health
from tests.kernel.sources.hosts.test_hosts import Shelf
from tests.support import Bench

HOST = str(Path(__file__).with_name("required_host.py"))
WAYS = ("ignores", "exits", "refuses")
REQUIRED = {"init", "get_tool_schemas", "execute_tool"}


class LoggedShelf(Shelf):
    """Pins in memory, and a place for what is written beside them."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def log_path(self, name: str) -> str:
        return str(self._directory / f"{name}.log")


class Stand:
    def __init__(self, process: BrokerProcess, tmp_path: Path, way: str) -> None:
        self.asked_path = tmp_path / "asked.txt"
        self.settings = HostSettings(
            name="small", command=(sys.executable, "-I", HOST, way, str(self.asked_path)), cwd=str(tmp_path)
        )
        self.shelf = LoggedShelf(tmp_path)
        self.spec = HostSpec(
            settings=self.settings, effect=SideEffects.NONE, launcher=lambda: BrokerLauncher(process, None)
        )
        self.workspace = tmp_path

    async def call(self) -> tuple[Any, list[str]]:
        """The result of a call in a runtime of its own, and what the host was asked for it."""
        self.asked_path.write_text("")
        hosts = Hosts([self.spec], self.shelf)
        try:
            if hosts.unknown():
                hosts.pin_first("small", await hosts.ask("small"))
            bench = Bench(self.workspace, mode=Mode.WRITE)
            for factory in hosts.factories("small"):
                bench.dispatcher.register(factory)
            result = await bench.run("echo", {"n": 1})
            assert hosts.hosts["small"].health is not Health.QUARANTINED
        finally:
            await hosts.close()
        return result, self.asked_path.read_text().split()


@pytest.fixture
async def process() -> AsyncIterator[BrokerProcess]:
    process = BrokerProcess()
    yield process
    process.close()


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little where nothing comes; else enough for any machine."""
    way = request.node.callspec.params.get("way") if hasattr(request.node, "callspec") else "ignores"
    for module in (host_handshake, host_provider, host_tools):
        monkeypatch.setattr(module, "PATIENCE_S", 0.3 if way == "ignores" else 60.0)


@pytest.mark.parametrize("way", WAYS)
async def test_a_host_with_the_required_methods_alone_serves_its_tools(
    process: BrokerProcess, tmp_path: Path, way: str
) -> None:
    result, asked = await Stand(process, tmp_path, way).call()
    assert result.ok and result.value == {"n": 1}
    assert asked[:2] == ["init", "get_tool_schemas"]


@pytest.mark.parametrize("way", ["ignores", "exits"])
async def test_it_is_not_asked_again_for_what_it_did_not_answer(
    process: BrokerProcess, tmp_path: Path, way: str
) -> None:
    stand = Stand(process, tmp_path, way)
    for _ in range(2):  # learning, and what is asked for with a call
        await stand.call()
    result, asked = await stand.call()
    assert result.ok and set(asked) == REQUIRED and asked.count("init") == 1


async def test_a_host_that_is_learned_anew_is_asked_again(process: BrokerProcess, tmp_path: Path) -> None:
    stand = Stand(process, tmp_path, "ignores")
    await stand.call()
    stand.asked_path.write_text("")
    hosts = Hosts([stand.spec], stand.shelf)
    await hosts.ask("small")
    await hosts.close()
    assert "get_tags" in stand.asked_path.read_text().split()


async def test_the_message_names_the_required_method_that_was_not_answered(
    process: BrokerProcess, tmp_path: Path
) -> None:
    settings = HostSettings(
        name="mute", command=("sleep", "600"), cwd=str(tmp_path), start_timeout_s=0.2, env={"PATH": "/usr/bin:/bin"}
    )
    spec = HostSpec(settings=settings, launcher=lambda: BrokerLauncher(process, None))
    hosts = Hosts([spec], Shelf())
    with pytest.raises(ToolError) as refused:
        hosts.pin_first("mute", await hosts.ask("mute"))
    await hosts.close()
    assert "did not answer init" in refused.value.message
