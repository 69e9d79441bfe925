"""Paths that the command of a call names: applicable path rules, and paths of reading commands.

The words of a reading command are resolved as paths: each must be in the workspace or one of its
extra roots, through every link, and be a file or a directory. The same holds for the repository of
git, which shows files that no word names. A link may change before the command runs; then the
sandbox protects the files, as for any command in mode read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from callgate.core.calls import ToolCall
from callgate.core.errors import ToolError
from callgate.core.sessions import ResolvedPath
from callgate.dispatch.subjects import Subject, question
from callgate.dispatch.tools.registry import Registry
from callgate.policy.decide import PathRule, Rulebook, binding, words
from callgate.policy.read_commands import reads_only
from callgate.policy.rules import is_within
from callgate.sandbox.jails import Profile
from callgate.workspace.paths import opening

if TYPE_CHECKING:
    from callgate.dispatch.commands.path_search import Matches


_MOST_WORDS = 1_000
"""Maximum words of a command that are resolved as paths; an approval covers no path after them."""


class CommandRules:
    def __init__(self, policies: Callable[[str], Rulebook], registry: Registry) -> None:
        self._policies = policies
        self._registry = registry

    def of(self, call: ToolCall, subject: Subject) -> tuple[PathRule, ...]:
        """Return the rules that bind the call's command under the current policy."""
        with opening():  # the settings may be reloaded while a tool runs
            book = self._policies(call.session.workspace)
        if not book.has_rules:
            return ()
        around = subject.enclosure
        online = around is None or around.place is not None or around.widened or around.is_online
        asking = msgspec.structs.replace(question(call, subject, book), network=online)
        return binding(book, asking, self._registry.file_tools())

    def named(
        self, call: ToolCall, subject: Subject, locate: Callable[[str], ResolvedPath]
    ) -> tuple[ResolvedPath, ...]:
        """Return the paths in the command for which a rule requires approval and none denies. The
        question names them, and an approval covers them."""
        command = subject.checked.arguments.get("command")
        rules = self.of(call, subject)
        if subject.enclosure is not None and subject.enclosure.profile is Profile.READ:
            rules = tuple(rule for rule in rules if rule.hides)  # mode read already prevents writes
        if not isinstance(command, str) or all(rule.denies for rule in rules):
            return ()
        found = {resolved.real: resolved for resolved in _resolved_paths(command, subject, locate)}
        return tuple(resolved for resolved in found.values() if _is_asked_about(resolved, rules))

    def matches(self, call: ToolCall, subject: Subject) -> Matches:
        """Return the paths that rules withhold from the command now. Blocks. Raises
        `PathRuleUnkept`."""
        from callgate.dispatch.commands.path_search import (  # lazy: only a dry run asks  # noqa: PLC0415
            find,
        )

        session = call.session
        roots = (session.workspace, *(root.path for root in session.extra_roots))
        return find(self.of(call, subject), roots, (*subject.resolved_paths, *subject.named))


def _resolved_paths(
    command: str, subject: Subject, locate: Callable[[str], ResolvedPath]
) -> Iterator[ResolvedPath]:
    directory = subject.resolved_paths[0].given if subject.resolved_paths else "."
    for word in islice(dict.fromkeys(words(command)), _MOST_WORDS):
        try:
            yield locate(os.path.join(directory, word))
        except ToolError:
            continue  # outside, or no path at all


def _is_asked_about(resolved: ResolvedPath, rules: tuple[PathRule, ...]) -> bool:
    matching = [rule for rule in rules if rule.covers(resolved)]
    return bool(matching) and not any(rule.denies for rule in matching)


_MOST_PATHS = 200
_BARE = {"HEAD", "objects", "refs"}
"""Entries of a directory that git accepts as a repository; a clone can contain them."""
_POINTER = b"gitdir: "
_LONGEST_POINTER = 5_000


def names_only_readable(command: str, cwd: str, locate: Callable[[str], ResolvedPath]) -> bool:
    """Whether a command only reads, and reads only files that the file tools may read."""
    reads = reads_only(command)
    if reads is None or len(reads.paths) > _MOST_PATHS:
        return False
    directory = os.path.join(cwd, reads.directory)
    return (
        _is_readable(directory, locate)
        and all(
            _is_readable(os.path.join(directory, path), locate, is_file=path in reads.files)
            for path in reads.paths
        )
        and all(
            _is_own_repository(os.path.join(directory, path), locate) for path in reads.repositories
        )
    )


def _is_readable(
    path: str, locate: Callable[[str], ResolvedPath], *, is_file: bool = False
) -> bool:
    """Whether the file tools may read a path. A missing path counts as readable: the command
    fails without it."""
    try:
        real = locate(path).real
        mode = os.stat(real).st_mode
    except FileNotFoundError:
        return True
    except (ToolError, OSError, ValueError):
        return False
    return stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and not is_file)


def _is_own_repository(directory: str, locate: Callable[[str], ResolvedPath]) -> bool:
    """Whether git finds its repository inside the root of the directory, or finds none. The
    `.git` of the root itself may point elsewhere: the user chose that worktree."""
    try:
        start = locate(directory)
        current = start.real
        while (git := _repository(current)) is None:
            if current == os.path.dirname(current):
                return True
            current = os.path.dirname(current)
        if git == current or not is_within(current, start.root):
            return False
        if not os.path.isfile(git):
            return stat.S_ISDIR(os.stat(locate(git).real).st_mode)
        if current == start.root and not os.path.islink(git):
            return True
        return stat.S_ISDIR(os.stat(locate(_pointed_to(git)).real).st_mode)
    except (ToolError, OSError, ValueError):
        return False


def _repository(directory: str) -> str | None:
    """Return the repository that git uses for a directory: its `.git`, unless it is an empty
    directory, or the directory itself. None: git continues with the parent directory."""
    git = os.path.join(directory, ".git")
    if os.path.lexists(git) and (not os.path.isdir(git) or _is_bare(git)):
        return git
    return directory if _is_bare(directory) else None


def _is_bare(directory: str) -> bool:
    names = set(os.listdir(directory))
    return names >= _BARE or "commondir" in names


def _pointed_to(git: str) -> str:
    """Return the directory that a `.git` file names."""
    with open(git, "rb") as file:
        content = file.read(_LONGEST_POINTER)
    if not content.startswith(_POINTER):
        raise ValueError("not a pointer to a repository")
    named = os.fsdecode(content.removeprefix(_POINTER).rstrip(b"\r\n"))
    return os.path.join(os.path.dirname(git), named)
