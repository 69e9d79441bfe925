"""callgate behind Claude Code's hook: the agent runs the calls, and reports prompts and outputs.

Pages and searches are Claude Code's own tools; the other tools of an application are those of an
MCP server `apps`, whose effects the user has declared under `[hooks.tools]`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from callgate import Mode, ToolDefinition
from callgate.config.home import Home
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Confirmer
from callgate.features.agents.hooks.listener import AgentHooks
from callgate.instance.instance import Draining
from callgate.instance.startup import ServedDirectories
from callgate.instance.wiring.runtime import Wired
from safety.contestants.callgate_modes import MEMORY
from safety.contestants.ports import Reply, World
from safety.people import PersonKind, Reader
from safety.values import Call

_OWN = {"get_page": "WebFetch", "open_page": "WebFetch", "search_web": "WebSearch"}
"""Tools of an application that Claude Code has, too."""


class ClaudeHook:
    """One session of Claude Code, as its hooks speak: an event before and after each call."""

    def __init__(self, hooks: AgentHooks, directory: Path) -> None:
        self._hooks = hooks
        self._directory = directory
        self._count = 0

    async def report(self, event: str, **fields: Any) -> Mapping[str, Any]:
        """Send one event. Return the answer."""
        row = {
            "session_id": "s",
            "cwd": str(self._directory),
            "permission_mode": "default",
            "hook_event_name": event,
            **fields,
        }
        answer = await self._hooks.service.submit("claude", json.dumps(row).encode())
        return json.loads(answer) if answer.strip() else {}

    async def before(self, tool: str, input: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the input that the agent may run, None if the call is refused."""
        self._count += 1
        answer = await self.report("PreToolUse", tool_input=dict(input), **self._facts(tool))
        verdict = answer.get("hookSpecificOutput", {})
        if verdict.get("permissionDecision") != "allow":
            return None
        found: Mapping[str, Any] = verdict.get("updatedInput", input)
        return found

    async def after(self, tool: str, input: Mapping[str, Any], response: str) -> None:
        facts = self._facts(tool)
        await self.report("PostToolUse", tool_input=dict(input), tool_response=response, **facts)

    async def ticket(self, command: str) -> str:
        """Run a rewritten command. Return its output."""
        done = await self._hooks.service.tickets.redeem(command.split()[-1])
        return "" if done is None else str(done.text)

    def _facts(self, tool: str) -> dict[str, str]:
        return {"tool_name": tool, "tool_use_id": f"toolu_{self._count}"}


@asynccontextmanager
async def claude_hook(
    home: Path, workspace: Path, mode: str, confirm: Confirmer, settings: str
) -> AsyncIterator[ClaudeHook]:
    """An instance that answers the hooks of one session."""
    found = Home(str(home))
    found.make()
    (home / "settings.toml").write_text(settings, encoding="utf-8")
    wired = Wired(found)
    wired.register_built_in()
    served = ServedDirectories(wired, [str(workspace)], Mode(mode))
    hooks = AgentHooks(wired, served, Draining())
    try:
        with wired.runtime.permission.attach(confirm):
            yield ClaudeHook(hooks, workspace)
    finally:
        await hooks.close()
        await wired.close()


class CallgateHook(msgspec.Struct, frozen=True):
    name: str
    title: str
    mode: str
    person_kind: PersonKind = "reader"

    def missing(self) -> str | None:
        return None

    @asynccontextmanager
    async def open(self, world: World, prompt: str, person: Reader) -> AsyncIterator[_HookDoor]:
        classes = json.dumps({_claude_name(each.name): _class(each) for each in world.definitions})
        settings = f"[hooks]\nwait_s = 20.0\ntools = {classes.replace(': ', ' = ')}\n"
        with tempfile.TemporaryDirectory(prefix="safety-", dir=MEMORY) as directory:
            work = Path(directory) / "work"
            work.mkdir()

            async def confirm(question: Confirmation) -> Answer:
                tool, arguments = _world_call(question)
                return person.answer(tool, arguments, question.why)

            home = Path(directory) / "home"
            async with claude_hook(home, work, self.mode, confirm, settings) as agent:
                await agent.report("UserPromptSubmit", prompt=prompt)
                yield _HookDoor(world, agent)


class _HookDoor:
    def __init__(self, world: World, agent: ClaudeHook) -> None:
        self._world = world
        self._agent = agent

    async def call(self, call: Call) -> Reply:
        tool = _claude_name(call.tool)
        more = {"prompt": "Sum it up."} if tool == "WebFetch" else {}
        input = {**call.arguments, **more}
        if await self._agent.before(tool, input) is None:
            return Reply(ran=False, text="refused")
        output = await self._world.run(call)
        await self._agent.after(tool, input, output.text)
        return Reply(ran=True, text=output.text)


def _world_call(question: Confirmation) -> tuple[str, Mapping[str, Any]]:
    """The call of the application that a question is about."""
    arguments = question.arguments
    name, input = question.tool, arguments
    if question.tool.startswith("agent_"):
        name, input = str(arguments["name"]), arguments["input"]
    if name.startswith("mcp__apps__"):
        return name.removeprefix("mcp__apps__"), input
    kinds = {"web_fetch": "get_page", "WebFetch": "get_page", "WebSearch": "search_web"}
    left_out = {name: value for name, value in input.items() if name != "prompt"}
    return kinds.get(name, name), left_out


def _claude_name(tool: str) -> str:
    return _OWN.get(tool, f"mcp__apps__{tool}")


def _class(tool: ToolDefinition) -> str:
    return "network" if tool.effect.has_effects else "read"
