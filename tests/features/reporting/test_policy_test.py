"""`callgate policy test`: other settings tried on the calls on record, which are only read."""

from __future__ import annotations

import time
from hashlib import sha256
from pathlib import Path

import pytest

from callgate.audit.records import CallRecord, encode
from callgate.core.schemas import canonical_json
from tests.kernel.cli.running import Ran, callgate

NEW = """
[policy.default]
write = "auto"

[[policy.rules]]
decision = "deny"
path = "a.*"
"""


@pytest.fixture
def recorded(ws: Path, home: Path) -> Path:
    """A home whose record holds a read, two refused writes and a call of no tool."""
    calls: list[tuple[str, str | None, dict[str, str]]] = [
        ("read_file", "read", {"path": "a.txt"}),
        ("write_file", "write", {"content": "x", "path": "b.txt"}),
        ("write_file", "write", {"content": "\x1b[2J", "path": "c.txt"}),
        ("no_such_tool", None, {}),
    ]
    now = time.time_ns() // 1_000_000
    lines = [
        encode(
            CallRecord(
                id=f"audit_{number}",
                ts=now,
                caller="cli",
                tool=tool,
                decision="allow",
                call_id=f"tu_{number}",
                session="sess_1",
                cwd=str(ws),
                args=text.decode(),
                args_hash=effect and sha256(text).hexdigest(),
                side_effects=effect,
                capabilities=("known",),
                policy=effect and "class_default (built-in default)",
            )
        )
        for number, (tool, effect, arguments) in enumerate(calls)
        for text in [canonical_json(arguments)]
    ]
    (home / "audit.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (ws / "new.toml").write_text(NEW)
    return home


def steps(ran: Ran) -> list[tuple[str, int, str, str, int | None]]:
    return [
        (each["tool"], each["count"], each["old"]["outcome"], each["new"]["outcome"], each["new"]["origin"]["line"])
        for each in ran.json["changed"]
    ]


def test_it_shows_what_would_be_decided_otherwise_and_by_which_line(recorded: Path, ws: Path) -> None:
    ran = callgate("policy", "test", "new.toml", "--json", cwd=ws)
    assert (ran.code, ran.err) == (0, "")
    assert steps(ran) == [
        ("write_file", 2, "ask", "allow", 3),
        ("read_file", 1, "allow", "deny", 5),
    ]
    assert (ran.json["judged"], ran.json["same"], ran.json["unjudged"]) == (3, 0, 1)
    plain = callgate("policy", "test", "new.toml", cwd=ws)
    assert (plain.code, plain.err) == (0, "")
    lines = [line.split() for line in plain.out.splitlines()]
    assert lines[1:5] == [
        ["0", "same"],
        ["2", "ask", "->", "allow", "loosened"],
        ["1", "allow", "->", "deny", "stricter"],
        ["1", "not", "counted:", "unknown", "tool,", "or", "invalid", "arguments"],
    ]
    assert [words[0] for words in lines if words and words[0] in ("loosened", "stricter")] == [
        "loosened",
        "stricter",
    ]
    assert "new.toml:3" in plain.out and "new.toml:5" in plain.out
    assert "\x1b" not in plain.out


def test_settings_come_from_stdin_as_well(recorded: Path, ws: Path) -> None:
    ran = callgate("policy", "test", "-", "--json", cwd=ws, stdin=NEW.encode())
    assert steps(ran) == steps(callgate("policy", "test", "new.toml", "--json", cwd=ws))
    assert ran.json["changed"][0]["new"]["origin"] == {"file": "stdin", "line": 3}


def test_a_check_fails_only_for_what_is_loosened(recorded: Path, ws: Path) -> None:
    assert callgate("policy", "test", "new.toml", "--check", cwd=ws).code == 1
    (ws / "strict.toml").write_text('mode = "none"\n')
    ran = callgate("policy", "test", "strict.toml", "--check", "--json", cwd=ws)
    assert (ran.code, ran.json["loosened"], ran.json["steps"]) == (
        0,
        0,
        {"ask->deny": 2, "allow->deny": 1},
    )


def test_how_far_back_it_looks_can_be_said(recorded: Path, ws: Path) -> None:
    for words, judged in {
        ("--since", "1h"): 3,
        ("--since", "2999-01-01"): 0,
        ("--limit", "2"): 1,  # of the two newest, one is no call of a tool
    }.items():
        assert callgate("policy", "test", "new.toml", *words, "--json", cwd=ws).json["judged"] == judged


def test_calls_are_judged_in_the_mode_of_their_sessions(ws: Path, home: Path) -> None:
    callgate("call", "write_file", "path=b.txt", "content=x", "--mode", "write", cwd=ws)
    callgate("call", "write_file", "path=b.txt", "content=x", cwd=ws)
    ran = callgate("policy", "test", "-", "--json", cwd=ws, stdin=b'[policy.default]\nwrite = "deny"')
    assert ran.json["steps"] == {"allow->deny": 1, "ask->deny": 1}


def test_nothing_is_run_and_nothing_is_written(recorded: Path, ws: Path) -> None:
    def seen() -> dict[Path, bytes]:
        parts = [*recorded.glob("*"), *ws.glob("**/*")]
        return {path: path.read_bytes() for path in parts if path.suffix in (".jsonl", ".toml", ".txt")}

    before = seen()
    callgate("policy", "test", "new.toml", cwd=ws)
    assert seen() == before


def test_wrong_settings_are_refused_with_their_line(recorded: Path, ws: Path) -> None:
    (ws / "wrong.toml").write_text("[policy]\nrulez = []\n")
    ran = callgate("policy", "test", "wrong.toml", "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["reason"]) == (2, "settings_invalid")
    assert ran.json["error"]["message"].startswith("wrong.toml:2: ")
    assert callgate("policy", "test", "-", cwd=ws, stdin=b"mode = 1").code == 2


def test_wrong_use_is_refused(recorded: Path, ws: Path) -> None:
    for words in (
        [],
        ["a.toml", "b.toml"],
        ["missing.toml"],
        ["."],
        ["new.toml", "--since=soon"],
        ["new.toml", "--limit=0"],
    ):
        assert callgate("policy", "test", *words, cwd=ws).code == 2, words
