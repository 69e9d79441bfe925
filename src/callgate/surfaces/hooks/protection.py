"""What no agent may touch through its hook: our home, our answers, the settings of its hooks.

A list of names can be got around by a command that hides them; then the command asks a person as
any other outside the sandbox does. What holds in any case is the sandbox: `callgate sandbox --`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from callgate.policy.commands import read_command
from callgate.policy.rules import is_within
from callgate.policy.shell_patterns import program_name
from callgate.policy.shell_reading import TooMuch
from callgate.policy.shell_wrappers import commands_within
from callgate.protocol.hooks.agent_tools import Translated

_HARMLESS = frozenset(("--version", "-V", "--help", "-h", "help", "status", "doctor", "tools"))
"""What an agent may ask of our own command."""
_OURS = re.compile(r"(?:^|[\s;&|(`/'\"])callgate['\"]?\s+['\"]?([a-z-]+)")
_INTERACTIVE = frozenset(
    ("bash", "sh", "dash", "zsh", "fish", "ksh", "python", "python3", "node", "irb", "ruby",
     "perl", "php", "lua", "psql", "mysql", "sqlite3", "ssh", "telnet", "nc", "ncat", "socat",
     "gdb", "vi", "vim", "nvim", "nano", "emacs", "ed", "screen", "tmux", "script", "expect",
     "bc", "dc", "ftp", "sftp", "julia", "R", "ghci", "scala", "deno", "bun", "ipython")
)  # fmt: skip
_GIVEN_ONE = frozenset(("-c", "-e", "-m", "--version", "--help", "-V", "-h", "-lc", "-ec"))


class Guarded:
    """The places of one agent and workspace that it must not touch."""

    def __init__(self, home: str, settings: Iterable[str], workspace: str) -> None:
        self._home = os.path.realpath(home)
        self._settings = [os.path.realpath(each) for each in settings]
        self._workspace = workspace
        user = os.path.expanduser("~")
        self._spellings = [
            spelling
            for path in (home, self._home, *self._settings)
            for spelling in _spellings(path, user)
        ]

    def refusal(self, call: Translated, *, may_type_later: bool = False) -> str | None:
        """Why a call may not run; None: for no reason of these. `may_type_later`: the agent can
        write to a process that it has started, and nobody sees that."""
        for path in _paths(call):
            if (found := self._guarded(path, self._workspace)) is not None:
                return f"{found} is out of reach of agents."
        command = call.arguments.get("command") if call.tool == "shell" else None
        if not isinstance(command, str):
            return None
        return self._command_refusal(command, call, may_type_later=may_type_later)

    def _command_refusal(
        self, command: str, call: Translated, *, may_type_later: bool
    ) -> str | None:
        for spelling in self._spellings:
            if spelling in command:
                return f"A command that names {spelling} is out of reach of agents."
        if "CALLGATE_HOME" in command:
            return "A command that names CALLGATE_HOME is out of reach of agents."
        directory = os.path.join(self._workspace, str(call.arguments.get("cwd", ".")))
        for argv in _commands(command):
            if (why := _own_command(argv)) is not None:
                return why
            if may_type_later and _is_interactive(argv):
                return (
                    f"{program_name(argv[0])} would read what is typed later, and callgate does"
                    " not see that: give it a command or a file."
                )
            for word in argv:
                if (found := self._guarded(os.path.expanduser(word), directory)) is not None:
                    return f"{found} is out of reach of agents."
        if (match := _OURS.search(command)) and match[1] not in _HARMLESS:
            parsed = read_command(command)
            if not parsed.understood:
                return "callgate's own commands are for people, not for agents."
        return None

    def _guarded(self, path: str, directory: str) -> str | None:
        if "\0" in path or len(path) > 4096:
            return None
        real = os.path.realpath(os.path.join(directory, os.path.expanduser(path)))
        if is_within(real, self._home):
            return "callgate's home"
        if real in self._settings:
            return "the file of the agent's hooks"
        return None


def _spellings(path: str, user: str) -> Iterator[str]:
    yield path
    if is_within(path, user) and path != user:
        rest = path[len(user) :]
        yield from (f"~{rest}", f"$HOME{rest}", f"${{HOME}}{rest}")


def _paths(call: Translated) -> Iterator[str]:
    for key in ("path", "paths"):
        value = call.arguments.get(key)
        yield from [value] if isinstance(value, str) else value or ()


def _commands(command: str) -> Iterator[Sequence[str]]:
    parsed = read_command(command)
    for segment in parsed.segments:
        try:
            yield from (argv for argv in commands_within(segment) if argv)
        except TooMuch:
            pass
        yield from ([each.target] for each in segment.redirects if each.target)


def _own_command(argv: Sequence[str]) -> str | None:
    words = list(argv)
    for at in range(len(words) - 1):
        if words[at] == "-m" and words[at + 1].partition(".")[0] == "callgate":
            words = ["callgate", *words[at + 2 :]]
            break
    if program_name(words[0]) != "callgate":
        return None
    if len(words) > 1 and words[1] in _HARMLESS:
        return None
    return "callgate's own commands are for people, not for agents."


def _is_interactive(argv: Sequence[str]) -> bool:
    program = re.sub(r"[\d.]+$", "", program_name(argv[0])) or program_name(argv[0])
    if program not in _INTERACTIVE:
        return False
    options = argv[1:]
    if "-i" in options:
        return True
    if program in ("screen", "tmux", "script", "expect", "ssh", "telnet", "vi", "vim", "nvim",
                   "nano", "emacs", "ed", "ftp", "sftp", "gdb", "nc", "ncat", "socat"):  # fmt: skip
        return not any(each in ("--version", "--help", "-V") for each in options)
    if any(each in _GIVEN_ONE for each in options):
        return False
    return all(each.startswith("-") for each in options)
