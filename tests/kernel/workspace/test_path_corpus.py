"""Every hostile path of the corpus, through the file API, on both ways of opening."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callgate.core.errors import (
    ToolError,
    ToolExecutionError,
    ToolPermissionDenied,
    ToolValidationError,
)
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.opening import Opener
from tests.kernel.workspace.worlds import CORPUS, build, filled, picture

pytestmark = pytest.mark.spec("S4-35", "S4-36", "S4-37", "S4-38", "S4-39", "S4-43", "T01", "T02", "T05", "T07", "T10")

_OUTSIDE = ("outside", "ws-evil", "wsx", "ws.bak")


READING = [case for case in CORPUS["cases"] if case["op"] in ("read", "list")]
CHANGING = [case for case in CORPUS["cases"] if case["op"] not in ("read", "list")]


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree for all the cases that change nothing, which each of them proves."""
    base = tmp_path_factory.mktemp("corpus")
    build(base)
    return base


@pytest.fixture
def base(request: pytest.FixtureRequest, case: dict[str, Any], tmp_path: Path) -> Path:
    """A tree of its own for a case that may change it."""
    if case["expect"] != "allow":
        shared: Path = request.getfixturevalue("unchanged")
        return shared
    build(tmp_path)
    return tmp_path


def name_of(case: dict[str, Any]) -> str:
    return f"{case['id']}-{case['group']}"


def run(files: WorkspaceFileAPI, case: dict[str, Any], path: str) -> tuple[str, Any]:
    """What came of it, in the corpus's words, with the content or the error."""
    try:
        match case["op"]:
            case "read":
                return "allow", files.read(path)
            case "write":
                files.write(path, "new content")
            case "list":
                files.list(path)
            case "delete":
                files.delete(path)
        return "allow", None
    except ToolPermissionDenied as error:
        return "protect" if error.reason == "protected_path" else "deny", error
    except ToolValidationError as error:
        return "invalid", error
    except ToolExecutionError as error:
        return {"file_not_found": "not_found"}.get(str(error.reason), str(error.reason)), error


def path_of(case: dict[str, Any], base: Path) -> str:
    made = case.get("path_gen")
    return made["unit"] * made["count"] if made else filled(case["path"], base)


@pytest.mark.parametrize("case", READING, ids=name_of)
def test_each_reading_of_the_corpus_ends_as_it_must(case: dict[str, Any], unchanged: Path, opener: Opener) -> None:
    check(case, unchanged, opener)


@pytest.mark.parametrize("case", CHANGING, ids=name_of)
def test_each_change_of_the_corpus_ends_as_it_must(case: dict[str, Any], base: Path, opener: Opener) -> None:
    check(case, base, opener)


def check(case: dict[str, Any], base: Path, opener: Opener) -> None:
    files = WorkspaceFileAPI(str(base / "ws"), opener=opener)
    path = path_of(case, base)
    refused = case in CHANGING and case["expect"] != "allow"
    kept = [base] if refused else [base / name for name in _OUTSIDE]
    before = picture(*kept)

    outcome, result = run(files, case, path)

    assert outcome in {case["expect"], *case.get("also_ok", [])}
    if "content" in case:
        assert result == case["content"]
    if isinstance(result, ToolError):
        assert "SECRET" not in str(result)
        assert str(base) not in str(result) or str(base) in path
        assert str(result).isprintable()
    assert picture(*kept) == before
    assert (base / "top.txt").read_text() == "SECRET"


@pytest.mark.parametrize("case", [case for case in READING if case.get("display_escape")], ids=name_of)
def test_a_path_that_could_deceive_is_shown_in_plain_letters(
    case: dict[str, Any], unchanged: Path, opener: Opener
) -> None:
    files = WorkspaceFileAPI(str(unchanged / "ws"), opener=opener)
    _, error = run(files, case, case["path"])
    assert str(error).isascii()


def test_locating_refuses_what_opening_refuses(unchanged: Path, opener: Opener) -> None:
    files = WorkspaceFileAPI(str(unchanged / "ws"), opener=opener)
    for case in READING:
        path = path_of(case, unchanged)
        outcome, _ = run(files, case, path)
        assert located(files, path) == {"wrong_type": "allow"}.get(outcome, outcome), case["id"]


def located(files: WorkspaceFileAPI, path: str) -> str:
    try:
        place = files.locate(path)
    except ToolPermissionDenied:
        return "deny"
    except ToolValidationError:
        return "invalid"
    assert Path(place.real).is_relative_to(place.root)
    return "allow" if place.exists else "not_found"
