"""What no agent may touch through its hook: our home, our answers, the settings of its hooks.

    tools of ours     the places that they name
    other tools       every text in their input
    commands          every word, from every directory that the line may be in

A list of names can be got around by a command that hides them; then the command asks a person, as
`Guarded.is_doubtful` says, in any mode. A program that the agent wrote to a file can read all that
its user can. Only the sandbox holds in any case: `[hooks] shell = "sandbox"`, `callgate sandbox`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from callgate.policy.commands import read_command
from callgate.policy.rules import is_within
from callgate.policy.shell_values import MAX_CHARACTERS
from callgate.protocol.hooks.agent_tools import GENERIC, Translated
from callgate.surfaces.hooks import command_words, doubtful_words
from callgate.surfaces.hooks.command_words import CommandLine

_COMMANDS = frozenset(("command", "cmd", "script", "commands", "shell_command"))
"""How other tools call a command line in their input."""
_LONGEST_PATH = 4096


_MOST_CHECKS = 10_000
"""Paths that are looked up for one call; a call that names more is refused."""
_LONGEST_COMMANDS = 4 * MAX_CHARACTERS
"""Characters of all command lines in one input of a tool without a counterpart."""
TOO_MANY = "The call has more words or paths than callgate checks in one call: split it."


class Guarded:
    """The places of one agent and workspace that it must not touch."""

    def __init__(self, home: str, settings: Iterable[str], workspace: str) -> None:
        self._home = os.path.realpath(home)
        named = list(settings)
        self._settings = [os.path.realpath(each) for each in named]
        self._workspace = workspace
        outside = (each for each in self._settings if not is_within(each, workspace))
        self._outside = list(dict.fromkeys((self._home, *outside)))
        self._inside = [each for each in self._settings if is_within(each, workspace)]
        self._above = {up for each in self._inside for up in _directories_above(each, workspace)}
        self._places = list(dict.fromkeys((home, self._home, *named, *self._settings)))
        user = os.path.expanduser("~")
        self._spellings = [
            spelling
            for path in (home, self._home, *self._settings)
            for spelling in _spellings(path, user)
        ]

    def is_doubtful(self, call: Translated) -> bool:
        """Whether a command may do something that its words do not say: it is not understood, it
        runs code of an interpreter, it may walk through a directory above a guarded place, or it
        changes a directory with settings of hooks. The commands of unknown tools count, too."""
        start = os.path.join(self._workspace, str(call.arguments.get("cwd", ".")))
        if call.command is not None:
            return self._is_doubtful_command(call.command, start)
        if not call.tool.startswith((f"{GENERIC}execute", "mcp__")):
            return False
        texts = islice(_texts(_input_of(call)), _MOST_CHECKS)
        commands = dict.fromkeys(text for key, text in texts if key in _COMMANDS)
        return any(self._is_doubtful_command(each, self._workspace) for each in commands)

    def _is_doubtful_command(self, command: str, start: str) -> bool:
        line = CommandLine(read_command(command))
        if not line.parsed.understood or line.is_too_long or doubtful_words.runs_code(line):
            return True
        directories = command_words.directories(line, start)
        if self._changes_settings(line, directories):
            return True
        commands = doubtful_words.traversing(line)
        if commands and any(self._is_above(each, "/") for each in directories):
            return True
        words = dict.fromkeys(chain.from_iterable(argv[1:] for argv in commands))
        parts = dict.fromkeys(part for word in words for part in command_words.parts(word))
        return any(self._is_above(word, each) for word in words | parts for each in directories)

    def _changes_settings(self, line: CommandLine, directories: list[str]) -> bool:
        """Whether a line may create or replace settings of hooks in the workspace by the name of
        a directory above them, such as `cp -r evil .claude`."""
        for directory in directories:
            for place in doubtful_words.placed(line, directory):
                real = os.path.realpath(place[:_LONGEST_PATH])
                if any(is_within(each, real) for each in self._inside):
                    return True
        commands = doubtful_words.changing(line)
        if commands and any(self._holds_settings(each, "/") for each in directories):
            return True
        words = dict.fromkeys(chain.from_iterable(argv[1:] for argv in commands))
        parts = dict.fromkeys(part for word in words for part in command_words.parts(word))
        return any(
            self._holds_settings(word, each) for word in words | parts for each in directories
        )

    def _holds_settings(self, path: str, directory: str) -> bool:
        """Whether a path is a directory of settings, below the workspace."""
        if not path or "\0" in path or len(path) > _LONGEST_PATH:
            return False
        return os.path.realpath(os.path.join(directory, os.path.expanduser(path))) in self._above

    def _is_above(self, path: str, directory: str) -> bool:
        """Whether a path is a directory above a guarded place outside the workspace."""
        if not path or "\0" in path or len(path) > _LONGEST_PATH:
            return False
        real = os.path.realpath(os.path.join(directory, os.path.expanduser(path)))
        return any(is_within(each, real) for each in self._outside)

    def refusal(self, call: Translated, *, may_type_later: bool = False) -> str | None:
        """Why a call may not run; None: for no reason of these. `may_type_later`: the agent can
        write to a process that it has started, and nobody sees that."""
        for path in _paths(call):
            if (found := self._guarded(path, self._workspace)) is not None:
                return f"{found} is out of reach of agents."
            if call.tool == "search_text" and self._holds_home(path):
                return "A search of a directory that holds callgate's home is out of reach."
        if call.tool == "shell":
            command = call.arguments.get("command")
            directory = os.path.join(self._workspace, str(call.arguments.get("cwd", ".")))
            if not isinstance(command, str):
                return None
            return self._command_refusal(command, directory, may_type_later=may_type_later)
        if call.tool.startswith((GENERIC, "mcp__")):
            return self._input_refusal(call)
        return None

    def _input_refusal(self, call: Translated) -> str | None:
        """Of a tool that is none of ours: nobody knows which of its texts is a place."""
        input = _input_of(call)
        if call.arguments.get("paths") and isinstance(input, dict) and set(input) == {"patch"}:
            return None  # its files are known
        texts = list(islice(_texts(input), _MOST_CHECKS + 1))
        if len(texts) > _MOST_CHECKS:
            return TOO_MANY
        if sum(len(text) for key, text in texts if key in _COMMANDS) > _LONGEST_COMMANDS:
            return "The commands in the input are longer than callgate reads: split the call."
        for key, text in texts:
            path = text[7:] if text.lower().startswith("file://") else text
            if (found := self._guarded(path, self._workspace)) is not None:
                return f"{found} is out of reach of agents."
            if call.tool == f"{GENERIC}none":
                continue
            if (named := self._named(text)) is not None:
                return f"An input that names {named} is out of reach of agents."
            if key in _COMMANDS and (why := self._command_refusal(text, self._workspace)):
                return why
        return None

    def _command_refusal(
        self, command: str, directory: str, *, may_type_later: bool = False
    ) -> str | None:
        if (named := self._named(command)) is not None:
            return f"A command that names {named} is out of reach of agents."
        line = CommandLine(read_command(command))
        if line.is_too_long:
            return TOO_MANY
        if command_words.own_command(line):
            return command_words.NOT_FOR_AGENTS
        if may_type_later and (reads := command_words.typed_into(line)) is not None:
            return (
                f"{reads} would read what is typed later, and callgate does not see that: give it"
                " a command or a file."
            )
        return self._word_refusal(line, directory)

    def _word_refusal(self, line: CommandLine, directory: str) -> str | None:
        directories = command_words.directories(line, directory)
        if len(line.words) * len(directories) > _MOST_CHECKS:
            return TOO_MANY
        for word in dict.fromkeys(command_words.taken_away(line)):
            if any(self._holds_guarded(word, each) for each in directories):
                return "A directory that holds callgate's home or the agent's hooks stays."
        for word in line.words:
            for each in directories:
                if (found := self._guarded(word, each)) is not None:
                    return f"{found} is out of reach of agents."
                if command_words.is_glob(word) and self._is_reached(word, each):
                    return "A pattern that reaches callgate's home or the agent's hooks is refused."
                if _is_our_program(word, each):
                    return command_words.NOT_FOR_AGENTS
        return None

    def _named(self, text: str) -> str | None:
        if "CALLGATE_HOME" in text:
            return "CALLGATE_HOME"
        return next((spelling for spelling in self._spellings if spelling in text), None)

    def _is_reached(self, pattern: str, directory: str) -> bool:
        absolute = os.path.join(directory, os.path.expanduser(pattern))
        exists = os.path.lexists  # a pattern stands for files that exist, braces for any
        return any(
            command_words.glob_reaches(absolute, place)
            for place in self._places
            if command_words.has_braces(pattern) or exists(place)
        )

    def _holds_guarded(self, path: str, directory: str) -> bool:
        real = os.path.realpath(os.path.join(directory, os.path.expanduser(path)))
        places = (self._home, *self._settings)
        return any(is_within(each, real) and os.path.lexists(each) for each in places)

    def _holds_home(self, path: str) -> bool:
        real = os.path.realpath(os.path.join(self._workspace, path))
        return is_within(self._home, real)

    def _guarded(self, path: str, directory: str) -> str | None:
        if not path or "\0" in path or len(path) > _LONGEST_PATH:
            return None
        real = os.path.realpath(os.path.join(directory, os.path.expanduser(path)))
        if is_within(real, self._home):
            return "callgate's home"
        if any(is_within(real, each) for each in self._settings):
            return "a file of agents' hooks"
        return None


def _directories_above(path: str, workspace: str) -> Iterator[str]:
    """The directories between a path and the workspace."""
    while is_within(path := os.path.dirname(path), workspace) and path != workspace:
        yield path


def _is_our_program(word: str, directory: str) -> bool:
    """A path to our command, as in `ln -s PATH x`."""
    return word.endswith(f"/{command_words.OURS}") and os.path.isfile(os.path.join(directory, word))


def _spellings(path: str, user: str) -> Iterator[str]:
    yield path
    if is_within(path, user) and path != user:
        rest = path[len(user) :]
        yield from (f"~{rest}", f"$HOME{rest}", f"${{HOME}}{rest}")


def _input_of(call: Translated) -> Any:
    """The agent's input of a call of a tool without a counterpart."""
    return call.arguments.get("input", {}) if call.tool.startswith(GENERIC) else call.arguments


def _paths(call: Translated) -> Iterator[str]:
    for key in ("path", "paths"):
        value = call.arguments.get(key)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                yield each


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in an input, with the name under which it stands."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield key, name
            yield from _texts(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, key)
