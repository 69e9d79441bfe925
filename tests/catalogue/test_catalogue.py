"""The catalogue as a whole: every type of the text format runs through the dispatcher with its class."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate
from callgate.config.home import Home
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolRegistrationError
from callgate.core.local.environment import Offered
from callgate.core.sessions import Mode
from callgate.instance.wiring.runtime import Wired
from callgate.policy.rules import Outcome, Policy, Rule
from callgate.tools import loading
from callgate.tools.loading import LoadedTool, factories
from callgate.tools.shell import Shell
from callgate_catalogue.documents import pack as documents
from callgate_catalogue.documents.pack import FILES
from callgate_catalogue.google import catalogue as google
from callgate_catalogue.memory import pack as memory
from callgate_catalogue.settings import Documents, DocumentsTable
from callgate_catalogue.web import pack as web
from tests.kernel.dispatch.test_environments import FakeEditor
from tests.support import Bench, FakeHuman, make_tool

ROWS = (*web.CATALOGUE, *memory.CATALOGUE, *documents.CATALOGUE, *FILES, *loading.CUSTOM)
EFFECTS = {
    "web_search": "read",
    "web_fetch": "read",
    "api_call": "network",
    "search": "read",
    "file_ingest": "write",
    "file_upload": "write",
    "file_put": "write",
    "file_get": "read",
    "memory_add": "write",
    "memory_replace": "write",
    "memory_consolidate": "write",
    "memory_search": "read",
    "custom": "none",
}
NAMED = [pytest.param(row, id=row.definition.name) for row in ROWS]


@pytest.mark.spec("S3-53", "S3-29")
async def test_every_tool_is_registered_with_its_class(home: Path, tmp_path: Path) -> None:
    async with Gate(tmp_path, home=home) as gate:
        registry = gate._wired.dispatcher.registry
        found = {row.definition.name: registry.find(row.definition.name) for row in ROWS}
        assert {name: tool.effect for name, tool in found.items() if tool is not None} == EFFECTS
        shell = registry.find("terminal_execute")
        assert shell is not None and shell.effect is SideEffects.EXECUTE


@pytest.mark.spec("S3-53")
async def test_a_terminal_runs_a_command_and_a_second_is_enough(tmp_path: Path) -> None:
    desk = Bench(tmp_path, Shell, mode=Mode.WRITE)
    assert (await desk.run("terminal_execute", {"command": "echo hi"})).value["stdout"] == "hi\n"
    late = await desk.run("terminal_execute", {"command": "sleep 60", "timeout": 500})
    assert (late.error.error_class, late.error.details["timeout_seconds"]) == ("timeout", 0.5)
    for wrong in ({"timeout_seconds": 1}, {"command": "true", "timeout_seconds": 1, "timeout": 9}):
        assert (await desk.run("terminal_execute", wrong)).error.error_class == "validation_error"
    assert not (await desk.run("terminal_execute", {"command": "exit 3"})).ok


@pytest.mark.parametrize("name", [*EFFECTS, *(spec.definition.name for spec in google.CATALOGUE)])
def test_each_is_found_by_its_name_alone(name: str, home: Path) -> None:
    wired = Wired(Home(str(home)), audit=False)
    wired.register_catalogue()
    registry = wired.registry
    found = registry.find(name)
    assert found is not None and found.name == name
    with pytest.raises(ToolRegistrationError):
        registry.register(make_tool(name))


async def test_the_list_is_the_same_whichever_tool_was_looked_at_first(home: Path, tmp_path: Path) -> None:
    lists = []
    for first in ("read_file", "custom", "tasks_list", "nosuch"):
        async with Gate(tmp_path, home=home) as gate:
            registry = gate._wired.dispatcher.registry
            registry.find(first)
            lists.append([tool.name for tool in registry])
    assert lists[1:] == lists[:1] * 3
    assert {*EFFECTS, *(spec.definition.name for spec in google.CATALOGUE)} < {*lists[0]}


@pytest.mark.parametrize("row", NAMED)
async def test_a_call_that_lacks_a_parameter_or_has_one_too_many_never_starts(
    row: Any, home: Path, tmp_path: Path
) -> None:
    (home / "settings.toml").write_text('[web]\nsearch = "searxng"\nsearch_url = "http://127.0.0.1:1"\n')
    async with Gate(tmp_path, home=home, mode=Mode.WRITE) as gate:
        required = row.definition.input_schema.get("required", [])
        for arguments in [{"nosuch": 1}] + ([{}] if required else []):
            result = await gate.call(row.definition.name, arguments)
            assert result.error is not None and result.error.error_class == "validation_error"


@pytest.mark.parametrize("row", NAMED)
def test_every_row_names_functions_that_are_there(row: Any) -> None:
    assert asyncio.iscoroutinefunction(row.function())
    assert row.preview is None or callable(row.preview())
    made = LoadedTool(row, None)
    assert made.definition is row.definition and made is not LoadedTool(row, None)


@pytest.mark.spec("S3-54")
async def test_a_tool_that_is_not_configured_is_not_offered_and_says_what_to_do(home: Path, tmp_path: Path) -> None:
    async with Gate(tmp_path, home=home) as gate:
        assert "web_search" not in [tool.name for tool in gate.runtime.tools.listed(gate.session)]
        reasons = {tool.name: reason for tool, reason in gate.runtime.tools.with_reasons(gate.session)}
        assert reasons["web_search"] is not None and "settings.toml" in reasons["web_search"]
        result = await gate.call("web_search", {"query": "x"})
        assert result.error is not None and result.error.error_class == "not_found"
        assert reasons["web_search"] in result.error.message


@pytest.mark.parametrize(("variable", "stored"), [("BRAVE_API_KEY", False), (None, True)])
async def test_a_key_makes_the_search_available(
    variable: str | None, stored: bool, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "settings.toml").write_text('[web]\nsearch = "brave"\n')
    if variable:
        monkeypatch.setenv(variable, "k" * 20)
    if stored:
        (home / "keys.json").touch(0o600)
        (home / "keys.json").write_text('{"brave": "kkkkkkkkkkkk"}')
    async with Gate(tmp_path, home=home) as gate:
        assert "web_search" in [tool.name for tool in gate.runtime.tools.listed(gate.session)]


async def test_names_that_only_some_models_know_are_answered_and_not_told(home: Path, tmp_path: Path) -> None:
    async with Gate(tmp_path, home=home, mode=Mode.WRITE) as gate:
        told = {tool.name for tool in gate.runtime.tools.listed(gate.session)}
        assert told.isdisjoint({"file_put", "file_get", "custom"}) and "web_fetch" in told
        assert (await gate.call("file_put", {"path": "a.txt", "content": "x"})).ok


def test_to_have_them_loads_nothing_that_they_use() -> None:
    code = (
        "import sys, callgate.instance.wiring.runtime\n"
        "heavy = ('httpx2', 'httpcore2', 'anyio', 'apsw', 'pypdf', 'ddgs', 'html')\n"
        "print([name for name in sys.modules if name.split('.')[0] in heavy or name.startswith('callgate.tools.')\n"
        "       and name.rpartition('.')[2] in ('fetching', 'markdown', 'store', 'index', 'put_get', 'custom')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


# --- files by their other names -----------------------------------------------------------


def files(home: Path, workspace: Path, **more: Any) -> Bench:
    shared = Documents(str(home), DocumentsTable())
    more.setdefault("mode", Mode.WRITE)
    return Bench(workspace, *factories((*FILES, *documents.CATALOGUE), shared), **more)


async def test_a_file_is_put_and_got_as_text_and_as_bytes(home: Path, tmp_path: Path) -> None:
    desk = files(home, tmp_path)
    assert (
        await desk.run(
            "file_put", {"filename": "a/b.txt", "content": "héllo", "summary": "s", "mimeType": "text/plain"}
        )
    ).ok
    got = await desk.run("file_get", {"path": "server:a/b.txt"})
    assert got.value == {
        "path": "server:a/b.txt",
        "content": "héllo",
        "encoding": "utf8",
        "length": 5,
        "truncated": False,
    }
    raw = base64.b64encode(b"\0\1\2\3\4").decode()
    assert (
        await desk.run("file_put", {"path": "x.bin", "content": raw, "encoding": "base64", "permissions": "640"})
    ).ok
    assert (tmp_path / "x.bin").read_bytes() == b"\0\1\2\3\4"
    assert (tmp_path / "x.bin").stat().st_mode & 0o777 == 0o640
    assert (await desk.run("file_get", {"path": "x.bin", "encoding": "base64"})).value["content"] == raw
    part = await desk.run("file_get", {"path": "x.bin", "encoding": "base64", "maxLength": 6})
    assert (part.value["content"], part.truncated) == (raw[:4], True)
    assert (await desk.run("file_get", {"path": "a/b.txt", "maxLength": 2})).value["content"] == "hé"


async def test_a_document_is_got_by_its_name(home: Path, tmp_path: Path) -> None:
    desk = files(home, tmp_path)
    await desk.run("file_ingest", {"content": "kept", "filename": "k.txt"})
    assert (await desk.run("file_get", {"path": "document:k.txt"})).value["content"] == "kept"
    for path, error in (("document:nosuch", "execution_error"), ("document:../../keys.json", "validation_error")):
        assert (await desk.run("file_get", {"path": path})).error.error_class == error
    assert (
        await desk.run("file_put", {"path": "document:k.txt", "content": "x"})
    ).error.error_class == "validation_error"


@pytest.mark.spec("S3-56")
@pytest.mark.parametrize("prefix", ["", "server:", "client:", "editor:"])
@pytest.mark.parametrize("path", ["../x", "/etc/hosts", "a/../../x", "link/x"])
async def test_no_prefix_leads_out_of_the_workspace(prefix: str, path: str, home: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (tmp_path / "x").write_text("outside")
    (workspace / "link").symlink_to(tmp_path)
    editor = FakeEditor({str(tmp_path / "x"): "outside", "/etc/hosts": "outside"})
    desk = files(home, workspace)
    desk.dispatcher.environments.offer(desk.session.id, Offered(files=editor))
    for tool, more in (("file_get", {}), ("file_put", {"content": "evil"})):
        result = await desk.run(tool, {"path": prefix + path, **more})
        assert result.error is not None and "outside" not in str(result)
    assert (tmp_path / "x").read_text() == "outside" and editor.asked == []


async def test_rules_hold_whatever_prefix_is_written(home: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("canary")
    for decision in (Outcome.DENY, Outcome.ASK):
        rules = (Rule(decision=decision, path="secret.txt"),)
        editor = FakeEditor({str(tmp_path / "secret.txt"): "canary"})
        desk = files(home, tmp_path, policy=Policy(rules=rules), human=FakeHuman(False, False))
        desk.dispatcher.environments.offer(desk.session.id, Offered(files=editor))
        for prefix in ("server:", "client:", "editor:"):
            got = await desk.run("file_get", {"path": f"{prefix}secret.txt"})
            put = await desk.run("file_put", {"path": f"{prefix}secret.txt", "content": "x"})
            assert got.error is not None and put.error is not None and "canary" not in str(got)
        assert editor.asked == [] and (tmp_path / "secret.txt").read_text() == "canary"


async def test_an_editor_serves_its_own_files_where_there_is_one(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("on disk")
    desk = files(home, tmp_path)
    for tool, more in (("file_get", {}), ("file_put", {"content": "new"})):
        refused = await desk.run(tool, {"path": "client:a.txt", **more})
        assert (refused.error.error_class, refused.error.reason) == ("validation_error", "no_client")
    path = os.path.realpath(tmp_path / "a.txt")
    editor = FakeEditor({path: "in the buffer"})
    desk.dispatcher.environments.offer(desk.session.id, Offered(files=editor))
    assert (await desk.run("file_get", {"path": "editor:a.txt"})).value["content"] == "in the buffer"
    assert (await desk.run("file_put", {"path": "client:a.txt", "content": "new"})).ok
    assert (editor.buffers[path], (tmp_path / "a.txt").read_text()) == ("new", "on disk")
    raw = {"path": "client:a.txt", "encoding": "base64"}
    assert (await desk.run("file_get", raw)).error.error_class == "validation_error"
    assert (await desk.run("file_put", {**raw, "content": "eA=="})).error.error_class == "validation_error"


@pytest.mark.parametrize(
    ("tool", "arguments", "error_class"),
    [
        ("file_get", {"path": "nosuch"}, "execution_error"),
        ("file_get", {"path": "client:"}, "validation_error"),
        ("file_get", {"path": "raw.bin"}, "execution_error"),
        ("file_put", {"path": "x", "content": "x" * (5 * 1024 * 1024 + 1)}, "validation_error"),
        ("file_put", {"path": "x", "content": "!", "encoding": "base64"}, "validation_error"),
        ("file_put", {"path": "x", "content": "x", "permissions": "4755"}, "validation_error"),
        ("file_put", {"path": ".git/hooks/pre-commit", "content": "x"}, "permission_denied"),
        (
            "file_put",
            {"path": "server:.git/hooks/pre-commit", "content": "x", "permissions": "755"},
            "permission_denied",
        ),
    ],
)
async def test_what_cannot_be_put_or_got_says_why(
    tool: str, arguments: Any, error_class: str, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "raw.bin").write_bytes(b"\xff\0")
    result = await files(home, tmp_path).run(tool, arguments)
    assert result.error.error_class == error_class


# --- custom -------------------------------------------------------------------------------


def routed(*tools: Any, **more: Any) -> Bench:
    desk = Bench("/", *tools, **more)
    for factory in factories(loading.CUSTOM, desk.dispatcher.run):
        desk.dispatcher.register(factory)
    return desk


@pytest.mark.spec("S3-28", "S3-29")
async def test_custom_calls_the_tool_that_it_names_with_its_class() -> None:
    write = make_tool(
        "touch",
        SideEffects.WRITE,
        {"type": "object", "properties": {"n": {"type": "integer"}}},
        lambda given, _: str(given),
    )
    human = FakeHuman(True, False)
    desk = routed(write, human=human)
    result = await desk.run("custom", {"name": "touch", "arguments": {"n": 1}})
    assert (result.ok, result.text) == (True, "{'n': 1}")
    assert [(question.tool, question.side_effects) for question in human.questions] == [("touch", "write")]
    assert (await desk.run("custom", {"name": "touch", "parameters": {"n": 2}})).error.error_class == "user_denied"
    assert (
        await desk.run("custom", {"name": "touch", "parameters": {"n": "x"}})
    ).error.error_class == "validation_error"
    assert [record.tool for record in desk.recorder.records] == ["touch", "custom"] * 3


@pytest.mark.spec("S3-28")
@pytest.mark.parametrize("name", ["nosuch", "custom", "CUSTOM"])
async def test_custom_without_a_tool_of_that_name_is_refused(name: str) -> None:
    result = await routed().run("custom", {"name": name, "parameters": {"name": "custom"}})
    assert (result.error.error_class, result.error.reason) == ("validation_error", "unknown_tool")


async def test_custom_goes_no_further_than_the_mode() -> None:
    desk = routed(make_tool("touch", SideEffects.WRITE), mode=Mode.READ)
    assert (await desk.run("custom", {"name": "touch"})).error.error_class == "permission_denied"


async def test_a_cancelled_custom_call_ends_the_call_that_it_makes() -> None:
    started = asyncio.Event()

    async def forever(given: Any, context: Any) -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    desk = routed(make_tool("wait", run=forever))
    call = desk.tool_call("custom", {"name": "wait"})
    running = asyncio.create_task(desk.dispatcher.run(call))
    async with asyncio.timeout(60):
        await started.wait()
        await desk.dispatcher.cancel(call.id)
        assert (await running).error.error_class == "cancelled"
    assert [record.tool for record in desk.recorder.records] == ["wait", "custom"]
    assert len(desk.dispatcher.running) == 0


def test_a_key_that_cannot_be_used_is_not_told_of_as_missing(home: Path, tmp_path: Path) -> None:
    (home / "settings.toml").write_text('[web]\nsearch = "brave"\n')
    wired = Wired(Home(str(home)), audit=False)
    wired.register_built_in()
    session = wired.session(str(tmp_path))

    def why_no_search() -> str | None:
        return {tool.name: why for tool, why in wired.runtime.tools.with_reasons(session)}["web_search"]

    assert "is missing" in str(why_no_search())
    keys = home / "keys.json"
    keys.write_text('{"brave": "BSA0123456789abcdef"}')
    keys.chmod(0o644)
    assert f"chmod 600 {keys}" in str(why_no_search())
    keys.chmod(0o600)
    assert why_no_search() is None
    wired.sandbox.close()
