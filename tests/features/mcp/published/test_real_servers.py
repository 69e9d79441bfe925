"""Third-party MCP servers behind the gate and in the sandbox: by the settings, and in an editor."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from callgate.cli.main import main
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.content import ImageBlock
from callgate.features.mcp.commands.add import recipe
from tests.features.editor.clients import connected
from tests.features.editor.test_mcp_servers import NOTICES, call, notices, opened
from tests.features.mcp.client.labs import Lab, refusal
from tests.needs import needs

TOOLS = Path(__file__).parents[4] / ".tools/mcp_servers"
NPM = TOOLS / "node_modules"
OFFICIAL = NPM / "@modelcontextprotocol"
COMMANDS: dict[str, tuple[str, ...]] = {
    "everything": ("node", str(OFFICIAL / "server-everything/dist/index.js")),
    "filesystem": ("node", str(OFFICIAL / "server-filesystem/dist/index.js")),
    "memory": ("node", str(OFFICIAL / "server-memory/dist/index.js")),
    "thinking": ("node", str(OFFICIAL / "server-sequential-thinking/dist/index.js")),
    "fetch": (sys.executable, "-m", "mcp_server_fetch"),
    "git": (sys.executable, "-m", "mcp_server_git"),
    "time": (sys.executable, "-m", "mcp_server_time"),
    "playwright": ("node", str(NPM / "@playwright/mcp/cli.js")),
    "devtools": ("node", str(NPM / "chrome-devtools-mcp/build/src/bin/chrome-devtools-mcp.js")),
}
ARGUMENTS = {"filesystem": (".",)}
EDITOR = ("everything", "filesystem", "git")
ENV = {"PYTHONPATH": str(TOOLS / "python")}
SETTINGS = f'mode = "write"\n[sandbox]\nreadable = [{json.dumps(ENV["PYTHONPATH"])}]\n'
"""A checkout in the user's home is not visible in the sandbox otherwise."""
EFFECTS = {
    "filesystem": {"write_file": "write"},
    "git": {"git_add": "write"},
    "memory": {"create_entities": "write"},
}
PAGE = "data:text/html,<title>Greeting</title><h1>hello</h1>"
NO_CHROMIUM = needs("chromium")

pytestmark = [needs("mcp servers", "node", "git", "no /tmp")]


class RealLab(Lab):
    """Some servers, in the sandbox of a newcomer's settings. `add` writes tables like this one."""

    def __init__(self, base: Path, *names: str, more: tuple[str, ...] = (), **keys: Any) -> None:
        super().__init__(base, settings="x")
        tables = [self._table(name, (*COMMANDS[name], *ARGUMENTS.get(name, ()), *more), keys) for name in names]
        (self.home / "settings.toml").write_text(SETTINGS + "".join(tables))

    def _table(self, name: str, command: tuple[str, ...], keys: dict[str, Any]) -> str:
        completed = recipe(command)
        table = {
            "command": command[0],
            "args": [*command[1:], *completed.args],
            "effect": "read" if name in EFFECTS or name in EDITOR else "execute",
            **completed.keys,
            **keys,
        }
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in table.items()]
        effects = ", ".join(f'{tool} = "{effect}"' for tool, effect in EFFECTS.get(name, {}).items())
        python_path = json.dumps(ENV["PYTHONPATH"])
        return "".join(
            [
                f"[mcp.{name}]\n",
                *lines,
                f"set_env = {{ PYTHONPATH = {python_path} }}\n",
                f"effects = {{ {effects} }}\n",
            ]
        )

    def call(self, tool: str, session: Any = None, timeout_s: float = 120.0, **arguments: Any) -> Any:
        return self.wired.runtime.calls.run(
            ToolCall(
                tool=f"mcp.{tool}",
                arguments=arguments,
                session=self.session,
                caller=CallerKind.CLI,
                timeout_s=timeout_s,
            )
        )


@pytest.fixture
async def lab(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[RealLab]:
    """A lab with the servers that the test names by `@servers`."""
    async with RealLab(tmp_path, *request.param) as lab:
        yield lab


def servers(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("lab", [names], indirect=True, ids=["-".join(names)])


def repository(path: Path) -> None:
    for arguments in (["init", "-q"], ["config", "user.name", "a"], ["config", "user.email", "a@example.com"]):
        subprocess.run(["git", "-C", str(path), *arguments], check=True)


@contextlib.contextmanager
def served(page: str) -> Iterator[str]:
    """`host:port` of a web server on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@servers("everything")
async def test_the_everything_server(lab: RealLab) -> None:
    assert (await lab.call("everything/echo", message="hi")).text == "Echo: hi"
    assert "5" in (await lab.call("everything/get-sum", a=2, b=3)).text
    assert refusal(await lab.call("everything/get-sum", a="2", b=3)) == ("validation_error", None)
    weather = await lab.call("everything/get-structured-content", location="Chicago")
    assert isinstance(weather.value, dict) and "temperature" in weather.value
    image = await lab.call("everything/get-tiny-image")
    assert [type(each) for each in image.content].count(ImageBlock) == 1
    slow = await lab.call("everything/trigger-long-running-operation", duration=0.5, steps=2)
    assert slow.ok
    assert [each["fraction"] for each in lab.of("tool.progress")] == [0.5, 1.0]
    assert (await lab.call("everything/resources/list")).value["resources"]
    assert (await lab.call("everything/prompts/list")).value["prompts"]


@servers("filesystem")
async def test_the_filesystem_server_stays_in_the_workspace(lab: RealLab, tmp_path: Path) -> None:
    inside, outside = lab.ws / "inside.txt", tmp_path / "outside.txt"
    assert (await lab.call("filesystem/write_file", path=str(inside), content="hi")).ok
    assert inside.read_text() == "hi"
    assert (await lab.call("filesystem/read_text_file", path=str(inside))).text == "hi"
    assert not (await lab.call("filesystem/write_file", path=str(outside), content="hi")).ok
    assert not outside.exists()


@pytest.mark.soak
@servers("filesystem")
async def test_a_server_that_is_declared_to_read_cannot_write(lab: RealLab) -> None:
    made = await lab.call("filesystem/create_directory", path=str(lab.ws / "made"))
    assert (made.ok, (lab.ws / "made").exists()) == (False, False)
    (mismatch,) = lab.of("tool.effect_mismatch")
    assert mismatch["path"] == str(lab.ws / "made")
    after = await lab.call("filesystem/list_directory", path=str(lab.ws))
    assert refusal(after) == ("host_unavailable", "mcp_quarantined")


@servers("git")
async def test_the_git_server(lab: RealLab) -> None:
    repository(lab.ws)
    (lab.ws / "a.txt").write_text("one\n")
    place = {"repo_path": str(lab.ws)}
    assert "a.txt" in (await lab.call("git/git_status", **place)).text
    assert (await lab.call("git/git_add", **place, files=["a.txt"])).ok
    staged = await lab.call("git/git_diff_staged", **place)
    assert "+one" in staged.text


@servers("memory")
async def test_the_memory_server_stores_its_graph_in_its_own_directory(lab: RealLab, tmp_path: Path) -> None:
    entity = {"name": "callgate", "entityType": "program", "observations": ["has a sandbox"]}
    created = await lab.call("memory/create_entities", entities=[entity])
    assert created.ok, created.text
    home = lab.home / "mcp/memory/home"
    assert "has a sandbox" in (home / "memory.jsonl").read_text()
    assert home.stat().st_mode & 0o777 == 0o700
    assert "has a sandbox" in (await lab.call("memory/read_graph")).text


@servers("thinking")
async def test_the_sequential_thinking_server(lab: RealLab) -> None:
    thought = await lab.call(
        "thinking/sequentialthinking",
        thought="Look first.",
        thoughtNumber=1,
        totalThoughts=2,
        nextThoughtNeeded=True,
    )
    assert thought.ok, thought.text
    assert '"thoughtNumber": 1' in thought.text


@servers("time")
async def test_the_time_server(lab: RealLab) -> None:
    found = await lab.call(
        "time/convert_time", source_timezone="Europe/Berlin", time="12:00", target_timezone="Asia/Tokyo"
    )
    assert found.ok, found.text
    assert "Asia/Tokyo" in found.text


async def test_the_fetch_server_reads_a_page_of_an_allowed_host(tmp_path: Path) -> None:
    with served("<html><body><article><h1>Greeting</h1><p>hello there</p></article></body></html>") as host:
        arguments = ("--allow-private-ips", "--ignore-robots-txt")
        async with RealLab(tmp_path, "fetch", more=arguments, network=[host]) as lab:
            page = await lab.call("fetch/fetch", url=f"http://{host}/")
            assert page.ok, page.text
            assert "hello there" in page.text
            other = await lab.call("fetch/fetch", url="http://192.0.2.1/")
            assert not other.ok
            assert f'`network = ["{host}", "192.0.2.1"]` in `[mcp.fetch]`' in other.text


@servers("fetch")
async def test_a_refused_host_is_named_with_the_setting_that_allows_it(lab: RealLab) -> None:
    page = await lab.call("fetch/fetch", url="https://example.com/")
    assert not page.ok
    assert "refused MCP server 'fetch' the network host 'example.com'" in page.text
    assert '`network = ["example.com"]` in `[mcp.fetch]`' in page.text


@NO_CHROMIUM
@servers("playwright")
async def test_the_playwright_server_drives_chromium_in_the_sandbox(lab: RealLab) -> None:
    opened = await lab.call("playwright/browser_navigate", url=PAGE)
    assert opened.ok, opened.text
    found = await lab.call("playwright/browser_evaluate", function="() => document.title")
    assert "Greeting" in found.text


@NO_CHROMIUM
@servers("devtools")
async def test_the_devtools_server_drives_chromium_in_the_sandbox(lab: RealLab) -> None:
    opened = await lab.call("devtools/new_page", url=PAGE)
    assert opened.ok, opened.text
    assert "data:text/html" in (await lab.call("devtools/list_pages")).text


@pytest.mark.soak
@NO_CHROMIUM
@pytest.mark.parametrize(("name", "tool"), [("playwright", "browser_navigate"), ("devtools", "new_page")])
async def test_a_browser_without_its_setting_is_told_which(tmp_path: Path, name: str, tool: str) -> None:
    async with RealLab(tmp_path, name, unix_sockets=False) as lab:
        opened = await lab.call(f"{name}/{tool}", url=PAGE)
        assert not opened.ok
        assert f"set `unix_sockets = true` in `[mcp.{name}]`" in opened.text


@pytest.mark.soak
@NO_CHROMIUM
async def test_a_browser_keeps_its_profile_in_the_servers_own_directory(tmp_path: Path) -> None:
    chromium = str(shutil.which("chromium"))
    script = COMMANDS["devtools"][1]
    args = [script, "--headless", "--chromeArg=--no-sandbox", "--executablePath", chromium]
    async with RealLab(tmp_path, "devtools", args=args) as lab:
        page = await lab.call("devtools/new_page", url=PAGE)
        assert page.ok, page.text
        assert [*(lab.home / "mcp/devtools/cache/chrome-devtools-mcp").iterdir()]


def recipes() -> dict[str, list[str]]:
    """The commands of the page, by the server's name."""
    page = (Path(__file__).parents[4] / "docs/build/mcp_recipes.md").read_text()
    lines = [line.removeprefix("$ ") for line in page.splitlines() if line.startswith("$ callgate mcp add ")]
    return {words[3]: words for words in map(shlex.split, lines)}


def test_every_server_has_a_recipe_with_its_package() -> None:
    packages = json.loads((Path(__file__).parent / "package.json").read_text())["dependencies"]
    programs = {words[words.index("--") + 1] for words in recipes().values()}
    assert {*recipes()} == {*COMMANDS}
    assert programs == {"npx", "uvx"}
    assert {word for words in recipes().values() for word in words if word in packages} == {*packages}


@pytest.mark.soak
@NO_CHROMIUM
@pytest.mark.parametrize("name", COMMANDS)
def test_the_recipe_of_the_page_adds_the_server(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the program in the place of `npx PACKAGE` or `uvx PACKAGE`, which need a registry."""
    words = recipes()[name]
    end = words.index("--")
    package = end + (3 if words[end + 1] == "npx" else 2)
    monkeypatch.setenv("CALLGATE_HOME", str(tmp_path / "h"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h").mkdir(mode=0o700)
    (tmp_path / "h/settings.toml").write_text(SETTINGS)
    python_path = ["--env", f"PYTHONPATH={ENV['PYTHONPATH']}"]
    code = main([*words[1:end], *python_path, "--yes", "--", *COMMANDS[name], *words[package + 1 :]])
    assert code == 0, capsys.readouterr().err
    assert main(["mcp", "list"]) == 0
    assert name in capsys.readouterr().out


@pytest.mark.soak
async def test_all_of_them_in_the_sessions_of_an_editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.features.mcp.session_servers.PATIENCE_S", 60.0)
    workspace = tmp_path / "project"
    workspace.mkdir()
    repository(workspace)
    servers = [
        {
            "name": name,
            "command": COMMANDS[name][0],
            "args": [*COMMANDS[name][1:], *ARGUMENTS.get(name, ())],
            "env": [{"name": key, "value": value} for key, value in ENV.items()],
        }
        for name in EDITOR
    ]
    async with connected(tmp_path / "home", settings=SETTINGS, capabilities=NOTICES) as client:
        session = await opened(client, workspace, servers)
        assert (await call(client, session, "mcp__everything__echo", message="hi")) == ("completed", "Echo: hi")
        written = await call(
            client, session, "mcp__filesystem__write_file", path=str(workspace / "a.txt"), content="hi"
        )
        assert (written[0], (workspace / "a.txt").read_text()) == ("completed", "hi")
        status = await call(client, session, "mcp.git/git_status", repo_path=str(workspace))
        assert status[0] == "completed" and "a.txt" in status[1]
        assert notices(client, session) == []
        await client.ask("session/close", sessionId=session)
