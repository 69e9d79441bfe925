"""Malformed JSON in arguments or in the files of the home is never an internal error.

The commands run as the installed program: the interpreter then has no `json` package loaded, and
Python 3.11 loses the exception of its JSON scanner.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kernel.cli.running import callgate, installed

DAMAGED = (
    b"{broken",
    b'{"pid": 1',
    b'{"pid": 1, "socketPath": ',
    b'"',
    b'["\\u12"]',
    b"[" * 50_000,
    b'{"startedAt": ' + b"9" * 5_000 + b"}",
    b"\xff\xfe{\x00}\x00",
    b'{"socketPath": "\\ud800", "pid": 1, "startedAt": 1, "appVersion": "1"}',
    b"",
    b"NaN",
)


@pytest.mark.parametrize(
    "given", ["{broken", '{"path":', "[1,", '"', "{'path': '.'}", "", "NaN", "[" * 5_000, "9" * 5_000]
)
def test_arguments_that_are_not_json_are_invalid(home: Path, tmp_path: Path, given: str) -> None:
    ran = installed("call", "list_dir", "--args", given, "--json", cwd=tmp_path)
    assert ran.code == 2
    assert ran.json["error"]["class"] in ("parse_error", "validation_error")
    assert "internal" not in ran.out + ran.err


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
@pytest.mark.parametrize("name", ["config.json", "instances/PID.json"])
def test_a_damaged_record_of_an_instance_is_ignored(home: Path, tmp_path: Path, name: str, content: bytes) -> None:
    record = home / name.replace("PID", str(os.getpid()))
    record.parent.mkdir(mode=0o700, exist_ok=True)
    record.write_bytes(content)
    ran = installed("call", "list_dir", "path=.", "--json", cwd=tmp_path)
    assert (ran.code, ran.json["ok"]) == (0, True), ran.err


@pytest.mark.parametrize(
    "command", [["tools"], ["status"], ["doctor"], ["stop"], ["confirmations"], ["sessions", "list"]], ids=" ".join
)
def test_no_command_fails_internally_beside_damaged_records(home: Path, tmp_path: Path, command: list[str]) -> None:
    (home / "instances").mkdir(mode=0o700)
    for name in ("config.json", f"instances/{os.getpid()}.json"):
        (home / name).write_bytes(b'{"pid": 1')
    ran = installed(*command, cwd=tmp_path)
    assert "internal error" not in ran.err
    assert "Traceback" not in ran.err


DOCUMENTS = {
    "json": b"{broken",
    "cut": b'{"a": [1, {"b": "',
    "utf-8": b'{"a": "\xff"}',
    "digits": b'{"a": ' + b"9" * 5_000 + b"}",
    "deep": b'{"a": ' + b"[" * 100_000,
    "toml": b"a = ",
    "toml utf-8": b'a = "\xff"',
    "toml digits": b"a = " + b"9" * 5_000,
    "toml deep": b"a = " + b"[" * 100_000,
    "other": b"[1, 2]",
}
FILES = {
    "settings.toml": [["doctor"], ["call", "list_dir"], ["mcp", "list"], ["policy", "explain", "list_dir"]],
    "rules.toml": [["call", "list_dir"], ["policy", "export"]],
    "trust.json": [["trust", "--list"], ["call", "list_dir"]],
    "keys.json": [["keys", "list"], ["doctor"]],
    "audit.jsonl": [["audit", "tail"], ["audit", "tail", "--json"], ["audit", "verify"], ["call", "list_dir"]],
    "pins.json": [["hosts", "list"], ["mcp", "list"]],
    "hooks/claude/installed.json": [["hook", "status"]],
    "ws/.callgate/settings.toml": [["trust"], ["call", "list_dir"]],
}


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_of_the_home_is_never_an_internal_error(
    home: Path, tmp_path: Path, name: str, document: str
) -> None:
    ws = tmp_path / "ws"
    ws.mkdir()
    damaged = (tmp_path if name.startswith("ws/") else home) / name
    damaged.parent.mkdir(parents=True, exist_ok=True)
    for command in FILES[name]:
        damaged.write_bytes(DOCUMENTS[document] + b"\n")
        ran = callgate(*command, cwd=ws)
        assert "internal error" not in ran.out + ran.err, ran
        assert "Traceback" not in ran.err, ran
