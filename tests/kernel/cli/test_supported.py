"""Which Pythons and systems callgate runs on, and what it says on the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callgate.cli.commands.checks import Level, python_finding
from callgate.cli.commands.machine_checks import BUGS, PythonBug, bugs_here
from callgate.cli.platforms import missing_on
from tests.kernel.cli.running import Ran, installed

_SAYS_IT_IS_ANOTHER_SYSTEM = "import sys; sys.platform = {!r}"
_CUTS_PATHS = """
import os.path
whole = os.path.normpath
os.path.normpath = lambda path: whole(path.split('\\0')[0] if isinstance(path, str) else path)
"""


def altered(tmp_path: Path, code: str, *words: str) -> Ran:
    """The installed program, on a Python that was changed before it began."""
    (tmp_path / "sitecustomize.py").write_text(code)
    return installed(*words, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})


def finding(ran: Ran, name: str) -> dict[str, Any]:
    return next(each for each in ran.json["checks"] if each["check"] == name)


def test_this_python_breaks_no_promise() -> None:
    assert [bug.text for bug in bugs_here() if bug.breaks_promise] == []


def test_a_python_that_breaks_a_promise_is_refused_with_the_reason() -> None:
    wrong = PythonBug(lambda: True, "its patterns misread a reply", breaks_promise=True)
    right = PythonBug(lambda: False, "it is green", breaks_promise=True)
    bugs = bugs_here([wrong, right])
    assert bugs == [wrong]
    assert python_finding("3.11.2", bugs) == (
        Level.FAILED,
        "3.11.2; its patterns misread a reply",
        "use another release of Python",
    )


def test_a_fault_that_callgate_avoids_is_worth_knowing() -> None:
    bug = PythonBug(lambda: True, "it cuts paths", breaks_promise=False)
    assert python_finding("3.11.2", [bug]).level is Level.NOTE
    assert python_finding("3.11.2", []) == (Level.OK, "3.11.2", None)


def test_doctor_tries_python_out_instead_of_reading_its_version(tmp_path: Path) -> None:
    found = finding(altered(tmp_path, _CUTS_PATHS, "doctor", "--json"), "python")
    assert (found["level"], "zero byte" in found["text"]) == ("note", True)


def test_no_fault_raises_whatever_python_does() -> None:
    assert {bug.is_present() for bug in BUGS} <= {True, False}


def test_linux_is_supported_and_nothing_is_missing() -> None:
    assert missing_on("linux") is None


@pytest.mark.parametrize(("system", "name"), [("darwin", "macOS"), ("freebsd14", "freebsd14")])
def test_a_start_elsewhere_says_what_is_missing_and_goes_on(tmp_path: Path, system: str, name: str) -> None:
    ran = altered(tmp_path, _SAYS_IT_IS_ANOTHER_SYSTEM.format(system), "trust", "--list")
    assert ran.err.startswith(f"warning: callgate does not support {name}: ")
    assert "internal error" not in ran.err


def test_windows_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    ran = altered(tmp_path, _SAYS_IT_IS_ANOTHER_SYSTEM.format("win32"), "call", "list_dir")
    assert ran.code != 0
    assert "callgate does not support Windows: there is no sandbox" in ran.err


def test_the_version_is_told_everywhere(tmp_path: Path) -> None:
    ran = altered(tmp_path, _SAYS_IT_IS_ANOTHER_SYSTEM.format("darwin"), "--version")
    assert (ran.code, ran.err) == (0, "")
