"""The tools of an agent with a shell, as they are without any gate."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.request import urlopen

from callgate import SideEffects, ToolDefinition
from safety.contestants.ports import Output
from safety.shell.scene import Scene
from safety.values import Call

_LIMIT_S = 20
_EFFECTS = {
    "shell": SideEffects.EXECUTE,
    "write_file": SideEffects.WRITE,
    "read_file": SideEffects.READ,
    "web_fetch": SideEffects.READ,
}


class ShellWorld:
    """Everything runs as the user, with nothing around it."""

    definitions: Sequence[ToolDefinition] = tuple(
        ToolDefinition(name=name, description=name, input_schema={}, side_effects=effect)
        for name, effect in _EFFECTS.items()
    )
    used_by_tasks = frozenset(_EFFECTS)

    def __init__(self, place: Scene) -> None:
        self.place = place

    async def run(self, call: Call) -> Output:
        return Output(await asyncio.to_thread(self._run, call))

    def _run(self, call: Call) -> str:
        arguments = call.arguments
        try:
            if call.tool == "shell":
                return run_command(["bash", "-c", str(arguments["command"])], self.place)
            if call.tool == "web_fetch":
                with urlopen(arguments["url"], timeout=_LIMIT_S) as reply:
                    return str(reply.read().decode())
            path = self.place.project / str(arguments["path"])
            if call.tool == "read_file":
                return path.read_text(encoding="utf-8")
            return _write(path, arguments["content"])
        except OSError as error:
            return f"Error: {error}"


def run_command(
    words: Sequence[str], place: Scene, extra: Mapping[str, str] | None = None, stdin: str = ""
) -> str:
    """Run a command in the project; its output and errors."""
    try:
        done = subprocess.run(
            words,
            cwd=place.project,
            env={**place.environment(), **(extra or {})},
            input=stdin.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return "Error: it took too long"
    return done.stdout.decode(errors="replace")


def _write(path: Path, content: str) -> str:
    os.makedirs(path.parent, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return "written"
