"""Questions of an agent behind the proxy, judged by our policy."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.features.agents.proxy.conftest import ALLOWED, CANCELLED, REJECTED, Open, asked, permission, play, records
from tests.features.editor.acp.editor import environment

LIST = {"kind": "execute", "rawInput": {"command": "ls -l"}}
RULES = """
[[policy.rules]]
tool = "shell"
command = "ls *"
decision = "allow"

[[policy.rules]]
tool = "shell"
command = "rm *"
decision = "deny"
"""


def outcomes(results: list[Any]) -> list[Any]:
    return [each.get("result") for each in results if each["ask"] == "session/request_permission"]


async def test_the_policy_answers_for_the_person_where_it_can(opened: Open, home: Path, workspace: Path) -> None:
    remove = {"kind": "execute", "rawInput": {"command": ["bash", "-lc", "rm -rf x"]}}
    async with opened(settings=RULES) as editor:
        talk = await editor.new(workspace)
        results = await play(talk, permission("a", **LIST), permission("b", **remove))
        assert asked(talk) == []
    assert outcomes(results) == [ALLOWED, REJECTED]
    assert [(each["tool"], each["decision"], each["external_id"]) for each in records(home)] == [
        ("shell", "deny", "b"),
        ("shell", "allow", "a"),
    ]


async def test_what_must_be_asked_is_asked_on_the_agents_card(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once", "reject_once")
        results = await play(talk, permission("a", **LIST), permission("b", **LIST))
        assert [each["toolCall"]["toolCallId"] for each in asked(talk)] == ["a", "b"]
        assert "ls -l" in json.dumps(asked(talk)[0]["toolCall"]["content"])
        assert "the agent's own process" in json.dumps(asked(talk)[0]["toolCall"]["content"])
    assert outcomes(results) == [ALLOWED, REJECTED]


async def test_an_always_is_remembered_here_and_not_by_the_agent(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_always")
        results = await play(talk, permission("a", **LIST), permission("b", **LIST))
        assert len(asked(talk)) == 1
    assert outcomes(results) == [ALLOWED, ALLOWED]


async def test_a_question_without_input_is_about_what_updates_said_before(opened: Open, workspace: Path) -> None:
    """As Vibe and Kimi do it."""
    told = {
        "sessionUpdate": "tool_call",
        "toolCallId": "v",
        "title": "bash",
        "kind": "execute",
        "status": "pending",
        "rawInput": {"command": "rm x"},
    }
    async with opened(settings=RULES) as editor:
        talk = await editor.new(workspace)
        results = await play(talk, {"update": told}, permission("v"))
        assert asked(talk) == []
    assert outcomes(results) == [REJECTED]


async def test_what_cannot_be_known_is_asked_in_any_mode_but_read(opened: Open, home: Path, workspace: Path) -> None:
    """Gemini says only a title."""
    unknown = {"kind": "execute", "title": "ls -l (lists)"}
    async with opened(settings='mode = "write"\n' + RULES) as editor:
        talk = await editor.new(workspace)
        talk.allow("reject_once")
        results = await play(talk, permission("g", **unknown))
        assert "ls -l (lists)" in json.dumps(asked(talk)[0])
    assert outcomes(results) == [REJECTED]
    assert [each["tool"] for each in records(home)] == ["agent_action"]


async def test_mode_read_lets_the_agent_run_and_change_nothing(opened: Open, workspace: Path) -> None:
    async with opened("--mode", "read") as editor:
        talk = await editor.new(workspace)
        write = {"kind": "edit", "rawInput": {"file_path": str(workspace / "a"), "content": "x"}}
        results = await play(
            talk,
            permission("a", **LIST),
            permission("b", **write),
            permission("c", kind="other", title="?"),
            {"run": "echo x > a"},
        )
        assert asked(talk) == []
    assert outcomes(results[:3]) == [REJECTED] * 3
    assert results[3]["code"] != 0 and not (workspace / "a").exists()


async def test_a_change_outside_the_workspace_is_rejected(opened: Open, workspace: Path) -> None:
    diff = {"type": "diff", "path": "/etc/passwd", "oldText": None, "newText": "x"}
    async with opened(settings='mode = "write"\n') as editor:
        talk = await editor.new(workspace)
        results = await play(talk, permission("a", kind="edit", content=[diff]))
    assert outcomes(results) == [REJECTED]


async def test_a_yes_covers_the_same_text_and_no_other(opened: Open, workspace: Path) -> None:
    path = workspace / "a"
    path.write_text("one two\n")
    diff = {"type": "diff", "path": str(path), "oldText": "one", "newText": "1"}
    question = permission("a", kind="edit", content=[diff])
    async with opened() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once", "allow_once", "reject_once")
        write = {"ask": "fs/write_text_file", "params": {"path": str(path), "content": "1 two\n"}}
        await play(talk, question, write)
        assert len(asked(talk)) == 1 and path.read_text() == "1 two\n"
        path.write_text("one two\n")
        other = {"ask": "fs/write_text_file", "params": {"path": str(path), "content": "else\n"}}
        results = await play(talk, question, other)
        assert len(asked(talk)) == 3
    assert results[1]["error"]["data"]["class"] == "user_denied"
    assert path.read_text() == "one two\n"


async def test_an_answer_elsewhere_counts_and_takes_the_question_back(
    opened: Open, home: Path, workspace: Path
) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        talk.answers["session/request_permission"] = lambda params: never
        prompt = talk.start(json.dumps([permission("a", **LIST)]))
        await talk.seen("session/request_permission")
        [question] = json.loads(_callgate(home, "confirmations", "list", "--json"))["confirmations"]
        sha256 = question["question"]["arguments_sha256"]
        _callgate(home, "confirmations", "allow", question["id"], "--sha256", sha256)
        assert (await asyncio.wait_for(prompt, 30))["stopReason"] == "end_turn"
        assert '"optionId": "yes"' in talk.text()
        await editor.until(lambda: any(each.get("method") == "$/cancel_request" for each in editor.received))


def _callgate(home: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "callgate", *words], env=environment(home), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_a_cancel_withdraws_the_question(opened: Open, home: Path, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        talk.answers["session/request_permission"] = lambda params: CANCELLED
        prompt = talk.start(json.dumps([permission("a", **LIST)]))
        result = await asyncio.wait_for(prompt, 30)
        assert result["stopReason"] == "end_turn"
        assert outcomes([json.loads(talk.text())]) == [CANCELLED]
    [record] = records(home)
    assert record["error_class"] == "cancelled"


async def test_a_cancelled_turn_answers_its_questions_with_cancelled(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        talk.answers["session/request_permission"] = lambda params: never
        prompt = talk.start(json.dumps([permission("a", **LIST)]))
        await talk.seen("session/request_permission")
        talk.cancel()
        assert (await asyncio.wait_for(prompt, 30))["stopReason"] == "cancelled"
        assert outcomes([json.loads(talk.text())]) == [CANCELLED]


async def test_a_change_of_the_agents_mode_is_the_editors_to_answer(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_always")
        results = await play(talk, permission("m", kind="switch_mode", title="Ready to code?"))
        assert [each["name"] for each in asked(talk)[0]["options"]] == ["Yes", "Always", "No"]
    assert outcomes(results) == [{"outcome": {"outcome": "selected", "optionId": "always"}}]


async def test_a_change_of_mode_that_brings_a_command_is_judged(opened: Open, home: Path, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_always")
        await play(talk, permission("m", kind="switch_mode", title="Ready?", rawInput={"command": "rm -rf /"}))
    assert "agent_action" in [each["tool"] for each in records(home)]


async def test_what_the_agent_changes_by_itself_is_recorded(opened: Open, home: Path, workspace: Path) -> None:
    (workspace / "kept").write_text("x")
    async with opened() as editor:
        talk = await editor.new(workspace)
        await play(talk, {"run": "echo new > made; rm kept"})
    [record] = records(home)
    assert (record["tool"], record["args"]) == ("agent_turn", '{"agent":"scripted","changes":2}')


async def test_files_that_are_executed_later_are_found_in_every_directory_of_the_session(
    opened: Open, home: Path, workspace: Path, tmp_path: Path
) -> None:
    more = tmp_path / "more"
    more.mkdir()
    checkout = (
        f"cd {more}; git init -q; h=$(echo x | git hash-object -w --stdin); "
        "git update-index --add --cacheinfo 100644,$h,.vscode/tasks.json; git checkout-index -a"
    )
    async with opened() as editor:
        talk = await editor.new(workspace, additionalDirectories=[str(more)])
        await play(talk, {"run": checkout})
    assert (more / ".vscode/tasks.json").exists()
    [record] = records(home)
    assert f"executed later without a question: {more}/.vscode" in record["result"]


async def test_a_change_that_the_agent_was_allowed_can_be_undone(opened: Open, home: Path, workspace: Path) -> None:
    path = workspace / "a"
    path.write_text("old\n")
    ended = {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "w", "status": "completed"}}
    begun = {
        "update": {
            "sessionUpdate": "tool_call",
            "toolCallId": "w",
            "title": "Write",
            "kind": "edit",
            "status": "pending",
        }
    }
    write = permission("w", kind="edit", rawInput={"file_path": str(path), "content": "new\n"})
    async with opened() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once")
        await play(talk, begun, write, {"run": "echo new > a"}, ended)
    assert path.read_text() == "new\n"
    [record] = records(home)  # nothing is left that it did unasked
    assert (record["tool"], record["result"]) == ("write_file", "The agent did it.")
    _callgate(home, "undo", "--last", "--yes", "--workspace", str(workspace))
    assert path.read_text() == "old\n"


async def test_what_was_told_at_too_great_length_is_not_known(opened: Open, home: Path, workspace: Path) -> None:
    told = {
        "sessionUpdate": "tool_call",
        "toolCallId": "v",
        "title": "bash",
        "kind": "execute",
        "status": "pending",
        "rawInput": {"command": "ls " + "x" * 300_000},
    }
    async with opened(settings='mode = "write"\n') as editor:
        talk = await editor.new(workspace)
        talk.allow("reject_once")
        results = await play(talk, {"update": told}, permission("v", title="?"))
    assert outcomes(results) == [REJECTED]
    assert [each["tool"] for each in records(home)] == ["agent_action"]
