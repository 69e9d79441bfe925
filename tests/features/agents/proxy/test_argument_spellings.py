"""An agent's hook and its question over ACP are read alike, whatever names the arguments have.

Every input goes through the real hook service and through a real proxy. A rule denies every call,
so the audit log has the tool and the arguments that each of the two has evaluated.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from callgate.config.home import Home
from callgate.core.sessions import Mode
from callgate.features.agents.hooks.inputs import SPELLINGS
from callgate.features.agents.hooks.listener import AgentHooks
from callgate.features.agents.known import hooked
from callgate.instance.instance import Draining
from callgate.instance.startup import ServedDirectories
from callgate.instance.wiring.runtime import Wired
from tests.features.agents.proxy.conftest import REJECTED, Open, permission, play, records

TABLES = {name: hooks.tools for name, hooks in hooked().items()}

DENIED = '[[policy.rules]]\ndecision = "deny"\ntool = "*"\n'
TOOLS = {
    "write": ("edit", {"path": "a", "content": "x"}),
    "edit": ("edit", {"path": "a", "old text": "x", "new text": "y"}),
    "read": ("read", {"path": "a"}),
    "shell": ("execute", {"command": "ls", "directory": "sub"}),
    "fetch": ("fetch", {"url": "https://a.example/"}),
}
"""By the kind of a tool: its kind in ACP, and what it needs."""
UNKNOWN = ("file", "filename", "dir", "folder", "abs_path", "Path", "PATH", "path ", "path\x00", "also", "env")
"""Names that no tool of a known agent has. Some agent may understand them."""
STEPS = 100


class Case(NamedTuple):
    agent: str
    tool: str
    kind: str
    input: dict[str, Any]


def spelled() -> Iterator[Case]:
    """Every way to name the arguments of a tool, for each tool of each agent."""
    for agent, table in TABLES.items():
        for tool, row in table.items():
            if row.kind not in TOOLS:
                continue
            kind, needed = TOOLS[row.kind]
            names = {
                meaning: found
                for meaning in needed
                if (found := [each for each in SPELLINGS[meaning] if each in row.arguments])
            }
            for chosen in itertools.product(*names.values()):
                pairs = zip(chosen, names, strict=True)
                input = {name: needed[meaning] for name, meaning in pairs}
                if len(input) == len(needed) or row.kind == "shell":
                    yield Case(agent, tool, kind, input)


def contradicting() -> Iterator[Case]:
    """Each of them with one more argument: another name of one that it has, or an unknown name."""
    for case in spelled():
        for name, value in case.input.items():
            same = {each for names in SPELLINGS.values() if name in names for each in names}
            for other in sorted(same.union(UNKNOWN) - case.input.keys()):
                for second in (".git/hooks/pre-commit", "", value, [".git/hooks/pre-commit"], {"path": "b"}):
                    yield case._replace(input={**case.input, other: second})


def once(cases: Iterator[Case]) -> list[Case]:
    """The first case of each input."""
    return list({json.dumps([each.kind, each.input], sort_keys=True): each for each in cases}.values())


def evaluated(record: dict[str, Any], workspace: Path) -> tuple[str, Any]:
    arguments = json.loads(record["args"].replace(str(workspace), "W"))
    if arguments.get("cwd") == ".":  # the default of `shell`
        arguments["cwd"] = "W"
    return record["tool"], arguments


class Hook:
    """The hook entry, with the calls that it has evaluated."""

    def __init__(self, hooks: AgentHooks, home: Path, workspace: Path) -> None:
        self._hooks, self._home, self._workspace = hooks, home, workspace

    async def read(self, cases: list[Case]) -> list[tuple[str, Any]]:
        for number, (agent, tool, _, input) in enumerate(cases):
            event = {
                "session_id": "s", "cwd": str(self._workspace), "hook_event_name": "PreToolUse",
                "tool_name": tool, "tool_input": input, "tool_use_id": str(number),
            }  # fmt: skip
            own = hooked()[agent].dialect.own_event(event)
            await self._hooks.service.submit(agent, json.dumps(own).encode())
        found = records(self._home)
        assert len(found) == len(cases)
        return [evaluated(each, self._workspace) for each in found]


@pytest_asyncio.fixture
async def hook(tmp_path: Path, workspace: Path) -> AsyncIterator[Hook]:
    home = Home(str(tmp_path / "hook-home"))
    home.make()
    (tmp_path / "hook-home/settings.toml").write_text(DENIED)
    wired = Wired(home)
    wired.register_built_in()
    hooks = AgentHooks(wired, ServedDirectories(wired, [str(workspace)], Mode.ASK), Draining())
    yield Hook(hooks, tmp_path / "hook-home", workspace)
    await hooks.close()
    await wired.close()


async def questions(opened: Open, home: Path, workspace: Path, states: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Evaluate these tool calls as questions of an agent behind the proxy."""
    async with opened(settings=DENIED) as editor:
        talk = await editor.new(workspace)
        talk.allow("reject_once")
        for at in range(0, len(states), STEPS):
            steps = [permission(str(at + n), **each) for n, each in enumerate(states[at : at + STEPS])]
            assert all(each["result"] == REJECTED for each in await play(talk, *steps))
    last = {each["external_id"]: each for each in records(home)}
    return [evaluated(last[str(at)], workspace) for at in range(len(states))]


def states(cases: list[Case]) -> list[dict[str, Any]]:
    return [{"kind": each.kind, "rawInput": each.input} for each in cases]


async def test_each_spelling_is_the_same_call_for_the_hook_and_for_the_proxy(
    opened: Open, home: Path, workspace: Path, hook: Hook
) -> None:
    cases = once(spelled())
    assert len(cases) > 20
    by_hook = await hook.read(cases)
    by_proxy = await questions(opened, home, workspace, states(cases))
    assert {tool for tool, _ in by_hook} == {"write_file", "patch_file", "read_file", "shell", "web_fetch"}
    assert by_proxy == by_hook


@pytest.mark.timeout(300)
async def test_two_spellings_or_an_unknown_argument_are_no_known_call_for_either(
    opened: Open, home: Path, workspace: Path, hook: Hook
) -> None:
    cases = once(contradicting())
    by_hook = await hook.read(cases)
    by_proxy = await questions(opened, home, workspace, states(cases))
    differing = [
        (case, one, other)
        for case, one, other in zip(cases, by_hook, by_proxy, strict=True)
        if (one[0], other[0]) != ("agent_execute", "agent_action")
    ]
    assert differing == []


def test_an_unread_file_name_of_a_known_tool_does_not_exist() -> None:
    """A path under a name that no meaning has would be evaluated by nobody."""
    read = {each for names in SPELLINGS.values() for each in names}
    for agent, table in TABLES.items():
        for tool, row in table.items():
            if row.kind in (*TOOLS, "list", "find", "search"):
                named = {each for each in row.arguments - read if each.lower().endswith(("path", "_file_name", "dir"))}
                assert not named, (agent, tool)
