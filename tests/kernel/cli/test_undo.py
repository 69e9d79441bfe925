"""`callgate undo`: the list, the way back, and what a person is asked and told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.undo.history import History
from callgate.workspace.undo.records import Origin
from tests.kernel.cli.running import AtTerminal, Ran, callgate
from tests.needs import needs


def write(ws: Path, path: str, content: str) -> str:
    """Write a file by a call; its id."""
    words = ["call", "write_file", f"path={path}", f"content={content}", "--yes", "--json"]
    ran = callgate(*words, cwd=ws)
    assert ran.code == 0, ran.err
    return str(ran.json["call_id"])


def records(home: Path) -> list[tuple[str, str]]:
    lines = map(json.loads, (home / "audit.jsonl").read_text().splitlines())
    return [(line["tool"], line["decision"]) for line in lines]


def test_a_call_is_undone_from_any_directory_and_recorded(ws: Path, home: Path, tmp_path: Path) -> None:
    call = write(ws, "a.txt", "changed")
    ran = callgate("undo", call, "--yes", cwd=tmp_path)
    assert (ran.code, ran.out) == (0, "Restored 'a.txt'\n")
    assert (ws / "a.txt").read_text() == "one\ntwo\nthree\n"
    assert records(home) == [("write_file", "allow"), ("undo", "allow")]


def test_an_undo_is_undone_by_its_own_call(ws: Path) -> None:
    call = write(ws, "new/b.txt", "b")
    ran = callgate("undo", call, "--yes", "--json", cwd=ws)
    assert (ran.json["ok"], ran.json["files_modified"]) == (True, ["new/b.txt", "new"])
    assert not (ws / "new").exists()
    assert callgate("undo", ran.json["call_id"], "--yes", cwd=ws).code == 0
    assert (ws / "new" / "b.txt").read_text() == "b"


def test_without_a_call_the_last_ones_are_listed_newest_first(ws: Path) -> None:
    assert callgate("undo", cwd=ws) == Ran(0, "No changes are recorded.\n", "")
    calls = [write(ws, path, "x") for path in ("a.txt", "d/b.txt")]
    ran = callgate("undo", cwd=ws)
    rows = [line.split("  ") for line in ran.out.splitlines()]
    assert [(row[0], *row[2:]) for row in rows] == [
        (calls[1], "write_file", "directory made d, created d/b.txt"),
        (calls[0], "write_file", "changed a.txt"),
    ]
    listed = callgate("undo", "--json", cwd=ws).json
    assert [(each["call"], each["workspace"], each["files"]) for each in listed["calls"]] == [
        (calls[1], str(ws), [{"path": "d", "kind": "directory made"}, {"path": "d/b.txt", "kind": "created"}]),
        (calls[0], str(ws), [{"path": "a.txt", "kind": "changed"}]),
    ]


def test_no_more_than_twenty_are_listed(ws: Path, home: Path) -> None:
    history = History(str(home / "undo"))
    for number in range(25):
        origin = Origin(session="s", call=f"c{number}", tool="t", workspace=os.fsencode(ws))
        WorkspaceFileAPI(str(ws), changes=history.of(origin)).write("a.txt", str(number))
    assert len(callgate("undo", cwd=ws).out.splitlines()) == 20


def test_a_file_changed_since_is_refused_with_a_diff(ws: Path) -> None:
    call = write(ws, "a.txt", "changed\n")
    (ws / "a.txt").write_text("changed\nby hand\n")
    ran = callgate("undo", call, "--yes", cwd=ws)
    assert (ran.code, ran.out) == (1, "--- a.txt\n+++ a.txt\n@@ -1 +1,2 @@\n changed\n+by hand\n")
    assert (ws / "a.txt").read_text() == "changed\nby hand\n"
    ran = callgate("undo", call, "--yes", "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["reason"]) == (1, "changed_since")


def test_a_dry_run_asks_nobody_and_changes_nothing(ws: Path) -> None:
    call = write(ws, "a.txt", "one\n")
    ran = callgate("undo", call, "--dry-run", "--mode", "read", cwd=ws)
    assert (ran.code, ran.out) == (
        0,
        "--- a.txt\n+++ a.txt\n@@ -1 +1,3 @@\n one\n+two\n+three\n",
    )
    assert (ws / "a.txt").read_text() == "one\n"


def test_a_session_goes_back_to_a_turn(ws: Path, home: Path) -> None:
    history = History(str(home / "undo"))
    for number in range(3):
        origin = Origin(session="s", call=f"c{number}", tool="t", workspace=os.fsencode(ws), turn=f"t{number}")
        WorkspaceFileAPI(str(ws), changes=history.of(origin)).write("a.txt", str(number))
    ran = callgate("undo", "--session", "s", "--to", "t0", "--yes", cwd=ws.parent)
    assert (ran.code, (ws / "a.txt").read_text()) == (0, "0")


def test_without_anybody_to_ask_nothing_is_undone(ws: Path) -> None:
    call = write(ws, "a.txt", "changed")
    ran = callgate("undo", call, "--no-input", "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["reason"]) == (3, "no_confirmer")
    assert callgate("undo", call, "--mode", "read", "--yes", cwd=ws).code == 3
    assert (ws / "a.txt").read_text() == "changed"


def test_the_question_shows_what_the_undo_would_change(ws: Path) -> None:
    call = write(ws, "a.txt", "one\ntwo\n")
    asked = AtTerminal("undo", call, cwd=ws)
    assert "+three" in asked.asked()
    ran = asked.answer("y\n").end()
    assert (ran.code, ran.out) == (0, "Restored 'a.txt'\n")


@pytest.mark.parametrize("how", ["changed since", "undone before"])
def test_what_cannot_be_undone_says_so_and_asks_nothing(ws: Path, how: str) -> None:
    call = write(ws, "a.txt", "changed\n")
    if how == "changed since":
        (ws / "a.txt").write_text("by hand\n")
    else:
        (ws / "a.txt").write_text("one\ntwo\nthree\n")
    ran = AtTerminal("undo", call, cwd=ws).end()
    assert ran.code == 1
    assert "may this run?" not in ran.out + ran.err
    said = {"changed since": "'a.txt' is changed since", "undone before": "Nothing to undo"}[how]
    assert said in ran.out + ran.err


@pytest.mark.parametrize(
    "words",
    [
        ["a", "b"],
        ["a", "--session", "s", "--to", "t"],
        ["--last", "--since", "2h"],
        ["--turn", "t", "--session", "s"],
        ["--since", "never"],
        ["--to", "t"],
        ["--others"],
    ],
    ids=" ".join,
)
def test_wrong_use_is_said_to_be(words: list[str], ws: Path) -> None:
    assert callgate("undo", *words, cwd=ws).code == 2


def test_an_unknown_call_is_an_error(ws: Path) -> None:
    ran = callgate("undo", "tu_unknown", "--yes", "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["reason"]) == (1, "not_found")


def test_undo_is_no_tool_for_anybody_else(ws: Path) -> None:
    write(ws, "a.txt", "x")
    assert "undo" not in callgate("tools", "--all", "--names", cwd=ws).out.split()
    assert callgate("call", "undo", "call_id=x", "--yes", cwd=ws).code == 1


def test_a_tool_cannot_undo(ws: Path) -> None:
    call = write(ws, "a.txt", "x")
    ran = callgate("undo", call, "--yes", "--json", cwd=ws, env={"CALLGATE_CALL": "tu_1"})
    assert (ran.code, ran.json["error"]["reason"]) == (3, "within_a_call")
    assert (ws / "a.txt").read_text() == "x"


def shell(ws: Path, command: str) -> str:
    """Run a command by a call; its id."""
    ran = callgate("call", "shell", f"command={command}", "--yes", "--json", cwd=ws)
    assert ran.code == 0, ran.err
    assert ran.json["meta"]["observed"]["incomplete"] == []
    return str(ran.json["call_id"])


@needs("linux")
def test_a_command_is_undone_like_a_call_of_a_file_tool(ws: Path, home: Path) -> None:
    before = {path: path.read_bytes() for path in ws.rglob("*") if path.is_file()}
    call = shell(ws, "mkdir d; mv a.txt d/b.txt; echo more >> d/b.txt; ln d/b.txt c.txt")
    assert callgate("undo", "--json", cwd=ws).json["calls"][0]["call"] == call
    assert callgate("undo", "--last", "--yes", cwd=ws).code == 0
    assert {path: path.read_bytes() for path in ws.rglob("*") if path.is_file()} == before


@needs("linux")
def test_all_changes_since_a_time_are_undone_together(ws: Path) -> None:
    before = {path: path.read_bytes() for path in ws.rglob("*") if path.is_file()}
    write(ws, "a.txt", "by a tool")
    shell(ws, "mv a.txt b.txt; echo more >> b.txt")
    write(ws, "b.txt", "by a tool again")
    shell(ws, "rm b.txt; echo new > c.txt")
    assert callgate("undo", "--since", "1h", "--yes", cwd=ws).code == 0
    assert {path: path.read_bytes() for path in ws.rglob("*") if path.is_file()} == before


@needs("linux")
def test_files_that_changed_since_stay_if_only_the_others_are_undone(ws: Path) -> None:
    call = shell(ws, "echo more >> a.txt; echo new > b.txt; echo new > c.txt")
    (ws / "b.txt").write_text("by hand")
    assert callgate("undo", call, "--yes", cwd=ws).code == 1
    assert callgate("undo", call, "--others", "--yes", cwd=ws).code == 0
    assert (ws / "a.txt").read_text() == "one\ntwo\nthree\n"
    assert (ws / "b.txt").read_text() == "by hand"
    assert not (ws / "c.txt").exists()


@needs("linux")
def test_the_result_of_a_command_names_every_changed_file(ws: Path) -> None:
    ran = callgate("call", "shell", "command=mkdir d; echo 1 > d/x; rm a.txt", "--yes", "--json", cwd=ws)
    assert ran.json["files_modified"] == ["a.txt", "d", "d/x"]
    assert ran.json["meta"]["observed"]["counts"] == {"created": 2, "changed": 0, "deleted": 1}


def test_a_session_is_undone_from_a_call_on(ws: Path, home: Path) -> None:
    history = History(str(home / "undo"))
    for session, number in (("s", 0), ("s", 1), ("other", 2), ("s", 3)):
        origin = Origin(session=session, call=f"c{number}", tool="t", workspace=os.fsencode(ws))
        WorkspaceFileAPI(str(ws), changes=history.of(origin)).write(f"{session}.txt", str(number))
    ran = callgate("undo", "--from", "c1", "--yes", cwd=ws)
    assert (ran.code, ran.out) == (0, "Restored 's.txt'\n")
    assert ((ws / "s.txt").read_text(), (ws / "other.txt").read_text()) == ("0", "2")
    assert callgate("undo", "--from", "none", "--yes", cwd=ws).code == 1
