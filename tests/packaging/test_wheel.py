"""What the wheel carries: `uvx callgate demo` works from it alone. `make dist` does the same from PyPI's packages."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)],
        cwd=PROJECT,
        check=True,
        capture_output=True,
    )
    [built] = into.glob("callgate-*.whl")
    return built


def test_the_wheel_has_what_the_system_and_the_demo_need(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    shared = [name.partition(".data/data/")[2] for name in names if ".data/data/" in name]
    assert sorted(shared) == ["share/man/man1/callgate.1", "share/systemd/user/callgate.service"]
    assert "callgate/cli/commands/demo.py" in names
    assert not [name for name in names if name.startswith(("tests", "scripts", "benchmarks"))]


def test_the_demo_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    unpacked = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(unpacked)
    ran = subprocess.run(
        [sys.executable, "-m", "callgate", "demo", "--yes"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        timeout=110,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(unpacked), "LANG": "C.UTF-8"},
    )
    assert ran.returncode == 0, ran.stderr
    assert "greet.sh is as it was before." in ran.stdout
