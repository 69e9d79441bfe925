"""The Makefile and `.ci/run`: lists of tests, selections, and when continuous integration fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ELSEWHERE = ("tests/spec/", "tests/features/agents/real/")
"""Tests of this list itself, and tests that only `make agents` runs."""


def variable(name: str, *given: str) -> list[str]:
    """Return the words of a variable of the Makefile."""
    rule = f"print-{name}: ; @echo $({name})"
    ran = subprocess.run(
        ["make", "--no-print-directory", "-f", "Makefile", "--eval", rule, f"print-{name}", *given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.split()


def commands(*words: str) -> str:
    """Return the commands that make would run."""
    return subprocess.run(
        ["make", "--no-print-directory", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def test_root_runs_each_test_that_depends_on_the_user() -> None:
    listed = variable("ROOT_TESTS")
    assert [path for path in listed if not (ROOT / path).exists()] == []
    depends = re.compile(r"""needs\([^)]*"(?:no )?root"|skipif\(os\.gete?uid""")
    missing = [
        str(file)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if not str(file := path.relative_to(ROOT)).startswith(ELSEWHERE)
        and depends.search(text := path.read_text())
        and not re.search(r"^pytestmark = .*pytest\.mark\.soak", text, re.MULTILINE)
        and not any(file.is_relative_to(each) for each in listed)
    ]
    assert missing == []


def test_one_feature_is_tested_with_the_contracts_of_the_kernel() -> None:
    said = commands("test", "FEATURE=mcp")
    assert "tests/kernel/contract tests/features/mcp" in said
    assert "ruff" not in said


def test_every_feature_has_tests() -> None:
    names = variable("FEATURES")
    assert "mcp" in names
    assert [name for name in names if not (ROOT / "tests/features" / name).is_dir()] == []


def test_an_unknown_feature_is_refused() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        commands("test", "FEATURE=nonsense")


MAKE = """#!/bin/sh
echo "$*" >> "$CALLS"
for word in $2; do report=$word; done
case $1 in
  test) printf '%s\\n' "counts 7 passed" > "$report"; printf '%s' "$RERUN" >> "$report" ;;
  agents) [ -z "$FAIL" ] || { printf '%s\\n' "failed tests/a.py::test_b" > "$report"; exit 1; } ;;
esac
"""


def ci(base: Path, rerun: int = 0, fail: bool = False) -> tuple[int, list[str], str]:
    """Run `.ci/run` as an ordinary user with a fake make: exit code, targets and output."""
    (base / ".ci").mkdir()
    (base / "bin").mkdir()
    shutil.copy(ROOT / ".ci/run", base / ".ci/run")
    for name, text in (("make", MAKE), ("id", "#!/bin/sh\necho 1000\n")):
        (base / "bin" / name).write_text(text)
        (base / "bin" / name).chmod(0o755)
    env = {
        "PATH": f"{base}/bin:{os.environ['PATH']}",
        "CALLS": str(base / "calls"),
        "RERUN": "".join(f"rerun tests/a.py::test_{number}\n" for number in range(rerun)),
        "FAIL": "yes" if fail else "",
    }
    ran = subprocess.run([base / ".ci/run"], env=env, capture_output=True, text=True, timeout=60)
    return ran.returncode, [line.split()[0] for line in (base / "calls").read_text().splitlines()], ran.stdout


STEPS = ["test", "frameworks", "agents", "agents-acp"]


def test_an_ordinary_user_runs_everything_once(tmp_path: Path) -> None:
    code, targets, said = ci(tmp_path)
    assert (code, targets) == (0, STEPS)
    assert "7 passed" in said


def test_three_repeated_tests_are_named_and_accepted(tmp_path: Path) -> None:
    code, _, said = ci(tmp_path, rerun=3)
    assert code == 0
    assert said.count("run again: tests/a.py::test_") == 3


def test_four_repeated_tests_are_a_failure(tmp_path: Path) -> None:
    code, _, said = ci(tmp_path, rerun=4)
    assert code == 1
    assert said.count("run again: tests/a.py::test_") == 4


def test_a_failed_step_is_a_failure_and_does_not_stop_the_others(tmp_path: Path) -> None:
    code, targets, said = ci(tmp_path, fail=True)
    assert (code, targets) == (1, STEPS)
    assert "failed: tests/a.py::test_b" in said
