"""A call gives the same in every environment that somebody may really have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.cli.running import CALLGATE, LIMIT_S, Ran, installed

DEAD_PROXY = "http://127.0.0.1:9"
ENVIRONMENTS = (
    {
        "C": {"LC_ALL": "C"},
        "another place": {"TZ": "Asia/Kathmandu"},
        "warnings": {"PYTHONWARNINGS": "default"},
        "unbuffered": {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        "colours": {"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"},
        "a narrow terminal": {"COLUMNS": "40", "LINES": "5"},
        "proxies": dict.fromkeys(("http_proxy", "https_proxy", "ALL_PROXY"), DEAD_PROXY),
        "XDG": dict.fromkeys(("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"), "/dev/null/nothing"),
        "git": dict.fromkeys(("GIT_DIR", "GIT_WORK_TREE", "GIT_CONFIG_GLOBAL"), "/dev/null/nothing"),
        "programs": dict.fromkeys(("EDITOR", "VISUAL", "PAGER", "BROWSER"), "/bin/false"),
    },
    {
        "POSIX": {"LC_ALL": "POSIX", "LANG": ""},
        "no place": {"TZ": "Nowhere/Nope"},
        "warnings as errors": {"PYTHONWARNINGS": "error"},
        "no colours": {"NO_COLOR": "1", "TERM": "dumb"},
        "no temporary directory": {"TMPDIR": "/dev/null/nothing"},
    },
    {
        "a locale that is not there": {"LANG": "de_DE.UTF-8"},
        "without assertions": {"PYTHONOPTIMIZE": "2"},
        "an odd terminal": {"COLUMNS": "x", "LINES": "-1", "TERM": ""},
    },
    {"ASCII": {"PYTHONIOENCODING": "ascii"}},
)
"""Environments that do not hide each other are together."""


def merged(environments: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: value for env in environments.values() for name, value in env.items()}


def calls(ws: Path, env: dict[str, str]) -> tuple[Ran, int, str]:
    """The end of a read, and the exit code and output of a command."""
    read = installed("call", "read_file", "path=a.txt", cwd=ws, env=env)
    command = installed("call", "shell", "command=echo out", "--yes", "--quiet", cwd=ws, env=env)
    return read, command.code, command.out


@pytest.mark.parametrize("environments", ENVIRONMENTS, ids=", ".join)
def test_a_call_gives_the_same(ws: Path, environments: dict[str, dict[str, str]]) -> None:
    ordinary = calls(ws, {})
    assert ordinary[1:] == (0, "out\n")
    if calls(ws, merged(environments)) != ordinary:
        assert [name for name, env in environments.items() if calls(ws, env) != ordinary] == []
        assert calls(ws, merged(environments)) == ordinary


@pytest.mark.parametrize("mask", [0o077, 0o002, 0o000])
def test_a_home_is_the_owners_alone_under_every_umask(ws: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        ran = installed("call", "read_file", "path=a.txt", cwd=ws)
    finally:
        os.umask(before)
    home = Path(os.environ["CALLGATE_HOME"])
    assert ran.code == 0
    assert [path for path in (home, *home.rglob("*")) if path.stat().st_mode & 0o077] == []


def test_streams_that_were_closed_before_harm_nothing(ws: Path) -> None:
    command = f"exec {CALLGATE} call read_file path=a.txt <&- 2>&-"
    ran = subprocess.run(["sh", "-c", command], cwd=ws, capture_output=True, timeout=LIMIT_S)
    assert Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode()) == installed(
        "call", "read_file", "path=a.txt", cwd=ws
    )


def test_a_directory_with_spaces_is_a_workspace(tmp_path: Path) -> None:
    odd = tmp_path / "a  b'c\"d é"
    odd.mkdir()
    ran = installed("call", "shell", "command=pwd", "--yes", "--quiet", cwd=odd)
    assert (ran.code, ran.out) == (0, f"{odd}\n")


def test_the_tests_themselves_see_none_of_it(tmp_path: Path) -> None:
    hostile = {name: value for environments in ENVIRONMENTS for name, value in merged(environments).items()}
    probe = tmp_path / "test_probe.py"
    probe.write_text(
        "import os\n"
        "def test_ordinary():\n"
        f"    seen = {sorted(hostile)!r}\n"
        "    left = {name for name in seen if name in os.environ}\n"
        "    assert left <= {'LANG', 'TERM', 'TZ', 'TMPDIR'}, left\n"
        "    assert os.umask(0o022) == 0o022\n"
    )
    root = Path(__file__).parents[3]
    hostile = {**hostile, "PYTHONOPTIMIZE": "", "PYTHONWARNINGS": "", "TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "tests.conftest",
            "--rootdir",
            str(root),
            "-c",
            str(root / "pyproject.toml"),
            str(probe),
        ],
        cwd=root,
        env={**os.environ, **hostile},
        umask=0o077,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
