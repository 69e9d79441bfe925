"""Packages of tools in a program: what each may bring, and what becomes of one that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate import Gate
from callgate.config.home import Home
from callgate.instance.wiring.components import enabled_packs
from callgate.instance.wiring.runtime import Wired
from callgate.sources.installed_packs import installed
from tests.kernel.sources.sample_packs import WEATHER, install

TELLING = """
from callgate.packs.tools import Pack


async def close():
    raise RuntimeError("cannot close")


def prompt(session):
    if "quiet" in session.workspace:
        raise RuntimeError("cannot say")
    return "The weather is fine."


def pack(context):
    return Pack(prompt=prompt, close=close)
"""
CLAIMING = """
from callgate import SideEffects, ToolDefinition
from callgate.packs.tools import Pack


class Claim:
    definition = ToolDefinition(
        name="claim", description="Claim.", side_effects=SideEffects.NONE, source={source!r},
        input_schema={{"type": "object", "properties": {{}}}},
    )

    async def execute(self, input, context): ...
    async def cancel(self): ...


def pack(context):
    return Pack(tools=[Claim])
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    return site


def enable(home: Path, *names: str) -> None:
    (home / "settings.toml").write_text(f"[packs]\nenable = {[*names]}\n")


async def test_a_program_uses_enabled_packages_with_its_sources(home: Path, site: Path, tmp_path: Path) -> None:
    enable(home, "library_weather", "nowhere")
    install(site, modules={"library_weather": WEATHER}, tools={"library_weather": "library_weather:pack"})
    async with Gate(tmp_path, home=home, sources="settings") as gate:
        assert (await gate.call("forecast", {"city": "Rome"})).content[0].text == "Rome: rain"
        assert [each for each in gate.news if "'nowhere'" in each] == gate.news != []
    async with Gate(tmp_path, home=home) as gate:
        assert not (await gate.call("forecast", {"city": "Rome"})).ok


@pytest.mark.parametrize("source", ["builtin", "mcp", "host"])
def test_no_package_claims_to_be_something_else(source: str, home: Path, site: Path) -> None:
    name = f"claim_{source}"
    enable(home, name)
    install(site, modules={name: CLAIMING.format(source=source)}, tools={name: f"{name}:pack"})
    wired = Wired(Home(str(home)), audit=False)
    wired.register_built_in()
    wired.registry.add(enabled_packs(lambda: wired.packs))
    assert wired.registry.find("claim") is None
    assert len(wired.notices) == 1 and repr(source) in wired.notices[0]
    wired.sandbox.close()


async def test_what_a_package_tells_a_model_is_told_and_its_failures_stop_nothing(
    home: Path, site: Path, tmp_path: Path
) -> None:
    enable(home, "telling")
    install(site, modules={"telling_pack": TELLING}, tools={"telling": "telling_pack:pack"})
    wired = Wired(Home(str(home)), audit=False)
    wired.register_built_in()
    wired.registry.add(enabled_packs(lambda: wired.packs))
    wired.registry.load_all()
    (tmp_path / "quiet").mkdir()
    assert wired.packs.prompt(wired.session(str(tmp_path))) == "The weather is fine."
    assert wired.packs.prompt(wired.session(str(tmp_path / "quiet"))) == ""
    await wired.close()


def test_a_package_is_read_once_where_two_versions_are_on_the_path(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site)
    older = tmp_path / "older"
    install(older)
    monkeypatch.setattr("sys.path", [str(site), str(older)])
    assert [(each.name, each.problem) for each in installed("callgate.tools")] == [("weather", None)]


def test_what_we_ship_is_not_listed_as_somebody_else_s() -> None:
    assert [each for each in installed("callgate.tools") if each.package.startswith("callgate ")] == []


def test_of_two_versions_the_one_counts_that_python_would_import(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, tools={})
    older = tmp_path / "older"
    install(older)
    monkeypatch.setattr("sys.path", [str(site), str(older)])
    assert installed("callgate.tools") == []
