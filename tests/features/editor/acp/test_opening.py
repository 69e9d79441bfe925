"""How an agent and an editor get to know each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callgate import __version__
from tests.features.editor.acp.conftest import NewHome
from tests.features.editor.acp.editor import CLIENT, EVERYTHING, Editor
from tests.features.editor.acp.published import Published
from tests.needs import needs

pytestmark = pytest.mark.asyncio(loop_scope="session")


@needs("acp clients")
async def test_the_published_schema_is_there() -> None:
    assert Published().there and Published(unstable=True).there
    update = {"sessionId": "s", "update": {"sessionUpdate": "current_mode_update", "modeId": "ask"}}
    wrong = {"jsonrpc": "2.0", "method": "session/update", "params": update}
    assert Published().problems(wrong, None) != []  # so it can tell


@pytest.mark.spec("S2-04", "S2-05")
async def test_the_greeting_says_what_there_is_and_no_more(rich: Editor) -> None:
    answer = rich.greeting
    capabilities = answer["agentCapabilities"]
    assert answer["protocolVersion"] == 1
    assert (answer["agentInfo"]["name"], answer["agentInfo"]["version"]) == ("callgate", __version__)
    assert capabilities["loadSession"] is True
    assert capabilities["promptCapabilities"] == {"image": True, "audio": False, "embeddedContext": True}
    assert set(capabilities["sessionCapabilities"]) == {"list", "resume", "close", "delete", "additionalDirectories"}
    assert capabilities["mcpCapabilities"] == {"http": True, "sse": False}
    assert answer["authMethods"] != []


@pytest.mark.spec("S2-03")
async def test_the_highest_version_that_both_know_is_agreed_on_and_zero_is_refused(new_home: NewHome) -> None:
    editor = await Editor.spawned(new_home())
    try:
        for wrong in (0, -1, "1", None, 1.5, True):
            assert await editor.refused("initialize", {"protocolVersion": wrong}) == -32602
        assert await editor.refused("initialize", {}) == -32602
        assert (await editor.ask("initialize", {"protocolVersion": 65535}))["protocolVersion"] == 1
    finally:
        await editor.stop()
    assert editor.problems == []


@pytest.mark.spec("S2-01")
async def test_initialize_is_answered_with_exactly_one_line(new_home: NewHome) -> None:
    editor = await Editor.spawned(new_home())
    await editor.greet({**EVERYTHING, "_meta": {"terminal_output": True, "terminal-auth": True}})
    assert await editor.stop() == 0
    assert [json.loads(line)["id"] for line in editor.lines] == [1]


@pytest.mark.spec("S2-02")
@pytest.mark.parametrize(
    ("options", "name", "methods"), [((), False, False), (("-v",), True, False), (("-vv",), True, True)]
)
async def test_verbosity_tells_the_client_and_then_the_methods(
    new_home: NewHome, workspace: Path, options: tuple[str, ...], name: bool, methods: bool
) -> None:
    async with Editor.opened(new_home(), *options) as editor:
        await editor.new(workspace)
    log = editor.logged()
    assert (f"{CLIENT['name']} {CLIENT['version']}" in log, "session/new" in log) == (name, methods)


@pytest.mark.spec("S2-78")
async def test_an_unknown_method_is_an_error_and_an_unknown_notification_is_nothing(rich: Editor) -> None:
    heard = len(rich.received)
    for method in ("session/nothing", "_private/thing", "fs/read_text_file", "initialise", ""):
        rich.notify(method, {"sessionId": "s"})
        assert await rich.refused(method, {"sessionId": "s"}) == -32601
    assert len(rich.received) == heard + 5


@pytest.mark.spec("S2-06")
@pytest.mark.parametrize(
    ("capabilities", "asked"),
    [
        ({"fs": {"readTextFile": True}}, ["fs/read_text_file"]),
        ({"fs": {"writeTextFile": True}}, ["fs/write_text_file"]),
        ({"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}, []),
        ({"terminal": True}, ["terminal/create"]),
    ],
)
async def test_the_editor_is_asked_for_what_it_offered_and_for_nothing_else(
    new_home: NewHome, workspace: Path, capabilities: dict[str, Any], asked: list[str]
) -> None:
    (workspace / "here.txt").write_text("disk\n")
    async with Editor.opened(new_home(), capabilities=capabilities) as editor:
        talk = await editor.new(workspace, mode="write")
        talk.buffers[str(workspace / "here.txt")] = "buffer\n"
        for name, input in (
            ("read_file", {"path": "here.txt"}),
            ("write_file", {"path": "new.txt", "content": "x"}),
            ("shell", {"command": "true"}),
        ):
            card = await talk.tool(name, json.dumps(input))
            assert card["status"] == "completed", card
    wanted = ("fs/read_text_file", "fs/write_text_file", "terminal/create")
    assert [method for method in wanted if talk.asked(method)] == asked
