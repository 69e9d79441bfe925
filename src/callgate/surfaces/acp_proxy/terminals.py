"""Terminals that an agent asks for: commands of ours, whose output is held until it is released.

create -> asked, then started -> output, wait_for_exit, kill -> release
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
from collections.abc import Mapping

from callgate.core.commands import Exit
from callgate.protocol.acp.agent_requests import TerminalExit, TerminalState
from callgate.protocol.acp.client import CreateTerminal
from callgate.sandbox.launch import child_environment
from callgate.surfaces.acp_proxy.judging import SHELLS, absolute, command_text

MOST_TERMINALS = 64
"""Of one session at once."""
MOST_OUTPUT = 1024 * 1024
"""Bytes that are held of one terminal, whatever the agent asks for."""

_HARMLESS = frozenset(
    (
        "TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI", "TZ",
        "LANG", "LANGUAGE", "COLUMNS", "LINES", "GIT_TERMINAL_PROMPT", "CLAUDECODE", "GEMINI_CLI",
    )
)  # fmt: skip
"""Variables that choose no program and no file, whatever they say."""
_PAGERS = frozenset({"PAGER", "GIT_PAGER", "MANPAGER", "GH_PAGER"})
_MOVE = re.compile(r"cd ('[^'\n]+'|[\w./-]+) && (.+)\Z", re.DOTALL)
"""A command line that moves to a directory first."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Terminal:
    def __init__(self, id: str, limit: int | None) -> None:
        self.id = id
        self.call_id = ""
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.tool_call_id: str | None = None
        """The card of the agent that shows it."""
        self._limit = MOST_OUTPUT if limit is None else min(limit, MOST_OUTPUT)
        self._output = bytearray()
        self._truncated = False
        self._exit: TerminalExit | None = None

    def add(self, data: bytes) -> None:
        """What is more than the limit is dropped from the beginning."""
        self._output += data
        excess = len(self._output) - self._limit
        if excess > 0:
            del self._output[:excess]
            self._truncated = True

    def end(self, ended: Exit | None) -> None:
        """Idempotent: the first end counts."""
        if self._exit is None:
            code = None if ended is None else ended.code
            name = None if ended is None else _signal_name(ended.signal)
            if code is None and name is None:
                name = signal.Signals.SIGKILL.name  # it never started, or nobody saw its end
            self._exit = TerminalExit(exit_code=code, signal=name)
        self.ended.set()

    def state(self) -> TerminalState:
        return TerminalState(output=self.text, truncated=self._truncated, exit_status=self._exit)

    @property
    def text(self) -> str:
        """Cut between characters."""
        start = 0
        while self._truncated and start < 4 and self._output[start : start + 1] > b"\x7f":
            if self._output[start] >= 0xC0:
                break
            start += 1
        return bytes(self._output[start:]).decode("utf-8", "replace")

    @property
    def exit(self) -> TerminalExit:
        assert self._exit is not None
        return self._exit


def _signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def shell_arguments(request: CreateTerminal, workspace: str) -> dict[str, str]:
    """The arguments of the call of `shell` that a terminal is: all that is run stands in its
    command, which is judged and shown."""
    words = [request.command, *request.args]
    line = command_text(words if request.args else request.command) or ""
    exports = [
        f"export {each.name}={shlex.quote(each.value)}"
        for each in request.env
        if not _is_harmless(each.name, each.value)
    ]
    cwd = absolute(request.cwd or workspace, workspace)
    moved = _MOVE.match(line)
    if moved is not None:  # so that a rule speaks of the command alone
        cwd, line = absolute(shlex.split(moved[1])[0], cwd), moved[2]
    arguments = {"command": "\n".join([*exports, line])}
    return arguments if cwd == workspace else {**arguments, "cwd": cwd}


def bad_variable(request: CreateTerminal) -> str | None:
    """The first variable that cannot be set."""
    return next((each.name for each in request.env if not _NAME.match(each.name)), None)


def environment(request: CreateTerminal) -> Mapping[str, str]:
    """That of every command, with the harmless variables that the agent wants."""
    wanted = {each.name: each.value for each in request.env if _is_harmless(each.name, each.value)}
    return {**child_environment(os.environ), **wanted}


def _is_harmless(name: str, value: str) -> bool:
    if name == "SHELL":
        return value in SHELLS
    return name in _HARMLESS or name.startswith("LC_") or (name in _PAGERS and value == "cat")
