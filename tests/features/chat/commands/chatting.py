"""`callgate chat` at a terminal: the keys that are pressed, and the screen as a person sees it."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyte

from tests.kernel.cli.running import LIMIT_S, Terminal, environment

_FORKS = """
import gc, json, os, sys
from importlib import import_module
from callgate.cli.main import main
for name in (
    "features.chat.commands.chat", "features.chat.commands.run", "features.chat.models.scripted",
    "storage.sqlite.store",
):
    import_module(f"callgate.{name}")
gc.freeze()  # else each child copies every page to look at it
while line := sys.stdin.buffer.readline():
    asked = json.loads(line)
    if "wait" in asked:
        status = os.waitpid(asked["wait"], 0)[1]
        print(os.waitstatus_to_exitcode(status), flush=True)
    elif child := os.fork():
        print(child, flush=True)
    else:
        os.setsid()
        terminal = os.open(asked["terminal"], os.O_RDWR)  # it becomes the session's own
        for number in range(3):
            os.dup2(terminal, number)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            setattr(sys, name, open(number, "w" if number else "r"))
        sys.exit(main(asked["words"]))
"""


class Forker:
    """A process that has imported callgate, and forks for each command line."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _FORKS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def ask(self, **asked: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], LIMIT_S)
        assert ready, "the command has not ended"
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=LIMIT_S)


@functools.cache
def _forker() -> Forker:
    forker = Forker()
    atexit.register(forker.close)
    return forker


def script(path: Path, *replies: Mapping[str, Any], **said: Any) -> str:
    """Write a script; the name of the model that plays it."""
    lines = [f"{key} = {_toml(value)}" for key, value in said.items()]
    for reply in replies:
        lines += ["[[replies]]", *(f"{key} = {_toml(value)}" for key, value in reply.items())]
    path.write_text("\n".join(lines) + "\n")
    return f"scripted/{path}"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        escaped = (f"\\u{ord(char):04x}" if char in '"\\' or char < " " or char == "\x7f" else char for char in value)
        return '"' + "".join(escaped) + '"'
    return str(value).lower() if isinstance(value, bool) else repr(value)


def call(tool: str, **input: Any) -> dict[str, Any]:
    return {"tool": tool, "input": input}


class Chatting:
    """A command whose streams are a terminal, and which belongs to it."""

    def __init__(
        self,
        *words: str,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        columns: int = 80,
        rows: int = 24,
    ) -> None:
        self.terminal = Terminal(columns, rows)
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._shown = 0
        self.code: int | None = None
        slave = self.terminal.slave
        self.pid = _forker().ask(words=words, cwd=str(cwd), env=environment(env), terminal=os.ttyname(slave))
        self.terminal.read_until(bool)  # once it has written something, it has the terminal
        os.close(slave)

    @property
    def screen(self) -> str:
        """What is to be seen, without the empty rows at its end."""
        self._stream.feed(self.terminal.written[self._shown :])
        self._shown = len(self.terminal.written)
        return "\n".join(row.rstrip() for row in self._screen.display).rstrip()

    def until(self, met: str | Callable[[str], bool]) -> str:
        """Wait until the screen shows something; the screen."""

        def is_met(_: str) -> bool:
            return met in self.screen if isinstance(met, str) else met(self.screen)

        self.terminal.read_until(is_met)
        assert is_met(""), f"it ended, and shows only\n{self.screen}"
        return self.screen

    def prompted(self) -> str:
        """Wait until a line can be typed."""
        return self.until(lambda screen: screen.split("\n")[-1] == ">")

    def say(self, text: str) -> Chatting:
        self.prompted()
        self.terminal.press(f"{text}\r")
        return self

    def press(self, keys: str) -> Chatting:
        self.terminal.press(keys)
        return self

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.end()

    def end(self) -> int:
        """Read to the end of all output; the exit code."""
        self.terminal.read_until(lambda _: False)
        os.close(self.terminal.master)
        self.code = _forker().ask(wait=self.pid)
        return self.code
