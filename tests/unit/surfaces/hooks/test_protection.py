"""No agent reaches our home, our answers, or the settings of its hooks through its own hook."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.protocol.hooks.agent_tools import Translated
from callgate.surfaces.hooks.protection import Guarded


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work/link").symlink_to(tmp_path / "home")
    settings = [str(tmp_path / "work/.claude/settings.json")]
    return Guarded(str(tmp_path / "home"), settings, str(tmp_path / "work"))


def shell(command: str) -> Translated:
    return Translated(tool="shell", arguments={"command": command}, command=command)


@pytest.mark.parametrize(
    "command",
    [
        "cat ../home/run/1.token",
        "cat link/settings.toml",
        "echo x >../home/settings.toml",
        "cp x .claude/settings.json",
        "echo $CALLGATE_HOME",
        "callgate confirmations allow 1",
        "/usr/bin/callgate hook remove claude",
        "env callgate trust .",
        "sh -c 'callgate call shell command=ls'",
        "python3 -m callgate confirmations allow 1",
        "true && callgate watch --answer",
        "x=$(callgate confirmations list) ; eval $x",
    ],
)
def test_a_command_that_would_open_the_gate_is_refused(guarded: Guarded, command: str) -> None:
    assert guarded.refusal(shell(command)) is not None


@pytest.mark.parametrize(
    "command", ["ls", "git clone x/callgate", "cat callgate.md", "callgate --version", "cd callgate"]
)
def test_other_commands_are_left_to_the_policy(guarded: Guarded, command: str) -> None:
    assert guarded.refusal(shell(command)) is None


def test_files_of_ours_are_refused_by_whatever_link(guarded: Guarded) -> None:
    for path in ("link/audit.jsonl", "../home/x", ".claude/settings.json"):
        call = Translated(tool="read_file", arguments={"path": path})
        assert guarded.refusal(call) is not None
    patch = Translated(tool="agent_write", arguments={"paths": ["a", "link/x"]})
    assert guarded.refusal(patch) is not None
    assert guarded.refusal(Translated(tool="read_file", arguments={"path": "a"})) is None


@pytest.mark.parametrize("command", ["bash", "python3 -i", "env sh", "ssh host", "ls; python3.12"])
def test_a_program_that_reads_what_is_typed_later_is_refused_where_nobody_sees_that(
    guarded: Guarded, command: str
) -> None:
    assert guarded.refusal(shell(command), may_type_later=True) is not None
    assert guarded.refusal(shell(command)) is None


@pytest.mark.parametrize("command", ["bash -c ls", "python3 x.py", "node -e 1", "ls"])
def test_one_that_has_its_work_runs(guarded: Guarded, command: str) -> None:
    assert guarded.refusal(shell(command), may_type_later=True) is None
