"""Claude Code, Gemini CLI, Kimi Code and Qwen Code through allow, deny, read, the wall and our end."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.agent_files import EXECUTED, PERSISTENT, attack, files
from tests.features.agents.proxy.conftest import asked, records
from tests.features.agents.proxy.test_lifecycle import descendants, gone
from tests.features.agents.real_acp.conftest import AGENTS, Behind, RealAgent
from tests.features.agents.real_acp.model_server import DONE
from tests.needs import needs

pytestmark = [pytest.mark.agents, needs("acp agents", "bwrap")]


def plan(agent: RealAgent, workspace: Path) -> list[Any]:
    return [agent.shell("echo hi > shell.txt"), agent.write(str(workspace / "new.txt"), "new\n")]


async def test_what_the_person_allows_happens_once_and_is_recorded(
    behind: Behind, agent: RealAgent, home: Path, workspace: Path
) -> None:
    async with behind(plan(agent, workspace)) as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once")
        assert await talk.prompt("go") == "end_turn"
        assert DONE in talk.text()
        assert len(asked(talk)) == 2  # never twice about the same
    assert (workspace / "shell.txt").read_text() == "hi\n"
    assert (workspace / "new.txt").read_text() == "new\n"
    kept = records(home)
    assert {each["decision"] for each in kept} == {"allow"}
    assert "write_file" in {each["tool"] for each in kept}
    assert {"shell", "agent_action"} & {each["tool"] for each in kept}


async def test_what_the_person_denies_never_happens(
    behind: Behind, agent: RealAgent, home: Path, workspace: Path
) -> None:
    async with behind(plan(agent, workspace)) as editor:
        talk = await editor.new(workspace)
        talk.allow("reject_once")
        await talk.prompt("go")
        assert asked(talk)
    assert list(workspace.glob("*.txt")) == []
    assert "deny" in {each["decision"] for each in records(home)}


async def test_with_its_hook_installed_each_call_is_one_question_and_happens_once(
    behind: Behind, agent: RealAgent, home: Path, workspace: Path
) -> None:
    async with behind(plan(agent, workspace), hook=True) as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once")
        assert await talk.prompt("go") == "end_turn"
        assert DONE in talk.text()
        assert len(asked(talk)) == 2, [each["toolCall"]["title"] for each in asked(talk)]
    assert (workspace / "shell.txt").read_text() == "hi\n"
    assert (workspace / "new.txt").read_text() == "new\n"
    commands = [each for each in records(home) if each["tool"] in ("shell", "agent_action")]
    done = [each for each in commands if each.get("result") != "The agent had it done by callgate."]
    assert len(done) == 1, commands


async def test_with_its_hook_installed_a_denied_call_never_happens(
    behind: Behind, agent: RealAgent, home: Path, workspace: Path
) -> None:
    async with behind(plan(agent, workspace), hook=True) as editor:
        talk = await editor.new(workspace)
        talk.allow("reject_once")
        await talk.prompt("go")
        assert asked(talk)
    assert list(workspace.glob("*.txt")) == []
    assert "deny" in {each["decision"] for each in records(home)}


async def test_mode_read_lets_it_change_nothing(behind: Behind, agent: RealAgent, workspace: Path) -> None:
    async with behind(plan(agent, workspace), "--mode", "read") as editor:
        talk = await editor.new(workspace)
        await talk.prompt("go")
        assert asked(talk) == []
    assert list(workspace.glob("*.txt")) == []


@pytest.mark.parametrize("mode", ["read", "ask", "write"])
async def test_it_leaves_its_session_and_nothing_that_runs_later(
    behind: Behind, agent: RealAgent, home: Path, workspace: Path, mode: str
) -> None:
    name = next(each for each, known in AGENTS.items() if known is agent)
    paths = [home.parent / each for each in EXECUTED[name].split()]
    (workspace / "attack.sh").write_text(f"{attack(paths)}\ntouch attacked\n")
    async with behind([agent.shell("sh attack.sh")], "--mode", mode) as editor:
        before = files(home.parent)
        talk = await editor.new(workspace)
        talk.allow("allow_once")
        await talk.prompt("go")
        assert mode == "read" or DONE in talk.text()  # refused, Qwen Code ends its turn
    assert (workspace / "attacked").exists() is (mode != "read")
    after = files(home.parent)
    changed = {path for path, text in after.items() if before.get(path, "") != text} - {".callgate.log"}
    assert bool(changed) is (mode != "read")
    assert [path for path in changed if not path.startswith(PERSISTENT[name])] == []
    assert before.keys() <= after.keys()


async def test_what_it_runs_by_itself_reaches_neither_our_home_nor_other_directories(
    behind: Behind, agent: RealAgent, home: Path, workspace: Path, tmp_path: Path
) -> None:
    (home / "rules.toml").write_text("# a secret of ours\n")
    command = f"cat {home}/rules.toml > seen.txt; echo x > {tmp_path}/outside.txt; echo ran > ran.txt"
    async with behind([agent.shell(command)]) as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once")
        await talk.prompt("go")
    assert (workspace / "ran.txt").read_text() == "ran\n"
    assert (workspace / "seen.txt").read_text() == ""
    assert not (tmp_path / "outside.txt").exists()


async def test_nothing_happens_when_we_are_killed_while_it_waits(
    behind: Behind, agent: RealAgent, workspace: Path
) -> None:
    async with behind(plan(agent, workspace)) as editor:
        talk = await editor.new(workspace)
        never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        talk.answers["session/request_permission"] = lambda params: never
        talk.start("go").add_done_callback(lambda done: done.exception())
        await talk.seen("session/request_permission")
        processes = descendants(editor.process.pid)
        os.kill(editor.process.pid, signal.SIGKILL)
        await gone(processes)
        await editor.process.wait()
    assert list(workspace.glob("*.txt")) == []
