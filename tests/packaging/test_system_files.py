"""The man page and the unit for systemd."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from callgate.cli.command_line import every, read, split
from scripts.man_page import PAGE, page
from tests.kernel.cli.running import Terminal
from tests.needs import needs

PROJECT = Path(__file__).parents[2]
UNIT = PROJECT / "deploy/systemd/callgate.service"


def test_the_man_page_is_what_the_commands_say() -> None:
    written = page()
    assert PAGE.read_text() == written, "`make reference` regenerates it"
    assert [name for name in every() if f'.SS "callgate {name}"'.replace("-", r"\-") not in written] == []


def test_the_width_of_a_terminal_changes_no_line_of_the_man_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    terminal = Terminal(columns=40, rows=50)
    before = dict(os.environ)
    with os.fdopen(os.dup(terminal.slave), "w", encoding="utf-8") as narrow:
        monkeypatch.setattr(sys, "stdout", narrow)
        narrowed = page()
    terminal.close()
    assert (narrowed, dict(os.environ)) == (PAGE.read_text(), before)


@needs("groff")
def test_the_man_page_can_be_read_without_a_warning() -> None:
    ran = subprocess.run(["groff", "-man", "-Tutf8", "-ww", PAGE], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "acp-proxy" in ran.stdout.replace("\u2010", "-").replace("\u2212", "-")


def _command() -> list[str]:
    [line] = [line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart=")]
    words = shlex.split(line.partition("=")[2])
    return words[words.index("callgate") + 1 :]


def test_the_units_command_is_ours() -> None:
    name, words = split(_command())
    options = read(name, words)
    assert (name, options.workspaces, options.foreground) == ("serve", ["%h/src"], True)


@needs("systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    ran = subprocess.run(
        ["systemd-analyze", "--user", "--man=no", "verify", str(UNIT)],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
    )
    assert "callgate.service:" not in ran.stderr, ran.stderr


async def test_the_instance_tells_systemd_that_it_is_ready(tmp_path: Path) -> None:
    workspace, home = tmp_path / "src", tmp_path / "home"
    workspace.mkdir()
    home.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
        ready.bind(str(tmp_path / "notify"))
        ready.setblocking(False)
        command = [str(workspace) if word == "%h/src" else word for word in _command()]
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CALLGATE_HOME": str(home)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "callgate", *command, env={**env, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        )
        try:
            loop = asyncio.get_running_loop()
            assert await asyncio.wait_for(loop.sock_recv(ready, 100), 60) == b"READY=1"
        finally:
            process.terminate()
            assert await process.wait() == 0
