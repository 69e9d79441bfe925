"""The messages that pass the proxy, and those that do not."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.features.agents.proxy.conftest import ALLOWED, OPTIONS, Open, asked, permission, play, records
from tests.features.editor.acp.editor import Editor
from tests.features.editor.acp.talks import Talk

LIST = {"kind": "execute", "rawInput": {"command": "ls -l"}}
_MARK = "the marker of the test"


def note(method: str, **params: Any) -> dict[str, Any]:
    return {"method": method, "params": params}


def card(talk: Talk, id: str, kind: str = "tool_call_update", **fields: Any) -> dict[str, Any]:
    update = {"sessionUpdate": kind, "toolCallId": id, **fields}
    return note("session/update", sessionId=talk.id, update=update)


async def agent_sends(editor: Editor, talk: Talk, *messages: dict[str, Any]) -> None:
    """Have the agent send these, and wait until all of them have gone through the proxy."""
    marks = talk.text("agent_thought_chunk").count(_MARK)
    thought = {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": _MARK}}
    mark = note("session/update", sessionId=talk.id, update=thought)
    editor.notify("_extension/send", {"messages": [*messages, mark]})
    await editor.until(lambda: talk.text("agent_thought_chunk").count(_MARK) > marks)


async def asking(talk: Talk, *steps: dict[str, Any]) -> tuple[asyncio.Future[Any], asyncio.Future[Any]]:
    """A prompt whose question is open: the prompt, and what answers the question."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    talk.answers["session/request_permission"] = lambda params: answer
    prompt = talk.start(json.dumps(steps))
    await talk.seen("session/request_permission")
    return prompt, answer


@pytest.mark.parametrize("kind", ["tool_call", "tool_call_update"])
async def test_a_card_does_not_change_while_its_question_waits(opened: Open, workspace: Path, kind: str) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        begun = {"update": card(talk, "a", "tool_call", title="x", status="pending")["params"]["update"]}
        prompt, answer = await asking(talk, begun, permission("a", **LIST))
        harmless = {"type": "content", "content": {"type": "text", "text": "It only lists."}}
        changes = [
            card(talk, "a", kind, title="Read README.md", content=[harmless]),
            card(talk, "a", kind, title="Read it", rawInput={"path": "README.md"}, locations=[]),
        ]
        before = len(talk.wire)
        await agent_sends(editor, talk, *changes)
        assert [name for name, _ in talk.wire[before:]] == ["agent_thought_chunk"]
        answer.set_result(chosen(asked(talk)[0], "allow_once"))
        assert (await asyncio.wait_for(prompt, 30))["stopReason"] == "end_turn"
        assert [each.get("title") for each in talk.updates(kind, before)] == ["Read README.md", "Read it"]
        editor.problems.clear()  # an agent that announces a card twice breaks the protocol


async def test_a_command_in_a_terminal_does_not_change_the_card_of_a_question(opened: Open, workspace: Path) -> None:
    """The agent shows the terminal on the card, asks, and the command ends meanwhile."""
    async with opened(settings='[[policy.rules]]\ntool = "shell"\ncommand = "cat *"\ndecision = "allow"\n') as editor:
        talk = await editor.new(workspace)
        fifo = workspace / "fifo"
        os.mkfifo(fifo)
        run = {"ask": "terminal/create", "params": {"command": "cat fifo"}}
        on_card = card(talk, "a", "tool_call", title="x", content=[{"type": "terminal", "terminalId": "$TERMINAL"}])
        prompt, answer = await asking(talk, run, {"update": on_card["params"]["update"]}, permission("a", **LIST))
        before = len(talk.wire)
        fifo.write_text("harmless\n")
        await agent_sends(editor, talk)
        assert talk.updates("tool_call_update", before) == []
        answer.set_result(chosen(asked(talk)[0], "allow_once"))
        assert (await asyncio.wait_for(prompt, 30))["stopReason"] == "end_turn"


async def test_a_question_has_our_title_and_none_of_the_agents(opened: Open, workspace: Path) -> None:
    lie = {"title": "Read README.md", "locations": [], "kind": "execute"}
    async with opened() as editor:
        talk = await editor.new(workspace)
        talk.allow("reject_once")
        await play(
            talk,
            permission("a", **lie, rawInput={"command": "rm -rf src"}),
            permission("b", **lie),
            permission("c", kind="switch_mode", title="Read README.md"),
        )
        titles = [each["toolCall"]["title"] for each in asked(talk)]
    assert titles == [
        "shell rm -rf src cwd=.",
        "The agent wants to do something that callgate cannot identify",
        "The agent asks about its own mode: Read README.md",
    ]


async def test_two_questions_of_one_card_are_shown_on_two_cards(opened: Open, workspace: Path) -> None:
    """Else the second one would replace the command that the first one shows."""
    async with opened() as editor:
        talk = await editor.new(workspace)
        never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        talk.answers["session/request_permission"] = lambda params: never
        other = permission("a", kind="execute", rawInput={"command": "rm -rf src"})
        prompt = talk.start(json.dumps([{"all": [permission("a", **LIST), other]}]))
        await talk.seen("session/request_permission", 2)
        ids = [each["toolCall"]["toolCallId"] for each in asked(talk)]
        assert len(set(ids)) == 2 and "a" in ids
        own = next(each for each in ids if each != "a")
        before = len(talk.wire)
        await agent_sends(editor, talk, card(talk, own, title="Read README.md"))
        assert talk.updates("tool_call_update", before) == []
        talk.cancel()
        await asyncio.wait_for(prompt, 30)


@pytest.mark.parametrize(
    "method",
    [
        *("fs/delete_file", "fs/write_text_files", "fs/read_directory", "terminal/run", "terminal/input"),
        *("mcp/message", "mcp/connect", "workspace/applyEdit", "session/prompt", "session/new", "_editor/run"),
        *("FS/write_text_file", "fs/write_text_file ", "proxy/successor", "initialize", ""),
    ],
)
async def test_requests_of_the_agent_that_the_proxy_does_not_know_are_refused(
    opened: Open, workspace: Path, method: str
) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        path = str(workspace / "a")
        [answer] = await play(talk, {"ask": method, "params": {"path": path, "content": "x", "command": "ls"}})
        assert answer["error"]["code"] == -32601
        assert talk.asked(method) == []


@pytest.mark.parametrize(
    "method",
    [
        *("fs/write_text_file", "terminal/create", "session/request_permission", "fs/read_text_file", "terminal/kill"),
        *("mcp/message", "_editor/run", "session/cancel", "proxy/successor"),
    ],
)
async def test_notifications_of_the_agent_that_ask_for_something_are_dropped(
    opened: Open, home: Path, workspace: Path, method: str
) -> None:
    async with opened(settings='mode = "write"\n') as editor:
        talk = await editor.new(workspace)
        path = str(workspace / "a")
        tool = {"toolCallId": "a", "rawInput": {"command": "touch a"}}
        wanted = {
            "path": path,
            "content": "x",
            "command": "touch",
            "args": [path],
            "toolCall": tool,
            "options": OPTIONS,
        }
        await agent_sends(editor, talk, note(method, sessionId=talk.id, **wanted))
        assert [each for each in editor.received if each.get("method") == method] == []
    assert (records(home), (workspace / "a").exists()) == ([], False)


async def test_updates_for_other_sessions_and_of_unknown_kinds_are_dropped(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk, other = await editor.new(workspace), await editor.new(workspace)
        sent = [
            note("session/update", sessionId="elsewhere", update={"sessionUpdate": "plan", "entries": []}),
            note("session/update", update={"sessionUpdate": "plan", "entries": []}),
            card(talk, "a", "tool_call_content_chunk", content={"type": "text", "text": "x"}),
            card(talk, "a", "_private"),
            card(talk, 7, "tool_call_update", title="x"),  # type: ignore[arg-type]
            card(talk, "a", "notice", severity="info", title="x"),
            note("session/update", sessionId=talk.id, update="plan"),
            note("elicitation/complete", sessionId="elsewhere", elicitationId="x"),
        ]
        before = len(editor.received)
        await agent_sends(editor, talk, *sent)
        kinds = [each["params"]["update"]["sessionUpdate"] for each in editor.received[before:] if "method" in each]
        assert kinds == ["agent_thought_chunk"]
        assert other.updates("plan") == []


async def test_agents_of_two_directories_do_not_update_each_others_sessions(
    opened: Open, workspace: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with opened() as editor:
        one, two = await editor.new(workspace), await editor.new(elsewhere)
        stolen = {"ask": "elicitation/create", "session": one.id, "params": {"mode": "form", "message": "password?"}}
        [answer] = await play(two, stolen)
        assert answer["error"]["code"] == -32602
        before = len(one.wire)
        editor.notify("_extension/send", {"sessionId": two.id, "messages": [card(one, "a", "tool_call", title="x")]})
        await play(two, {"say": "sent"})
        assert one.wire[before:] == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "vscode://x/y", "JavaScript:x()", " https://a.example", 7])
async def test_a_question_opens_no_address_but_that_of_a_page(opened: Open, workspace: Path, url: Any) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        talk.answers["elicitation/create"] = lambda given: {"action": "accept"}
        params = {"mode": "url", "elicitationId": "x", "message": "sign in"}
        [answer] = await play(talk, {"ask": "elicitation/create", "params": {**params, "url": url}})
        assert answer["error"]["code"] == -32602
        [answer] = await play(
            talk, {"ask": "elicitation/create", "params": {**params, "url": "https://login.example/x"}}
        )
        assert answer["result"] == {"action": "accept"}


async def test_an_update_before_the_session_is_answered_reaches_the_editor(opened: Open, workspace: Path) -> None:
    async with opened(env={"SCRIPTED_EARLY": "soon"}) as editor:
        await editor.ask("session/new", {"cwd": str(workspace), "mcpServers": []})
        told = [each["params"] for each in editor.received if each.get("method") == "session/update"]
        assert [each["update"].get("title") for each in told if each["sessionId"] == "soon"][:1] == ["early"]
        editor.problems.clear()  # the test's editor takes it for a session that nobody opened


async def test_an_extension_of_the_agent_passes_where_the_settings_name_it(opened: Open, workspace: Path) -> None:
    async with opened(settings='[acp.proxy]\nextensions = ["_shop/*"]\n') as editor:
        talk = await editor.new(workspace)
        talk.answers["_shop/open"] = lambda params: {"opened": True}
        [answer, refused] = await play(talk, {"ask": "_shop/open"}, {"ask": "_shopping/open"})
        assert answer["result"] == {"opened": True}
        assert refused["error"]["code"] == -32601
        editor.problems.clear()  # the test's editor knows no extensions


async def test_a_sign_in_that_the_editor_would_run_in_its_terminal_is_not_offered(opened: Open) -> None:
    run = {"command": "/bin/sh", "args": ["-c", "touch /tmp/x"]}
    logins = [
        {"id": "one", "name": "One", "_meta": {"terminal-auth": run, "other": 1}},
        {"id": "two", "name": "Two", "type": "terminal", "args": ["login"]},
    ]
    able = {"_meta": {"terminal-auth": True}, "auth": {"terminal": True}}
    async with opened(capabilities=able, env={"SCRIPTED_LOGINS": json.dumps(logins)}) as editor:
        assert editor.greeting["authMethods"] == [{"id": "one", "name": "One", "_meta": {"other": 1}}]
        assert "terminal-auth" not in json.dumps(editor.greeting["agentCapabilities"]["_meta"]["told"])


async def test_methods_of_the_editor_that_the_protocol_does_not_know_are_refused(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        for method in ("session/unheard_of", "fs/read_text_file", "mcp/message", "session/update"):
            assert await editor.refused(method, {"sessionId": talk.id}) == -32601


async def test_a_question_that_was_answered_counts_for_the_command_that_was_shown(
    opened: Open, workspace: Path
) -> None:
    """An update between question and answer does not change what the yes is about."""
    async with opened() as editor:
        talk = await editor.new(workspace)
        prompt, answer = await asking(
            talk,
            permission("a", **LIST),
            {"ask": "terminal/create", "params": {"command": "touch made"}},
        )
        await agent_sends(editor, talk, card(talk, "a", rawInput={"command": "touch made"}))
        answer.set_result(chosen(asked(talk)[0], "allow_once"))
        await talk.seen("session/request_permission", 2)
        assert "touch made" in json.dumps(asked(talk)[1])
        assert (await asyncio.wait_for(prompt, 30))["stopReason"] == "end_turn"
    assert ALLOWED["outcome"]["optionId"] in talk.text()


def chosen(question: dict[str, Any], kind: str) -> dict[str, Any]:
    option = next(each for each in question["options"] if each["kind"] == kind)
    return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}
