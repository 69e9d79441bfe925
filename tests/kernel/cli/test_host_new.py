"""`callgate host new`: from nothing to a tool that can be called, in three languages."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from callgate.cli.hosts import LANGUAGES
from tests.kernel.cli.running import Ran, callgate, environment
from tests.needs import needs

PROJECT = Path(__file__).parents[3]
IN = [pytest.param(each, marks=needs("node") if each == "node" else ()) for each in LANGUAGES]
TESTS = {
    "python": [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_words_tools.py"],
    "node": ["node", "--test", "my-words.test.mjs"],
    "bash": ["./test.sh"],
}


def new(*words: str, cwd: Path) -> Ran:
    return callgate("host", "new", "--json", *words, cwd=cwd)


def run_test(lang: str, directory: Path) -> int:
    env = {**environment(None), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(TESTS[lang], cwd=directory, env=env, capture_output=True).returncode


@pytest.mark.parametrize("lang", IN)
def test_what_it_writes_is_a_host_whose_tool_can_be_called(lang: str, ws: Path, home: Path) -> None:
    made = callgate("host", "new", "--lang", lang, "my-words", cwd=ws)
    assert made.code == 0
    (home / "settings.toml").write_text(made.out)
    ran = callgate("call", "--no-instance", "my_words_count", "text=one two three", cwd=ws)
    assert (ran.code, ran.out) == (0, "3\n")
    command = tomllib.loads(made.out)["hosts"]["my-words"]["command"]
    call = ("--call", "my_words_count", "text=a b")
    checked = callgate("host", "check", "--json", *call, "--", *command, cwd=ws)
    assert (checked.code, checked.json["ok"]) == (0, True)


@pytest.mark.spec("T23")
@pytest.mark.parametrize("lang", IN)
def test_a_workspace_puts_no_code_of_its_own_into_the_host(lang: str, ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text(callgate("host", "new", "--lang", lang, "words", cwd=ws).out)
    marking = "open('ran', 'w').close()"
    for module in ("callgate", "runpy", "msgspec", "json", "sitecustomize"):
        (ws / module).mkdir(parents=True)
        (ws / module / "__init__.py").write_text(marking)
    for script in ("python", "node", "jq", "bash", "wc"):
        (ws / script).write_text("#!/bin/sh\n> ran\n")
        (ws / script).chmod(0o755)
    ran = callgate("call", "--no-instance", "words_count", "text=one two", cwd=ws)
    assert (ran.out, (ws / "ran").exists()) == ("2\n", False)


@pytest.mark.parametrize("lang", IN)
def test_the_test_that_it_writes_passes_and_can_fail(lang: str, ws: Path) -> None:
    wrote = [Path(each) for each in new("--lang", lang, "my-words", cwd=ws).json["wrote"]]
    assert sorted(wrote) == sorted((ws / "my-words").iterdir())
    assert run_test(lang, ws / "my-words") == 0
    plugin = wrote[0].read_text()
    for right, wrong in (("len(text.split())", "0"), (".length,\n", ".length + 1,\n"), ("wc -w", "wc -c")):
        plugin = plugin.replace(right, wrong)
    wrote[0].write_text(plugin)
    assert run_test(lang, ws / "my-words") != 0


def test_nothing_that_is_there_is_overwritten(ws: Path) -> None:
    assert new("words", cwd=ws).code == 0
    before = {path: path.read_text() for path in (ws / "words").iterdir()}
    for lang in LANGUAGES:
        again = new("--lang", lang, "words", cwd=ws)
        assert (again.code, again.json["error"]["reason"]) == (2, "exists")
    assert {path: path.read_text() for path in (ws / "words").iterdir()} == before
    (ws / "led").symlink_to(ws / "elsewhere")
    assert new("led", cwd=ws).json["error"]["reason"] == "exists"
    assert not (ws / "elsewhere").exists()


def test_it_can_be_written_elsewhere_under_any_name_of_a_path(ws: Path) -> None:
    made = new("--dir", 'sub/a "b" \\ ä', "words", cwd=ws)
    directory = ws / "sub" / 'a "b" \\ ä' / "words"
    assert [Path(each).parent for each in made.json["wrote"]] == [directory] * 2
    assert tomllib.loads(made.json["settings"])["hosts"]["words"]["command"] == made.json["command"]
    assert made.json["command"][-1] == made.json["wrote"][0]


@pytest.mark.parametrize("name", ["", "../x", "/tmp/x", "Words", "a b", "1a", "a" * 49, "-x", "a\n"])
def test_a_name_that_settings_would_refuse_is_refused(name: str, ws: Path) -> None:
    before = set(ws.iterdir())
    assert callgate("host", "new", "--", name, cwd=ws).code == 2
    assert set(ws.iterdir()) == before


def test_it_wants_one_name(ws: Path) -> None:
    assert callgate("host", "new", cwd=ws).code == 2
    assert callgate("host", "new", "a", "b", cwd=ws).code == 2


def test_it_writes_nothing_where_the_sandbox_would_hide_it(ws: Path, home: Path) -> None:
    (ws / "led").symlink_to(home)
    for where in (str(home), str(home / "plugins"), "led"):
        assert new("--dir", where, "words", cwd=ws).code == 2
    assert list(home.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_said(ws: Path) -> None:
    failed = new("--dir", "a.txt", "words", cwd=ws)
    assert (failed.code, failed.json["error"]["reason"]) == (2, "exists")
    assert (ws / "a.txt").read_text() == "one\ntwo\nthree\n"


@needs("node")
def test_an_installed_package_brings_the_host_for_node(tmp_path: Path, ws: Path) -> None:
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=PROJECT,
        capture_output=True,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    env = {**environment(None), "PYTHONPATH": str(site)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "callgate", "host", *words]
        return subprocess.run(command, cwd=ws, env=env, capture_output=True, text=True)

    made = run("new", "--lang", "node", "words")
    command = tomllib.loads(made.stdout)["hosts"]["words"]["command"]
    packaged = os.path.join(site, "callgate", "data", "tool-host-node", "host.mjs")
    assert command == ["node", packaged, str(ws / "words" / "words.mjs")]
    assert run("check", "--call", "words_count", "text=a b", "--", *command).returncode == 0
