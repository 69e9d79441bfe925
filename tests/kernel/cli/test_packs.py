"""Packages of tools that somebody else made and installed: listed, enabled, used, refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.cli.running import Ran, installed
from tests.kernel.sources.sample_packs import COMMANDS, WEATHER, install

ENABLED = '[packs]\nenable = ["weather"]\n'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site"


def run(*words: str, ws: Path, site: Path) -> Ran:
    return installed(*words, cwd=ws, env={"PYTHONPATH": str(site)})


def settings(home: Path, text: str) -> None:
    (home / "settings.toml").write_text(text)


def listed(ws: Path, site: Path) -> dict[str, dict[str, object]]:
    ran = run("tools", "--all", "--json", "--no-instance", ws=ws, site=site)
    assert ran.code == 0, ran.err
    return {each["name"]: each for each in ran.json}


def test_a_package_that_is_not_enabled_is_listed_and_nothing_of_it_is_run(ws: Path, home: Path, site: Path) -> None:
    settings(home, "")
    install(site, modules={"acme_weather": "open('ran', 'w')\n" + WEATHER})
    row = listed(ws, site)["weather"]
    assert (row["source"], row["visible"]) == ("package", False)
    assert "acme-weather 1.0" in str(row["description"])
    assert "[packs] enable" in str(row["hidden_because"])
    shown = run("tools", "--all", "--no-instance", ws=ws, site=site).out
    assert [line for line in shown.splitlines() if line.startswith("weather ") and "acme-weather 1.0" in line]
    assert run("call", "forecast", "city=Rome", "--no-instance", ws=ws, site=site).code != 0
    assert "weather" not in run("tools", "--names", "--no-instance", ws=ws, site=site).out.split()
    assert not (ws / "ran").exists()


def test_an_enabled_package_is_used(ws: Path, home: Path, site: Path) -> None:
    settings(home, ENABLED)
    install(site)
    assert run("call", "forecast", "city=Rome", "--no-instance", ws=ws, site=site).out == "Rome: rain\n"
    assert run("call", "sum_up", "numbers=[1,2]", "--no-instance", ws=ws, site=site).out == "3\n"
    rows = listed(ws, site)
    assert rows["forecast"]["visible"] is True and "weather" not in rows
    assert rows["alert"]["hidden_because"] == "there is no alerts = true in its settings"


def test_a_package_is_told_its_own_settings(ws: Path, home: Path, site: Path) -> None:
    settings(home, ENABLED + "[packs.settings.weather]\nalerts = true\n")
    install(site)
    assert run("call", "alert", "--no-instance", ws=ws, site=site).out == "storm\n"


def test_a_workspace_cannot_enable_a_package(ws: Path, home: Path, site: Path) -> None:
    settings(home, "")
    install(site)
    (ws / ".callgate").mkdir()
    (ws / ".callgate" / "settings.toml").write_text(ENABLED)
    run("trust", ".", ws=ws, site=site)
    ran = run("call", "forecast", "city=Rome", "--no-instance", ws=ws, site=site)
    assert ran.code != 0 and "Rome" not in ran.out


def test_a_name_that_no_package_has_is_told_of(ws: Path, home: Path, site: Path) -> None:
    settings(home, '[packs]\nenable = ["wether"]\n')
    install(site)
    ran = run("tools", "--names", "--no-instance", ws=ws, site=site)
    assert ran.code == 0 and "read_file" in ran.out.split()
    assert "'wether'" in ran.err and "did you mean 'weather'?" in ran.err


# --- packages that cannot be used -----------------------------------------------------------------

CLASHING = WEATHER.replace("async def alert", "async def read_file")
BROKEN = {
    "an import that fails": (WEATHER + "\nimport no_such_module\n", "ModuleNotFoundError"),
    "an exit at import": ("raise SystemExit(7)", "SystemExit"),
    "no such function": ("x = 1", "AttributeError"),
    "a function that fails": ("def pack(context): raise RuntimeError('no key\\nhere')", "RuntimeError: no key here"),
    "no Pack": ("def pack(context): return []", "returned list, not a Pack"),
    "the name of a built-in tool": (CLASHING.replace("factory=alert", "factory=read_file"), "'read_file' is taken"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_package_is_named_with_the_reason_and_stops_nothing(
    kind: str, ws: Path, home: Path, site: Path
) -> None:
    source, why = BROKEN[kind]
    settings(home, '[packs]\nenable = ["broken", "weather"]\n')
    install(site, "broken-pack", modules={"broken_pack": source}, tools={"broken": "broken_pack:pack"})
    install(site)
    ran = run("tools", "--names", "--no-instance", ws=ws, site=site)
    assert ran.code == 0
    names = ran.out.split()
    assert {"read_file", "web_fetch"} <= set(names)
    assert ("forecast" in names) is True
    [line] = [line for line in ran.err.splitlines() if "broken" in line]
    assert "the package broken (broken-pack 1.0) is not used" in line and str(why) in line


def test_a_package_with_one_name_that_is_taken_brings_no_tool_at_all(ws: Path, home: Path, site: Path) -> None:
    settings(home, ENABLED)
    install(site, modules={"acme_weather": BROKEN["the name of a built-in tool"][0]})
    names = run("tools", "--names", "--no-instance", ws=ws, site=site).out.split()
    assert "read_file" in names and "forecast" not in names
    (ws / "a.txt").write_text("mine")
    assert run("call", "read_file", "path=a.txt", "--no-instance", ws=ws, site=site).out == "mine\n"


HOSTILE = {
    "a name with an escape": b"[callgate.tools]\nwea\x1b[2Jther = acme_weather:pack\n",
    "no module": b"[callgate.tools]\nbad = os.system\n",
    "code for a value": b"[callgate.tools]\nbad = os:system('touch ran')\n",
    "no text": b"[callgate.tools]\n\xff\xfe = x:y\n",
    "no format": b"[callgate.tools]\nnonsense\n",
    "twice the same": b"[callgate.tools]\nbad = a:b\nbad = c:d\n",
    "a name of ours": b"[callgate.tools]\ngoogle = acme_weather:pack\n",
    "very much": b"[callgate.tools]\n" + b"".join(b"n%d = a:b\n" % n for n in range(20_000)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_metadata_are_named_and_stop_nothing(kind: str, ws: Path, home: Path, site: Path) -> None:
    settings(home, ENABLED)
    install(site, "evil", modules={}, entry_points=HOSTILE[kind])
    install(site)
    assert run("call", "forecast", "city=Rome", "--no-instance", ws=ws, site=site).out == "Rome: rain\n"
    ran = run("tools", "--all", "--no-instance", ws=ws, site=site)
    assert ran.code == 0 and "\x1b" not in ran.out
    lines = [line for line in ran.out.splitlines() if "evil 1.0" in line]
    assert len(lines) == 1 and "not visible" in lines[0]
    assert "gmail_list" in ran.out and not (ws / "ran").exists()


def test_a_package_without_a_name_is_not_used(ws: Path, home: Path, site: Path) -> None:
    settings(home, ENABLED)
    install(site, metadata="Version: 1.0\n")
    assert run("call", "forecast", "city=Rome", "--no-instance", ws=ws, site=site).code != 0


def test_of_two_packages_that_want_one_name_neither_is_used(ws: Path, home: Path, site: Path) -> None:
    settings(home, ENABLED)
    install(site)
    install(site, "evil", modules={"evil": WEATHER.replace("rain", "sun")}, tools={"weather": "evil:pack"})
    ran = run("call", "forecast", "city=Rome", "--no-instance", ws=ws, site=site)
    assert ran.code != 0 and "acme-weather 1.0, evil 1.0" in ran.err


# --- commands -------------------------------------------------------------------------------------


def test_a_command_of_a_package_works_once_it_is_enabled(ws: Path, home: Path, site: Path) -> None:
    settings(home, "")
    install(site, commands={"weather": "acme_commands:COMMANDS"})
    refused = run("weather", "today", "Rome", ws=ws, site=site)
    assert refused.code != 0 and "acme-weather 1.0, which is not enabled" in refused.err
    assert "'weather' to [packs] enable" in refused.err
    settings(home, ENABLED + "[packs.settings.weather]\nalerts = true\n")
    ran = run("weather", "today", "Rome", "--json", ws=ws, site=site)
    assert ran.json == {"words": ["Rome"], "settings": {"alerts": True}}
    assert "say what the weather is" in run("help", "weather", ws=ws, site=site).out
    assert "usage: callgate weather today" in run("weather", "today", "--help", ws=ws, site=site).out


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import no_such_module", "ModuleNotFoundError"),
        ("raise SystemExit(7)", "SystemExit"),
        ("COMMANDS = 7", "is not a table of"),
        (COMMANDS.replace("weather today", "call today"), "is not a table of"),
        (COMMANDS.replace(", run=run", ""), "is not a table of"),
    ],
)
def test_a_broken_command_is_refused_with_the_reason(source: str, why: str, ws: Path, home: Path, site: Path) -> None:
    settings(home, ENABLED)
    modules = {"acme_weather": WEATHER, "acme_commands": source}
    install(site, modules=modules, commands={"weather": "acme_commands:COMMANDS"})
    ran = run("weather", "today", ws=ws, site=site)
    assert ran.code == 1 and "acme-weather 1.0 cannot be used" in ran.err and why in ran.err


def test_no_package_takes_a_command_of_ours(ws: Path, home: Path, site: Path) -> None:
    settings(home, ENABLED)
    theirs = {"call": "acme_commands:COMMANDS", "auth": "acme_commands:COMMANDS"}
    install(site, commands=theirs)
    (ws / "a.txt").write_text("mine")
    assert run("call", "read_file", "path=a.txt", "--no-instance", ws=ws, site=site).out == "mine\n"
    assert run("auth", "google", "status", "--json", ws=ws, site=site).json == []


def test_a_command_that_nobody_has_is_as_unknown_as_ever(ws: Path, home: Path, site: Path) -> None:
    settings(home, "")
    ran = run("toolz", ws=ws, site=site)
    assert ran.code == 2 and "Did you mean callgate tools?" in ran.err


# --- what it costs --------------------------------------------------------------------------------

_LOADED = "import sys; from callgate.cli.main import main; main(sys.argv[1:]); print(*sys.modules, sep='\\n', file=sys.stderr)"


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["--help"],
        ["tools", "--no-instance"],
        ["call", "read_file", "path=a.txt", "--no-instance"],
        ["call", "memory_search", "query=x", "--no-instance"],
        ["memory", "list"],
    ],
    ids=" ".join,
)
def test_who_enables_no_package_never_waits_for_metadata(words: list[str], ws: Path, home: Path) -> None:
    (ws / "a.txt").write_text("")
    ran = subprocess.run([sys.executable, "-c", _LOADED, *words], cwd=ws, capture_output=True, text=True, timeout=60)
    assert "callgate.cli.main" in ran.stderr and "importlib.metadata" not in ran.stderr.split()
