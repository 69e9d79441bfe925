"""What an agent's hook submits is judged, asked about and recorded as a call of ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from callgate.config.home import Home
from callgate.core.sessions import Mode
from callgate.dispatch.permission.confirmations import Answer
from callgate.features.agents.hooks.events import REFUSAL, trial_command
from callgate.features.agents.hooks.listener import AgentHooks
from callgate.features.agents.hooks.service import LEFT_TO_AGENT, UNAPPROVED, HookService
from callgate.instance.instance import Draining
from callgate.instance.startup import ServedDirectories
from callgate.instance.wiring.runtime import Wired
from callgate.policy.rules import Outcome
from callgate.workspace.undo.history import History

RULES = """
[hooks]
wait_s = 20.0
tools = { Known = "read" }
[[policy.rules]]
decision = "allow"
tool = "shell"
command = "touch ok*"
[[policy.rules]]
decision = "deny"
tool = "shell"
command = "touch no*"
"""


class Agent:
    """One agent, as its hook speaks."""

    def __init__(self, wired: Wired, hooks: AgentHooks, workspace: Path, home: Path) -> None:
        self.wired, self.hooks, self.workspace, self.home = wired, hooks, workspace, home
        self.number = 0

    @property
    def service(self) -> HookService:
        return self.hooks.service

    def event(self, tool: str, phase: str = "PreToolUse", id: str = "1", **input: Any) -> bytes:
        return json.dumps({
            "session_id": "s", "cwd": str(self.workspace), "hook_event_name": phase,
            "tool_name": tool, "tool_input": input, "tool_use_id": id, "tool_response": "done",
        }).encode()  # fmt: skip

    async def before(self, tool: str, id: str = "1", *, agent: str = "claude", **input: Any) -> Any:
        answer = json.loads(await self.service.submit(agent, self.event(tool, id=id, **input)))
        return answer["hookSpecificOutput"]

    async def after(self, tool: str, id: str = "1", *, agent: str = "claude", **input: Any) -> None:
        await self.service.submit(agent, self.event(tool, "PostToolUse", id, **input))

    async def records(self, count: int) -> list[dict[str, Any]]:
        """The audit lines, once there are so many."""
        path = self.home / "audit.jsonl"
        async with asyncio.timeout(10):
            while True:
                text = path.read_text() if path.exists() else ""
                lines = [json.loads(line) for line in text.splitlines()]
                found = [line for line in lines if "tool" in line]
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.01)

    async def answered(self, decision: Outcome, **more: Any) -> Any:
        """Answer the question that is open next."""
        async with asyncio.timeout(10):
            found: list[Any] = []
            while not found or found[0].call_id not in self.wired.runtime.permission._confirmations.asked():
                await asyncio.sleep(0.01)
                found = list(await self.wired.runtime.permission.open_confirmations())
        await self.wired.runtime.permission.answer(found[0].id, Answer(decision=decision, **more))
        return found[0]


NewAgent = Callable[..., Agent]


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    (tmp_path / "work").mkdir()
    home = Home(str(tmp_path / "home"))
    home.make()
    (tmp_path / "home/settings.toml").write_text(RULES)
    wired = Wired(home)
    wired.register_built_in()
    directories = ServedDirectories(wired, [str(tmp_path / "work")], Mode.ASK)
    hooks = AgentHooks(wired, directories, Draining())
    yield Agent(wired, hooks, tmp_path / "work", tmp_path / "home")
    await hooks.close()
    await wired.close()


def rewrite_settings(agent: Agent, **changes: str) -> None:
    text = RULES
    for key, value in changes.items():
        text = text.replace("[hooks]\n", f"[hooks]\n{key} = {value}\n").replace(
            "wait_s = 20.0\n", "" if key == "wait_s" else "wait_s = 20.0\n"
        )
    (agent.home / "settings.toml").write_text(text)


async def test_an_allowed_call_begins_with_its_hook_and_ends_with_its_report(agent: Agent) -> None:
    assert (await agent.before("Bash", command="touch ok"))["permissionDecision"] == "allow"
    assert len(agent.wired.runtime.calls.in_flight()) == 1
    await agent.after("Bash", command="touch ok")
    (record,) = await agent.records(1)
    assert (record["tool"], record["decision"], record["result"]) == ("shell", "allow", "done")
    assert record["scope"] == {"agent": "claude", "agent_tool": "Bash"}
    assert record["sandbox"] == "the agent's own process, outside the sandbox"


async def test_a_denied_call_is_refused_with_the_reason_and_recorded_once(agent: Agent) -> None:
    answer = await agent.before("Bash", command="touch no")
    assert answer["permissionDecision"] == "deny"
    assert "rule" in answer["permissionDecisionReason"]
    (record,) = await agent.records(1)
    assert record["decision"] == "deny"


async def test_a_person_is_asked_while_the_hook_waits(agent: Agent) -> None:
    asking = asyncio.create_task(agent.before("Bash", command="rm x"))
    question = await agent.answered(Outcome.ALLOW)
    assert question.sandbox == "the agent's own process, outside the sandbox"
    assert (await asking)["permissionDecision"] == "allow"


async def test_a_hook_that_goes_away_takes_its_question_along(agent: Agent) -> None:
    gone = asyncio.Event()
    event = agent.event("Bash", command="rm x")
    asking = asyncio.create_task(agent.service.submit("claude", event, gone.wait))
    async with asyncio.timeout(10):
        while not await agent.wired.runtime.permission.open_confirmations():
            await asyncio.sleep(0.01)
    gone.set()
    assert b'"deny"' in await asking
    async with asyncio.timeout(10):
        while await agent.wired.runtime.permission.open_confirmations():
            await asyncio.sleep(0.01)


async def test_what_nobody_answers_is_refused_in_time(agent: Agent) -> None:
    rewrite_settings(agent, wait_s="0.2")
    answer = await agent.before("Bash", command="rm x")
    assert "No answer came within 0.2 s" in answer["permissionDecisionReason"]
    (record,) = await agent.records(1)
    assert record["error_class"] == "confirmation_timeout"


async def test_mode_read_refuses_what_the_agent_runs_itself(agent: Agent) -> None:
    agent.hooks._directories.mode = Mode.READ
    assert (await agent.before("Bash", command="touch ok"))["permissionDecision"] == "deny"
    reading = await agent.before("Read", id="2", file_path=str(agent.workspace / "a"))
    assert reading["permissionDecision"] == "allow"


@pytest.mark.parametrize("mode", [Mode.READ, Mode.ASK, Mode.WRITE])
async def test_a_skill_is_left_to_the_agents_own_question_and_never_allowed(agent: Agent, mode: Mode) -> None:
    agent.hooks._directories.mode = mode
    event = json.loads(agent.event("Skill", skill="x"))

    async def answer(permission_mode: str, id: str) -> bytes:
        given = {**event, "permission_mode": permission_mode, "tool_use_id": id}
        return await agent.service.submit("claude", json.dumps(given).encode())

    assert await answer("default", "1") == b"{}"
    await agent.after("Skill", skill="x")
    (record,) = await agent.records(1)
    assert (record["tool"], record["result"]) == ("agent_none", LEFT_TO_AGENT)
    assert not agent.wired.runtime.calls.in_flight()
    if mode is Mode.READ:
        assert b'"deny"' in await answer("bypassPermissions", "2")
    elif mode is Mode.ASK:
        asking = asyncio.create_task(answer("bypassPermissions", "2"))
        question = await agent.answered(Outcome.ALLOW)
        assert question.arguments["input"] == {"skill": "x"}
        assert await asking == b"{}"
    else:
        assert await answer("bypassPermissions", "2") == b"{}"


@pytest.mark.parametrize(
    ("rules", "decision"),
    [
        ({"permissions": {"allow": ["Bash(python3:*)"]}}, "deny"),
        ({"permissions": {"allow": ["Read(**)", "Skill(x)"]}}, "deny"),
        ({"permissions": {"allow": ["*"]}}, "deny"),
        ({"permissions": []}, "deny"),
        ({"sandbox": {"enabled": True, "autoAllowBashIfSandboxed": True}}, "deny"),
        ({"permissions": {"allow": ["Read(src/**)", "WebFetch(domain:x)", "mcp__a__b"]}}, None),
        ({"permissions": {"deny": ["Bash"]}}, None),
    ],
)
async def test_a_skill_has_class_execute_if_rules_of_the_repository_answer_for_the_user(
    agent: Agent, rules: Any, decision: str | None
) -> None:
    agent.hooks._directories.mode = Mode.READ
    path = agent.workspace / ".claude/settings.local.json"
    path.parent.mkdir()
    path.write_text(json.dumps(rules))
    event = json.loads(agent.event("Skill", skill="x")) | {"permission_mode": "default"}
    answer = json.loads(await agent.service.submit("claude", json.dumps(event).encode()))
    assert answer.get("hookSpecificOutput", {}).get("permissionDecision") == decision


@pytest.mark.parametrize("name", [".qwen/.env", ".gemini/.env"])
async def test_variables_of_agents_that_turn_hooks_off_are_out_of_reach(agent: Agent, name: str) -> None:
    agent.hooks._directories.mode = Mode.WRITE
    answer = await agent.before("Bash", command=f"echo QWEN_CODE_SIMPLE=1 > {name}")
    assert answer["permissionDecision"] == "deny"
    assert "out of reach" in answer["permissionDecisionReason"]


async def test_an_argument_that_is_not_known_refuses_the_call_and_is_recorded(agent: Agent) -> None:
    agent.hooks._directories.mode = Mode.WRITE
    answer = await agent.before("Bash", command="touch ok", environment={"PATH": "/evil"})
    assert answer["permissionDecision"] == "deny"
    assert "'environment'" in answer["permissionDecisionReason"]
    (record,) = await agent.records(1)
    assert (record["tool"], record["error_class"]) == ("agent_execute", "validation_error")
    assert "/evil" in record["args"]


async def test_an_answer_for_sandboxed_commands_does_not_cover_the_agents_own(agent: Agent) -> None:
    rewrite_settings(agent, shell='"sandbox"')
    asking = asyncio.create_task(agent.before("Bash", command="rm x"))
    from callgate.dispatch.permission.confirmations import Scope  # noqa: PLC0415

    await agent.answered(Outcome.ALLOW, scope=Scope.SESSION)
    assert "/run " in (await asking)["updatedInput"]["command"]
    rewrite_settings(agent, shell='"agent"')
    asking = asyncio.create_task(agent.before("Bash", id="2", command="rm y"))
    await agent.answered(Outcome.DENY)
    assert (await asking)["permissionDecision"] == "deny"


async def test_rules_about_paths_that_cannot_bind_a_command_ask_about_it(agent: Agent) -> None:
    rule = '[[policy.rules]]\ndecision = "deny"\npath = "secret/**"\n'
    (agent.home / "settings.toml").write_text(RULES + rule)
    asking = asyncio.create_task(agent.before("Bash", command="touch ok"))
    question = await agent.answered(Outcome.DENY)
    assert "paths" in question.why
    await asking


async def test_an_edit_outside_the_workspace_is_refused(agent: Agent) -> None:
    answer = await agent.before("Write", file_path="/etc/x", content="y")
    assert answer["permissionDecision"] == "deny"


async def test_an_edit_can_be_undone(agent: Agent) -> None:
    path = agent.workspace / "a.txt"
    path.write_text("old")
    input = {"file_path": str(path), "old_string": "old", "new_string": "new"}
    asking = asyncio.create_task(agent.before("Edit", **input))
    question = await agent.answered(Outcome.ALLOW)
    assert "-old" in question.preview
    await asking
    path.write_text("new")
    await agent.after("Edit", **input)
    (record,) = await agent.records(1)
    from callgate.workspace.undo.history import History  # noqa: PLC0415

    changes = History(str(agent.home / "undo")).of_call(record["call_id"]).changes
    assert [change.path.decode() for change in changes] == [str(path)]


async def test_an_agent_that_acts_without_permission_is_on_record(agent: Agent) -> None:
    await agent.before("Bash", command="touch no")
    await agent.after("Bash", command="touch no")
    await agent.after("Bash", id="9", command="touch unasked")
    _, ignored, unasked = await agent.records(3)
    assert (ignored["reason"], unasked["reason"]) == (UNAPPROVED, UNAPPROVED)
    assert "although it was refused" in ignored["result"]
    assert "without asking" in unasked["result"]


async def test_two_hooks_of_one_call_are_one_call(agent: Agent) -> None:
    def event(tool: str) -> bytes:
        name = "preToolUse" if tool == "Shell" else "PreToolUse"
        return json.dumps({
            "conversation_id": "c", "cwd": str(agent.workspace), "hook_event_name": name,
            "tool_name": tool, "tool_input": {"command": "touch ok"}, "cursor_version": "3",
        }).encode()  # fmt: skip

    first = await agent.service.submit("cursor", event("Shell"))
    second = await agent.service.submit("claude", event("Bash"))
    assert json.loads(first) == {"permission": "allow"}
    assert json.loads(second)["hookSpecificOutput"]["permissionDecision"] == "allow"
    assert len(agent.wired.runtime.calls.in_flight()) == 1


async def test_an_effect_of_cursor_without_a_permission_request_is_recorded_once(
    agent: Agent,
) -> None:
    def event(hook: str, phase: str, command: str) -> bytes:
        name = phase if hook == "claude" else phase[0].lower() + phase[1:]
        return json.dumps({
            "conversation_id": "c", "cwd": str(agent.workspace), "hook_event_name": name,
            "tool_name": "Bash" if hook == "claude" else "Shell", "cursor_version": "3",
            "tool_input": {"command": command}, "tool_output": "done",
        }).encode()  # fmt: skip

    for hook in ("cursor", "claude"):
        await agent.service.submit(hook, event(hook, "PreToolUse", "touch ok"))
    for hook in ("claude", "cursor"):
        await agent.service.submit(hook, event(hook, "PostToolUse", "touch ok"))
    for hook in ("cursor", "claude"):
        await agent.service.submit(hook, event(hook, "PostToolUse", "touch unasked"))
    await agent.service.submit("cursor", event("cursor", "PostToolUse", "touch later"))
    reasons = {
        word: [each.get("reason") for each in await agent.records(3) if word in each["args"]]
        for word in ("ok", "unasked", "later")
    }
    assert reasons == {"ok": [None], "unasked": [UNAPPROVED], "later": [UNAPPROVED]}


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://127.1/", "http://2130706433/", "http://0x7f000001/",
        "http://0177.0.0.1/", "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/",
        "http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/", "http://[fe80::1]/",
        "http://localhost:4177/", "http://LOCALHOST./", "http://x.localhost/",
        "http://metadata.google.internal/", "http://10.0.0.1/", "http://192.168.1.1/",
        "http://100.100.100.200/", "http://168.63.129.16/", "http://0.0.0.0:1/", "http://router/",
        "http://[64:ff9b::7f00:1]/", "http://%6c%6f%63alhost/", "https://127.0.0.1:443:80/",
    ],
)  # fmt: skip
async def test_an_address_around_this_machine_is_not_fetched_in_any_mode(agent: Agent, url: str) -> None:
    agent.hooks._directories.mode = Mode.WRITE
    answer = await agent.before("WebFetch", url=url, prompt="p")
    assert answer["permissionDecision"] == "deny"
    (record,) = await agent.records(1)
    assert record["tool"] in ("web_fetch", "agent_execute")


async def test_an_address_that_the_settings_name_may_be_fetched(agent: Agent) -> None:
    text = RULES + '[web]\nallow = ["127.0.0.1:8080", "10.1.0.0/16"]\n'
    (agent.home / "settings.toml").write_text(text)

    async def decision(url: str, id: str) -> Any:
        return (await agent.before("WebFetch", id, url=url, prompt="p"))["permissionDecision"]

    assert await decision("http://127.0.0.1:8080/", "1") == "allow"
    assert await decision("http://10.1.2.3/", "2") == "allow"
    assert await decision("http://127.0.0.1:8081/", "3") == "deny"
    assert await decision("http://10.2.2.3/", "4") == "deny"


@pytest.mark.parametrize("form", ["cp -r {up} x", "find {up}", "python3 -c 'print(1)'", "env -C {up} find"])
async def test_a_command_that_may_reach_our_home_asks_in_mode_write(agent: Agent, form: str) -> None:
    agent.hooks._directories.mode = Mode.WRITE
    rewrite_settings(agent, wait_s="0.2")
    answer = await agent.before("Bash", command=form.format(up=agent.home.parent))
    assert answer["permissionDecision"] == "deny"
    assert "No answer came within 0.2 s" in answer["permissionDecisionReason"]
    assert (await agent.before("Bash", "2", command="ls"))["permissionDecision"] == "allow"


async def test_the_hooks_of_another_agent_are_out_of_reach(agent: Agent) -> None:
    agent.hooks._directories.mode = Mode.WRITE
    for at, path in enumerate((".gemini/settings.json", ".cursor/hooks.json", ".qwen/settings.json")):
        answer = await agent.before("Write", f"w{at}", file_path=path, content="{}")
        assert "out of reach" in answer["permissionDecisionReason"], path
        answer = await agent.before("Bash", f"b{at}", command=f"cp x {path}")
        assert "out of reach" in answer["permissionDecisionReason"], path


async def test_an_id_that_is_used_again_for_another_call_gets_no_permission(agent: Agent) -> None:
    assert (await agent.before("Bash", command="touch ok"))["permissionDecision"] == "allow"
    again = await agent.before("Bash", command="touch ok")
    assert again["permissionDecision"] == "allow"
    other = await agent.before("Bash", command="rm -rf ok")
    assert other["permissionDecision"] == "deny"


async def test_a_refusal_is_shared_too(agent: Agent) -> None:
    first = asyncio.create_task(agent.before("Bash", command="rm x"))
    second = asyncio.create_task(agent.before("Bash", command="rm x"))
    await agent.answered(Outcome.DENY)
    decisions = [(await each)["permissionDecision"] for each in (first, second)]
    assert decisions == ["deny", "deny"]
    assert len(await agent.records(1)) == 1


async def test_a_changed_answer_runs_where_the_agent_takes_it_and_is_refused_elsewhere(
    agent: Agent,
) -> None:
    asking = asyncio.create_task(agent.before("Bash", command="rm x"))
    await agent.answered(Outcome.ALLOW, arguments={"command": "rm y"})
    assert (await asking)["updatedInput"]["command"] == "rm y"
    asking = asyncio.create_task(agent.before("Bash", id="2", agent="qwen", command="rm x"))
    await agent.answered(Outcome.ALLOW, arguments={"command": "rm y"})
    assert (await asking)["permissionDecision"] == "deny"


async def test_what_codex_may_run_cannot_be_typed_into(agent: Agent) -> None:
    answer = await agent.before("Bash", agent="codex", command="touch ok")
    assert answer["updatedInput"]["command"] == "exec </dev/null\ntouch ok"
    answer = await agent.before("Bash", id="2", agent="codex", command="bash")
    assert answer["permissionDecision"] == "deny"


async def test_a_ticket_runs_its_command_in_the_sandbox_once(agent: Agent) -> None:
    rewrite_settings(agent, shell='"sandbox"')
    answer = await agent.before("Bash", command="touch ok1")
    ticket = answer["updatedInput"]["command"].split()[-1]
    done = await agent.service.tickets.redeem(ticket)
    assert done is not None
    assert (agent.workspace / "ok1").exists()
    changed = [each for found in History(str(agent.home / "undo")).latest(2) for each in found.changes]
    assert [(each.kind, each.real) for each in changed] == [("created", str(agent.workspace.resolve() / "ok1"))]
    assert await agent.service.tickets.redeem(ticket) is None
    assert await agent.service.tickets.redeem("other") is None


async def test_a_declared_tool_is_judged_by_its_class_and_an_unknown_one_asks(agent: Agent) -> None:
    known = await agent.before("Known", a=1)
    assert known["permissionDecision"] == "allow"
    asking = asyncio.create_task(agent.before("mcp__x__y", id="2", a=1))
    question = await agent.answered(Outcome.DENY)
    assert (question.tool, question.arguments["name"]) == ("agent_execute", "mcp__x__y")
    await asking


@pytest.mark.parametrize("data", [b"", b"\xff", b"{}", b'{"hook_event_name": "New"}', b"[" * 9999])
async def test_what_cannot_be_read_is_refused(agent: Agent, data: bytes) -> None:
    assert b'"deny"' in await agent.service.submit("claude", data)


async def test_a_directory_that_is_not_served_is_refused(agent: Agent) -> None:
    agent.workspace = Path("/")
    answer = await agent.before("Bash", command="touch ok")
    assert "callgate trust /" in answer["permissionDecisionReason"]


@pytest.mark.parametrize("tools", ["{}", '{ Bash = "read" }'])
async def test_the_call_of_a_test_is_refused_immediately_whatever_the_rules_say(agent: Agent, tools: str) -> None:
    rules = RULES.replace('{ Known = "read" }', tools) + '[[policy.rules]]\ndecision = "allow"\ntool = "*"\n'
    (agent.home / "settings.toml").write_text(rules)
    answer = await agent.before("Bash", command=trial_command("0123456789abcdef"), unknown="argument")
    assert (answer["permissionDecision"], answer["permissionDecisionReason"]) == ("deny", f"callgate: {REFUSAL}")
    (record,) = await agent.records(1)
    assert (record["decision"], record["reason"]) == ("deny", "hook_test")
    assert not list(await agent.wired.runtime.permission.open_confirmations())


@pytest.mark.parametrize("change", ["{}; touch x", "{}0", "x{}", "\n{}", "{}\n"])
async def test_a_command_that_only_resembles_the_test_is_an_ordinary_call(agent: Agent, change: str) -> None:
    command = change.replace("{}", trial_command("0123456789abcdef"))
    asking = asyncio.create_task(agent.before("Bash", command=command))
    await agent.answered(Outcome.DENY)
    assert REFUSAL not in (await asking)["permissionDecisionReason"]


async def test_a_later_event_from_another_directory_is_refused(agent: Agent) -> None:
    assert (await agent.before("Bash", command="touch ok"))["permissionDecision"] == "allow"
    (agent.workspace / "sub").mkdir()
    (agent.workspace / "sub/out").symlink_to("/etc")
    root = agent.workspace
    for directory, decision in ((root / "sub", "allow"), (root / "sub/out", "deny"), ("/", "deny")):
        agent.workspace = Path(directory)
        answer = await agent.before("Known", id=str(directory))
        assert answer["permissionDecision"] == decision


async def test_a_relative_path_counts_from_the_directory_of_its_event(agent: Agent) -> None:
    await agent.before("Read", file_path="a")
    rule = '[[policy.rules]]\ndecision = "deny"\npath = "sub/secret"\n'
    (agent.home / "settings.toml").write_text(RULES + rule)
    (agent.workspace / "sub").mkdir()
    agent.workspace /= "sub"
    answer = await agent.before("Read", id="2", file_path="secret")
    assert answer["permissionDecision"] == "deny"
    answer = await agent.before("Read", id="3", file_path="other")
    assert answer["permissionDecision"] == "allow"


@pytest.mark.parametrize(
    ("tool", "input", "decision"),
    [
        ("Grep", {"pattern": "x"}, "allow"),
        ("Grep", {"pattern": "x", "path": "/etc"}, "deny"),
        ("Glob", {"pattern": "**/*.py"}, "allow"),
        ("Glob", {"pattern": "/etc/*"}, "deny"),
        ("Glob", {"pattern": "../home/*"}, "deny"),
        ("LS", {"path": "."}, "allow"),
        ("Grep", {"pattern": "x", "path": "../home"}, "deny"),
    ],
)
async def test_a_search_of_an_agent_runs_inside_the_workspace(
    agent: Agent, tool: str, input: dict[str, str], decision: str
) -> None:
    assert (await agent.before(tool, **input))["permissionDecision"] == decision


@pytest.mark.parametrize(
    "input",
    [
        {"path": "a /etc/passwd"},
        {"paths": "a /etc/passwd"},
        {"paths": ["a", "b /etc/passwd"]},
        {"paths": ["a\t/etc/passwd"]},
        {"path": "a sub/my secret"},
    ],
)
@pytest.mark.parametrize("tool", ["Grep", "Glob"])
async def test_a_search_of_copilot_counts_in_each_path_of_a_text_with_blanks(
    agent: Agent, tool: str, input: dict[str, Any]
) -> None:
    """Copilot CLI takes a path that does not exist for several."""
    rule = '[[policy.rules]]\ndecision = "deny"\npath = "sub/my secret"\n'
    (agent.home / "settings.toml").write_text(RULES + rule)
    answer = await agent.before(tool, agent="copilot", pattern="x", **input)
    assert answer["permissionDecision"] == "deny"
    answer = await agent.before(tool, "2", agent="copilot", pattern="x", path="a b/c")
    assert answer["permissionDecision"] == "allow"


@pytest.mark.parametrize(
    ("tool", "input"),
    [
        ("Read", {}),
        ("Write", {"content": "x"}),
        ("Edit", {"old_string": "a", "new_string": "b"}),
        ("NotebookEdit", {"new_source": "x"}),
    ],
)
async def test_a_parent_of_a_link_counts_as_each_directory_that_it_can_mean(
    agent: Agent, tool: str, input: dict[str, Any]
) -> None:
    """The system resolves the link first, and most agents resolve `..` first."""
    agent.hooks._directories.mode = Mode.WRITE
    rule = '[[policy.rules]]\ndecision = "deny"\npath = "secret*"\n'
    (agent.home / "settings.toml").write_text(RULES + rule)
    (agent.workspace / "a/b").mkdir(parents=True)
    (agent.workspace / "link").symlink_to("a/b")
    for path in (agent.workspace / "secret", agent.workspace / "a/secret"):
        path.write_text("a")
    key = "notebook_path" if tool == "NotebookEdit" else "file_path"
    for number, path in enumerate(("link/../secret", "link/../../../x")):
        answer = await agent.before(tool, str(number), **{key: path}, **input)
        assert answer["permissionDecision"] == "deny", path


async def test_an_address_may_be_fetched(agent: Agent) -> None:
    answer = await agent.before("WebFetch", url="https://x.example/a", prompt="p")
    assert answer["permissionDecision"] == "allow"


async def test_nothing_but_the_command_can_be_changed_by_an_answer(agent: Agent) -> None:
    (agent.workspace / "sub").mkdir()
    asking = asyncio.create_task(agent.before("Bash", command="rm x"))
    await agent.answered(Outcome.ALLOW, arguments={"command": "rm y", "cwd": "sub"})
    assert (await asking)["permissionDecision"] == "deny"


async def test_a_command_that_is_not_understood_asks_in_any_mode(agent: Agent) -> None:
    agent.hooks._directories.mode = Mode.WRITE
    assert (await agent.before("Bash", command="rm x"))["permissionDecision"] == "allow"
    asking = asyncio.create_task(agent.before("Bash", id="2", command="c=rm; $c x"))
    question = await agent.answered(Outcome.DENY)
    assert "not fully understood" in question.why
    assert (await asking)["permissionDecision"] == "deny"


@pytest.mark.parametrize(
    "path",
    [".github/hooks/a/x.json", ".github/copilot/settings.json", ".github/agents/x.md", ".github/extensions/x/x.mjs"],
)
async def test_copilot_cannot_add_hooks_to_itself_in_any_mode(agent: Agent, path: str) -> None:
    agent.hooks._directories.mode = Mode.WRITE
    answer = await agent.before("Write", agent="copilot", path=path, file_text="x")
    assert answer["permissionDecision"] == "deny"


@pytest.mark.parametrize("tool", ["NotebookEdit", "mcp__fs__write_file", "Invented"])
async def test_no_tool_reaches_our_home_in_any_mode(agent: Agent, tool: str) -> None:
    agent.hooks._directories.mode = Mode.WRITE
    answer = await agent.before(tool, notebook_path=str(agent.home / "settings.toml"))
    assert answer["permissionDecision"] == "deny"


async def test_one_answer_lets_one_call_run(agent: Agent) -> None:
    asking = asyncio.create_task(agent.before("Bash", command="rm x"))
    await agent.answered(Outcome.ALLOW)
    assert (await asking)["permissionDecision"] == "allow"
    asking = asyncio.create_task(agent.before("Bash", command="rm x"))
    await agent.answered(Outcome.DENY)
    assert (await asking)["permissionDecision"] == "deny"


async def test_the_second_hook_of_a_call_shares_its_answer_once(agent: Agent) -> None:
    def event(tool: str) -> bytes:
        name = "preToolUse" if tool == "Shell" else "PreToolUse"
        return json.dumps({
            "conversation_id": "c", "cwd": str(agent.workspace), "hook_event_name": name,
            "tool_name": tool, "tool_input": {"command": "rm x"}, "cursor_version": "3",
        }).encode()  # fmt: skip

    asking = asyncio.create_task(agent.service.submit("cursor", event("Shell")))
    await agent.answered(Outcome.ALLOW)
    assert b"allow" in await asking
    assert b"allow" in await agent.service.submit("claude", event("Bash"))
    asking = asyncio.create_task(agent.service.submit("claude", event("Bash")))
    await agent.answered(Outcome.DENY)
    assert b'"deny"' in await asking


async def test_a_hook_before_a_call_is_not_answered_about_its_end(agent: Agent) -> None:
    event = agent.event("Bash", "PostToolUse", command="touch ok")
    for phase in ("pre", "other", ""):
        assert b'"deny"' in await agent.service.submit("codex", event, phase=phase)
    assert await agent.service.submit("codex", event, phase="post") == b""


@pytest.mark.parametrize("is_served", [True, False])
async def test_a_report_of_an_unknown_session_is_on_record(agent: Agent, is_served: bool) -> None:
    if not is_served:
        agent.workspace = Path("/")
    await agent.after("Bash", command="rm x")
    (record,) = await agent.records(1)
    assert (record["reason"], record["tool"]) == (UNAPPROVED, "shell")


async def test_what_an_agent_was_told_to_run_instead_is_the_same_call(agent: Agent) -> None:
    def event(name: str, command: str) -> bytes:
        return json.dumps({
            "session_id": "g", "cwd": str(agent.workspace), "hook_event_name": name,
            "tool_name": "run_shell_command", "tool_input": {"command": command},
        }).encode()  # fmt: skip

    asking = asyncio.create_task(agent.service.submit("gemini", event("BeforeTool", "rm x")))
    await agent.answered(Outcome.ALLOW, arguments={"command": "rm y"})
    told = json.loads(await asking)["hookSpecificOutput"]["tool_input"]["command"]
    await agent.service.submit("gemini", event("AfterTool", told))
    (record,) = await agent.records(1)
    assert "reason" not in record or record["reason"] != UNAPPROVED
    assert not agent.wired.runtime.calls.in_flight()


async def test_other_files_by_which_hooks_are_changed_are_guarded(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_HOME", str(agent.workspace / "cx"))
    monkeypatch.setenv("VIBE_HOME", str(agent.workspace / "vb"))
    agent.hooks._directories.mode = Mode.WRITE
    for name, path in (
        ("codex", "cx/config.toml"),
        ("vibe", "vb/config.toml"),
        ("opencode", "opencode.jsonc"),
        ("opencode", ".opencode/plugin/other.js"),
        ("opencode", ".opencode/plugins/other.ts"),
    ):
        event = agent.event("write", id=path, file_path=path, content="x")
        assert b'"deny"' in await agent.service.submit(name, event), path
