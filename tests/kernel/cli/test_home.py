"""A home is its user's alone: one that others control is not used, and what lies in it is private."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate import Gate, ToolContext, tool
from callgate.config.home_check import UnsafeHome
from tests.kernel.cli.instances import short_directory
from tests.kernel.cli.running import CALLGATE, callgate, environment

COMMANDS = [
    "call list_dir",
    "call list_dir --no-instance",
    "call --json list_dir",
    "status",
    "doctor",
    "audit tail",
    "audit verify",
    "sessions list",
    "events",
    "trust --list",
    "trust .",
    "tools",
    "serve",
    "acp",
    "dashboard --no-open",
    "policy explain list_dir",
    "hosts list",
    "mcp list",
    "memory list",
    "skills list",
    "undo",
    "stop",
    "confirmations list",
    "init",
    "run hello",
]
NOBODY = 65_534
OTHER = 12_345


def refused(line: str, home: Path, ws: Path) -> str:
    ran = callgate(*line.split(), cwd=ws, env={"CALLGATE_HOME": str(home)})
    assert ran.code != 0, line
    return ran.err


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    made = tmp_path / "ws"
    made.mkdir()
    return made


@pytest.mark.parametrize("line", COMMANDS)
def test_no_command_uses_a_home_that_others_can_write_to(line: str, home: Path, ws: Path) -> None:
    home.chmod(0o777)
    assert "others can write to the home" in refused(line, home, ws)
    assert os.listdir(home) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: files of another user")
@pytest.mark.parametrize("line", COMMANDS)
def test_no_command_uses_a_home_of_another_user_not_even_for_root(line: str, home: Path, ws: Path) -> None:
    os.chown(home, OTHER, OTHER)
    assert "belongs to another user" in refused(line, home, ws)
    assert os.listdir(home) == []


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_home_that_others_can_replace_is_not_used(mode: int, tmp_path: Path, ws: Path) -> None:
    parent = tmp_path / "open"
    parent.mkdir()
    parent.chmod(mode)
    if os.getuid() != os.getgid() or mode & 0o002:
        assert "replace the home" in refused("status", parent / "home", ws)
    parent.chmod(0o1777)
    assert callgate("status", cwd=ws, env={"CALLGATE_HOME": str(parent / "home")}).code != 2


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: files of another user")
def test_root_makes_no_home_in_the_directory_of_another_user(tmp_path: Path, ws: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, OTHER, OTHER)
    assert "belongs to another user" in refused("call list_dir", theirs / ".callgate", ws)
    assert os.listdir(theirs) == []


def test_the_library_does_not_use_such_a_home_either(home: Path, tmp_path: Path) -> None:
    home.chmod(0o777)
    for given in (None, home):
        with pytest.raises(UnsafeHome):
            Gate(tmp_path, [], home=given)


def test_a_home_that_others_can_only_read_is_closed_to_them(home: Path, ws: Path) -> None:
    home.chmod(0o755)
    assert callgate("call", "list_dir", cwd=ws, env={"CALLGATE_HOME": str(home)}).code == 0
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def open_to_others(home: Path) -> Iterator[str]:
    for path in (home, *home.rglob("*")):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & 0o077:
            yield f"{path.relative_to(home)} {stat.S_IMODE(mode):o}"


LIFE = """
umask {umask}
cg() {{ {callgate} "$@" </dev/null >>out 2>&1; }}
cg call write_file path=a.txt content=x --yes || exit 1
cg call shell command='seq 200000' --yes || exit 2
cg undo; cg trust .; cg memory list; cg host new one; cg mcp add calc -- true
cg serve --detach --http 127.0.0.1:0 || exit 3
cg call list_dir || exit 4
cg call write_file path=b.txt content=x --yes || exit 5
cg dashboard --no-open || exit 6
"""


@pytest.mark.parametrize("umask", ["000", "022"])
def test_everything_in_a_home_is_private_under_any_umask(umask: str) -> None:
    with short_directory() as base:
        home, ws = base / "h", base / "ws"
        ws.mkdir()
        env = {**environment({"CALLGATE_HOME": str(home)}), "PATH": os.environ["PATH"]}
        script = LIFE.format(umask=umask, callgate=CALLGATE)
        try:
            ran = subprocess.run(["bash", "-c", script], cwd=ws, env=env, start_new_session=True)
            assert ran.returncode == 0, (ws / "out").read_text()
            assert list(open_to_others(home)) == []
        finally:
            callgate("stop", cwd=ws, env={"CALLGATE_HOME": str(home)})


BAD_NAMES = [
    "../x",
    "a/b",
    "/etc/passwd",
    "..",
    ".",
    "",
    "a\0b",
    "a\nb",
    "x" * 300,
    "a\\b",
    "c:x",
    ".hidden",
    "-rf",
    "nul",
    "COM1.txt",
    "é" * 100,
    "a ",
    "a.",
    "\u202ea",
]


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_an_artifact_has_the_plain_name_of_a_file(name: str, home: Path, tmp_path: Path) -> None:
    @tool(side_effects="none")
    async def keep(context: ToolContext) -> str | None:
        """Keep something."""
        assert context.artifact("fine-name.txt")
        return context.artifact(name)

    async with Gate(tmp_path, [keep]) as gate:
        result = await gate.call("keep")
    assert not result.ok
    assert "plain file name" in str(result.error)
