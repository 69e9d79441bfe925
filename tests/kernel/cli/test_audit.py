"""`callgate audit` and `callgate doctor`: what happened, and whether everything is in order."""

from __future__ import annotations

import json
import select
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callgate.audit.log import AuditLog
from callgate.audit.records import CallRecord
from callgate.cli.command_line import beginning
from callgate.cli.commands.machine_checks import bugs_here
from tests.kernel.cli.running import callgate, start


@pytest.fixture
def record(ws: Path, home: Path) -> Path:
    """A home whose record holds a read, a refusal and a wrong argument, in this order."""
    callgate("call", "read_file", "path=a.txt", cwd=ws)
    callgate("call", "write_file", "path=b.txt", "content=x", cwd=ws)
    callgate("call", "read_file", "limit=x", cwd=ws)
    return home / "audit.jsonl"


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_last_calls_are_shown_newest_last(record: Path, ws: Path) -> None:
    shown = lines(callgate("audit", "tail", "--json", cwd=ws).out)
    assert [(each["tool"], each.get("error_class")) for each in shown] == [
        ("read_file", None),
        ("write_file", "permission_denied"),
        ("read_file", "validation_error"),
    ]
    assert shown == lines(record.read_text())
    assert lines(callgate("audit", "tail", "-n", "1", "--json", cwd=ws).out) == shown[-1:]
    plain = callgate("audit", "tail", cwd=ws).out.splitlines()
    assert [line.split()[2:5] for line in plain] == [
        ["ok", "cli", "read_file"],
        ["permission_denied", "cli", "write_file"],
        ["validation_error", "cli", "read_file"],
    ]


def test_an_empty_list_of_calls_says_so_to_a_person_alone(ws: Path, home: Path) -> None:
    for words, said in ((("tail",), "no calls are recorded"), (("search", "--tool", "x"), "no recorded call matches")):
        assert callgate("audit", *words, cwd=ws)[:3] == (0, "", f"{said}\n")
        assert callgate("audit", *words, "--json", cwd=ws)[:3] == (0, "", "")


def test_a_search_finds_what_matches_all_of_it(record: Path, ws: Path) -> None:
    session = lines(record.read_text())[1]["session"]
    for words, found in {
        ("--tool", "read_file"): 2,
        ("--tool", "read_file", "--text", "A.TXT"): 1,
        ("--decision", "deny"): 1,
        ("--error", "validation_error"): 1,
        ("--session", session): 1,
        ("--since", "1h"): 3,
        ("--since", "2999-01-01"): 0,
        ("--since", "2020-01-01T12:00+02:00", "-n", "2"): 2,
        ("--text", "nothing of the kind"): 0,
    }.items():
        assert len(lines(callgate("audit", "search", *words, "--json", cwd=ws).out)) == found, words


@pytest.mark.parametrize("since", ["yesterday", "5", "9999999d", "2026-13-01", "-1h"])
def test_a_time_that_is_none_is_wrong_use(since: str, ws: Path) -> None:
    assert callgate("audit", "search", f"--since={since}", cwd=ws).code == 2


def test_following_shows_what_comes(record: Path, ws: Path) -> None:
    process = start("audit", "tail", "-n", "0", "-f", "--json", cwd=ws)
    assert process.stdout is not None
    # Nothing tells that it follows already, so calls are made until one is seen.
    seen = b""
    while not seen:
        callgate("call", "list_dir", cwd=ws)
        if select.select([process.stdout], [], [], 1)[0]:
            seen = process.stdout.readline()
    process.terminate()
    process.communicate()
    assert json.loads(seen)["tool"] == "list_dir"


def test_a_whole_record_verifies(record: Path, ws: Path) -> None:
    ran = callgate("audit", "verify", "--json", cwd=ws)
    assert (ran.code, ran.json["ok"], ran.json["records"], ran.json["problems"]) == (0, True, 3, [])
    assert callgate("audit", "verify", cwd=ws).out.startswith("intact: ")


def test_a_changed_line_is_found_and_the_place_is_named(record: Path, ws: Path) -> None:
    record.write_text(record.read_text().replace("a.txt", "c.txt"))
    ran = callgate("audit", "verify", "--json", cwd=ws)
    assert (ran.code, ran.json["ok"]) == (1, False)
    assert (ran.json["problems"][0]["file"], ran.json["problems"][0]["line"]) == (str(record), 2)
    assert callgate("audit", "verify", cwd=ws).out.startswith(f"{record}:2: ")
    doctor = callgate("doctor", "--json", cwd=ws)
    assert (doctor.code, findings(doctor.json)["audit"]["level"]) == (1, "failed")


def found_problems(ws: Path, *words: str) -> list[tuple[int, str]]:
    ran = callgate("audit", "verify", "--json", *words, cwd=ws)
    assert ran.code == (1 if ran.json["problems"] else 0)
    return [(each["line"], each["what"]) for each in ran.json["problems"]]


def test_lines_that_were_cut_off_are_missed_by_the_store_but_not_by_the_file(record: Path, ws: Path) -> None:
    whole = record.read_text()
    call = lines(whole)[2]["call_id"]
    session = lines(whole)[2]["session"]
    record.write_text("".join(whole.splitlines(keepends=True)[:2]))
    assert found_problems(ws) == [(0, f"call {call} of {session} has no line")]
    assert callgate("audit", "verify", cwd=ws).out.startswith(f"{record}:0: call {call} of {session} has no line\n")
    assert found_problems(ws, "--file", str(record)) == []
    record.write_text(whole)
    assert found_problems(ws) == []
    assert callgate("audit", "verify", "--json", cwd=ws).json["calls_in_store"] == 3


def test_a_line_that_says_otherwise_than_the_store_is_found_in_a_whole_chain(record: Path, ws: Path) -> None:
    read, refused, _ = lines(record.read_text())
    forger = AuditLog(str(record))
    for line in (read, {**refused, "id": "audit_other"}):
        given = {name: line[name] for name in line if name not in ("chain", "n", "prev", "seen", "file")}
        forger.append(msgspec.convert(given, CallRecord))
    forger.append(msgspec.convert({**given, "id": "audit_new", "call_id": "tu_new"}, CallRecord))
    forger.close()
    assert found_problems(ws) == [
        (4, f"call {read['call_id']} has a line before this one"),
        (5, f"call {refused['call_id']} ended otherwise in the store"),
        (6, "call tu_new has no end in the store"),
    ]
    assert found_problems(ws, "--file", str(record)) == []


def test_a_copied_log_is_checked_alone(record: Path, ws: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_text(record.read_text())
    assert found_problems(ws, "--file", str(copy)) == []
    copy.write_text(record.read_text().replace("a.txt", "c.txt"))
    assert [line for line, _ in found_problems(ws, "--file", str(copy))] == [2]
    assert callgate("audit", "verify", "--file", str(tmp_path / "none.jsonl"), cwd=ws).code == 1


def test_a_log_whose_store_cannot_be_read_is_not_called_whole(record: Path, ws: Path) -> None:
    (record.parent / "callgate.db").write_bytes(b"not a database, but long enough to be one" * 100)
    ((line, what),) = found_problems(ws)
    assert line == 0 and what.startswith("not compared with the store: ")


def test_no_record_is_no_error(ws: Path) -> None:
    assert callgate("audit", "tail", cwd=ws).out == ""
    assert callgate("audit", "verify", "--json", cwd=ws).json["records"] == 0


def test_a_record_that_cannot_be_read_is_an_error(ws: Path, home: Path) -> None:
    (home / "audit.jsonl").mkdir()
    assert callgate("audit", "tail", cwd=ws).code == 1
    assert callgate("audit", "verify", cwd=ws).code == 1


@pytest.mark.spec("T16")
def test_a_record_cannot_act_on_a_terminal(ws: Path) -> None:
    callgate("call", "read_file", "path=\x1b[2J\u202e", cwd=ws)
    shown = callgate("audit", "tail", cwd=ws).out
    assert shown.rstrip("\n").isprintable()


@pytest.mark.parametrize("name", list(beginning("audit")))
def test_audit_takes_no_words(name: str, ws: Path) -> None:
    assert callgate(*name.split(), "word", cwd=ws).code == 2


def findings(report: Any) -> dict[str, Any]:
    return {each["check"]: each for each in report["checks"]}


def levels_of_backends(sandbox: Any) -> dict[str, str]:
    return {each["name"]: "ok" if each["works"] else "note" for each in sandbox["backends"]}


def test_a_healthy_home_passes_every_check(ws: Path, record: Path) -> None:
    ran = callgate("doctor", "--json", cwd=ws)
    assert (ran.code, ran.json["ok"]) == (0, True)
    assert {name: each["level"] for name, each in findings(ran.json).items()} == {
        "python": "note" if bugs_here() else "ok",
        "platform": "ok",
        "home": "ok",
        "settings": "ok",
        "tools": "ok",
        "trust": "ok",
        "workspace": "ok",
        "audit": "ok",
        "shared": "ok",
        "store": "ok",
        "wall": "ok",
        "sandbox": "ok",
        "hosts": "ok",
        "hooks": "ok",
        "servers": "ok",
        **levels_of_backends(ran.json["sandbox"]),
        "limits": "ok",
        "terminal": "note",
        "instance": "ok",
        "models": "ok",
        "space": "ok",
    }


def test_a_first_start_is_healthy_and_is_told_what_to_do(ws: Path) -> None:
    ran = callgate("doctor", "--json", cwd=ws)
    home = findings(ran.json)["home"]
    assert (ran.code, home["level"], home["fix"]) == (0, "note", "callgate init")


def test_each_defect_fails_its_check_and_names_a_remedy(ws: Path, home: Path) -> None:
    home.chmod(0o755)  # which is closed at once
    (home / "settings.toml").write_text("mode = 5\n")
    (home / "trust.json").write_text("{")
    ran = callgate("doctor", "--json", cwd=ws)
    failed = {name: each for name, each in findings(ran.json).items() if each["level"] == "failed"}
    assert (ran.code, set(failed)) == (1, {"settings", "tools", "trust"})
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert all(each["fix"] for each in failed.values())
    assert f"{home}/settings.toml:1: " in failed["settings"]["text"]


def test_settings_of_a_workspace_that_is_not_trusted_are_noted(ws: Path) -> None:
    callgate("init", "--workspace", cwd=ws)
    found = findings(callgate("doctor", "--json", cwd=ws).json)["workspace"]
    assert (found["level"], found["fix"]) == ("note", "callgate trust .")
    callgate("trust", ".", cwd=ws)
    assert findings(callgate("doctor", "--json", cwd=ws).json)["workspace"]["level"] == "ok"


def test_a_tool_file_that_fails_is_found_by_the_doctor(ws: Path, tools: Path) -> None:
    (tools / "mine.py").write_text("1 / 0\n")
    found = findings(callgate("doctor", "--json", cwd=ws).json)["tools"]
    assert (found["level"], f"{tools}/mine.py:1" in found["text"]) == ("failed", True)
