"""`callgate policy suggest`: rules as TOML, saved only when told to."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from tests.kernel.cli.running import callgate
from tests.shared_stores import SECRETS


@pytest.fixture
def allowed(ws: Path, home: Path) -> Path:
    """A home in which one file was written three times after a yes, and another one once."""
    for name in ("notes.md", "notes.md", "other.md", "notes.md"):
        ran = callgate("call", "write_file", f"path={name}", "content=x", "--yes", cwd=ws)
        assert ran.code == 0, ran.err
    return ws


def test_it_prints_rules_that_can_be_pasted_and_saves_nothing(allowed: Path, home: Path) -> None:
    ran = callgate("policy", "suggest", cwd=allowed)
    assert (ran.code, ran.err) == (0, "")
    (rule,) = tomllib.loads(ran.out)["policy"]["rules"]
    assert rule == {
        "decision": "allow",
        "tool": "write_file",
        "caller": "cli",
        "workspace": os.path.realpath(allowed),
        "path": "notes.md",
    }
    assert "# approved 3 times, 3 by a person, in 3 sessions, on " in ran.out
    assert "# changed decisions: 3 ask -> allow; 1 same" in ran.out
    assert "# 1 rule more: not approved often enough (--least)" in ran.out
    assert not (home / "rules.toml").exists()


def test_what_it_prints_loosens_what_it_says(allowed: Path) -> None:
    (allowed / "more.toml").write_text(callgate("policy", "suggest", cwd=allowed).out)
    tested = callgate("policy", "test", "more.toml", "--json", cwd=allowed).json
    assert tested["steps"] == {"ask->allow": 3}


def test_write_saves_them_behind_what_there_is(allowed: Path, home: Path) -> None:
    before = '# mine\r\n[[rules]]\ndecision = "deny"\ntool = "x"\n'
    (home / "rules.toml").write_bytes(before.encode())
    ran = callgate("policy", "suggest", "--write", "--json", cwd=allowed)
    assert (ran.code, ran.json["written"]) == (0, 1)
    after = (home / "rules.toml").read_bytes().decode()
    assert after.startswith(before)
    assert [rule["decision"] for rule in tomllib.loads(after)["rules"]] == ["deny", "allow"]
    assert (home / "rules.toml").stat().st_mode & 0o777 == 0o600
    assert callgate("call", "write_file", "path=notes.md", "content=y", cwd=allowed).code == 0
    assert callgate("call", "write_file", "path=other.md", "content=y", cwd=allowed).code == 3
    again = callgate("policy", "suggest", "--write", "--json", cwd=allowed).json
    assert (again["suggestions"], again["written"]) == ([], 0)


def test_what_a_person_denied_is_named_and_not_suggested(allowed: Path, home: Path) -> None:
    (home / "settings.toml").write_text('[policy.default]\nwrite = "deny"\n')
    assert callgate("call", "write_file", "path=notes.md", "content=x", cwd=allowed).code == 3
    (home / "settings.toml").write_text("")
    found = callgate("policy", "suggest", "--json", cwd=allowed).json
    assert found["suggestions"] == []
    assert [each["dropped"] for each in found["dropped"]] == ["would_allow_denied"]
    assert "# not suggested: it would have allowed a call that was denied" in (
        callgate("policy", "suggest", cwd=allowed).out
    )
    assert callgate("policy", "suggest", "--write", cwd=allowed).code == 0
    assert not (home / "rules.toml").exists()


def test_options_choose_the_calls(allowed: Path, tmp_path: Path) -> None:
    def count(*options: str, cwd: Path = allowed) -> int:
        return len(callgate("policy", "suggest", "--json", *options, cwd=cwd).json["suggestions"])

    assert (count("--least", "1"), count("--tool", "shell"), count("--since", "2099-01-01")) == (2, 0, 0)
    assert (count(cwd=tmp_path), count("--workspace", str(tmp_path / "elsewhere" / ".."))) == (1, 1)


@pytest.mark.parametrize("words", [("extra",), ("--least", "0"), ("--session", "nobody"), ("--since", "soon")])
def test_wrong_words_are_named(allowed: Path, words: tuple[str, ...]) -> None:
    ran = callgate("policy", "suggest", *words, cwd=allowed)
    assert ran.code != 0
    assert words[-1] in ran.err or "takes no arguments" in ran.err


def test_homes_that_share_a_store_share_what_is_written(ws: Path, home: Path, tmp_path: Path) -> None:
    (home / "settings.toml").write_text(f'[store]\nurl = "sqlite://{tmp_path}/shared"\n{SECRETS}')
    for _ in range(3):
        assert callgate("call", "write_file", "path=a.md", "content=x", "--yes", cwd=ws).code == 0
    ran = callgate("policy", "suggest", "--write", cwd=ws)
    assert (ran.code, ran.err.splitlines()[-1:]) == (0, [f"Rules saved in {home}/rules.toml: 1."])
    other = tmp_path / "other"
    other.mkdir()
    (other / "settings.toml").write_text((home / "settings.toml").read_text())
    exported = callgate("policy", "export", cwd=ws, env={"CALLGATE_HOME": str(other)})
    assert [rule["path"] for rule in tomllib.loads(exported.out)["rules"]] == ["a.md"]


def test_a_tool_cannot_write_rules_for_itself(allowed: Path, home: Path) -> None:
    ran = callgate("policy", "suggest", "--write", "--json", cwd=allowed, env={"CALLGATE_CALL": "1"})
    assert (ran.code, ran.json["error"]["reason"]) == (3, "within_a_call")
    assert not (home / "rules.toml").exists()
