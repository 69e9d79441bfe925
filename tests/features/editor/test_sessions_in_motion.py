"""Sessions that are opened, closed and prompted at the same moment."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from callgate.core.events import SESSION_RESUMED, TURN_COMPLETED, Event
from callgate.core.sessions import Mode
from callgate.features.editor import contents
from tests.features.editor.clients import EVERYTHING, Client, connected

WRITES = """
[[replies]]
calls = [{ tool = "write_file", input = { path = "made.txt", content = "x" } }]
[[replies]]
text = "Done."
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


@pytest.mark.parametrize("method", ["session/close", "session/delete"])
@pytest.mark.parametrize("later", [0, 1, 2, 3, 5, 8, 13])
async def test_a_prompt_does_nothing_in_a_session_that_is_closed_behind_it(
    tmp_path: Path, workspace: Path, method: str, later: int
) -> None:
    async with connected(tmp_path / "home", script=WRITES) as client:
        session = await client.new(workspace)
        _, prompted = client.start_prompt(session, "go")
        for _ in range(later):
            await asyncio.sleep(0)
        assert await client.ask(method, sessionId=session) == {}
        assert await prompted == {"stopReason": "cancelled"}
        told = len(client.said)
        assert client.served._agent_if_open()._sessions == {}  # type: ignore[union-attr]
        await client.ask("session/list")
        assert len(client.said) == told + 1
    assert not (workspace / "made.txt").exists()


async def test_a_session_that_is_being_closed_is_not_opened_again_meanwhile(tmp_path: Path, workspace: Path) -> None:
    async with connected(tmp_path / "home") as client:
        session = await client.new(workspace)
        load = {"sessionId": session, "cwd": str(workspace), "mcpServers": []}
        closing, closed = client.question("session/close", sessionId=session)
        loading, loaded = client.question("session/load", **load)
        client.send(closed, loaded)
        assert await client.code(client.answer(closing)) is None
        assert await client.code(client.answer(loading)) == -32602
        assert await client.code(client.start("session/load", **load)[1]) is None
        assert await client.prompt(session, "go") == "end_turn"


async def test_nothing_else_is_done_with_a_session_while_it_is_loaded(tmp_path: Path, workspace: Path) -> None:
    async with connected(tmp_path / "home") as client:
        session = await client.new(workspace)
        await client.prompt(session, "go")
        await client.ask("session/close", sessionId=session)
        prompt = [{"type": "text", "text": "go"}]
        loading, loaded = client.question("session/load", sessionId=session, cwd=str(workspace), mcpServers=[])
        others = [
            client.question("session/prompt", sessionId=session, prompt=prompt),
            client.question("session/close", sessionId=session),
            client.question("session/delete", sessionId=session),
            client.question("session/set_mode", sessionId=session, modeId="read"),
            client.question("session/load", sessionId=session, cwd=str(workspace), mcpServers=[]),
        ]
        client.send(loaded, *(message for _, message in others))
        assert [await client.code(client.answer(id)) for id, _ in others] == [-32602] * 5
        assert await client.code(client.answer(loading)) is None
        assert await client.prompt(session, "go") == "end_turn"


async def test_a_session_whose_opening_was_cancelled_is_locked_for_nobody(tmp_path: Path, workspace: Path) -> None:
    async with connected(tmp_path / "home") as client:
        session = await client.new(workspace)
        await client.prompt(session, "go")
        await client.ask("session/close", sessionId=session)
        id, load = client.question("session/load", sessionId=session, cwd=str(workspace), mcpServers=[])

        def half_open(event: Event) -> None:
            if event.type == SESSION_RESUMED:
                client.tell("$/cancel_request", requestId=id)
                client.tell("$/cancel_request", requestId=id)

        client.wired.runtime.sessions.listen(half_open)
        client.send(load)
        assert await client.code(client.answer(id)) == -32800
        store = await client.wired.runtime.sessions.store()
        assert (await store.get_session(session)).owner is None


async def test_a_cancel_while_a_session_is_loaded_stops_no_later_prompt(tmp_path: Path, workspace: Path) -> None:
    async with connected(tmp_path / "home") as client:
        session = await client.new(workspace)
        await client.prompt(session, "go")
        await client.ask("session/close", sessionId=session)
        _, loaded = client.start("session/load", sessionId=session, cwd=str(workspace), mcpServers=[])
        await client.until(lambda: _cancels_while(client, loaded, session))
        await loaded
        assert await client.prompt(session, "go") == "end_turn"


def _cancels_while(client: Client, active: asyncio.Future[Any], session: str) -> bool:
    """Looked at whenever the agent has written something."""
    if not active.done():
        client.tell("session/cancel", sessionId=session)
    return active.done()


async def test_other_directories_on_load_are_those_that_are_listed(tmp_path: Path, workspace: Path) -> None:
    more = [tmp_path / "one", tmp_path / "two"]
    for each in more:
        each.mkdir()
    async with connected(tmp_path / "home") as client:
        session = await client.new(workspace, additionalDirectories=[str(more[0])])
        await client.ask("session/close", sessionId=session)
        load = {"sessionId": session, "cwd": str(workspace), "mcpServers": []}
        await client.ask("session/load", **load, additionalDirectories=[str(more[1])])
        (listed,) = (await client.ask("session/list"))["sessions"]
        assert listed["additionalDirectories"] == [str(more[1])]
        await client.ask("session/close", sessionId=session)
        await client.ask("session/load", **load)
        (listed,) = (await client.ask("session/list"))["sessions"]
        assert "additionalDirectories" not in listed


@pytest.mark.spec("S2-27")
async def test_sessions_are_found_by_their_directory_however_it_is_written(tmp_path: Path, workspace: Path) -> None:
    async with connected(tmp_path / "home") as client:
        made = await client.ask("session/new", cwd=f"{workspace}/", mcpServers=None)
        for cwd in (f"{workspace}", f"{workspace}/", f"{workspace}//."):
            listed = (await client.ask("session/list", cwd=cwd))["sessions"]
            assert [each["sessionId"] for each in listed] == [made["sessionId"]]


@pytest.mark.parametrize(
    ("enabled", "kept", "fits"),
    [
        ((Mode.READ, Mode.WRITE), Mode.ASK, Mode.READ),
        ((Mode.NONE, Mode.READ), Mode.WRITE, Mode.READ),
        ((Mode.ASK, Mode.WRITE), Mode.READ, Mode.ASK),
        ((Mode.READ, Mode.ASK), Mode.ASK, Mode.ASK),
    ],
)
def test_a_mode_that_may_not_be_had_becomes_a_narrower_one_where_there_is_one(
    enabled: tuple[Mode, ...], kept: Mode, fits: Mode
) -> None:
    assert contents.nearest(enabled, kept) is fits


async def test_a_session_kept_in_mode_ask_is_not_wider_where_ask_may_not_be_had(
    tmp_path: Path, workspace: Path
) -> None:
    async with connected(tmp_path / "home", settings='mode = "ask"\n') as client:
        session = await client.new(workspace)
    settings = 'mode = "write"\n[acp]\nmodes = ["read", "write"]\n'
    async with connected(tmp_path / "home", settings=settings) as client:
        load = {"sessionId": session, "cwd": str(workspace), "mcpServers": []}
        assert (await client.ask("session/load", **load))["modes"]["currentModeId"] == "read"


async def test_an_agent_that_goes_stops_the_command_in_the_editors_terminal(tmp_path: Path, workspace: Path) -> None:
    async with connected(tmp_path / "home", capabilities=EVERYTHING) as client:
        client.replies["terminal/create"] = lambda params: {"terminalId": "t1"}
        session = await client.new(workspace)
        client.start_prompt(session, '/tool shell {"command": "sleep 100"}')
        await client.until(lambda: client.requests("terminal/wait_for_exit"))
    asked = [each["method"] for each in client.said if each.get("method", "").startswith("terminal/")]
    assert asked == ["terminal/create", "terminal/wait_for_exit", "terminal/kill", "terminal/release"]


async def test_all_turns_are_stopped_before_the_end_of_any_is_waited_for(tmp_path: Path, workspace: Path) -> None:
    """Or those that wait in the line would go on working for nobody."""
    async with connected(tmp_path / "home", settings='mode = "ask"\n', script=WRITES) as client:
        sessions = [await client.new(workspace) for _ in range(3)]
        for number, session in enumerate(sessions, 1):
            client.start_prompt(session, '/tool write_file {"path": "a", "content": "b"}')
            await client.until(partial(_has_asked, client, number))
    ends = {each["toolCallId"]: each for session in sessions for each in client.updates(session) if "status" in each}
    assert [each["content"][0]["content"]["text"] for each in ends.values()] == ["The call was cancelled."] * 3


def _has_asked(client: Client, times: int) -> bool:
    return len(client.requests("session/request_permission")) == times


@pytest.mark.parametrize("prompt", ["go", "/tool list_dir"])
async def test_a_turn_that_was_cancelled_says_so_however_it_ended(tmp_path: Path, workspace: Path, prompt: str) -> None:
    async with connected(tmp_path / "home") as client:
        session = await client.new(workspace)

        def ended(event: Event) -> None:
            if event.type == TURN_COMPLETED:
                client.tell("session/cancel", sessionId=session)

        client.wired.runtime.sessions.listen(ended)
        assert await client.prompt(session, prompt) == "cancelled"


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
@pytest.mark.parametrize(("known", "expected"), [("one two", "two"), ("one", "one")])
async def test_a_session_keeps_the_model_that_was_chosen_as_long_as_there_is_one(
    tmp_path: Path, workspace: Path, method: str, known: str, expected: str
) -> None:
    def settings(names: str) -> str:
        tables = [f'[models.{each}]\nkind = "scripted"\npath = "{tmp_path}/script.toml"\n' for each in names.split()]
        return "".join(tables)

    async with connected(tmp_path / "home", settings=settings("one two"), model="one") as client:
        session = await client.new(workspace)
        chosen = {"sessionId": session, "configId": "model", "value": "two"}
        await client.ask("session/set_config_option", **chosen)
    async with connected(tmp_path / "home", settings=settings(known), model="one") as client:
        opened = await client.ask(method, sessionId=session, cwd=str(workspace), mcpServers=[])
        assert [each["currentValue"] for each in opened["configOptions"]] == ["ask", expected]
        fresh = await client.ask("session/new", cwd=str(workspace), mcpServers=[])
        assert fresh["configOptions"][1]["currentValue"] == "one"
