"""`callgate keys status`, `encrypt` and `rotate`: as a user runs them, and killed while they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from callgate.config.sealing import SealingKey, is_sealed
from tests.kernel.cli.running import callgate
from tests.kernel.config.secrets.desk import (
    EVERYTHING,
    NAMES,
    NEW,
    ONE,
    SETTINGS,
    TWO,
    VARIABLE,
    contents,
    fill,
    on_disk,
    settings,
    shows,
)

PROJECT = Path(__file__).parents[4]


@pytest.fixture
def locked(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, ONE)
    settings(home)
    fill(home)
    return home


def ids(home: Path) -> list[str]:
    return [text.split(":")[2] if is_sealed(text) else "plain" for text in on_disk(home).values()]


def test_encrypt_writes_all_files_now_and_a_second_time_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(home)
    settings(home, SETTINGS + 'plain_files = "refuse"\n')
    monkeypatch.setenv(VARIABLE, ONE)
    first = callgate("keys", "encrypt", "--json", cwd=tmp_path)
    assert (first.code, first.json) == (0, {"written": NAMES, "unchanged": [], "failed": {}})
    assert ids(home) == [SealingKey(ONE).id] * 3
    texts = on_disk(home)
    second = callgate("keys", "encrypt", "--json", cwd=tmp_path)
    assert (second.code, second.json) == (0, {"written": [], "unchanged": NAMES, "failed": {}})
    assert on_disk(home) == texts
    assert contents(home) == EVERYTHING


@pytest.mark.parametrize(("text", "key"), [("", ONE), (SETTINGS, ""), (SETTINGS, "weak")])
def test_without_a_key_nothing_is_encrypted(
    text: str, key: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(home)
    settings(home, text)
    monkeypatch.setenv(VARIABLE, key)
    before = on_disk(home)
    for words in (("encrypt",), ("rotate", "--new-key-env", VARIABLE)):
        ran = callgate("keys", *words, cwd=tmp_path)
        assert ran.code == 1
        assert "key_env" in ran.err or VARIABLE in ran.err
        assert shows(ran.err) == []
    assert on_disk(home) == before


def test_the_status_tells_states_and_ids_and_nothing_secret(
    locked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (locked / "google.json").write_text("{}")
    ran = callgate("keys", "status", "--json", cwd=tmp_path)
    assert ran.code == 0
    assert (ran.json["key_id"], ran.json["source"]) == (SealingKey(ONE).id, f"environment {VARIABLE}")
    states = [(row["name"], row["state"], row["key_id"]) for row in ran.json["secrets"]]
    assert states == [
        ("google.json", "plain", None),
        ("keys.json", "encrypted", SealingKey(ONE).id),
        ("mcp/web.tokens", "encrypted", SealingKey(ONE).id),
    ]
    monkeypatch.setenv(VARIABLE, TWO)
    (locked / "keys.json").write_text("callgate-secret:1:broken")
    wrong = callgate("keys", "status", "--json", cwd=tmp_path)
    assert wrong.code == 1
    assert [row["state"] for row in wrong.json["secrets"]] == ["plain", "unreadable", "unreadable"]
    shown = callgate("keys", "status", cwd=tmp_path)
    monkeypatch.delenv(VARIABLE)
    missing = callgate("keys", "status", cwd=tmp_path)
    assert (shown.code, missing.code) == (1, 1) and VARIABLE in missing.err
    assert shows(ran.out + ran.err + wrong.out + shown.out + shown.err + missing.out + missing.err) == []


def test_rotate_writes_all_with_the_new_key_and_says_what_is_next(
    locked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NEW, TWO)
    ran = callgate("keys", "rotate", "--new-key-env", NEW, cwd=tmp_path)
    assert ran.code == 0 and NEW in ran.err
    assert shows(ran.out + ran.err) == []
    assert ids(locked) == [SealingKey(TWO).id] * 3
    again = callgate("keys", "rotate", "--new-key-env", NEW, "--json", cwd=tmp_path)
    assert again.json == {"written": [], "unchanged": NAMES, "failed": {}}
    assert callgate("keys", "list", cwd=tmp_path).code == 1
    settings(locked, f'[secrets]\nkey_env = "{NEW}"\n')
    assert contents(locked) == EVERYTHING


@pytest.mark.parametrize(
    ("name", "value", "code"), [("HOME_KEY", TWO, 2), (NEW, None, 1), (NEW, "weak", 1), (None, TWO, 2)]
)
def test_a_new_key_that_is_none_changes_nothing(
    name: str | None, value: str | None, code: int, locked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name and value:
        monkeypatch.setenv(name, value)
    before = on_disk(locked)
    words = () if name is None else ("--new-key-env", name)
    ran = callgate("keys", "rotate", *words, cwd=tmp_path)
    assert ran.code == code and shows(ran.out + ran.err) == []
    assert on_disk(locked) == before


def test_one_file_that_cannot_be_read_does_not_keep_the_others_from_being_written(
    locked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NEW, TWO)
    damaged = on_disk(locked)["keys.json"][:-4]
    (locked / "keys.json").write_text(damaged)
    ran = callgate("keys", "rotate", "--new-key-env", NEW, "--json", cwd=tmp_path)
    assert ran.code == 1
    assert (ran.json["written"], list(ran.json["failed"])) == (["google.json", "mcp/web.tokens"], ["keys.json"])
    assert (locked / "keys.json").read_text() == damaged


@pytest.mark.parametrize("words", [("encrypt",), ("rotate", "--new-key-env", NEW)])
def test_a_tool_cannot_change_the_key(words: tuple[str, ...], locked: Path, tmp_path: Path) -> None:
    ran = callgate("keys", *words, cwd=tmp_path, env={**os.environ, "CALLGATE_CALL": "1.1"})
    assert ran.code != 0 and "inside a running call" in ran.err


KILLED = """
import json, os, signal, sys
from pathlib import Path
from callgate.config.home import Home
from callgate.config import secret_opening, secrets as all_secrets
from callgate.config.secrets import key_of_variable
from tests.kernel.config.secrets import desk

home = Path(sys.argv[1])
FSYNC = os.fsync

def step(left):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)

def rotate(steps):
    '''Killed before or after each step on files, once so many were done; None: never.'''
    left = [steps if steps is not None else 10**9]
    watched = ("open", "os.rename", "os.remove", "os.mkdir", "os.scandir")
    active = [True]
    def fsync(fd):
        step(left)
        FSYNC(fd)
        step(left)
    os.fsync = fsync
    sys.addaudithook(lambda event, args: step(left) if active and event in watched else None)
    secrets = secret_opening.open_secrets(Home(str(home)))
    result = all_secrets.rotate(secrets, key_of_variable(desk.NEW, os.environ))
    active.clear()
    assert not result.failed, result
    os._exit(0)

def run(work, *arguments):
    pid = os.fork()
    if not pid:
        try:
            work(*arguments)
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def check(names):
    '''With both keys everything is there, whichever has encrypted it.'''
    desk.settings(home, f'[secrets]\\nkey_env = "{desk.NEW}"\\nprevious_key_env = "{desk.VARIABLE}"\\n')
    assert desk.contents(home) == desk.EVERYTHING
    desk.settings(home)

import cryptography.hazmat.primitives.ciphers.aead  # not among the steps
mixed, steps = 0, 0
while True:
    for each, text in json.loads(sys.argv[2]).items():
        (home / each).write_text(text)
    ended = run(rotate, steps)
    assert ended in (0, -signal.SIGKILL), ended
    assert run(check, None) == 0, steps
    found = {text.split(":")[2] for text in desk.on_disk(home).values()}
    mixed += len(found) == 2
    if ended == 0:
        break
    assert run(rotate, None) == 0
    found = {text.split(":")[2] for text in desk.on_disk(home).values()}
    assert len(found) == 1, found
    steps += 1
print(json.dumps({"steps": steps, "mixed": mixed}))
"""


def test_a_rotation_that_is_killed_at_any_step_loses_nothing_and_can_be_run_again(
    locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NEW, TWO)
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, str(locked), json.dumps(on_disk(locked))],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=PROJECT,
    )
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["steps"] > 20 and seen["mixed"] > 5, seen
    assert ids(locked) == [SealingKey(TWO).id] * 3
