"""Secrets in files of the home: encrypted once there is a key, and never lost for want of one."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from callgate.config import secrets
from callgate.config.home import Home, alone_in
from callgate.config.load import SettingsError, load_user, load_workspace
from callgate.config.sealing import SealingKey, is_sealed
from callgate.config.secret_opening import HomeFiles, TokenFile
from callgate.core.errors import ToolError
from callgate.core.models import Key, ModelError
from callgate.features.chat.models.make import delete_key, store_key, stored_keys
from tests.kernel.config.secrets.desk import (
    ACCESS,
    EVERYTHING,
    NAMES,
    NEW,
    ONE,
    SETTINGS,
    TWO,
    VARIABLE,
    accounts,
    contents,
    fill,
    on_disk,
    settings,
    shows,
    tokens,
)


@pytest.fixture
def locked(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a key, and everything encrypted."""
    monkeypatch.setenv(VARIABLE, ONE)
    settings(home)
    fill(home)
    return home


def test_with_a_key_every_file_is_encrypted_and_the_owner_s_alone(locked: Path) -> None:
    assert all(map(is_sealed, on_disk(locked).values()))
    assert shows("".join(on_disk(locked).values())) == []
    assert {stat.S_IMODE((locked / name).stat().st_mode) for name in NAMES} == {0o600}
    assert contents(locked) == EVERYTHING
    assert HomeFiles(str(locked)).names() == NAMES


def test_a_plain_file_is_read_and_encrypted_when_it_is_next_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(home)
    plain = on_disk(home)
    assert not any(map(is_sealed, plain.values()))
    monkeypatch.setenv(VARIABLE, ONE)
    settings(home)
    assert contents(home) == EVERYTHING
    assert on_disk(home) == plain
    store_key(Home(str(home)), "anthropic", Key("sk-2"))
    assert [is_sealed(text) for text in on_disk(home).values()] == [False, True, False]
    assert sorted(stored_keys(Home(str(home)))) == ["anthropic", "openai"]


def refused(home: Path) -> str:
    """Nothing can be read or written, and nothing is changed by trying; what is said of it."""
    before, messages = on_disk(home), []
    for use in (
        lambda: stored_keys(Home(str(home))),
        lambda: store_key(Home(str(home)), "m", Key("k")),
        lambda: delete_key(Home(str(home)), "openai"),
        lambda: tokens(home).read(),
        lambda: tokens(home).write({}),
        lambda: accounts(home).known(),
        lambda: accounts(home).forget("default"),
    ):
        with pytest.raises((ModelError, ToolError)) as caught:
            use()
        messages.append(str(caught.value))
    assert on_disk(home) == before
    assert sorted(each.name for each in home.rglob("*.tmp")) == []
    return "\n".join(messages)


@pytest.mark.parametrize("key", [None, "", "too short", TWO, "x" * 64])
def test_without_the_right_key_nothing_is_read_written_or_lost(
    key: str | None, locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if key is None:
        monkeypatch.delenv(VARIABLE)
    else:
        monkeypatch.setenv(VARIABLE, key)
    message = refused(locked)
    assert shows(message) == [] and (not key or key not in message)
    assert "[secrets]" in message or VARIABLE in message
    monkeypatch.setenv(VARIABLE, ONE)
    assert contents(locked) == EVERYTHING


def test_settings_that_name_no_key_any_more_do_not_make_files_plain(locked: Path) -> None:
    settings(locked, "")
    assert "names no key" in refused(locked)


def test_settings_that_cannot_be_read_name_no_key_either(locked: Path) -> None:
    settings(locked, "[secrets\n")
    assert "settings.toml" in refused(locked)


def test_two_files_that_were_exchanged_are_refused(locked: Path) -> None:
    a, b, c = (locked / name for name in NAMES)
    texts = a.read_text(), b.read_text(), c.read_text()
    for path, text in zip((b, c, a), texts, strict=True):
        path.write_text(text)
    assert "encrypted under another name" in refused(locked)


@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied", "prefix", "bytes"])
def test_a_damaged_file_is_said_to_be_and_left(damage: str, locked: Path) -> None:
    for name in NAMES:
        data = bytearray((locked / name).read_bytes())
        if damage == "flipped":
            data[-5] ^= 1
        elif damage == "cut":
            del data[-20:]
        elif damage == "emptied":
            data.clear()
        elif damage == "prefix":
            data[0] ^= 1
        else:
            data[30] = 0xFF
        (locked / name).write_bytes(data)
    before = {name: (locked / name).read_bytes() for name in NAMES}
    for use in (lambda: stored_keys(Home(str(locked))), tokens(locked).read, accounts(locked).known):
        with pytest.raises((ModelError, ToolError)) as caught:
            use()
        assert shows(str(caught.value)) == []
    with pytest.raises(ToolError):
        tokens(locked).write({})
    assert {name: (locked / name).read_bytes() for name in NAMES} == before
    tokens(locked).forget()
    assert tokens(locked).read() == {}


def test_a_plain_file_in_the_place_of_an_encrypted_one_is_refused_if_the_settings_say_so(locked: Path) -> None:
    plain = '{"openai": "sk-of-somebody-else"}'
    (locked / "keys.json").write_text(plain)
    assert stored_keys(Home(str(locked)))["openai"].reveal() == "sk-of-somebody-else"
    settings(locked, SETTINGS + 'plain_files = "refuse"\n')
    with pytest.raises(ModelError, match="plain_files"):
        stored_keys(Home(str(locked)))
    with pytest.raises(ModelError, match="plain_files"):
        store_key(Home(str(locked)), "m", Key("k"))
    assert (locked / "keys.json").read_text() == plain


def test_what_the_key_before_encrypted_is_read_and_written_with_the_new_one(
    locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NEW, TWO)
    settings(locked, f'[secrets]\nkey_env = "{NEW}"\nprevious_key_env = "{VARIABLE}"\n')
    assert contents(locked) == EVERYTHING
    store_key(Home(str(locked)), "m", Key("k"))
    assert SealingKey(TWO).id in (locked / "keys.json").read_text()
    monkeypatch.delenv(VARIABLE)
    assert sorted(stored_keys(Home(str(locked)))) == ["m", "openai"]
    with pytest.raises(ToolError, match=SealingKey(ONE).id):
        tokens(locked).read()


def command(code: str) -> str:
    return f"{sys.executable} -c '{code}'"


def test_a_command_prints_the_key_and_is_run_once_without_a_shell(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    monkeypatch.setenv("CALLGATE_SECRETS_OTHER", "hidden")
    code = (
        f'import os; open("{ran}", "a").write(str(os.environ.get("CALLGATE_SECRETS_OTHER"))); '
        f'print("{ONE}", "$HOME", sep=";")'
    )
    settings(home, f"[secrets]\nkey_command = '''{command(code)}'''\n")
    fill(home)
    assert contents(home) == EVERYTHING
    assert ran.read_text() == "None"
    assert SealingKey(f"{ONE};$HOME").id in (home / "keys.json").read_text()


def test_a_variable_counts_before_the_command(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tmp_path / "ran"
    settings(home, f'{SETTINGS}key_command = "touch {ran}"\n')
    monkeypatch.setenv(VARIABLE, ONE)
    fill(home)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("/nonexistent/program", "cannot be run"),
        (command(f'import sys; print("{ONE}"); sys.exit("locked")'), "locked"),
        (command('print("weak")'), "too weak"),
        (command("pass"), "too weak"),
    ],
)
def test_a_command_without_a_key_is_an_error_that_shows_none(words: str, message: str, home: Path) -> None:
    fill(home)
    settings(home, f"[secrets]\nkey_command = '''{words}'''\n")
    with pytest.raises(ModelError, match=message) as caught:
        store_key(Home(str(home)), "m", Key("k"))
    assert "key_command" in str(caught.value) and shows(str(caught.value)) == []
    assert sorted(stored_keys(Home(str(home)))) == ["openai"]


def test_a_command_that_failed_is_not_run_by_everyone_who_asks(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    code = f'import sys; open("{ran}", "a").write("x"); sys.exit(1)'
    settings(home, f"[secrets]\nkey_command = '''{command(code)}'''\n")
    for _ in range(5):
        with pytest.raises(ModelError):
            store_key(Home(str(home)), "m", Key("k"))
    assert ran.read_text() == "x"
    monkeypatch.setattr(secrets, "RETRY_S", 0.0)
    with pytest.raises(ModelError):
        store_key(Home(str(home)), "m", Key("k"))
    assert ran.read_text() == "xx"


@pytest.mark.parametrize(
    "text",
    [
        '[secrets]\nkey_env = "HOME"',
        '[secrets]\nkey_env = "CALLGATE_SECRETS_"',
        '[secrets]\nprevious_key_env = "OLD"',
        '[secrets]\nkey_command = ""',
        '[secrets]\nkey_command = "pass \'unclosed"',
        '[secrets]\nplain_files = "no"',
        f'[hosts.h]\ncommand = ["x"]\nenv = ["{VARIABLE}"]',
        f'[hosts.h]\ncommand = ["x"]\nset_env = {{ A = "${{{VARIABLE}}}" }}',
        f'[mcp.m]\ncommand = "x"\nenv = ["{VARIABLE}"]',
        f'[mcp.m]\nurl = "https://x.example"\nheaders = {{ A = "${{{VARIABLE}}}" }}',
        f'[mcp.m]\nurl = "https://x.example"\noauth = {{ client_secret_env = "{VARIABLE}" }}',
        f'[models.m]\nkind = "openai"\nmodel = "m"\nkey_env = "{VARIABLE}"',
    ],
)
def test_settings_that_would_show_the_key_to_others_are_refused(text: str, home: Path) -> None:
    settings(home, text)
    with pytest.raises(SettingsError):
        load_user(Home(str(home)))


@pytest.mark.spec("T23")
def test_a_workspace_cannot_name_a_key(home: Path, tmp_path: Path) -> None:
    (tmp_path / ".callgate").mkdir()
    (tmp_path / ".callgate" / "settings.toml").write_text(SETTINGS)
    with pytest.raises(SettingsError, match="only in your own settings"):
        load_workspace(str(tmp_path))


def test_those_who_write_at_the_same_time_lose_nothing(locked: Path) -> None:
    def add(number: int) -> None:
        if number % 2:
            tokens(locked).update(lambda known: {**known, f"t{number}": number})
        else:
            store_key(Home(str(locked)), f"m{number}", Key("k"))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(add, range(24)))
    assert len(tokens(locked).read()) == 13
    assert len(stored_keys(Home(str(locked)))) == 13


def test_a_package_may_hold_the_directory_while_it_writes(locked: Path) -> None:
    with alone_in(str(locked / "mcp")):
        tokens(locked).write({"a": 1})
    assert tokens(locked).read() == {"a": 1}


def test_a_file_of_a_package_in_the_home_is_encrypted_and_one_elsewhere_is_not(locked: Path, tmp_path: Path) -> None:
    ours, elsewhere = locked / "weather" / "login", tmp_path / "w" / "login"
    for path in (ours, elsewhere):
        TokenFile(str(path)).write({"token": ACCESS})
        assert TokenFile(str(path)).read() == {"token": ACCESS}
    assert (is_sealed(ours.read_text()), is_sealed(elsewhere.read_text())) == (True, False)
    assert "weather/login" in HomeFiles(str(locked)).names()


def test_what_a_killed_writer_left_goes_with_the_next_write(locked: Path) -> None:
    left, fresh = locked / "keys.json.4711.tmp", locked / "keys.json.4712.tmp"
    for path in (left, fresh):
        path.write_text('{"openai": "plain"}')
    os.utime(left, (time.time() - 3600,) * 2)
    store_key(Home(str(locked)), "m", Key("k"))
    assert (left.exists(), fresh.exists()) == (False, True)


def test_without_a_key_nothing_heavy_is_loaded(home: Path) -> None:
    fill(home)
    code = (
        "import sys; from callgate.config.home import Home; from callgate.features.chat.models.make import stored_keys\n"
        "assert len(stored_keys(Home(sys.argv[1]))) == 1; print('cryptography' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(home)], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "False\n", ran.stderr
