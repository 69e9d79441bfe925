"""The ground every test stands on: a private home, and an honest list of what was skipped."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.needs import missing
from tests.spec.requirements import TESTS


def test_a_test_sees_a_home_that_is_empty_private_and_its_own(home: Path) -> None:
    assert os.environ["CALLGATE_HOME"] == str(home)
    assert home.parent == Path.home()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert list(home.iterdir()) == []


def test_without_the_fixture_there_is_no_home_yet() -> None:
    assert not os.path.lexists(os.environ["CALLGATE_HOME"])


@given(st.integers())
def test_generated_tests_have_that_home_too(_: int) -> None:
    assert Path(os.environ["CALLGATE_HOME"]).parent == Path.home()


def test_a_program_is_missing_exactly_when_it_is_not_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    before = missing("some-program")
    (tmp_path / "some-program").touch(mode=0o755)
    assert (before, missing("some-program")) == ("needs some-program: not installed", None)


def test_a_test_runs_either_as_root_or_not() -> None:
    assert [missing("root"), missing("no root")].count(None) == 1


def test_a_run_on_several_processes_ends_with_what_it_could_not_test(tmp_path: Path) -> None:
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "test_sample.py").write_text(
        "import pytest\n"
        "@pytest.mark.skipif(True, reason='needs a moon: none here')\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_one(n): ...\n"
        "def test_two(): pytest.skip('needs a sun: night')\n"
        "def test_three(): ...\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-q", "-ra", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stdout
    title, *listed, _ = run.stdout.splitlines()[-4:]
    assert title.strip("= ") == "not tested here"
    assert listed == ["    2  needs a moon: none here", "    1  needs a sun: night"]


def test_a_variable_that_a_test_leaves_behind_is_gone_in_the_next(tmp_path: Path) -> None:
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "test_sample.py").write_text(
        "import os\n"
        "def test_one():\n    os.environ.update(COLUMNS='80', TERM='dumb')\n    del os.environ['LANG']\n"
        "def test_two():\n"
        "    assert 'COLUMNS' not in os.environ\n"
        "    assert (os.environ['TERM'], os.environ['LANG']) == ('xterm', 'C.UTF-8')\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stdout


def test_a_report_names_each_test_that_failed_or_ran_again(tmp_path: Path) -> None:
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "test_sample.py").write_text(
        "from pathlib import Path\n"
        "def test_second_time():\n"
        "    try: Path('there').touch(exist_ok=False)\n"
        "    except FileExistsError: return\n"
        "    assert False\n"
        "def test_never(): assert False\n"
        "def test_broken(nothing): ...\n"
        "def test_good(): ...\n"
    )
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "2",
            "--reruns",
            "2",
            "--report",
            "report",
            "-p",
            "no:cacheprovider",
            ".",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 1, run.stdout
    assert (tmp_path / "report").read_text().splitlines() == [
        "counts 2 passed, 1 failed, 1 error, 0 skipped, 5 rerun",
        "failed test_sample.py::test_never",
        "failed test_sample.py::test_broken",
        "rerun test_sample.py::test_broken",
        "rerun test_sample.py::test_never",
        "rerun test_sample.py::test_second_time",
    ]
