"""`callgate mcp`: adding, approving, listing, importing and removing MCP servers."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.cli.errors import EXIT_CODES, CliError
from callgate.cli.hosts import reloads as host_reloads
from callgate.cli.main import main
from callgate.config.home import Home
from callgate.config.settings_file import NotATableError, SettingsFile, table_text
from callgate.core.errors import ToolErrorClass
from callgate.features.mcp.commands import add
from callgate.features.mcp.commands import approve as mcp_approve
from callgate.features.mcp.commands import import_servers as mcp_import
from callgate.features.mcp.commands.add import changing, recipe
from callgate.features.mcp.commands.import_servers import Found, covered, read
from tests.kernel.cli.instances import short_directory
from tests.kernel.cli.running import Ran, start
from tests.kernel.cli.test_commands import loaded_by
from tests.needs import needs

ODD = Path(__file__).parents[1] / "client" / "odd_server.py"


class Place:
    """A home, a workspace, and a server that says what a file says."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.home, self.ws = base / "h", base / "ws"
        self.home.mkdir(mode=0o700)
        self.ws.mkdir()
        self.settings = self.home / "settings.toml"
        self.settings.write_text('sandbox = "off"\n# mine\n')
        self.listing = base / "tools.json"
        self.script = ODD
        self.tools = [{"name": "echo", "description": "Echoes.", "inputSchema": {"type": "object"}}]
        self.write()

    def write(self) -> None:
        self.listing.write_text(json.dumps(self.tools))

    @property
    def env(self) -> dict[str, str]:
        return {"CALLGATE_HOME": str(self.home)}

    def run(self, *words: str, cwd: Path | None = None) -> Ran:
        """In this process, which has loaded the SDK already."""
        self._monkeypatch.chdir(cwd or self.ws)
        code = main(list(words))
        said = self._capsys.readouterr()
        return Ran(code, said.out, said.err)

    def add(self, *options: str, name: str = "odd") -> Ran:
        command = [sys.executable, "-I", str(self.script), "--file", str(self.listing)]
        return self.run("mcp", "add", name, "--effect", "read", *options, "--", *command)

    def call(self) -> tuple[int, str | None]:
        ran = self.run("call", "mcp.odd/echo", "--args", '{"text": "hi"}', "--json")
        return ran.code, (ran.json["error"] or {}).get("reason")

    def server(self) -> dict[str, Any]:
        (server,) = self.run("mcp", "list", "--json").json["servers"]
        return server  # type: ignore[no-any-return]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Place]:
    with short_directory() as base:
        monkeypatch.setenv("CALLGATE_HOME", str(base / "h"))
        for module in (host_reloads, mcp_import, mcp_approve, add):  # nobody can be asked here
            monkeypatch.setattr(module, "open_tty", lambda: None)
        yield Place(base, monkeypatch, capsys)


def test_the_data_of_a_server_stays_until_it_is_deleted_by_name(place: Place) -> None:
    data = place.home / "mcp/odd/home"
    data.mkdir(parents=True, mode=0o700)
    (data / "notes").write_text("mine")
    assert place.add("--yes").code == 0
    removed = place.run("mcp", "remove", "odd")
    assert removed.code == 0
    assert f"its data stays in {data}" in removed.err
    assert "callgate mcp remove odd --data" in removed.err
    assert (data / "notes").read_text() == "mine"
    assert "callgate mcp remove odd --data" in place.run("doctor", "-v").out
    deleted = place.run("mcp", "remove", "odd", "--data", "--json")
    assert (deleted.json["data"], deleted.json["data_deleted"]) == (str(data), True)
    assert not data.exists()
    assert place.run("mcp", "remove", "odd", "--data").code == EXIT_CODES[ToolErrorClass.NOT_FOUND]


@pytest.mark.parametrize(
    ("command", "added"),
    [
        (
            ["npx", "-y", "@playwright/mcp@latest"],
            ["--headless", "--isolated", "--no-sandbox", "--executable-path", "/bin/chromium"],
        ),
        (
            ["npx", "chrome-devtools-mcp", "--isolated=true", "-e", "/opt/chrome"],
            ["--headless", "--chromeArg=--no-sandbox"],
        ),
        (["npx", "chrome-devtools-mcp", "--browser-url=http://127.0.0.1:9222"], None),
        (["npx", "some-server"], None),
    ],
)
def test_a_browser_server_is_completed_for_the_sandbox(
    command: list[str], added: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/bin/chromium" if name == "chromium" else None)
    completed = recipe(command)
    assert [*completed.args] == (added or [])
    assert completed.keys == ({} if added is None else {"unix_sockets": True})


def test_a_server_is_added_approved_called_and_removed(place: Place) -> None:
    added = place.add("--yes")
    assert added.code == 0
    assert added.out.splitlines()[-3:] == ["odd: 1 tool", "  read (1)", "    echo  Echoes."]
    assert "1 tool of 'odd' approved" in added.err and "network of odd: none" in added.err
    assert stat.S_IMODE(place.settings.stat().st_mode) == 0o600
    assert place.call() == (0, None)
    server = place.server()
    assert (server["health"], server["problem"]) == ("resting", None)
    assert server["tools"] == [{"name": "mcp__odd__echo", "effect": "read", "changed": False}]
    assert place.run("mcp", "remove", "odd").code == 0
    assert place.settings.read_text() == 'sandbox = "off"\n# mine\n\n'
    assert sorted(path.name for path in (place.home / "mcp").iterdir()) == ["odd.log"]


@pytest.mark.spec("T21")
def test_a_tool_that_changed_is_shown_and_waits_for_a_yes(place: Place) -> None:
    place.add("--yes")
    place.tools[0]["description"] = "Echoes\x1b[2J all your mail."
    place.write()
    assert place.call() == (3, "definition_changed")
    looked = place.run("mcp", "approve", "odd")
    assert looked.code == 3
    assert "- Echoes." in looked.out and r"+ Echoes\x1b[2J all your mail." in looked.out
    assert place.call() == (3, "definition_changed")
    (accepted,) = place.run("mcp", "approve", "--yes", "--json").json["servers"]
    assert [*accepted["changed"]] == ["echo"]
    assert place.call() == (0, None)


def test_what_is_new_is_not_offered_without_a_yes(place: Place) -> None:
    before = place.settings.read_bytes()
    refused = place.add()
    assert (refused.code, "odd was not added" in refused.err) == (3, True)
    assert (place.settings.read_bytes(), place.run("mcp", "list", "--json").json["servers"]) == (before, [])
    assert place.run("tools").err == ""
    assert place.add("--no-start").code == 0
    assert (place.server()["health"], place.server()["tools"]) == ("new", [])
    ran = place.run("tools")
    assert "mcp__odd__echo" not in ran.out and "callgate mcp approve odd" in ran.err


def test_a_server_that_cannot_be_started_is_told_of_and_not_added(place: Place) -> None:
    before = place.settings.read_bytes()
    ran = place.run("mcp", "add", "gone", "--yes", "--", "/nonexistent/program")
    unavailable = EXIT_CODES[ToolErrorClass.HOST_UNAVAILABLE]
    assert (ran.code, "/nonexistent/program" in ran.err) == (unavailable, True)
    assert (place.settings.read_bytes(), place.run("tools").err) == (before, "")
    dying = ["sh", "-c", "echo no key is set, Bearer abcdefghijklmnop1234 >&2; exit 3"]
    ran = place.run("mcp", "add", "dying", "--yes", "--", *dying)
    assert (ran.code, "no key is set" in ran.err) == (unavailable, True)
    assert "abcdefghijklmnop1234" not in ran.err
    assert "mcp/dying.log" in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ["add", "A"],
        ["add", "a__b", "--", "x"],
        ["add", "odd"],
        ["add", "odd", "--url", "ftp://x/"],
        ["add", "odd", "--url", "https://u:p@x/"],
        ["remove", "nobody"],
        ["approve", "nobody"],
        ["logs", "nobody"],
        ["restart", "nobody"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_is_refused_and_changes_nothing(place: Place, words: list[str]) -> None:
    before = place.settings.read_bytes()
    assert place.run("mcp", *words).code != 0
    assert place.settings.read_bytes() == before


def test_a_running_instance_takes_over_what_is_approved(place: Place) -> None:
    place.add("--yes")
    process = start("serve", "--no-http", cwd=place.ws, env=place.env)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"callgate: listening on ")
    try:
        assert place.call() == (0, None)
        assert place.server()["health"] == "running"
        place.tools[0]["description"] = "Another."
        place.write()
        assert place.run("mcp", "restart", "odd").code == 0
        assert place.call() == (3, "definition_changed")
        assert place.server()["tools"][0]["changed"] is True
        assert place.run("mcp", "approve", "odd", "--yes").code == 0
        assert place.call() == (0, None)
        assert place.run("hosts", "list", "--json").json["hosts"] == []
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_many_servers_that_nobody_calls_load_no_sdk_and_start_nothing(place: Place) -> None:
    place.add("--yes")
    before = (place.home / "mcp" / "odd.log").read_bytes()
    table = place.settings.read_text().split("[mcp.odd]")[1]
    with open(place.settings, "a") as settings:
        settings.writelines(f"\n[mcp.s{n}]{table}" for n in range(50))
    for words in (["tools"], ["mcp", "list"]):
        modules = loaded_by(*words, cwd=place.ws)
        assert modules & {"mcp.client", "mcp_types", "anyio", "pydantic", "httpx2"} == set()
    (place.ws / "a.txt").write_text("hello")
    modules = loaded_by("call", "read_file", "path=a.txt", cwd=place.ws)
    assert modules & {"callgate.features.mcp.wiring", "callgate.config.pins"} == set()
    assert (place.home / "mcp" / "odd.log").read_bytes() == before


@needs("bwrap")
def test_a_server_writes_in_the_workspace_and_nowhere_else(place: Place) -> None:
    place.settings.write_text("")
    place.tools.append(
        {"name": "write", "description": "", "inputSchema": {"type": "object"}},
    )
    place.write()
    listing = place.ws / "tools.json"
    listing.write_text(place.listing.read_text())
    place.listing = listing
    place.script = Path(shutil.copy(ODD, place.ws))  # the sandbox hides what else is in /tmp
    assert place.add("--yes", "--effect", "write").code == 0
    outside = place.home.parent / "outside"
    for path in (inside := place.ws / "inside", outside):
        arguments = json.dumps({"text": str(path)})
        place.run("call", "mcp.odd/write", "--args", arguments, "--timeout", "5", "--yes")
    assert (inside.exists(), outside.exists()) == (True, False)


# --- workspaces ---------------------------------------------------------------------------------


@pytest.mark.spec("T23")
def test_a_workspace_brings_servers_only_after_trust_and_an_approval(place: Place) -> None:
    own = place.ws / ".callgate" / "settings.toml"
    own.parent.mkdir()
    args = json.dumps(["-I", str(ODD), "--file", str(place.listing)])
    own.write_text(f'[mcp.odd]\ncommand = "{sys.executable}"\nargs = {args}\n')
    ran = place.run("mcp", "list", "--json")
    assert (ran.json["servers"], f"callgate trust {place.ws}" in ran.err) == ([], True)
    assert place.run("trust", ".").code == 0
    assert place.server()["health"] == "new"
    ran = place.run("mcp", "approve", "odd", "--yes")
    assert (ran.code, "callgate trust" in ran.err) == (0, False)
    ran = place.run("call", "mcp.odd/echo", "--args", '{"text": "hi"}', "--yes", "--json")
    assert (ran.code, ran.json["value"]) == (0, "hi")
    other = place.ws.parent / "other"
    other.mkdir()
    ran = place.run("tools", cwd=other)
    assert "mcp__odd__echo" not in ran.out


@pytest.mark.spec("T20", "T23")
def test_a_workspace_sets_no_variable_of_an_approved_server_to_something_else(place: Place) -> None:
    own = place.ws / ".callgate" / "settings.toml"
    own.parent.mkdir()
    args = json.dumps(["-I", str(ODD), "--file", str(place.listing)])
    text = f'[mcp.odd]\ncommand = "{sys.executable}"\nargs = {args}\nset_env = {{ A = "harmless" }}\n'
    own.write_text(text)
    place.run("trust", ".")
    assert "A=harmless" in place.run("mcp", "approve", "odd", "--yes").out
    assert place.server()["health"] == "resting"
    own.write_text(text.replace("harmless", "--require ./evil.js"))
    server = place.server()
    assert (server["health"], server["tools"]) == ("quarantined", [])
    named = server["problem"][server["problem"].index("callgate mcp approve") :]
    assert place.run(*named.split()[1:], "--yes").code == 0
    assert place.server()["health"] == "resting"


@pytest.mark.spec("T23")
@pytest.mark.parametrize(
    "line",
    [
        'effect = "none"',
        "trusted = true",
        "sampling = true",
        'profile = "open"',
        'env = ["TOKEN"]',
        'writable = ["~"]',
        'login_hosts = ["localhost:*"]',
        'set_env = { A = "${TOKEN}" }',
    ],
)
def test_a_workspace_lowers_no_guard_for_its_servers(place: Place, line: str) -> None:
    own = place.ws / ".callgate" / "settings.toml"
    own.parent.mkdir()
    own.write_text(f'[mcp.odd]\ncommand = "x"\n{line}\n')
    place.run("trust", ".")
    ran = place.run("tools", "--json")
    assert (ran.code, ran.json["error"]["reason"]) == (2, "settings_invalid")


# --- import ---------------------------------------------------------------------------------------


def test_the_usual_shapes_of_other_programs_are_read() -> None:
    stdio = {"command": "npx", "args": ["-y", "x"], "env": {"KEY": "${env:KEY}"}}
    table = {
        "command": "npx",
        "args": ["-y", "x"],
        "set_env": {"KEY": "${KEY}"},
    }
    for shape in (
        {"mcpServers": {"A b": stdio}},
        {"servers": {"a-b": stdio}},
        {"mcp": {"servers": {"a-b": {**stdio, "type": "stdio"}}}},
    ):
        assert read(json.dumps(shape)) == [Found("a-b", table)]
    zed = {"context_servers": {"a": {"command": {"path": "tool", "args": ["x"], "env": {}}}}}
    assert read(json.dumps(zed)) == [Found("a", {"command": "tool", "args": ["x"]})]
    http = '{ // mine\n"mcpServers": {"w": {"url": "https://x/mcp", "headers": {"A": "b",},},},}'
    assert read(http) == [Found("w", {"url": "https://x/mcp", "headers": {"A": "b"}})]
    bare = {"a": {"command": "x", "env": {"UNSET": None, "PORT": 80, "HOME_OF": "${userHome}"}}}
    given = {"PORT": "80", "HOME_OF": os.path.expanduser("~")}
    assert read(json.dumps(bare)) == [Found("a", {"command": "x", "set_env": given})]


@pytest.mark.parametrize(
    "said",
    [
        5,
        {},
        {"type": "sse", "url": "https://x"},
        {"command": "x", "disabled": True},
        {"command": "x", "env": {"A": "${input:key}"}},
        {"command": "x", "args": [{}]},
        {"transport": "sse", "url": "https://x"},
        {"url": "wss://x"},
        {"url": "https://u:p@x/"},
        {"command": "x", "args": ["--key", "${KEY}"]},
        {"command": "${env:X}"},
        {"url": "https://x/${KEY}"},
        {"command": "x", "envFile": ".env"},
    ],
)
def test_what_cannot_be_taken_over_is_named_and_the_others_are_taken(said: Any) -> None:
    found, good = read(json.dumps({"mcpServers": {"a": said, "b": {"command": "b"}}}))
    assert found.table is None and found.problem
    assert good == Found("b", {"command": "b"})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"mcpServers": []}', '{"mcpServers": {}}', "{nope"])
def test_a_file_without_servers_is_an_error(text: str) -> None:
    with pytest.raises(CliError):
        read(text)


def test_an_import_shows_no_secret_and_writes_for_its_owner_alone(place: Place) -> None:
    place.settings.chmod(0o644)
    file = place.ws / "mcp.json"
    text = json.dumps({"mcpServers": {"x": {"command": "x", "env": {"KEY": "ghp_secret"}}}})
    file.write_text(text, encoding="utf-8-sig")
    refused = place.run("mcp", "import", "mcp.json")
    assert (refused.code, "ghp_secret" in refused.out + refused.err) == (3, False)
    assert "mcp" not in place.settings.read_text()
    assert place.run("mcp", "import", "mcp.json", "--yes").code == 0
    assert 'KEY = "ghp_secret"' in place.settings.read_text()
    assert stat.S_IMODE(place.settings.stat().st_mode) == 0o600
    assert covered({"set_env": {"A": "x", "B": "${B}"}})["set_env"] == {"A": "(hidden)", "B": "${B}"}
    args = ["-y", "db", "postgres://u:hunter2@h/x", "--api-key", "abc", "--token", "--plain"]
    assert covered({"args": args})["args"] == [
        "-y",
        "db",
        "postgres://u:[REDACTED]@h/x",
        "--api-key",
        "(hidden)",
        "--token",
        "--plain",
    ]
    assert covered({"url": "https://x/mcp?k=v"})["url"] == "https://x/mcp?(hidden)"


def test_who_changes_the_settings_does_it_alone(home: Path) -> None:
    place = Home(str(home))
    with changing(place) as settings:
        settings.add("mcp", "a", table={"command": "a"})
        directory = os.open(home, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(directory)
    assert SettingsFile(place).servers == {"a": {"command": "a"}}


def test_settings_that_are_a_link_stay_one(home: Path, tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles.toml"
    kept.write_text("# mine\n")
    (home / "settings.toml").symlink_to(kept)
    with changing(Home(str(home))) as settings:
        settings.add("mcp", "odd", table={"command": "odd"})
    assert (home / "settings.toml").readlink() == kept
    assert kept.read_text() == '# mine\n\n[mcp.odd]\ncommand = "odd"\n'
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_only_a_table_of_its_own_is_taken_out_of_the_settings(home: Path) -> None:
    place = Home(str(home))
    text = '[mcp.a]\ncommand = "a"\n[mcp.a.set_env]\nX = "1"\n[mcp.ab]\ncommand = "ab" # [mcp.a]\n'
    (home / "settings.toml").write_text(text)
    settings = SettingsFile(place)
    settings.remove("mcp", "a")
    assert settings.text == '[mcp.ab]\ncommand = "ab" # [mcp.a]\n'
    (home / "settings.toml").write_text('mcp.a = { command = "a" }\n')
    with pytest.raises(NotATableError):
        SettingsFile(place).remove("mcp", "a")


def test_a_server_that_is_not_a_table_of_its_own_is_taken_out_by_hand(place: Place) -> None:
    place.settings.write_text('mcp.a = { command = "a" }\n')
    refused = place.run("mcp", "remove", "a")
    assert refused.code == 2
    assert f"[mcp.a] is not a separate table in {place.settings}" in refused.err
    assert place.settings.read_text() == 'mcp.a = { command = "a" }\n'


def test_a_table_is_written_as_it_is_read() -> None:
    table = {"command": 'a "b"\x7f\n', "args": ["é", "\\"], "set_env": {"A.b": "x"}}
    assert tomllib.loads(table_text(("mcp", "s"), table)) == {"mcp": {"s": table}}


def test_a_flag_that_allows_calls_answers_no_form_of_a_server(place: Place) -> None:
    place.tools = [{"name": "form", "description": "Asks.", "inputSchema": {"type": "object"}}]
    place.write()
    assert place.add("--yes").code == 0
    ran = place.run("call", "mcp.odd/form", "--yes", "--no-input", "--json")
    assert json.loads(ran.json["content"][0]["text"]) == {"action": "decline"}
    assert "mcp_form is refused, because it needs a person's answer" in ran.err
