"""What is installed from our wheel: both packages, their entry points, their tools and commands."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from callgate.feature import PACK_COMMANDS, PACKS
from tests.kernel.cli.running import environment

PROJECT = Path(__file__).parents[2]
_WHERE = """
import json
from importlib import metadata
import callgate, callgate_catalogue
points = metadata.distribution("callgate").entry_points
print(json.dumps({
    "places": [callgate.__file__, callgate_catalogue.__file__],
    "callgate.tools": {each.name: each.value for each in points if each.group == "callgate.tools"},
    "callgate.commands": {each.name: each.value for each in points if each.group == "callgate.commands"},
}))
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `callgate` of a fresh environment that has our wheel, and of others what we need."""
    pytest.importorskip("hatchling")
    place = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, cwd=PROJECT, capture_output=True, check=True)
    (wheel,) = place.glob("*.whl")
    fresh = place / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(fresh)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(fresh / "bin" / "python"), "install", "-qq"]
    subprocess.run([*pip, "--disable-pip-version-check", "--no-deps", "--no-index", str(wheel)], check=True)
    (site,) = fresh.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return fresh / "bin" / "callgate"


def run(program: Path, *words: str, cwd: Path) -> str:
    ran = subprocess.run([program, *words], cwd=cwd, env=environment(None), capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_wheel_has_both_packages_and_their_entry_points(program: Path, tmp_path: Path) -> None:
    about = json.loads(run(program.with_name("python"), "-c", _WHERE, cwd=tmp_path))
    assert all(place.startswith(str(program.parents[1])) for place in about["places"])
    assert about["callgate.tools"] == {each.name: each.entry for each in PACKS}
    assert about["callgate.commands"] == PACK_COMMANDS


def test_every_shipped_tool_and_command_is_there_after_an_install(program: Path, tmp_path: Path) -> None:
    rows = json.loads(run(program, "tools", "--all", "--json", "--no-instance", cwd=tmp_path))
    names = {each["name"] for each in rows}
    for pack in PACKS:
        for tool in pack.tools:
            assert any(name.startswith(tool.removesuffix("*")) for name in names), tool
    assert "custom" in names
    assert [each["name"] for each in rows if each["source"] == "package"] == []
    words = ["memory_add", "content=the key is under the mat", "--yes", "--no-instance"]
    assert "Noted as w1" in run(program, "call", *words, cwd=tmp_path)
    assert "under the mat" in run(program, "memory", "list", cwd=tmp_path)
    assert run(program, "auth", "google", "status", "--json", cwd=tmp_path) == "[]\n"
    assert "auth google" in run(program, "help", "--all", cwd=tmp_path)
