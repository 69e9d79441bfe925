"""`callgate preview`: what a command would change, shown and then applied or not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.kernel.cli.running import AtTerminal, callgate, start
from tests.kernel.sandbox.test_escapes import needed
from tests.needs import needs

pytestmark = needs("linux", "bash")

EDIT = "sed -i s/two/2/ a.txt; echo done"
SHOWN = "done\n--- a.txt\n+++ a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\nWould change: 1 changed\n"
BEFORE, AFTER = "one\ntwo\nthree\n", "one\n2\nthree\n"


@pytest.fixture(autouse=True)
def jails() -> None:
    needed({"namespaces", "seccomp"})


def records(home: Path) -> list[tuple[str, str, str]]:
    lines = map(json.loads, (home / "audit.jsonl").read_text().splitlines())
    return [(line["tool"], line["decision"], line["side_effects"]) for line in lines]


def test_without_a_terminal_it_is_shown_and_neither_applied_nor_kept(ws: Path, home: Path) -> None:
    ran = callgate("preview", "--yes", "--", EDIT, cwd=ws)
    assert (ran.code, ran.out, (ws / "a.txt").read_text()) == (0, SHOWN, BEFORE)
    assert records(home) == [("preview", "allow", "execute")]
    assert os.listdir(home / "previews") == []


def test_applied_it_is_a_write_on_record_that_can_be_undone(ws: Path, home: Path) -> None:
    ran = callgate("preview", "--yes", "--apply", "--json", "--", EDIT, cwd=ws)
    assert (ran.code, (ws / "a.txt").read_text()) == (0, AFTER)
    assert records(home) == [("preview", "allow", "execute"), ("apply_preview", "allow", "write")]
    applied = ran.json["apply"]
    assert (applied["ok"], applied["files_modified"]) == (True, ["a.txt"])
    assert callgate("undo", applied["call_id"], "--yes", cwd=ws).code == 0
    assert (ws / "a.txt").read_text() == BEFORE
    assert os.listdir(home / "previews") == []


def test_json_is_one_object(ws: Path) -> None:
    ran = callgate("preview", "--yes", "--json", "--", "echo out; echo err >&2; rm a.txt; mkdir n; exit 3", cwd=ws)
    assert (ran.code, ran.json["ok"], ran.json["apply"]) == (1, False, None)
    value = {
        name: ran.json["value"][name] for name in ("stdout", "stderr", "exit_code", "created", "changed", "deleted")
    }
    assert value == {
        "stdout": "out\n",
        "stderr": "err\n",
        "exit_code": 3,
        "created": ["n"],
        "changed": [],
        "deleted": ["a.txt"],
    }


def test_several_words_are_arguments_and_one_is_a_line(ws: Path) -> None:
    ran = callgate("preview", "--yes", "--json", "--", "echo", "$HOME; x", "--apply", cwd=ws)
    assert ran.json["value"]["stdout"] == "$HOME; x --apply\n"
    ran = callgate("preview", "--yes", "--json", "--", "echo a; echo b", cwd=ws)
    assert ran.json["value"]["stdout"] == "a\nb\n"


def test_nobody_to_ask_means_that_nothing_runs(ws: Path) -> None:
    ran = callgate("preview", "--no-input", "--json", "--", EDIT, cwd=ws)
    assert (ran.code, ran.json["error"]["reason"], ran.json["apply"]) == (3, "no_confirmer", None)


def test_a_rule_for_commands_holds_for_a_preview(ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text('[[policy.rules]]\ncommand = "sed *"\ndecision = "deny"\n')
    ran = callgate("preview", "--yes", "--json", "--", EDIT, cwd=ws)
    assert (ran.code, ran.json["error"]["class"]) == (3, "permission_denied")


def test_a_rule_for_a_path_refuses_to_apply(ws: Path, home: Path) -> None:
    rule = '[[policy.rules]]\npath = "a.txt"\ntool = "apply_preview"\ndecision = "deny"\n'
    (home / "settings.toml").write_text(rule)
    ran = callgate("preview", "--yes", "--apply", "--json", "--", f"echo > b; {EDIT}", cwd=ws)
    assert (ran.code, ran.json["ok"], ran.json["apply"]["error"]["class"]) == (3, True, "permission_denied")
    assert ((ws / "a.txt").read_text(), (ws / "b").exists()) == (BEFORE, False)


def test_what_a_rule_denies_is_not_there_in_a_preview(ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text('[[policy.rules]]\npath = "a.txt"\ndecision = "deny"\n')
    ran = callgate("preview", "--yes", "--", "cat a.txt; cp a.txt b; rm a.txt; ls", cwd=ws)
    assert ("one" in ran.out, (ws / "a.txt").read_text()) == (False, BEFORE)


@pytest.mark.spec("T06")
def test_a_protected_path_refuses_to_apply(ws: Path) -> None:
    ran = callgate("preview", "--yes", "--apply", "--json", "--", f"echo evil > .envrc; {EDIT}", cwd=ws)
    assert (ran.code, ran.json["apply"]["error"]["reason"]) == (3, "protected_path")
    assert ((ws / "a.txt").read_text(), (ws / ".envrc").exists()) == (BEFORE, False)


def test_no_change_is_nothing_to_apply(ws: Path, home: Path) -> None:
    ran = callgate("preview", "--yes", "--apply", "--", "cat a.txt", cwd=ws)
    assert (ran.code, ran.out) == (0, f"{BEFORE}No file would change.\n")
    assert records(home) == [("preview", "allow", "execute")]


@pytest.mark.parametrize(("key", "text", "code"), [("y", AFTER, 0), ("n", BEFORE, 3)])
def test_a_person_is_asked_to_run_and_then_to_apply(ws: Path, key: str, text: str, code: int) -> None:
    at = AtTerminal("preview", "--", EDIT, cwd=ws)
    at.answer("y\n")
    assert "+2" in at.asked(2)
    at.terminal.press(f"{key}\n")
    assert (at.end().code, (ws / "a.txt").read_text()) == (code, text)


@pytest.mark.parametrize(("key", "text"), [("y", AFTER), ("n", BEFORE), ("", BEFORE)])
def test_a_person_is_asked_to_apply_even_where_the_policy_lets_writes_pass(ws: Path, key: str, text: str) -> None:
    at = AtTerminal("preview", "--mode", "write", "--", EDIT, cwd=ws)
    at.answer(f"{key}\n")
    ran = at.end()
    assert (ran.code, ran.out.startswith(SHOWN), (ws / "a.txt").read_text()) == (0, True, text)


def test_at_a_terminal_discard_asks_nothing(ws: Path) -> None:
    ran = AtTerminal("preview", "--mode", "write", "--discard", "--", EDIT, cwd=ws).end()
    assert (ran.code, ran.out, (ws / "a.txt").read_text()) == (0, SHOWN, BEFORE)


def test_a_file_changed_while_the_person_thought_is_not_overwritten(ws: Path) -> None:
    at = AtTerminal("preview", "--mode", "write", "--", EDIT, cwd=ws)
    at.asked()
    (ws / "a.txt").write_text("mine\n")
    at.terminal.press("y\n")
    assert (at.end().code, (ws / "a.txt").read_text()) == (1, "mine\n")


def test_a_command_that_takes_too_long_is_ended_and_leaves_nothing(ws: Path, home: Path) -> None:
    ran = callgate("preview", "--yes", "--apply", "--timeout", "0.5", "--json", "--", "echo > b; sleep 600", cwd=ws)
    assert (ran.code, ran.json["error"]["class"], ran.json["apply"]) == (4, "timeout", None)
    assert (os.listdir(ws), os.listdir(home / "previews")) == (["a.txt"], [])


def test_what_a_killed_preview_left_is_removed_by_the_next(ws: Path, home: Path) -> None:
    process = start("preview", "--yes", "--", "sleep 600", cwd=ws)
    assert process.stderr is not None
    process.stderr.readline()  # it was allowed
    while not (home / "previews").exists() or not list((home / "previews").glob("*/tree")):
        assert process.poll() is None
    process.kill()
    process.communicate()
    assert len(os.listdir(home / "previews")) == 1
    assert callgate("preview", "--yes", "--", "true", cwd=ws).code == 0
    assert os.listdir(home / "previews") == []


def test_a_home_inside_the_workspace_is_no_obstacle_and_stays_hidden(ws: Path) -> None:
    home = ws / "home"
    command = "ls home; echo > b; rm -r home"
    ran = callgate("preview", "--yes", "--json", "--", command, cwd=ws, env={"CALLGATE_HOME": str(home)})
    assert (ran.json["value"]["stdout"], ran.json["value"]["created"]) == ("", ["b"])
    assert (home / "audit.jsonl").exists()


@pytest.mark.parametrize(
    "words", [[], ["--apply", "--discard", "--", "x"], ["--timeout", "0", "--", "x"]], ids=" ".join
)
def test_wrong_use_is_said_to_be(words: list[str], ws: Path) -> None:
    assert callgate("preview", *words, cwd=ws).code == 2


def test_previews_are_no_tools_for_anybody_else(ws: Path) -> None:
    names = callgate("tools", "--all", "--names", cwd=ws).out.split()
    assert {"preview", "apply_preview"}.isdisjoint(names)
    ran = callgate("preview", "--yes", "--json", "--", "true", cwd=ws, env={"CALLGATE_CALL": "tu_1"})
    assert (ran.code, ran.json["error"]["reason"]) == (3, "within_a_call")
