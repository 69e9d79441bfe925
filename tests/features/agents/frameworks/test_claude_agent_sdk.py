from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, create_sdk_mcp_server, query, tool

from callgate import Gate
from callgate.adapters.claude_agent_sdk import gate_options, leads_elsewhere
from tests.features.agents.frameworks.claude_server import serving
from tests.features.agents.frameworks.contract import *  # noqa: F403
from tests.features.agents.frameworks.contract import LIMIT_S, gate_for
from tests.features.agents.frameworks.world import EFFECTS, PROMPT, Person, World, records

# Claude Code runs its tools itself, so these two are other promises here, below.
del test_a_cancelled_run_ends_its_call, test_a_call_that_somebody_stops_is_told_to_the_model  # noqa: F405, F821

OURS = {f"mcp__world__{name}": effect for name, effect in EFFECTS.items()}


def server_of(world: World) -> Any:
    schema = {
        "type": "object",
        "properties": {"to": {"type": "string"}, "subject": {"type": ["string", "null"]}},
        "required": ["to"],
    }

    def wrap(function: Any) -> Any:
        @tool(function.__name__, function.__doc__, schema)
        async def call(arguments: dict[str, Any]) -> dict[str, Any]:
            result = function(**arguments)
            text = await result if hasattr(result, "__await__") else result
            return {"content": [{"type": "text", "text": text}]}

        return call

    return create_sdk_mcp_server("world", tools=[*map(wrap, (world.look, world.send_mail, world.fail, world.wait))])


class Harness:
    shows_errors = True

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def options(self, url: str, **more: Any) -> ClaudeAgentOptions:
        (self.directory / "home").mkdir(exist_ok=True)
        workspace = self.directory / "workspace"
        workspace.mkdir(exist_ok=True)
        environment = {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "ENABLE_TOOL_SEARCH": "false",  # else tools of servers are found by a search first
            "IS_SANDBOX": "1",
            "HOME": str(self.directory / "home"),
        }
        return ClaudeAgentOptions(cwd=workspace, env=environment, model="claude-sonnet-4-5", **more)

    async def ask(
        self, gate: Gate | None, tool: str, arguments: dict[str, Any], stream: bool = False, **more: Any
    ) -> list[str]:
        with serving(tool, arguments) as model:
            options = self.options(f"http://127.0.0.1:{model.server_port}", include_partial_messages=stream, **more)
            if gate is not None:
                options = gate_options(gate, options, OURS)
            async for _ in query(prompt=PROMPT, options=options):
                pass
            # Claude Code adds reminders of its own behind a result.
            return [each.partition("\n\n<system-reminder>")[0] for each in model.results]

    async def run(
        self, gate: Gate | None, world: World, tool: str, arguments: dict[str, Any], *, stream: bool = False
    ) -> list[str]:
        more: dict[str, Any] = {"allowed_tools": ["mcp__world"]} if gate is None else {}
        return await self.ask(
            gate, f"mcp__world__{tool}", arguments, stream, mcp_servers={"world": server_of(world)}, **more
        )


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


async def begun(harness: Harness, gate: Gate, world: World) -> asyncio.Task[list[str]]:
    task = asyncio.create_task(harness.run(gate, world, "wait", {"to": "ann"}))
    await asyncio.wait_for(world.started.wait(), LIMIT_S)
    return task


async def test_the_call_of_a_cancelled_run_ends_with_the_gate(harness: Harness, home: Path, tmp_path: Path) -> None:
    """Or at its time limit: nothing tells us that Claude Code is gone."""
    async with gate_for(tmp_path, home) as gate:
        task = await begun(harness, gate, World())
        task.cancel()
        await asyncio.wait({task}, timeout=LIMIT_S)
        assert task.done()
    (record,) = records(home)
    assert record["error_class"] == "shutting_down"


async def test_a_call_that_somebody_stops_is_recorded_as_cancelled(
    harness: Harness, home: Path, tmp_path: Path
) -> None:
    """Claude Code runs the tool and is not told: nobody waits for its end any more."""
    async with gate_for(tmp_path, home) as gate:
        task = await begun(harness, gate, World())
        await gate.cancel()
        assert gate.runtime.calls.in_flight() == []
        task.cancel()
        await asyncio.wait({task}, timeout=LIMIT_S)
    (record,) = records(home)
    assert record["error_class"] == "cancelled"


async def test_a_command_of_claude_code_itself_runs_only_when_allowed(
    harness: Harness, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "workspace" / "made"
    for answer in (False, True):
        person = Person(answer)
        async with gate_for(tmp_path, home, person) as gate:
            # Claude Code would run it unasked: only the gate stands before it.
            await harness.ask(
                gate,
                "Bash",
                {"command": f"touch {file}", "description": "x"},
                allowed_tools=["Bash"],
                permission_mode="bypassPermissions",
            )
        assert ([each.tool for each in person.asked], file.exists()) == (["Bash"], answer)
    assert [record["decision"] for record in records(home)] == ["deny", "allow"]


async def test_a_file_outside_of_the_workspace_is_refused(harness: Harness, home: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the secret text")
    async with gate_for(tmp_path, home, Person()) as gate:
        (told,) = await harness.ask(gate, "Read", {"file_path": str(secret)}, permission_mode="bypassPermissions")
    assert "the secret text" not in told and "escapes" in told


REWRITE = {
    "hookEventName": "PreToolUse",
    "permissionDecision": "allow",
    "updatedInput": {"command": "touch rewritten", "description": "x"},
}


@pytest.mark.parametrize(
    "settings",
    [
        {"disableAllHooks": True},
        {
            "hooks": {
                "PreToolUse": [
                    {
                        "matcher": "*",
                        "hooks": [
                            {"type": "command", "command": f"echo '{json.dumps({'hookSpecificOutput': REWRITE})}'"}
                        ],
                    }
                ]
            }
        },
    ],
    ids=["no hooks", "rewrites"],
)
async def test_settings_of_the_workspace_change_nothing(
    harness: Harness, home: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    directory = tmp_path / "workspace"
    (directory / ".claude").mkdir(parents=True)
    (directory / ".claude" / "settings.json").write_text(json.dumps(settings))
    person = Person()
    async with gate_for(tmp_path, home, person) as gate:
        await harness.ask(gate, "Bash", {"command": "touch made", "description": "x"})
    assert len(person.asked) == 1
    assert {each.name for each in directory.iterdir()} == {".claude", "made"}


@pytest.mark.parametrize(
    "options",
    [
        {"hooks": {"PreToolUse": [HookMatcher(hooks=[])]}},
        {"setting_sources": ["project"]},
        {"settings": '{"hooks": {}}'},
        {"plugins": [{"type": "local", "path": "."}]},
    ],
    ids=lambda each: next(iter(each)),
)
async def test_what_could_change_a_call_after_us_is_refused(
    home: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    async with gate_for(tmp_path, home) as gate:
        with pytest.raises(ValueError, match="could change"):
            gate_options(gate, ClaudeAgentOptions(**options))


async def test_claude_code_works_in_the_workspace_of_the_gate(home: Path, tmp_path: Path) -> None:
    async with gate_for(tmp_path, home) as gate:
        for cwd in ("/etc", tmp_path):
            with pytest.raises(ValueError, match="workspace"):
                gate_options(gate, ClaudeAgentOptions(cwd=cwd))
        assert gate_options(gate, ClaudeAgentOptions()).cwd == gate.session.workspace
        assert gate_options(gate).cwd == gate.session.workspace
        (tmp_path / "link").symlink_to(gate.session.workspace)
        gate_options(gate, ClaudeAgentOptions(cwd=tmp_path / "link"))


@pytest.mark.parametrize(
    ("tool", "arguments", "cwd", "decision"),
    [
        ("Read", {"file_path": "a"}, "", "allow"),
        ("Read", {"file_path": "passwd"}, "/etc", "deny"),
        ("Read", {"file_path": "~/.bashrc"}, "", "deny"),
        ("Grep", {"pattern": "root"}, "", "allow"),
        ("Grep", {"pattern": "root"}, "/etc", "deny"),
        ("Grep", {"pattern": "root", "path": ""}, "/etc", "deny"),
        ("Grep", {"pattern": "root", "path": None}, "/etc", "deny"),
        ("Glob", {"pattern": "**/*.{ts,tsx}"}, "", "allow"),
        ("Glob", {"pattern": "*"}, "/etc", "deny"),
        ("Glob", {"pattern": "/etc/*"}, "", "deny"),
        ("Glob", {"pattern": "../*"}, "", "deny"),
        ("Glob", {}, "", "deny"),
    ],
)
async def test_a_path_is_judged_as_the_one_that_is_used(
    home: Path, tmp_path: Path, tool: str, arguments: dict[str, Any], cwd: str, decision: str
) -> None:
    async with gate_for(tmp_path, home, Person()) as gate:
        (matcher,) = gate_options(gate).hooks["PreToolUse"]  # type: ignore[index]
        event = {"tool_use_id": "t", "session_id": "s", "tool_name": tool, "tool_input": arguments}
        where = cwd or gate.session.workspace
        output = (await matcher.hooks[0]({**event, "cwd": where}, "t", None))["hookSpecificOutput"]  # type: ignore
        assert output["permissionDecision"] == decision, output
        if decision == "allow":
            assert output["updatedInput"].get("file_path", output["updatedInput"].get("path", "")).startswith(where)


@pytest.mark.parametrize(
    ("pattern", "leads"),
    [
        ("src/**/*.py", False),
        ("**/{package.json,tsconfig.json}", False),
        ("{/etc,src}/*", True),
        (".{,x}./*", True),
        ("{.,a}{.,b}/*", True),
        ("\\.\\./*", True),
        ("~/*", True),
        ("c:/*", True),
        (None, True),
        ("{a,b}" * 12, True),
    ],
)
def test_a_pattern_stays_in_its_directory(pattern: str | None, leads: bool) -> None:
    assert leads_elsewhere(pattern) is leads
