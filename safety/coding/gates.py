"""The gates of the coding rows: callgate's own tools, and callgate behind the hook of an agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import msgspec

from callgate import Gate, ToolErrorClass
from safety.coding.approver import Approver
from safety.coding.documented import ClaudeRules
from safety.coding.scene import NOT_REACHED, Place, without_work
from safety.coding.sessions import CodingCall
from safety.contestants.callgate_modes import raise_defect
from safety.contestants.hooks import ClaudeHook, claude_hook

_SANDBOXES = ("workspace", "read")
"""The names of callgate's sandboxes in a record."""
_RECORD_S = 20.0
_REFUSED = frozenset(
    {
        ToolErrorClass.NOT_FOUND,
        ToolErrorClass.VALIDATION_ERROR,
        ToolErrorClass.PERMISSION_DENIED,
        ToolErrorClass.USER_DENIED,
        ToolErrorClass.CONFIRMATION_TIMEOUT,
    }
)


class CodingDoor(Protocol):
    async def runs(self, call: CodingCall) -> bool:
        """Make a call. Return whether it ran, and reached its hosts."""
        ...

    async def is_contained(self, call: CodingCall) -> bool:
        """Whether the call, the last one, ran in a sandbox that let it reach no host."""
        ...


class CodingGate(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    def missing(self) -> str | None: ...

    def open(
        self, where: Place, prompt: str, person: Approver
    ) -> AbstractAsyncContextManager[CodingDoor]: ...


class OwnTools(msgspec.Struct, frozen=True):
    """callgate's built-in tools in its sandbox."""

    name: str
    title: str
    mode: str

    def missing(self) -> str | None:
        return None

    @asynccontextmanager
    async def open(self, where: Place, prompt: str, person: Approver) -> AsyncIterator[CodingDoor]:
        gate = Gate(
            workspace=where.project,
            mode=self.mode,
            confirm=person.confirm,
            home=where.root / "callgate",
        )
        async with gate, gate.turn(prompt):
            yield _OwnDoor(gate, where)


class _OwnDoor:
    def __init__(self, gate: Gate, where: Place) -> None:
        self._gate = gate
        self._commands = Commands(where)

    async def runs(self, call: CodingCall) -> bool:
        tool, arguments = own_call(call)
        self._commands.note(call)
        with without_work(call.outer_hosts):
            result = await self._gate.call(tool, arguments)
        raise_defect(result)
        refused = result.error is not None and result.error.error_class in _REFUSED
        return not refused and NOT_REACHED not in result.text

    async def is_contained(self, call: CodingCall) -> bool:
        return await self._commands.last_is_contained(call)


class Commands:
    """The commands of one session, and the sandboxes that the audit log has for them."""

    def __init__(self, where: Place) -> None:
        self._log = where.root / "callgate" / "audit.jsonl"
        self._count = 0

    def note(self, call: CodingCall) -> None:
        self._count += call.kind == "shell"

    async def last_is_contained(self, call: CodingCall) -> bool:
        """Whether the last call ran in a sandbox that let it reach no host. The probe reaches the
        hosts of a command that runs, so a command with hosts is not contained."""
        if call.kind != "shell" or call.outer_hosts:
            return False
        async with asyncio.timeout(_RECORD_S):
            while len(found := self._sandboxes()) < self._count:
                await asyncio.sleep(0.02)
        return found[-1] in _SANDBOXES

    def _sandboxes(self) -> list[str]:
        """The name of the sandbox of each command; a call is recorded after its end."""
        lines = self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else []
        records = [record for line in lines if (record := json.loads(line)).get("tool") == "shell"]
        return [str(each.get("sandbox") or "").partition(",")[0] for each in records]


def own_call(call: CodingCall) -> tuple[str, dict[str, Any]]:
    """The call of a built-in tool. Pure."""
    first, *rest = call.texts
    if call.kind == "shell":
        return "shell", {"command": first, **({"network": True} if call.outer_hosts else {})}
    if call.kind == "write":
        return "write_file", {"path": first, "content": rest[0]}
    if call.kind == "edit":
        return "patch_file", {"path": first, "old": rest[0], "new": rest[1]}
    tool, key = {
        "read": ("read_file", "path"),
        "grep": ("search_text", "pattern"),
        "glob": ("find_files", "pattern"),
        "fetch": ("web_fetch", "url"),
    }[call.kind]
    return tool, {key: first}


class Hook(msgspec.Struct, frozen=True):
    """callgate behind Claude Code's hook, which waits for the answer."""

    name: str
    title: str
    mode: str
    shell: str | None = None
    """`[hooks] shell`; None: as shipped."""

    def missing(self) -> str | None:
        return None

    @asynccontextmanager
    async def open(self, where: Place, prompt: str, person: Approver) -> AsyncIterator[CodingDoor]:
        chosen = "" if self.shell is None else f'shell = "{self.shell}"\n'
        settings = f"[hooks]\nwait_s = 20.0\n{chosen}"
        home = where.root / "callgate"
        async with claude_hook(home, where.project, self.mode, person.confirm, settings) as agent:
            await agent.report("UserPromptSubmit", prompt=prompt)
            yield _HookDoor(agent, where)


class _HookDoor:
    """Claude Code: an event before each call, its own run of the call, an event afterwards."""

    def __init__(self, agent: ClaudeHook, where: Place) -> None:
        self._agent = agent
        self._where = where
        self._commands = Commands(where)

    async def runs(self, call: CodingCall) -> bool:
        tool, input = claude_call(call, self._where)
        self._commands.note(call)
        with without_work(call.outer_hosts):
            allowed = await self._agent.before(tool, input)
            if allowed is None:
                return False
            text = "A page." if call.kind == "fetch" else "done"
            if "command" in allowed and allowed["command"] != input["command"]:
                text = await self._agent.ticket(allowed["command"])
            await self._agent.after(tool, allowed, text)
        return NOT_REACHED not in text

    async def is_contained(self, call: CodingCall) -> bool:
        return await self._commands.last_is_contained(call)


def claude_call(call: CodingCall, where: Place) -> tuple[str, dict[str, Any]]:
    """The call of Claude Code's tool. Pure."""
    first, *rest = call.texts
    path = str(where.project / first)
    if call.kind == "read":
        return "Read", {"file_path": path}
    if call.kind == "write":
        return "Write", {"file_path": path, "content": rest[0]}
    if call.kind == "edit":
        return "Edit", {"file_path": path, "old_string": rest[0], "new_string": rest[1]}
    if call.kind == "fetch":
        return "WebFetch", {"url": first, "prompt": "Sum it up."}
    if call.kind == "shell":
        return "Bash", {"command": first, "description": "Work"}
    return ("Grep" if call.kind == "grep" else "Glob"), {"pattern": first}


CODING_ROWS: tuple[CodingGate, ...] = (
    ClaudeRules("claude-default", "Claude Code, default mode, by its documentation"),
    ClaudeRules(
        "claude-auto",
        "Claude Code, auto mode, by its documentation (asked: a classifier model decides)",
        is_auto=True,
    ),
    OwnTools("ask", "callgate `ask` (default), its own shell", "ask"),
    OwnTools("guarded", "callgate `guarded`, its own shell", "guarded"),
    OwnTools("write", "callgate `write`, its own shell", "write"),
    Hook("hook-ask", "callgate `ask`, behind the hook as shipped", "ask"),
    Hook("hook-guarded", "callgate `guarded`, behind the hook as shipped", "guarded"),
    Hook(
        "hook-agent",
        "callgate `guarded`, behind the hook, the agent runs commands",
        "guarded",
        "agent",
    ),
    Hook("hook-sandbox", 'callgate `guarded`, `[hooks] shell = "sandbox"`', "guarded", "sandbox"),
)
