"""Commands of an agent that only read: a ticket for our sandbox instead of a question."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from callgate.config.home import Home
from callgate.core.calls import BY_ITS_AGENT, CallerKind, ToolCall
from callgate.core.sessions import Mode, Session
from callgate.features.agents.hooks.listener import AgentHooks
from callgate.instance.instance import Draining
from callgate.instance.startup import ServedDirectories
from callgate.instance.wiring.runtime import Wired
from callgate.policy.rules import Outcome
from tests.features.agents.hooks.test_service import Agent

ORDINARY = r"""
ls
ls -la
ls -la src
ls src tests
pwd
cat README.md
cat package.json
cat src/main.py | head -50
head -20 README.md
head -n 100 src/main.py
tail -20 README.md
tail -n 50 src/main.py
wc -l src/main.py
grep -rn TODO src
grep -n "def main" src/main.py
grep -rl import src
grep -ri --include='*.py' foo .
find . -name '*.py'
find . -type f -name '*.md' -not -path './node_modules/*'
find src -maxdepth 2 -type d
git status
git status --short
git status --porcelain
git status -sb
git diff
git diff --stat
git diff --cached
git diff HEAD
git diff HEAD~1 -- src/main.py
git diff main...HEAD --name-only
git log --oneline -10
git log -5
git log --oneline --graph --all -20
git log -p -1 src/main.py
git show HEAD
git show HEAD --stat
git show HEAD:README.md
git branch
git branch -a
git branch --show-current
git remote -v
git rev-parse HEAD
git rev-parse --abbrev-ref HEAD
git ls-files
git blame src/main.py
git stash list
git tag
git grep -n foo
sed -n '1,40p' src/main.py
awk '{print $1}' README.md
sort README.md | uniq -c | sort -rn | head -5
diff README.md src/main.py
jq .scripts package.json
du -sh src
file README.md
stat README.md
which python3
python3 --version
echo done
git status && git diff --stat
ls -la && git log --oneline -3
""".strip().splitlines()

BY_THE_AGENT = ("guarded", 'read_commands = "allow"')
"""Mode guarded with `[hooks] shell = "agent"`."""
ASKED = ["npm test", "git commit -m x", "rm x", "cat /etc/passwd", "cat secret", "git push", "cd src && ls"]


@pytest.fixture(params=[("ask", 'read_commands = "allow"'), ("guarded", "")], ids=["setting", "guarded"])
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param  # type: ignore[no-any-return]


@pytest_asyncio.fixture
async def agent(tmp_path: Path, way: tuple[str, str], request: pytest.FixtureRequest) -> AsyncIterator[Agent]:
    mode, setting = way
    wait_s = 0.2 if {"command", "name"} & {*request.fixturenames} else 30
    work = tmp_path / "work"
    (work / "src").mkdir(parents=True)
    (work / "README.md").write_text("hello\n")
    (work / "secret").symlink_to("/etc/passwd")
    home = Home(str(tmp_path / "home"))
    home.make()
    hooks_table = f"[hooks]\nwait_s = {wait_s}\n" + ('shell = "agent"\n' if way == BY_THE_AGENT else "")
    (tmp_path / "home/settings.toml").write_text(f"{hooks_table}[policy]\n{setting}\n")
    wired = Wired(home)
    wired.register_built_in()
    directories = ServedDirectories(wired, [str(work)], Mode(mode))
    hooks = AgentHooks(wired, directories, Draining())
    yield Agent(wired, hooks, work, tmp_path / "home")
    await hooks.close()
    await wired.close()


async def test_ordinary_reading_asked_sixty_times_and_asks_no_more(agent: Agent, way: tuple[str, str]) -> None:
    """As in mode ask without the setting, an agent's own command needs approval; now it is run
    here instead."""
    assert len(ORDINARY) >= 60
    session = Session(workspace=str(agent.workspace), mode=Mode(way[0]))
    asked_before = 0
    for number, command in enumerate(ORDINARY):
        call = ToolCall(
            tool="shell",
            arguments={"command": command},
            session=session,
            caller=CallerKind.AGENT,
            handover=BY_ITS_AGENT,
        )
        asked_before += agent.wired.runtime.permission.explain(call)[1].outcome is Outcome.ASK
        answer = await agent.before("Bash", id=str(number), command=command)
        assert answer["permissionDecision"] == "allow", command
        program, ticket = answer["updatedInput"]["command"].split()
        assert program.endswith("/hooks/claude/run")
        assert await agent.service.tickets.redeem(ticket) is not None
    assert asked_before == len(ORDINARY)


async def test_the_ticket_runs_it_read_only_and_the_record_names_the_setting(
    agent: Agent, way: tuple[str, str]
) -> None:
    answer = await agent.before("Bash", command="cat README.md; ls missing")
    done = await agent.service.tickets.redeem(answer["updatedInput"]["command"].split()[-1])
    assert done is not None
    assert "hello" in done.text
    (record,) = await agent.records(1)
    assert (record["sandbox"], record["policy"].split()[0]) == ("read", "read_commands")


@pytest.mark.parametrize("command", ASKED)
@pytest.mark.parametrize("way", [("ask", 'read_commands = "allow"'), BY_THE_AGENT], ids=["setting", "guarded"])
async def test_everything_else_is_asked_about_as_before(agent: Agent, command: str) -> None:
    answer = await agent.before("Bash", command=command)
    assert answer["permissionDecision"] == "deny"


@pytest.mark.parametrize("command", ["npm test", "npm install x", "git commit -m x", "git push", "cd src && ls"])
@pytest.mark.parametrize("way", [("guarded", "")], ids=["guarded"])
async def test_mode_guarded_runs_commands_in_the_sandbox_where_hosts_are_approved(agent: Agent, command: str) -> None:
    answer = await agent.before("Bash", command=command)
    assert answer["permissionDecision"] == "allow"
    assert answer["updatedInput"]["command"].split()[0].endswith("/hooks/claude/run")


@pytest.mark.parametrize("name", ["qwen", "kimi", "vibe", "cursor", "opencode"])
async def test_an_agent_that_runs_its_own_command_in_any_case_still_asks(agent: Agent, name: str) -> None:
    tools = {"qwen": "run_shell_command", "cursor": "Shell", "opencode": "bash", "vibe": "bash"}
    phases = {"vibe": "pre_tool", "cursor": "preToolUse", "opencode": "tool.execute.before"}
    event = agent.event(tools.get(name, "Bash"), phases.get(name, "PreToolUse"), command="git status")
    answer = json.loads(await agent.service.submit(name, event))
    assert "deny" in json.dumps(answer)
