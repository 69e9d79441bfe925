"""An agent behind the proxy that has callgate's hook installed: one call, one question, one record."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.features.agents.proxy.conftest import AGENT, ALLOWED, Open, asked, permission, play, records
from tests.features.editor.acp.editor import environment
from tests.needs import needs

pytestmark = needs("bwrap")


def _callgate(home: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "callgate", *words], env=environment(home), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def hooked(opened: Open, home: Path, tmp_path: Path) -> Open:
    """The scripted agent under the name of Claude Code, whose hook is installed."""
    _callgate(home, "hook", "install", "claude")
    program = tmp_path / "claude-agent-acp.py"
    shutil.copy(AGENT, program)
    return lambda *words, **more: opened(*words, command=(sys.executable, str(program)), **more)


def hook(home: Path, talk: Any, command: str, id: str = "a", *, phase: str = "pre") -> dict[str, Any]:
    """A step in which the agent calls its hook."""
    event = {
        "hook_event_name": "PreToolUse" if phase == "pre" else "PostToolUse",
        "session_id": talk.id,
        "cwd": str(talk.cwd),
        "tool_name": "Bash",
        "tool_input": {"command": command, "description": "x"},
        "tool_use_id": id,
        "tool_response": {"stdout": "done"},
    }
    return {"run": f"printf %s {shlex.quote(json.dumps(event))} | {home}/hooks/claude/hook {phase}"}


def decision(result: dict[str, Any]) -> str:
    return str(json.loads(result["out"])["hookSpecificOutput"]["permissionDecision"])


def shell(id: str = "a", command: str = "touch made", **more: Any) -> dict[str, Any]:
    return permission(id, kind="execute", rawInput={"command": command}, **more)


async def test_the_hook_asks_in_the_editor_and_the_agents_question_is_answered_by_it(
    hooked: Open, home: Path, workspace: Path
) -> None:
    async with hooked() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once")
        steps = [hook(home, talk, "touch made"), shell(), hook(home, talk, "touch made", phase="post")]
        told, answer, _ = await play(talk, *steps)
        assert (decision(told), answer["result"]) == ("allow", ALLOWED)
        assert len(asked(talk)) == 1
    [record] = records(home)
    assert (record["tool"], record["decision"], record["external_id"]) == ("shell", "allow", "a")


async def test_an_answer_to_the_agents_question_counts_for_its_hook(hooked: Open, home: Path, workspace: Path) -> None:
    async with hooked() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once")
        answer, told = await play(talk, shell(), hook(home, talk, "touch made"))
        assert (decision(told), answer["result"], len(asked(talk))) == ("allow", ALLOWED, 1)
    assert len(records(home)) == 1


@pytest.mark.parametrize("first", ["hook", "question"])
async def test_another_command_under_the_same_id_needs_its_own_answer(
    hooked: Open, home: Path, workspace: Path, first: str
) -> None:
    async with hooked() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once", "reject_once")
        steps = [hook(home, talk, "touch made"), shell(command="rm -rf src")]
        if first == "question":
            steps = [shell(), hook(home, talk, "rm -rf src")]
        await play(talk, *steps)
        assert len(asked(talk)) == 2


@pytest.mark.parametrize("first", ["hook", "question"])
async def test_an_answer_counts_once_for_the_hook_and_once_for_the_question(
    hooked: Open, home: Path, workspace: Path, first: str
) -> None:
    async with hooked() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once", "reject_once")
        again = [shell(), shell("b")] if first == "hook" else [hook(home, talk, "touch made", each) for each in "ab"]
        begin = hook(home, talk, "touch made") if first == "hook" else shell()
        await play(talk, begin, *again)
        assert len(asked(talk)) == 2


async def test_a_denied_call_is_refused_by_the_hook(hooked: Open, home: Path, workspace: Path) -> None:
    async with hooked() as editor:
        talk = await editor.new(workspace)
        talk.allow("reject_once")
        [told] = await play(talk, hook(home, talk, "touch made"))
        assert (decision(told), len(asked(talk))) == ("deny", 1)
    assert [each["decision"] for each in records(home)] == ["deny"]


async def test_a_question_that_says_too_little_is_one_question_with_the_hook(
    hooked: Open, home: Path, workspace: Path
) -> None:
    """Gemini CLI shows a title alone, and its hook has no ids."""
    async with hooked() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once")
        unclear = permission("x", kind="execute", title="touch made [in the workspace] (makes a file)")
        _, told = await play(talk, unclear, hook(home, talk, "touch made", "other"))
        assert (decision(told), len(asked(talk))) == ("allow", 1)
    assert len(records(home)) == 1


@pytest.mark.parametrize(
    "rest", ["; rm -rf src", " && rm -rf src", " other", " (a) && rm (b)", " [in x] | sh", "\nrm x"]
)
async def test_a_title_with_more_than_the_approved_command_is_another_question(
    hooked: Open, home: Path, workspace: Path, rest: str
) -> None:
    async with hooked() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once")
        unclear = permission("x", kind="execute", title=f"touch made{rest}")
        await play(talk, hook(home, talk, "touch made", "other"), unclear)
        assert len(asked(talk)) == 2


async def test_a_rule_that_denies_holds_for_the_hook_after_an_unclear_question(
    hooked: Open, home: Path, workspace: Path
) -> None:
    rules = '[[policy.rules]]\ntool = "shell"\ncommand = "rm *"\ndecision = "deny"\n'
    async with hooked(settings=rules) as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once")
        unclear = permission("a", kind="execute", title="rm -rf src")
        _, told = await play(talk, unclear, hook(home, talk, "rm -rf src"))
        assert decision(told) == "deny"


async def test_mode_read_lets_the_hook_allow_no_command(hooked: Open, home: Path, workspace: Path) -> None:
    async with hooked("--mode", "read") as editor:
        talk = await editor.new(workspace)
        [told] = await play(talk, hook(home, talk, "touch made"))
        assert (decision(told), asked(talk)) == ("deny", [])


async def test_the_proxy_answers_no_hook_of_a_process_that_it_did_not_start(
    hooked: Open, home: Path, workspace: Path
) -> None:
    """Else an agent without the sandbox could have its calls allowed here."""
    async with hooked(settings='mode = "write"\n') as editor:
        talk = await editor.new(workspace)
        step = hook(home, talk, "touch made")
        assert decision((await play(talk, step))[0]) == "allow"
        outside = await asyncio.create_subprocess_shell(
            step["run"], env=environment(home), stdout=asyncio.subprocess.PIPE
        )
        answer, _ = await asyncio.wait_for(outside.communicate(), 60)
        assert decision({"out": answer}) == "deny"
    assert len(records(home)) == 1
    assert list((home / "hooks/proxies").iterdir()) == []
