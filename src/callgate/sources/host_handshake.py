"""Start of a host: its program, the handshake, and its bounded state per session.

A warm Python process can run these programs:

    python -m callgate.host ARGUMENTS ...     also with -P, and also as `callgate host ARGUMENTS`

A check of plugin files costs one `stat` per file. Files that a plugin loads from elsewhere are not
checked.

The handshake has one required method:

    init -> get_tool_schemas            required: without an answer the host is unusable
         -> get_config_schema           optional: without an answer the config is not checked

An optional method is not requested again if the host declares it missing, exits on the request, or
never answered it in time. A renewed or restarted host gets the request again. The findings survive
the process (`path`), because a host that ignores unknown methods would delay every command.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from callgate.core.commands import Warm
from callgate.protocol.host_v1 import frames
from callgate.sources.host_links import HostError, HostExited, HostRefused, InvalidAnswer, Link

_MODULE = ("-m", "callgate.host")
_SUBCOMMANDS = ("new", "check")


def warm(command: Sequence[str], cwd: str, env: Mapping[str, str]) -> Warm | None:
    """Return a form of a command that a forked warm process can run; None if there is none."""
    program = _program(command[0], cwd, env)
    words = tuple(command[1:])
    if program is None:
        return None
    first: tuple[str, ...]
    if _is_our_python(program):
        first = () if words[:1] == ("-P",) else (cwd,)
        words = words[1:] if words[:1] == ("-P",) else words
        arguments = words[2:] if words[:2] == _MODULE else ()
    else:
        first = (os.path.dirname(program),)
        is_ours = words[:1] == ("host",) and words[1:2] not in [(each,) for each in _SUBCOMMANDS]
        arguments = words[1:] if _is_our_callgate(program) and is_ours else ()
    if not arguments or (arguments[0].startswith("-") and arguments[0] != "--script"):
        return None
    named = env.get("PYTHONPATH", "")
    path = [os.path.join(cwd, each) for each in named.split(os.pathsep)] if named else []
    return Warm(arguments, (*first, *path))


def _program(name: str, cwd: str, env: Mapping[str, str]) -> str | None:
    if os.path.dirname(name):
        return os.path.normpath(os.path.join(cwd, name))
    return shutil.which(name, path=env.get("PATH", os.defpath))


def _is_our_python(program: str) -> bool:
    """Whether a program is our interpreter, in our directory, which selects the same packages."""
    if not os.path.basename(program).startswith("python") or not _is_beside_ours(program):
        return False
    return os.path.realpath(program) == os.path.realpath(sys.executable)


def _is_our_callgate(program: str) -> bool:
    return os.path.basename(program) == "callgate" and _is_beside_ours(program)


def _is_beside_ours(program: str) -> bool:
    return os.path.dirname(program) == os.path.dirname(sys.executable)


SUFFIXES = (".py", ".mjs", ".cjs", ".js")
MOST_FILES = 1_000
"""Maximum files of one directory."""

Stamps = dict[str, tuple[int, int, int]]
"""Modification time, size and inode of each file."""


def stamps(command: Sequence[str], cwd: str) -> Stamps:
    """Return the stamps of the files that a command names, and of all code files next to them."""
    found: Stamps = {}
    directories: list[str] = []
    for path in _named(command, cwd):
        _add(found, path)
        if path in found and path.endswith(SUFFIXES):
            directories.append(os.path.dirname(path))
    for directory in dict.fromkeys(directories):
        for path in _code(directory):
            _add(found, path)
    return found


def _named(command: Sequence[str], cwd: str) -> Iterator[str]:
    """Yield the paths that a command may name: files, and modules in dotted form."""
    for word in command:
        if "\0" in word:
            continue
        yield os.path.realpath(os.path.join(cwd, word))
        if all(part.isidentifier() for part in word.split(".")):
            module = os.path.join(cwd, *word.split("."))
            yield os.path.realpath(f"{module}.py")
            yield os.path.realpath(os.path.join(module, "__init__.py"))


def _code(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            names = sorted(each.name for each in entries if each.name.endswith(SUFFIXES))
    except OSError:
        return []
    return [os.path.join(directory, name) for name in names[:MOST_FILES]]


def _add(found: Stamps, path: str) -> None:
    try:
        status = os.stat(path)
    except OSError:
        return
    if not os.path.isdir(path):
        found[path] = (status.st_mtime_ns, status.st_size, status.st_ino)


PATIENCE_S = 5.0
"""Time limit for an optional method; after it, we continue without an answer."""
OPTIONAL = frozenset(frames.OF_HOST) - frames.REQUIRED
_MOST_BYTES = 4_096


class OptionalMethods:
    """Findings about the optional methods of one host, in all its processes."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._answered: set[str] = set()
        self._unanswered = self._read()

    def worth_asking(self, method: str, announced: frozenset[str] | None) -> bool:
        """Whether to request a method. `announced`: the methods that the host declares; None: it
        declares none."""
        return method not in self._unanswered and (announced is None or method in announced)

    def answered(self, method: str) -> None:
        self._answered.add(method)

    def ignored(self, method: str) -> None:
        """Record a missing answer. A method that was answered before is slow, not missing."""
        if method not in self._answered:
            self.missing([method])

    def missing(self, methods: Iterable[str]) -> None:
        self._unanswered |= OPTIONAL.intersection(methods)
        self._write()

    def clear(self) -> None:
        self._unanswered, self._answered = set(), set()
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _read(self) -> set[str]:
        if self._path is None:
            return set()
        try:
            with open(self._path, encoding="ascii") as file:
                return set(file.read(_MOST_BYTES).split()) & OPTIONAL
        except (OSError, ValueError):
            return set()

    def _write(self) -> None:
        """Store the findings; after a failure they are collected again."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(self._path, flags, 0o600), "w", encoding="ascii") as file:
                file.write("\n".join(sorted(self._unanswered)))


CheckConfig = Callable[[dict[str, Any], dict[str, Any]], None]
"""Raises a `ToolError` if a config violates its host's schema."""
_SCHEMA = "get_config_schema"


class AnswerTimeout(HostError):
    """A required method was not answered in time."""

    def __init__(self, method: str, timeout_s: float) -> None:
        super().__init__(f"it did not answer {method} within {timeout_s:g} s")


class OptionalMethodCrash(HostError):
    """The host exited on an optional request; without that request it may work."""


class Started(msgspec.Struct, frozen=True):
    """A host's answers to the handshake."""

    state: dict[str, Any]
    schemas: list[dict[str, Any]]
    methods: frozenset[str] | None
    """The methods that it declares; None: it declares none, so we try them."""


async def handshake(
    link: Link,
    config: dict[str, Any],
    check: CheckConfig,
    optional: OptionalMethods,
    timeout_s: float,
) -> Started:
    """Perform the handshake. Raises a `HostError`, and the errors of `check`."""
    until = asyncio.get_running_loop().time() + timeout_s

    async def required(params: frames.OfHost) -> frames.Result:
        try:
            async with asyncio.timeout_at(until):
                return (await link.ask(params)[1]).result
        except TimeoutError:
            raise AnswerTimeout(frames.METHODS[type(params)], timeout_s) from None

    offer = frames.Offer(answers=sorted(frames.OF_RUNTIME))
    begun = await required(frames.Init(config=config, runtime=offer))
    state = {} if begun.state is msgspec.UNSET else begun.state
    listed = await required(frames.GetToolSchemas(state=state))
    if listed.state is not msgspec.UNSET:
        state = listed.state
    announced = begun.host
    methods = None
    if isinstance(announced, frames.Announcement) and announced.methods is not msgspec.UNSET:
        methods = frozenset(announced.methods)
    if optional.worth_asking(_SCHEMA, methods):
        schema = await _config_schema(link, optional)
        if schema:
            check(schema, config)
    return Started(state, listed.value, methods)


async def _config_schema(link: Link, optional: OptionalMethods) -> Any:
    id, outcome = link.ask(frames.GetConfigSchema())
    try:
        async with asyncio.timeout(PATIENCE_S):
            schema = (await outcome).result.value
    except HostExited as exited:
        optional.missing([_SCHEMA])
        raise OptionalMethodCrash(
            f"{exited} on the request {_SCHEMA}, which is optional"
        ) from exited
    except TimeoutError:
        link.abandon(id)
        optional.ignored(_SCHEMA)
        return None
    except HostRefused:
        optional.missing([_SCHEMA])
        return None
    except InvalidAnswer:
        return None
    optional.answered(_SCHEMA)
    return schema


MOST_SESSIONS = 10_000
MOST_BYTES = 64 * 1024 * 1024
"""Maximum bytes of the states of all sessions of one host, as JSON."""


class _StoredState(NamedTuple):
    state: dict[str, Any]
    size: int


class States:
    """States by session. The oldest are evicted first. A new session has the initial state."""

    def __init__(self) -> None:
        self._by_session: dict[str, _StoredState] = {}
        self._size = 0

    def __contains__(self, session: str) -> bool:
        return session in self._by_session

    def get(self, session: str, otherwise: dict[str, Any]) -> dict[str, Any]:
        entry = self._by_session.get(session)
        return otherwise if entry is None else entry.state

    def keep(self, session: str, state: dict[str, Any]) -> None:
        self.forget(session)
        entry = _StoredState(state, len(msgspec.json.encode(state)))
        self._by_session[session] = entry
        self._size += entry.size
        while len(self._by_session) > MOST_SESSIONS or self._size > MOST_BYTES:
            self.forget(next(iter(self._by_session)))

    def forget(self, session: str) -> None:
        entry = self._by_session.pop(session, None)
        if entry is not None:
            self._size -= entry.size
