"""Recognition of commands by their use of the network: installing packages, reading from a service.

A rule about `connect_host` can name the manager (`installs = "npm"`), so that its registry is
approved for installs and not for every command. A command line counts only if the grammar of
`policy.commands` understands all of it and each of its parts installs with the same manager. A pipe
into a program that only reads, such as `tail`, changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from callgate.policy.commands import read_command
from callgate.policy.read_commands import reads_only
from callgate.policy.shell_patterns import Segment, program_name

NPM, PIP, CARGO = "npm", "pip", "cargo"
GH, GIT = "gh", "git"
_CHANGES_DIRECTORY = "cd"
_COMMANDS: dict[str, dict[tuple[str, ...], str]] = {
    "npm": dict.fromkeys(
        (
            ("install",),
            ("i",),
            ("ci",),
            ("add",),
            ("update",),
            ("view",),
            ("outdated",),
            ("audit",),
            ("ls",),
        ),
        NPM,
    ),
    "pnpm": dict.fromkeys((("install",), ("i",), ("add",), ("update",)), NPM),
    "yarn": dict.fromkeys((("install",), ("add",)), NPM),
    "pip": dict.fromkeys((("install",), ("download",)), PIP),
    "uv": dict.fromkeys(
        (
            ("pip", "install"),
            ("pip", "sync"),
            ("pip", "compile"),
            ("sync",),
            ("add",),
            ("lock",),
        ),
        PIP,
    ),
    "pipx": dict.fromkeys((("install",), ("upgrade",)), PIP),
    "cargo": dict.fromkeys((("fetch",), ("update",), ("add",), ("install",)), CARGO),
    "python": {("-m", "pip", "install"): PIP, ("-m", "pip", "download"): PIP},
    "go": dict.fromkeys((("get",), ("mod", "tidy"), ("mod", "download")), "go"),
    "docker": dict.fromkeys((("pull",), ("build",)), "docker"),
}
_READING: dict[str, dict[tuple[str, ...], str]] = {
    "gh": dict.fromkeys(
        (
            ("pr", "view"),
            ("pr", "diff"),
            ("pr", "list"),
            ("pr", "checks"),
            ("pr", "checkout"),
            ("issue", "view"),
            ("issue", "list"),
            ("run", "list"),
            ("run", "view"),
            ("release", "view"),
            ("release", "list"),
            ("repo", "view"),
        ),
        GH,
    ),
}
_FETCH_OPTIONS = re.compile(r"-[pqvt]|--(?:prune|quiet|verbose|tags|no-tags|all|depth=\d+)")
_REMOTE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_LONGEST = 3


def installer(command: str) -> str | None:
    """Return the package manager if a command line only installs or looks up packages with it."""
    return _common(command, _COMMANDS)


def reader(command: str) -> str | None:
    """Return the program if a command line only reads from its service: `gh`, or `git` fetches."""
    segments = _segments(command)
    if len(segments) == 1 and _is_fetch(segments[0]):
        return GIT
    return _common(command, _READING)


def _common(command: str, known: Mapping[str, Mapping[tuple[str, ...], str]]) -> str | None:
    segments = [each for each in _segments(command) if not _is_change_of_directory(each)]
    found = {_program(each, known) for each in segments}
    return found.pop() if len(found) == 1 else None


def _segments(command: str) -> list[Segment]:
    """Return the commands of a line without filters; empty if it is not understood."""
    parsed = read_command(command)
    if not parsed.understood:
        return []
    return [each for each in parsed.segments if not _is_filter(each)]


def _is_filter(segment: Segment) -> bool:
    return segment.joined_by == "|" and _is_plain(segment) and reads_only(segment.text) is not None


def _is_fetch(segment: Segment) -> bool:
    """Whether a command is `git fetch`, from a remote that the repository names."""
    if segment.argv[:2] != (GIT, "fetch") or not _is_plain(segment):
        return False
    operands = [each for each in segment.argv[2:] if not _FETCH_OPTIONS.fullmatch(each)]
    return all(map(_REMOTE.fullmatch, operands[:1])) and not any(
        each.startswith("-") for each in operands
    )


def _is_change_of_directory(segment: Segment) -> bool:
    return segment.argv[:1] == (_CHANGES_DIRECTORY,) and _is_plain(segment)


def _is_plain(segment: Segment) -> bool:
    harmless = all(each.harmless for each in segment.redirects)
    return segment.literal and harmless and not (segment.assignments or segment.nested)


def _program(segment: Segment, known: Mapping[str, Mapping[tuple[str, ...], str]]) -> str | None:
    if not segment.argv or not _is_plain(segment):
        return None
    name = program_name(segment.argv[0]).rstrip("0123456789.")
    commands = known.get(name, {}) if "/" not in segment.argv[0] else {}
    words = segment.argv[1 : 1 + _LONGEST]
    return next(
        (manager for start, manager in commands.items() if words[: len(start)] == start), None
    )
