"""Entry of third-party agents with a hook: the agent runs the call, or redeems a ticket for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from callgate.config.home import Home
from callgate.core.sessions import Mode
from callgate.features.agents.hooks.listener import AgentHooks
from callgate.instance.instance import Draining
from callgate.instance.startup import ServedDirectories
from callgate.instance.wiring.runtime import Wired
from tests.features.contract.pipeline.cases import DENY, ECHO, PRIVATE, TOUCH, WRITE, Case, edited, only, varied
from tests.features.contract.pipeline.players import Entry
from tests.features.contract.pipeline.scenes import Scene

_MORE = (
    Case(name="agent reports a failure", tool="shell", arguments=ECHO, mode="write", variant="failure"),
    Case(name="agent ran without asking", arguments=WRITE, mode="write", variant="unasked"),
    Case(name="agent ran although refused", tool="shell", arguments=TOUCH, mode="read", variant="although"),
    Case(name="agent never reports", tool="shell", arguments=ECHO, mode="write", variant="silent"),
    Case(name="cancelled while the agent runs it", tool="shell", arguments=ECHO, mode="write", variant="stopped"),
    Case(name="hook gone while asked", tool="shell", arguments=TOUCH, answer=None, variant="gone"),
    Case(name="doubtful command", tool="shell", arguments={"command": "eval $X"}, mode="write"),
    Case(name="doubtful command denied", tool="shell", arguments={"command": "eval $X"}, mode="write", answer=DENY),
    Case(name="guarded file", tool="shell", arguments={"command": "echo x > .claude/settings.json"}, mode="write"),
    Case(name="tool of the agent", tool="Known", arguments={"a": 1}),
    Case(name="unknown tool approved", tool="mcp__x__y", arguments={"a": 1}),
    Case(name="unknown tool denied", tool="mcp__x__y", arguments={"a": 1}, answer=DENY),
    Case(name="unknown argument", tool="shell", arguments={**ECHO, "environment": {}}, mode="write"),
    Case(name="command rewritten for codex", tool="shell", arguments=ECHO, mode="write", variant="codex"),
    Case(name="edited command for codex", tool="shell", arguments=ECHO, answer=edited(command="ls"), variant="codex"),
    Case(
        name="unbound path rule denied",
        tool="shell",
        arguments=ECHO,
        mode="write",
        settings=PRIVATE,
        answer=DENY,
    ),
)
_TICKETS = (
    Case(name="never redeemed", tool="shell", arguments=ECHO, mode="write", variant="unredeemed"),
    Case(name="redeemed twice", tool="shell", arguments=ECHO, mode="write", variant="redeemed twice"),
)
_OWN = tuple(case for case in only("read_file", "write_file", "patch_file", "shell") if case.name != "missing file")
HOOK = (*_OWN, *_MORE, *varied("sandbox", only("shell")), *_TICKETS)
_SANDBOXED = ("sandbox", "unredeemed", "redeemed twice")
_NAMES = {"read_file": "Read", "write_file": "Write", "patch_file": "Edit", "shell": "Bash"}
_FIELDS = {"path": "file_path", "old": "old_string", "new": "new_string"}


class Hook(Entry):
    def __init__(self, scene: Scene, wired: Wired, hooks: AgentHooks) -> None:
        super().__init__(scene, wired)
        self.service = hooks.service
        self.agent = "codex" if scene.case.variant == "codex" else "claude"
        self.count = 0

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        self.count += 1
        variant, name = self.scene.case.variant, _NAMES.get(tool, tool)
        given = {_FIELDS.get(key, key): value for key, value in arguments.items()}
        if "cwd" in given or "network" in given:  # Bash of the agent has no such arguments
            given.pop("network", None)
            given["command"] = f"cd {given.pop('cwd', '.')} && {given['command']}"
        if "file_path" in given:
            given["file_path"] = f"{self.scene.work}/{given['file_path']}"
        if variant == "unasked":
            await self._submit("PostToolUse", name, given)
            return await self._recorded({})
        answer = await self._submit("PreToolUse", name, given)
        output = answer.get("hookSpecificOutput", {})
        is_allowed = output.get("permissionDecision") == "allow"
        told = output.get("updatedInput", given)
        words = str(told.get("command", "")).split()
        if is_allowed and variant == "stopped":
            (running,) = self.wired.runtime.calls.in_flight()
            await self.wired.runtime.calls.cancel(running.call.id)
        if is_allowed and variant not in ("silent", "unredeemed"):
            if variant in _SANDBOXED or (len(words) == 2 and words[0].endswith("/run")):
                answer["redeemed"] = await self.service.tickets.redeem(words[-1])
            if variant == "redeemed twice":
                answer["again"] = await self.service.tickets.redeem(words[-1])
            phase = "PostToolUseFailure" if variant == "failure" else "PostToolUse"
            await self._submit(phase, name, told)
        elif variant == "although":
            await self._submit("PostToolUse", name, given)
        return await self._recorded(answer)

    async def _recorded(self, answer: Any) -> Any:
        if self.scene.case.variant not in ("silent", "unredeemed"):
            await self.scene.ended(self.count)
        return answer

    async def _submit(self, phase: str, tool: str, input: dict[str, Any]) -> Any:
        event = {
            "session_id": "s", "cwd": str(self.scene.work), "hook_event_name": phase, "tool_name": tool,
            "tool_input": input, "tool_use_id": str(self.count), "tool_response": "done",
        }  # fmt: skip
        gone = self.scene.asked.wait if self.scene.case.variant == "gone" else None
        answer = await self.service.submit(self.agent, json.dumps(event).encode(), gone)
        return json.loads(answer or b"{}")


@asynccontextmanager
async def hook(scene: Scene) -> AsyncIterator[Entry]:
    case = scene.case
    wait_s = 20.0 if case.person else 0.05
    shell = "sandbox" if case.variant in _SANDBOXED else "agent"
    with (scene.home / "settings.toml").open("a") as settings:
        settings.write(f'[hooks]\nwait_s = {wait_s}\nshell = "{shell}"\ntools = {{ Known = "read" }}\n')
    wired = Wired(Home(str(scene.home)))
    wired.register_built_in()
    scene.watch(wired)
    hooks = AgentHooks(wired, ServedDirectories(wired, [str(scene.work)], Mode(case.mode)), Draining())
    with ExitStack() as stack:
        if case.person:
            stack.enter_context(wired.runtime.permission.attach(scene.person))
        try:
            yield Hook(scene, wired, hooks)
        finally:
            await hooks.close()
            await wired.close()
