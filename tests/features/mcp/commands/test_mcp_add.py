"""`callgate mcp add` at a terminal: the question about the network, and the list of tools."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.cli.errors import CliError
from callgate.features.mcp.client.definitions import Beliefs, definitions
from callgate.features.mcp.commands.add import own_sandbox, parse_network
from callgate.features.mcp.commands.approve import ToolList, summary
from callgate.sources.pins import Pinned
from tests.kernel.cli.instances import short_directory
from tests.kernel.cli.running import AtTerminal, Ran, callgate, installed

ODD = Path(__file__).parents[1] / "client" / "odd_server.py"
SCHEMA = {"type": "object"}


def tool(name: str, description: str, *, reads: bool) -> dict[str, Any]:
    return {
        "name": name,
        "description": description,
        "inputSchema": SCHEMA,
        "annotations": {"readOnlyHint": reads},
    }


FOURTEEN = [
    tool(
        f"{'read' if n < 9 else 'write'}_number_{n}",
        f"Does the thing with the number {n}, which is of some importance. And a second sentence.",
        reads=n < 9,
    )
    for n in range(14)
]


class Desk:
    def __init__(self, base: Path) -> None:
        self.base = base
        self.ws = base / "ws"
        self.ws.mkdir()
        (base / "h").mkdir(mode=0o700)
        self.settings = base / "h/settings.toml"
        self.settings.write_text('sandbox = "off"\n')
        self.listing = base / "tools.json"
        self.listing.write_text(json.dumps(FOURTEEN))
        self.env = {"CALLGATE_HOME": str(base / "h")}

    def add(self, *options: str) -> AtTerminal:
        command = [sys.executable, "-I", str(ODD), "--file", str(self.listing)]
        words = ("mcp", "add", "files", *options, "--", *command)
        return AtTerminal(*words, cwd=self.ws, env=self.env, streams_too=True)

    @property
    def table(self) -> dict[str, Any]:
        found: dict[str, Any] = tomllib.loads(self.settings.read_text())["mcp"]["files"]
        return found


@pytest.fixture
def desk() -> Iterator[Desk]:
    with short_directory() as base:
        yield Desk(base)


@pytest.mark.parametrize(
    ("keys", "network"),
    [(["\n"], "none"), (["a\n"], "all"), (["h\n", "api.example.com, *.x.org\n"], ["api.example.com", "*.x.org"])],
    ids=["enter", "all", "hosts"],
)
def test_the_network_is_asked_for_once_and_written(desk: Desk, keys: list[str], network: Any) -> None:
    running = desk.add()
    for number, each in enumerate(keys, 1):
        running.asked(number)
        running.terminal.press(each)
    running.asked(len(keys) + 1)
    running.terminal.press("y\n")
    assert running.end().code == 0
    assert desk.table["network"] == network
    shown = network if isinstance(network, str) else ", ".join(network)
    assert f"network of files: {shown}." in running.terminal.text
    assert "14 tools of 'files' approved" in running.terminal.text


def test_an_option_answers_the_question_about_the_network(desk: Desk) -> None:
    running = desk.add("--network", "none")
    assert "Network?" not in running.asked()
    running.terminal.press("n\n")
    assert running.end().code == 3
    assert "mcp" not in tomllib.loads(desk.settings.read_text())


def test_read_only_counts_once_a_person_has_confirmed_it(desk: Desk) -> None:
    running = desk.add("--network", "none")
    text = running.asked()
    assert "execute; the server suggests read-only (9)" in text and "execute (5)" in text
    assert "[more:" not in text  # all of it fits on the screen
    running.terminal.press("r\n")
    assert running.end().code == 0
    assert desk.table["effects"] == {f"read_number_{n}": "read" for n in range(9)}


def test_a_yes_leaves_tools_as_the_settings_say(desk: Desk) -> None:
    ran = desk.add("--network", "none").answer("y\n").end()
    assert ran.code == 0
    assert "effects" not in desk.table


def test_details_are_shown_on_demand(desk: Desk) -> None:
    running = desk.add("--network", "none")
    assert "second sentence." not in running.asked()
    running.terminal.press("d\n")
    assert "second sentence." in running.asked(2)
    running.terminal.press("q\n")
    running.asked(3)
    running.terminal.press("n\n")
    assert running.end().code != 0


def test_each_number_of_tools_counts_those_for_resources_too(desk: Desk) -> None:
    server = [sys.executable, "-I", str(Path(__file__).with_name("full_mcp_server.py"))]
    words = ("mcp", "add", "files", "--network", "none", "--yes", "--", *server)
    added = installed(*words, cwd=desk.ws, env=desk.env)
    rows = [row for row in added.out.splitlines() if row.startswith("    ")]
    assert "resources/read" in added.out
    assert f"files: {len(rows)} tools" in added.out
    assert f"{len(rows)} tools of 'files' approved" in added.err
    assert f" {len(rows)} tools " in installed("mcp", "list", cwd=desk.ws, env=desk.env).out


def test_without_a_terminal_and_an_option_there_is_no_network_and_a_message_says_so(desk: Desk) -> None:
    script = shutil.copy(ODD, desk.ws)
    command = [sys.executable, "-I", str(script), "--file", str(desk.listing)]
    ran = callgate("mcp", "add", "files", "--yes", "--", *command, cwd=desk.ws, env=desk.env)
    assert ran.code == 0, ran
    assert "network of files: none (--network was not given)" in ran.err
    assert "network" not in desk.table


def test_a_failed_add_leaves_only_its_log_and_the_data_of_an_earlier_server(desk: Desk) -> None:
    data = desk.base / "h/mcp/old/home"
    data.mkdir(parents=True)
    (data / "notes").write_text("of an earlier server with this name\n")
    for name in ("new", "old"):
        failed = callgate("mcp", "add", name, "--yes", "--", "/bin/false", cwd=desk.ws, env=desk.env)
        assert (failed.code, f"{name} was not added" in failed.err) == (5, True)
    assert sorted(each.name for each in (desk.base / "h/mcp").iterdir()) == ["new.log", "old", "old.log"]
    assert (data / "notes").exists()


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_a_list_of_tools_fits_the_terminal_with_one_row_for_each(columns: int) -> None:
    pinned = Pinned(command=("stdio",), schemas=FOURTEEN)
    found = summary("files", "files is new: x", pinned, definitions(FOURTEEN, "files", Beliefs()), [])
    rows = [*ToolList([found]).rows(columns)]
    assert max(map(len, rows)) < columns
    assert len(rows) == 2 + 2 + 14
    assert all(any(row.split()[:1] == [each["name"]] for row in rows) for each in FOURTEEN)


def test_a_path_with_a_hyphen_stays_whole_in_a_narrow_list_of_tools() -> None:
    path = "/srv/my-servers/first-hour/a-server-for-files.py"
    pinned = Pinned(command=("stdio",), schemas=FOURTEEN)
    found = summary("files", f"files is new: python {path}", pinned, [], [f"{path} will not be offered: no"])
    rows = [*ToolList([found]).rows(40)]
    assert sum(path in row for row in rows) == 2
    assert all(len(row) < 40 or path in row for row in rows)


@pytest.mark.parametrize("text", ["", ",", "https://x/y", "*", "a b"])
def test_hosts_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(CliError):
        parse_network(text)


@pytest.mark.parametrize("known", [0, 1], ids=["first", "second"])
def test_a_running_instance_takes_a_new_server_over(desk: Desk, known: int) -> None:
    """Also where it had none when it started."""
    command = [sys.executable, "-I", str(ODD), "--file", str(desk.listing)]

    def run(*words: str) -> Ran:
        return installed(*words, cwd=desk.ws, env=desk.env)

    def add(name: str) -> Ran:
        return run("mcp", "add", name, "--effect", "read", "--yes", "--", *command)

    desk.listing.write_text(json.dumps([tool("echo", "Echoes.", reads=True)]))
    for number in range(known):
        assert add(f"known{number}").code == 0
    assert run("serve", "--detach", "--no-http").code == 0
    try:
        added = add("files")
        assert (added.code, "adopts the approved tools of MCP server files" in added.err) == (0, True), added
        called = run("call", "mcp.files/echo", "--args", '{"text": "hi"}', "--json")
        assert (called.code, called.json["value"]) == (0, "hi"), called
        assert called.json["answered_by"]["instance"] is not None
        (server,) = [each for each in run("mcp", "list", "--json").json["servers"] if each["name"] == "files"]
        assert server["health"] == "running"
        assert "restart" not in run("status").out
        assert run("mcp", "remove", "files").code == 0
        gone = run("call", "mcp.files/echo", "--args", '{"text": "hi"}', "--json")
        assert gone.json["error"]["class"] == "not_found", gone
    finally:
        assert run("stop").code == 0


def test_only_the_installed_docker_runs_outside_the_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a workspace can have any name."""
    workspace, system = tmp_path / "ws", tmp_path / "system"
    for directory in (workspace / "bin", system):
        directory.mkdir(parents=True)
        (directory / "docker").touch(0o755)
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("PATH", str(system))
    for command in ("docker", str(system / "docker")):
        assert own_sandbox([command, "run"]) == {"profile": "open"}
    for command in ("bin/docker", "./bin/docker", str(workspace / "bin/docker"), "podman"):
        assert own_sandbox([command, "run"]) == {}
    monkeypatch.setenv("PATH", f"{workspace}/bin:{system}")
    assert own_sandbox(["docker", "run"]) == {}
