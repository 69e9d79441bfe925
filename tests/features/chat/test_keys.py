"""Keys: where they are found, how they are kept, and that no command shows one."""

from __future__ import annotations

import copy
import json
import os
import pickle
import select
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user, load_workspace
from callgate.core.models import Key, ModelError, ModelErrorKind
from callgate.features.chat.models.make import delete_key, find_key, key_source, store_key, stored_keys
from callgate.features.chat.settings import ChatSettings, ModelTable
from tests.kernel.cli.running import CALLGATE, Terminal, callgate, environment
from tests.needs import needs

SECRET = "sk-canary-5f4e3d2c1b0a"


def table(**more: Any) -> ModelTable:
    return ModelTable(**{"kind": "openai", "model": "m", **more})


def found(name: str, made: ModelTable, home: Path, environ: dict[str, str]) -> str | None:
    key = find_key(name, made, Home(str(home)), environ)
    return None if key is None else key.reveal()


def printing(text: str) -> list[str]:
    return [sys.executable, "-c", f"print({text!r})"]


def test_the_first_place_that_has_one_counts(home: Path) -> None:
    store_key(Home(str(home)), "m", Key("stored"))
    environ = {"MINE": "mine", "OPENAI_API_KEY": "usual"}
    assert found("m", table(key_env="MINE", key_command=printing("said")), home, environ) == "mine"
    assert found("m", table(key_env="NONE", key_command=printing("said")), home, environ) == "said"
    assert found("m", table(key_env="NONE"), home, environ) == "stored"
    assert found("other", table(), home, environ) == "usual"
    assert found("other", table(), home, {"OPENAI_API_KEY": "  "}) is None


@pytest.mark.parametrize(
    ("name", "made", "key"),
    [
        ("anthropic/m", table(kind="anthropic"), "a"),
        ("openai/m", table(), "o"),
        ("responses/m", table(kind="responses"), "o"),
        ("m", table(kind="responses"), "o"),
        ("m", table(base_url="https://elsewhere.example/v1"), None),
        ("m", table(kind="anthropic", base_url="http://localhost:1"), None),
        ("openai/m", table(base_url="http://localhost:1"), "o"),
        ("m", table(kind="scripted"), None),
        ("m", table(kind="local"), None),
    ],
)
def test_the_usual_variable_is_for_the_usual_server(name: str, made: ModelTable, key: str | None, home: Path) -> None:
    assert found(name, made, home, {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o"}) == key


def test_a_provider_s_key_is_stored_under_its_name(home: Path) -> None:
    store_key(Home(str(home)), "openai", Key("stored"))
    assert found("openai/m", table(), home, {}) == found("responses/m", table(kind="responses"), home, {}) == "stored"
    assert key_source("openai/m", table(), Home(str(home)), {}) == "stored openai"


def problem(made: ModelTable, home: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        find_key("m", made, Home(str(home)), {})
    assert caught.value.kind is ModelErrorKind.KEY
    return caught.value


@pytest.mark.spec("T43")
def test_a_command_that_fails_shows_its_complaint_and_not_its_output(home: Path) -> None:
    code = f"import sys; print({SECRET!r}); print('locked', file=sys.stderr); sys.exit(3)"
    error = problem(table(key_command=[sys.executable, "-c", code]), home)
    assert "locked" in str(error)
    assert SECRET not in str(error)


def test_a_command_is_read_by_no_shell(home: Path) -> None:
    assert found("m", table(key_command=["/bin/echo", "$HOME;`id`"]), home, {}) == "$HOME;`id`"


@pytest.mark.parametrize("text", ["", "\n", "two words", "line\nline", "ä", "x" * 9000])
def test_what_is_no_key_is_refused_and_not_repeated(text: str, home: Path) -> None:
    with pytest.raises(ModelError) as caught:
        find_key("m", table(key_command=printing(text)), Home(str(home)), {})
    assert text.strip() == "" or text.strip() not in str(caught.value)


def test_a_command_that_does_not_exist_is_an_error(home: Path) -> None:
    problem(table(key_command=["/nonexistent/program"]), home)
    problem(table(key_command=["a\0b"]), home)


@needs("linux")
def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("callgate.config.secrets.COMMAND_S", 2.0)
    pids = tmp_path / "pids"
    problem(table(key_command=["sh", "-c", f"sleep 600 & echo $$ $! > '{pids}'; wait"]), home)
    parent, child = map(int, pids.read_text().split())
    assert _ended(parent)
    assert _ended(child)


def _ended(pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 10)[0])
    finally:
        os.close(descriptor)


def test_a_key_shows_itself_only_when_asked() -> None:
    key = Key(f"  {SECRET}\n")
    assert key.reveal() == SECRET
    assert SECRET not in f"{key!r} {key} {[key]} {vars(Key)}"
    for write in (pickle.dumps, copy.deepcopy, json.dumps):
        with pytest.raises(TypeError):
            write(key)


def test_the_file_is_the_owner_s_alone(home: Path) -> None:
    place = Home(str(home))
    store_key(place, "b", Key("kb"))
    store_key(place, "a", Key("ka"))
    file = home / "keys.json"
    assert json.loads(file.read_text()) == {"a": "ka", "b": "kb"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in home.iterdir()] == ["keys.json"]
    assert (delete_key(place, "a"), delete_key(place, "a")) == (True, False)
    assert list(stored_keys(place)) == ["b"]


def test_those_who_write_at_the_same_time_lose_nothing(home: Path) -> None:
    names = [f"m{number}" for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: store_key(Home(str(home)), name, Key(name)), names))
    assert sorted(stored_keys(Home(str(home)))) == sorted(names)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_may_open_is_not_used(mode: int, home: Path) -> None:
    store_key(Home(str(home)), "m", Key("k"))
    (home / "keys.json").chmod(mode)
    problem(table(), home)
    with pytest.raises(ModelError):
        store_key(Home(str(home)), "n", Key("k"))


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o770])
def test_nor_one_in_a_home_that_others_may_enter(mode: int, home: Path) -> None:
    store_key(Home(str(home)), "m", Key("k"))
    home.chmod(mode)
    problem(table(), home)
    with pytest.raises(ModelError):
        store_key(Home(str(home)), "n", Key("k"))


@pytest.mark.parametrize("text", ["", "[]", '{"m": 1}', '{"m": ""}', "\xff", '{"m": "a b"}'])
def test_a_file_that_is_something_else_is_an_error(text: str, home: Path) -> None:
    (home / "keys.json").write_text(text, encoding="latin-1")
    (home / "keys.json").chmod(0o600)
    problem(table(), home)


def test_a_link_or_a_pipe_is_not_followed(home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "keys.json"
    elsewhere.write_text('{"m": "k"}')
    elsewhere.chmod(0o600)
    (home / "keys.json").symlink_to(elsewhere)
    problem(table(), home)
    (home / "keys.json").unlink()
    os.mkfifo(home / "keys.json", 0o600)
    problem(table(), home)


@pytest.mark.spec("T23")
def test_a_workspace_cannot_say_where_keys_go(home: Path, tmp_path: Path) -> None:
    (tmp_path / ".callgate").mkdir()
    for text in ('model = "openai/x"', '[models.m]\nkind = "openai"\nbase_url = "https://evil.example"'):
        (tmp_path / ".callgate" / "settings.toml").write_text(text)
        with pytest.raises(SettingsError):
            load_workspace(str(tmp_path))


def test_models_are_settings(home: Path) -> None:
    (home / "settings.toml").write_text(
        'model = "fast"\n[models.fast]\nkind = "openai"\nmodel = "x"\nprice = { input = 1, output = 2.5 }\n'
        'key_command = ["pass", "show", "x"]\nheaders = { x-a = "b" }\n'
    )
    settings, _ = load_user(Home(str(home)))
    chat = settings.of(ChatSettings)
    (made,) = chat.models.values()
    assert (chat.model, made.kind, made.key_command, made.headers) == (
        "fast",
        "openai",
        ["pass", "show", "x"],
        {"x-a": "b"},
    )


@pytest.mark.parametrize(
    "text",
    [
        'kind = "gemini"',
        'kind = "openai"\nkey = "sk-1"',
        'kind = "openai"\nprice = { inputs = 1 }',
        'kind = "openai"\nkey_command = []',
        'kind = "openai"\nkey_command = "pass show x"',
        'kind = "openai"\ntimeout_s = 0',
        'kind = "openai"\nretries = -1',
    ],
)
def test_a_model_that_is_misspelt_is_an_error(text: str, home: Path) -> None:
    (home / "settings.toml").write_text(f"[models.m]\n{text}\n")
    with pytest.raises(SettingsError):
        load_user(Home(str(home)))


# The commands.


def test_a_key_comes_on_stdin_and_is_listed_without_its_value(tmp_path: Path) -> None:
    ran = callgate("keys", "set", "openai", cwd=tmp_path, stdin=f"{SECRET}\n".encode())
    assert (ran.code, ran.out) == (0, "")
    listed = callgate("keys", "list", "--json", cwd=tmp_path)
    assert listed.json == [{"name": "openai", "source": "stored openai"}]
    assert SECRET not in ran.err + listed.out + callgate("keys", "list", cwd=tmp_path).out
    assert stored_keys(Home.from_environment())["openai"].reveal() == SECRET
    assert callgate("keys", "delete", "openai", "--json", cwd=tmp_path).json == {"name": "openai", "deleted": True}
    assert callgate("keys", "delete", "openai", cwd=tmp_path).code == 1
    assert callgate("keys", "list", "--json", cwd=tmp_path).json == []


def test_a_key_is_typed_without_being_shown(tmp_path: Path) -> None:
    terminal = Terminal()
    opens = "import os, sys; os.setsid(); os.open(os.ttyname(0), os.O_RDWR); os.execv(sys.argv[1], sys.argv[1:])"
    with subprocess.Popen(
        [sys.executable, "-c", opens, CALLGATE, "keys", "set", "anthropic"],
        cwd=tmp_path,
        stdin=terminal.slave,
        stdout=terminal.slave,
        stderr=terminal.slave,
        env=environment(None),
    ) as process:
        terminal.read_until(lambda text: "(hidden)" in text)
        terminal.press(f"{SECRET}\n")
        shown = terminal.read_until(lambda text: "is stored" in text)
        assert process.wait(60) == 0
    terminal.close()
    assert SECRET not in shown
    assert stored_keys(Home.from_environment())["anthropic"].reveal() == SECRET


def test_a_key_is_never_a_word(tmp_path: Path) -> None:
    ran = callgate("keys", "set", "openai", SECRET, cwd=tmp_path)
    assert ran.code == 2
    assert SECRET not in ran.out + ran.err
    assert stored_keys(Home.from_environment()) == {}


@pytest.mark.parametrize(
    ("name", "stdin"), [("openai", ""), ("openai", "two words"), ("Open AI", SECRET), ("../x", SECRET)]
)
def test_what_cannot_be_stored_is_wrong_use(name: str, stdin: str, tmp_path: Path) -> None:
    ran = callgate("keys", "set", name, cwd=tmp_path, stdin=stdin.encode())
    assert ran.code == 2
    assert stored_keys(Home.from_environment()) == {}


def test_the_list_says_where_each_key_comes_from_and_runs_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", SECRET)
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    ran = tmp_path / "ran"
    (home / "settings.toml").write_text(
        f'[models.a]\nkind = "openai"\nmodel = "x"\nkey_command = ["touch", "{ran}"]\n'
        '[models.b]\nkind = "anthropic"\nmodel = "x"\nkey_env = "MINE"\n'
        '[models.c]\nkind = "openai"\nmodel = "x"\nbase_url = "http://localhost:1"\n'
        '[models.d]\nkind = "scripted"\npath = "/x"\n'
    )
    listed = callgate("keys", "list", "--json", cwd=tmp_path, env=dict(os.environ))
    assert listed.json == [
        {"name": "a", "source": "command touch"},
        {"name": "b", "source": "environment MINE"},
        {"name": "c", "source": None},
        {"name": "anthropic", "source": "environment ANTHROPIC_API_KEY"},
    ]
    assert not ran.exists()


@pytest.mark.spec("T43")
@pytest.mark.parametrize("name", ["sk-ant-api03-" + "aB1x" * 12, "sk-" + "a1b2c3d4" * 5])
def test_a_key_typed_as_a_name_is_refused_and_not_repeated(home: Path, name: str) -> None:
    with pytest.raises(ValueError) as caught:
        store_key(Home(str(home)), name, Key("k"))
    assert name not in str(caught.value)
    assert stored_keys(Home(str(home))) == {}


def test_what_a_failed_command_says_cannot_act_on_a_terminal(home: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('\\x1b]0;x\\x07no\\u202e key')"]
    with pytest.raises(ModelError) as caught:
        found("m", table(key_command=command), home, {})
    assert str(caught.value).isprintable()


def test_a_providers_key_is_not_shown_to_another_server_of_that_name(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "home"))
    store_key(home, "openai", Key("sk-of-the-provider"))
    elsewhere = ModelTable(kind="openai", model="m", base_url="https://other.example/v1")
    assert find_key("openai", elsewhere, home, {}) is None
    provider = find_key("openai/m", ModelTable(kind="openai", model="m"), home, {})
    assert provider is not None and provider.reveal() == "sk-of-the-provider"
