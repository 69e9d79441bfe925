"""Recognition of commands that only install packages, by the package manager that runs.

A rule about `connect_host` can name the manager (`installs = "npm"`), so that its registry is
approved for installs and not for every command. A command line counts only if the grammar of
`policy.commands` understands all of it and each of its parts installs with the same manager.
"""

from __future__ import annotations

from callgate.policy.commands import read_command
from callgate.policy.shell_patterns import Segment, program_name

NPM, PIP, CARGO = "npm", "pip", "cargo"
_CHANGES_DIRECTORY = "cd"
_COMMANDS: dict[str, dict[tuple[str, ...], str]] = {
    "npm": dict.fromkeys((("install",), ("i",), ("ci",), ("add",), ("update",)), NPM),
    "pnpm": dict.fromkeys((("install",), ("i",), ("add",), ("update",)), NPM),
    "yarn": dict.fromkeys((("install",), ("add",)), NPM),
    "pip": dict.fromkeys((("install",), ("download",)), PIP),
    "uv": dict.fromkeys((("pip", "install"), ("pip", "sync"), ("sync",), ("add",), ("lock",)), PIP),
    "pipx": dict.fromkeys((("install",), ("upgrade",)), PIP),
    "cargo": dict.fromkeys((("fetch",), ("update",), ("add",), ("install",)), CARGO),
    "python": {("-m", "pip", "install"): PIP, ("-m", "pip", "download"): PIP},
}
_LONGEST = 3


def installer(command: str) -> str | None:
    """Return the package manager if a command line only installs packages with it."""
    parsed = read_command(command)
    if not parsed.understood:
        return None
    segments = [each for each in parsed.segments if not _is_change_of_directory(each)]
    found = {_installer(each) for each in segments}
    return found.pop() if len(found) == 1 else None


def _is_change_of_directory(segment: Segment) -> bool:
    return segment.argv[:1] == (_CHANGES_DIRECTORY,) and _is_plain(segment)


def _is_plain(segment: Segment) -> bool:
    return segment.literal and not (segment.assignments or segment.redirects or segment.nested)


def _installer(segment: Segment) -> str | None:
    if not segment.argv or not _is_plain(segment):
        return None
    name = program_name(segment.argv[0]).rstrip("0123456789.")
    commands = _COMMANDS.get(name, {}) if "/" not in segment.argv[0] else {}
    words = segment.argv[1 : 1 + _LONGEST]
    return next(
        (manager for start, manager in commands.items() if words[: len(start)] == start), None
    )
