"""Places that no agent may touch through its hook: callgate's home and the settings of the hooks.

    callgate tools    the paths in their arguments
    other tools       every text in their input
    commands          every word, from every directory that the line may change to
    URLs              `fetch_refusal`: only public addresses

A command can hide names from this check. A command that may do so needs approval in every mode
(`Guarded.is_doubtful`). A program that the agent wrote to a file can read everything that its user
can read. Only the sandbox prevents this: `[hooks] shell = "sandbox"`, `callgate sandbox`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable, Iterator
from ipaddress import ip_address, ip_network
from itertools import chain, islice
from typing import Any
from urllib.parse import urlsplit

from callgate.features.agents.hooks import command_words
from callgate.features.agents.hooks.agent_tools import GENERIC, Translated
from callgate.features.agents.hooks.command_words import CommandLine
from callgate.policy.commands import read_command
from callgate.policy.rules import is_within
from callgate.policy.shell_patterns import MAX_CHARACTERS
from callgate.sandbox import allowed_hosts

_COMMANDS = frozenset(("command", "cmd", "script", "commands", "shell_command"))
"""Argument names for a command line in third-party tools."""
_LONGEST_PATH = 4096


_MOST_CHECKS = 10_000
"""Maximum number of checked paths in one call; a call with more is refused."""
_LONGEST_COMMANDS = 4 * MAX_CHARACTERS
"""Maximum length of all command lines in one input of a tool without a counterpart."""
TOO_MANY = "The call has more words or paths than callgate checks in one call: split it."


class Guarded:
    """The guarded places of one agent in one workspace."""

    def __init__(self, home: str, settings: Iterable[str], workspace: str) -> None:
        self._home = os.path.realpath(home)
        named = list(settings)
        self._settings = [os.path.realpath(each) for each in named]
        self._workspace = workspace
        outside = (each for each in self._settings if not is_within(each, workspace))
        self._outside = list(dict.fromkeys((self._home, *outside)))
        self._inside = [each for each in self._settings if is_within(each, workspace)]
        self._above = {up for each in self._inside for up in _directories_above(each, workspace)}
        self._guarded_paths = list(dict.fromkeys((home, self._home, *named, *self._settings)))
        user = os.path.expanduser("~")
        self._spellings = [
            spelling
            for path in (home, self._home, *self._settings)
            for spelling in _spellings(path, user)
        ]

    def is_doubtful(self, call: Translated) -> bool:
        """Return whether a command may have effects that its words do not show.

        It is not understood, runs code of an interpreter, may traverse a directory above a guarded
        place, or changes a directory with settings of hooks. Commands in the input of unknown tools
        are checked as well.
        """
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
        if not line.parsed.understood or line.is_too_long or command_words.runs_code(line):
            return True
        directories = command_words.directories(line, start)
        if self._changes_settings(line, directories):
            return True
        commands = command_words.traversing(line)
        if commands and any(self._is_above(each, "/") for each in directories):
            return True
        words = dict.fromkeys(chain.from_iterable(argv[1:] for argv in commands))
        paths = dict.fromkeys(path for word in words for path in command_words.possible_paths(word))
        return any(self._is_above(word, each) for word in words | paths for each in directories)

    def _changes_settings(self, line: CommandLine, directories: list[str]) -> bool:
        """Return whether a line may create or replace settings of hooks through their directory.

        An example is `cp -r evil .claude`.
        """
        for directory in directories:
            for path in command_words.placed(line, directory):
                real = os.path.realpath(path[:_LONGEST_PATH])
                if any(is_within(each, real) for each in self._inside):
                    return True
        commands = command_words.changing(line)
        if commands and any(self._holds_settings(each, "/") for each in directories):
            return True
        words = dict.fromkeys(chain.from_iterable(argv[1:] for argv in commands))
        paths = dict.fromkeys(path for word in words for path in command_words.possible_paths(word))
        return any(
            self._holds_settings(word, each) for word in words | paths for each in directories
        )

    def _holds_settings(self, path: str, directory: str) -> bool:
        """Return whether a path is a directory above settings, below the workspace."""
        if not path or "\0" in path or len(path) > _LONGEST_PATH:
            return False
        return os.path.realpath(os.path.join(directory, os.path.expanduser(path))) in self._above

    def _is_above(self, path: str, directory: str) -> bool:
        """Return whether a path is a directory above a guarded place outside the workspace."""
        if not path or "\0" in path or len(path) > _LONGEST_PATH:
            return False
        real = os.path.realpath(os.path.join(directory, os.path.expanduser(path)))
        return any(is_within(each, real) for each in self._outside)

    def refusal(self, call: Translated, *, may_type_later: bool = False) -> str | None:
        """Return why a call is refused because of a guarded place, or None.

        `may_type_later`: the agent can write to the input of a running process without a hook.
        """
        for path in _paths(call):
            if self._is_ambiguous(path):
                return (
                    f"The path {path[:80]!r} is ambiguous, because `..` follows a link: use a path"
                    " without `..`."
                )
            if (found := self._guarded(path, self._workspace)) is not None:
                return f"{found} is out of reach of agents."
            if call.tool == "search_text" and self._holds_home(path):
                return "Agents must not search a directory that contains callgate's home."
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
        """Return why a call of a third-party tool is refused, or None.

        Any text in its input may be a path.
        """
        input = _input_of(call)
        if call.arguments.get("paths") and isinstance(input, dict) and set(input) == {"patch"}:
            return None  # `paths` contains its files
        texts = list(islice(_texts(input), _MOST_CHECKS + 1))
        if len(texts) > _MOST_CHECKS:
            return TOO_MANY
        if sum(len(text) for key, text in texts if key in _COMMANDS) > _LONGEST_COMMANDS:
            return "The commands in the input are too long for callgate's check: split the call."
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
                f"{reads} would read later input, which callgate cannot check: pass a command or"
                " a file as an argument."
            )
        return self._word_refusal(line, directory)

    def _word_refusal(self, line: CommandLine, directory: str) -> str | None:
        directories = command_words.directories(line, directory)
        if len(line.words) * len(directories) > _MOST_CHECKS:
            return TOO_MANY
        for word in dict.fromkeys(command_words.taken_away(line)):
            if any(self._holds_guarded(word, each) for each in directories):
                return (
                    "Agents must not remove or move a directory that contains callgate's home or"
                    " the agent's hooks."
                )
        for word in line.words:
            for each in directories:
                if (found := self._guarded(word, each)) is not None:
                    return f"{found} is out of reach of agents."
                if command_words.is_glob(word) and self._is_reached(word, each):
                    return "A pattern must not match callgate's home or the agent's hooks."
                if _is_our_program(word, each):
                    return command_words.NOT_FOR_AGENTS
        return None

    def _named(self, text: str) -> str | None:
        if "CALLGATE_HOME" in text:
            return "CALLGATE_HOME"
        return next((spelling for spelling in self._spellings if spelling in text), None)

    def _is_reached(self, pattern: str, directory: str) -> bool:
        absolute = os.path.join(directory, os.path.expanduser(pattern))
        exists = os.path.lexists  # a pattern matches existing files only, braces expand to any name
        return any(
            command_words.glob_reaches(absolute, guarded_path)
            for guarded_path in self._guarded_paths
            if command_words.has_braces(pattern) or exists(guarded_path)
        )

    def _holds_guarded(self, path: str, directory: str) -> bool:
        real = os.path.realpath(os.path.join(directory, os.path.expanduser(path)))
        guarded_paths = (self._home, *self._settings)
        return any(is_within(each, real) and os.path.lexists(each) for each in guarded_paths)

    def _is_ambiguous(self, path: str) -> bool:
        """Return whether `..` after a link makes a path ambiguous.

        The system follows the link first, but an agent may normalize the path first.
        """
        if ".." not in path.split("/") or "\0" in path or len(path) > _LONGEST_PATH:
            return False
        absolute = os.path.join(self._workspace, path)
        return os.path.realpath(absolute) != os.path.realpath(os.path.normpath(absolute))

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
    """Yield the directories between a path and the workspace."""
    while is_within(path := os.path.dirname(path), workspace) and path != workspace:
        yield path


def _is_our_program(word: str, directory: str) -> bool:
    """Return whether a word is a path of the callgate program, as in `ln -s PATH x`."""
    return word.endswith(f"/{command_words.OURS}") and os.path.isfile(os.path.join(directory, word))


def _spellings(path: str, user: str) -> Iterator[str]:
    yield path
    if is_within(path, user) and path != user:
        below = path[len(user) :]
        yield from (f"~{below}", f"$HOME{below}", f"${{HOME}}{below}")


def _input_of(call: Translated) -> Any:
    """Return the agent's original input of a call."""
    return call.arguments.get("input", {}) if call.tool.startswith(GENERIC) else call.arguments


def _paths(call: Translated) -> Iterator[str]:
    for key in ("path", "paths", *(("cwd",) if call.tool == "shell" else ())):
        value = call.arguments.get(key)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                yield each


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text in an input, with the name of its argument."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield key, name
            yield from _texts(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, key)


_PORTS = {"http": 80, "https": 443}
_LOCAL = ("localhost", "local", "internal", "home.arpa", "lan", "intranet", "corp", "private")
"""Domains of this machine and the local network."""
_RESOLVE_S = 3.0


async def fetch_refusal(url: str, allow: Iterable[str]) -> str | None:
    """Return why a URL may not be fetched, or None. `allow` is `[web] allow`."""
    try:
        split = urlsplit(url)
        host, port = allowed_hosts.split(split.netloc.removesuffix(":"))
    except ValueError as error:
        return f"The URL is invalid: {error}."
    port = port or _PORTS.get(split.scheme, 0)
    entries = list(allow)
    if allowed_hosts.is_address(host):
        found = [host]
    else:
        found = await _addresses(host, port)
        if not found and _is_local(host) and not _is_allowed(host, port, None, entries):
            found = ["127.0.0.1"]
    refused = next((each for each in found if not _is_allowed(host, port, each, entries)), None)
    if refused is None:
        return None
    return (
        f"{host}:{port} is not a public address, but on this machine or the local network. Add it"
        " to [web] allow in settings.toml to allow it."
    )


def _is_local(name: str) -> bool:
    return "." not in name or name.endswith(tuple(f".{each}" for each in _LOCAL))


def _is_allowed(host: str, port: int, address: str | None, allow: list[str]) -> bool:
    """Return whether a host may be fetched at an address; None: at any address."""
    if address is not None and allowed_hosts.is_public(address):
        return True
    for entry in allow:
        if "/" in entry:
            if address is not None and ip_address(address) in ip_network(entry):
                return allowed_hosts.is_private(address)
            continue
        named = allowed_hosts.parse(entry)
        if named.covers(host, port) and (address is None or named.permits(address)):
            return True
    return False


async def _addresses(name: str, port: int) -> list[str]:
    """Return the addresses of a name; empty if it has none or the lookup times out."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_RESOLVE_S):
            rows = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        return []
    return list(dict.fromkeys(str(row[4][0]).partition("%")[0] for row in rows))
