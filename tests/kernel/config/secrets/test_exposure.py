"""The key of secrets is in no log, event, record, error or child: wherever it could have come out."""

from __future__ import annotations

import io
import logging
import os
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from callgate.cli.programs import open_in_browser
from callgate.config.home import Home
from callgate.config.schema import SecretsTable
from callgate.config.sealing import SealingKey, SecretsError
from callgate.config.secret_opening import HomeFiles
from callgate.config.secrets import KeyRing, Secrets, encrypt_all, find_keys, rotate, survey
from callgate.core.models import Key
from callgate.features.chat.models.make import find_key, store_key
from callgate.features.chat.settings import ModelTable
from callgate.features.mcp.client.manager_settings import manager_settings
from callgate.features.mcp.client.programs import server_environment
from callgate.features.mcp.settings import McpTable
from callgate.sandbox.plans import child_environment
from callgate_catalogue.memory import command_line
from callgate_catalogue.memory.store import MemoryEntry
from tests.kernel.cli.running import callgate, installed
from tests.kernel.config.secrets.desk import EVERYTHING, MODEL, NEW, ONE, SETTINGS, TWO, VARIABLE, contents, fill, shows

HOST = """
import os, sys
from pathlib import Path
from callgate import tool

Path(sys.argv[-1] if sys.argv[-1].endswith('.seen') else {seen!r}).write_text(repr(dict(os.environ)))

@tool(side_effects="none")
def seen() -> list[str]:
    "Names of variables."
    return sorted(os.environ)
"""


@pytest.fixture
def workspace(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace, and a home with encrypted secrets whose key is in the environment."""
    monkeypatch.setenv(VARIABLE, ONE)
    monkeypatch.setenv(NEW, TWO)
    (home / "settings.toml").write_text('sandbox = "off"\n' + SETTINGS)
    fill(home)
    workspace = tmp_path / "ws"
    workspace.mkdir()
    return workspace


def written(home: Path) -> bytes:
    """All that lies in the home: store, audit log, events, logs, secrets."""
    paths = [path for path in home.rglob("*") if stat.S_ISREG(path.lstat().st_mode)]
    assert any(path.name == "audit.jsonl" for path in paths) and any(path.name == "callgate.db" for path in paths)
    return b"\n".join(path.read_bytes() for path in paths)


def test_no_command_has_the_key_and_nothing_of_a_call_shows_it(workspace: Path, home: Path) -> None:
    shown = ""
    for words in (
        ("call", "shell", "command=env", "--yes"),
        ("call", "read_file", "path=nosuch", "--yes"),
        ("call", "gmail_list", "--yes"),
        ("keys", "list"),
        ("keys", "status"),
        ("keys", "rotate", "--new-key-env", NEW),
        ("keys", "list"),
        ("keys", "status"),
        ("call", "gmail_list", "--yes"),
        ("doctor",),
    ):
        ran = callgate(*words, cwd=workspace, env={"CALLGATE_LOG": "trace"})
        shown += ran.out + ran.err
    assert "PATH=" in shown and SealingKey(TWO).id in shown
    assert shows(shown) == []
    assert "CALLGATE_SECRETS_KEY=" not in shown
    assert shows(written(home)) == []


def test_a_host_and_a_function_have_no_key(workspace: Path, home: Path, tmp_path: Path) -> None:
    seen, script = tmp_path / "host.seen", tmp_path / "host.py"
    script.write_text(HOST.format(seen=str(seen)))
    ran = installed("host", "check", "--", sys.executable, "-m", "callgate.host", str(script), cwd=workspace)
    assert seen.exists(), ran.err
    assert "PATH" in seen.read_text() and shows(seen.read_text()) == []
    seen.unlink()
    (home / "settings.toml").write_text(f'sandbox = "off"\n{SETTINGS}[tools]\nload = ["{script}"]\n')
    called = callgate("call", "seen", "--json", cwd=workspace)
    assert called.code == 0, called.err
    assert "PATH" in called.out and "CALLGATE_SECRETS" not in called.out


@pytest.mark.parametrize(
    "environment",
    [
        lambda: child_environment(os.environ),
        lambda: server_environment(McpTable(command="x", env=[VARIABLE, "PATH"])),
        lambda: manager_settings("npm", os.environ, os.environ["HOME"], "/d", []).step.env,
    ],
)
def test_no_list_of_variables_brings_the_key_to_a_process(
    environment: Callable[[], dict[str, str]], workspace: Path
) -> None:
    Path(os.environ["HOME"], ".npmrc").write_text(f"//registry/:_authToken=${{{VARIABLE}}}\n")
    found = environment()
    assert "PATH" in found and shows(repr(found)) == []


def test_the_command_of_a_model_s_key_has_no_key_of_secrets(workspace: Path, home: Path) -> None:
    code = "import os; print(','.join(each for each in os.environ if 'SECRETS' in each) or 'none')"
    table = ModelTable(kind="openai", model="m", key_command=[sys.executable, "-c", code])
    found = find_key("m", table, Home(str(home)), os.environ)
    assert found is not None and found.reveal() == "none"


def test_a_browser_has_no_key_and_the_process_keeps_it(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, seen = tmp_path / "browser", tmp_path / "seen"
    script.write_text(f'#!/bin/sh\nenv > "{seen}"\n')
    script.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(script))
    assert open_in_browser("http://127.0.0.1/")
    assert "PATH=" in seen.read_text() and shows(seen.read_text()) == []
    assert os.environ[VARIABLE] == ONE


def test_an_editor_has_no_key(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, seen = tmp_path / "editor", tmp_path / "seen"
    script.write_text(f'#!/bin/sh\nenv > "{seen}"\necho changed > "$1"\n')
    script.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(script))
    monkeypatch.setattr(command_line, "is_terminal", lambda stream: True)
    assert command_line._typed(MemoryEntry("u1", "before", 0.0)) == "changed\n"
    assert "PATH=" in seen.read_text() and shows(seen.read_text()) == []


words = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=32, max_size=60)


@given(
    key=words, new=words, secret=words, name=st.sampled_from(["keys.json", "mcp/web.tokens"]), at=st.integers(0, 200)
)
def test_no_failure_shows_a_key_or_a_secret(key: str, new: str, secret: str, name: str, at: int) -> None:
    assume(len(set(key)) >= 8 and len(set(new)) >= 8 and new not in (key, key[::-1]) and key != key[::-1])
    table = SecretsTable(key_env=VARIABLE, plain_files="refuse")
    environ = {VARIABLE: key}
    heard, handler = io.StringIO(), logging.StreamHandler()
    handler.setStream(heard)
    logging.getLogger().addHandler(handler)
    try:
        with tempfile.TemporaryDirectory() as directory:
            store = HomeFiles(directory)
            secrets = Secrets(store, lambda: find_keys(table, environ), plain=False)
            secrets.update(name, lambda known: secret)
            path = Path(directory, name)
            good = path.read_text()
            cut = at % len(good)
            failures = [
                ({}, good),
                ({VARIABLE: key[:20]}, good),
                ({VARIABLE: key[::-1]}, good),
                ({VARIABLE: key}, good[:cut] + "\0" + good[cut + 1 :]),
                ({VARIABLE: key}, good[:cut]),
                ({VARIABLE: key}, secret),
            ]
            for environ, text in failures:
                path.write_text(text)
                for use in (
                    lambda: secrets.read(name),
                    lambda: secrets.update(name, lambda known: new),
                    lambda: rotate(secrets, SealingKey(new)),
                    lambda: survey(secrets),
                    lambda: encrypt_all(secrets),
                ):
                    try:
                        heard.write(repr(use()))
                    except SecretsError:
                        heard.write(traceback.format_exc())
                assert path.read_text() == text
        heard.write(repr(KeyRing(SealingKey(key), (SealingKey(new),))))
    finally:
        logging.getLogger().removeHandler(handler)
    shown = heard.getvalue()
    assert not [each for each in (key, key[:20], new, secret) if each in shown]


def test_what_was_kept_is_there_after_all_of_it(workspace: Path, home: Path) -> None:
    store_key(Home(str(home)), "m", Key("k"))
    assert contents(home)["keys"] == {**EVERYTHING["keys"], "m": "k"}
    assert MODEL in repr(contents(home))
