"""`[policy.budgets]` at the command line: counted across processes, explained, and narrowed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kernel.cli.running import callgate, installed

SETTINGS = """\
[policy.budgets.day]
calls = 2

[policy.budgets.tools.read_file]
day = {calls = 1}
"""


@pytest.fixture
def limited(ws: Path, home: Path) -> Path:
    (home / "settings.toml").write_text(SETTINGS)
    (ws / "a.txt").write_text("x")
    return ws


def read(ws: Path, *options: str) -> int:
    return callgate("call", "read_file", "path=a.txt", *options, cwd=ws).code


def test_a_day_counts_over_processes_and_no_flag_answers_for_it(limited: Path) -> None:
    assert (read(limited), read(limited), read(limited, "--yes")) == (0, 3, 3)
    assert callgate("call", "list_dir", "path=.", cwd=limited).code == 0
    assert callgate("call", "list_dir", "path=.", cwd=limited).code == 3


def test_explain_says_which_budget_and_how_much_is_used(limited: Path, home: Path) -> None:
    before = callgate("policy", "explain", "read_file", "path=a.txt", "--json", cwd=limited).json
    assert before["decision"] == "allow"
    assert before["budgets"] == ["0 of 2 calls today", "0 of 1 calls of read_file today"]
    assert read(limited) == 0
    ran = callgate("policy", "explain", "read_file", "path=a.txt", cwd=limited)
    assert ran.out.splitlines()[:2] == [
        "ask: Over budget: 1 of 1 calls of read_file today are used.",
        f"  by         a budget, {home}/settings.toml:5",
    ]
    assert "  budget     1 of 2 calls today" in ran.out.splitlines()
    after = callgate("policy", "explain", "read_file", "path=a.txt", "--json", cwd=limited).json
    assert (after["reason"], after["origin"]["line"]) == ("budget", 5)


def test_a_trusted_workspace_may_narrow_a_budget(limited: Path) -> None:
    (limited / ".callgate").mkdir()
    (limited / ".callgate" / "settings.toml").write_text("[policy.budgets.day]\ncalls = 0\n")
    assert read(limited) == 0
    assert callgate("trust", ".", cwd=limited).code == 0
    assert callgate("call", "list_dir", "path=.", cwd=limited).code == 3


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[policy.budgets.day]\ncalls = -1", "policy.budgets.day.calls"),
        ("[policy.budgets.week]\ncalls = 1", "unknown key 'week' in policy.budgets"),
        ("[policy.budgets.tools.x]\ncalls = 1", "unknown key 'calls'"),
    ],
)
def test_a_wrong_budget_is_named_with_its_line(ws: Path, home: Path, line: str, says: str) -> None:
    (home / "settings.toml").write_text(line)
    ran = callgate("policy", "explain", "read_file", "path=a", cwd=ws)
    assert ran.code != 0
    assert says in ran.err


def test_processes_at_once_share_what_is_left_of_a_day(ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text("[policy.budgets.day]\ncalls = 3\n")
    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(installed, "call", "list_dir", cwd=ws) for _ in range(8)]
        codes = sorted(run.result().code for run in runs)
    assert codes == [0, 0, 0, 3, 3, 3, 3, 3]
