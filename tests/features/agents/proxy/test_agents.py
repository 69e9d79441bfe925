"""Agents that others made, and ours, behind the proxy."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.features.agents.proxy.conftest import Open, asked, records
from tests.features.editor.acp.published import NODE, SDK
from tests.needs import needs

HERE = Path(__file__).parent
SCRIPT = """
[[replies]]
text = "I write it down."
calls = [{ tool = "write_file", input = { path = "note.txt", content = "noted\\n" } }]

[[replies]]
expect = "note.txt"
text = "It is written."
"""
UNMARKED = """
import os, resource, sys
os.environ.pop("CALLGATE_CALL")
os.environ["CALLGATE_HOME"] = os.environ["INNER"]
resource.setrlimit(10, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
os.execv(sys.executable, [sys.executable, "-S", "-m", "callgate", "acp", *sys.argv[1:]])
"""
"""`callgate acp` refuses to run within a call, which an agent behind the proxy is for it."""


async def _drive(opened: Open, home: Path, workspace: Path, command: tuple[str, ...]) -> None:
    async with opened(command=command) as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once")
        assert await talk.prompt("go") == "end_turn"
        assert talk.text() == "y|sdk\n|0|sdk\n"
        assert len(asked(talk)) == 2  # the edit, then the command
    assert [each["tool"] for each in records(home)].count("write_file") == 2


async def test_an_agent_of_the_python_sdk(opened: Open, home: Path, workspace: Path) -> None:
    await _drive(opened, home, workspace, (sys.executable, str(HERE / "sdk_agent.py")))


@needs("acp clients")
async def test_an_agent_of_the_typescript_sdk(opened: Open, home: Path, workspace: Path) -> None:
    script = str(HERE / "sdk_agent.mjs")
    await _drive(opened, home, workspace, (str(NODE), script, str(SDK / "dist/v1/stable/acp.js")))


@pytest.fixture(params=["as it is", "below /tmp"])
def checkout(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The directory from which callgate runs. In the sandbox, /tmp is another directory."""
    here = Path(__file__).parents[4] / "src"
    if request.param == "as it is":
        yield here
        return
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(shutil.copytree(here, Path(directory, "src"), ignore=shutil.ignore_patterns("__pycache__")))


@needs("root")  # nobody else can take the mark of a call away
async def test_our_own_agent(opened: Open, home: Path, workspace: Path, tmp_path: Path, checkout: Path) -> None:
    inner, script = tmp_path / "inner", tmp_path / "script.toml"
    inner.mkdir(mode=0o700)
    (inner / "settings.toml").write_text('sandbox = "off"\n')
    script.write_text(SCRIPT)
    wrapper = tmp_path / "unmarked.py"
    wrapper.write_text(UNMARKED)
    command = (sys.executable, str(wrapper), "--model", f"scripted:{script}")
    path = f"{checkout}:{sysconfig.get_path('purelib')}"  # all that it imports, with -S
    options = ("--writable", str(inner), "--readable", str(tmp_path))
    async with opened(*options, command=command, env={"INNER": str(inner), "PYTHONPATH": path}) as editor:
        assert editor.greeting["agentInfo"]["name"] == "callgate"
        talk = await editor.new(workspace)
        talk.allow("allow_once")
        assert await talk.prompt("Write it down.") == "end_turn"
        assert "It is written." in talk.text()
        assert talk.opened["modes"]["currentModeId"] == "ask"
    assert (workspace / "note.txt").read_text() == "noted\n"
    # Its own question was judged by us, and covered the file that it then had written by us.
    assert {each["tool"] for each in records(home)} >= {"write_file"}
