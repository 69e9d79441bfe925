"""Paths in a workspace that a command must not change.

File tools are checked name by name, at any depth (`protected`). A sandbox needs the paths in
advance, so they are searched: in the directories next to the root, except those with third-party
code. Version control must still work, so of a repository only the parts that make it run programs
are included (`git_repositories`).

Callgate's own directory is always included, even if it does not exist: no program may create it.
Private directories of MCP servers in callgate's home are skipped: the server controls their links.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator

from callgate.workspace import git_repositories
from callgate.workspace.protected import ALLOWED, EXEMPT, runs_here

DEPTH = 6
"""Maximum levels of directories to search, including the root."""
MOST_DIRECTORIES = 2_000
MOST_LINKS = 2_000
"""Maximum names in one protected directory that are checked for links."""

_OURS = ".callgate"


def protected_places(root: str, private: str | None = None) -> tuple[str, ...]:
    """Return absolute paths below a root, sorted. A protected link is replaced by its target, if
    that is below the root, because a link itself cannot be protected; links of repositories and
    of callgate remain. A `private` directory in the root is skipped."""
    if private is not None:
        inside = os.path.relpath(os.path.realpath(private), os.path.realpath(root))
        private = os.path.join(root, inside)
    found = {os.path.join(root, _OURS, "settings.toml"), *_found(root, private)}
    if os.path.join(root, _OURS) in found:
        found.discard(os.path.join(root, _OURS, "settings.toml"))
    return tuple(sorted(found))


def _found(root: str, private: str | None) -> Iterator[str]:
    waiting = deque([("", 1)])
    looked_at = 0
    while waiting and looked_at < MOST_DIRECTORIES:
        directory, level = waiting.popleft()
        looked_at += 1
        entries = _entries(os.path.join(root, directory))
        here = os.path.join(root, directory)
        if git_repositories.is_bare(here, {entry.name for entry in entries}):
            yield from git_repositories.of_git(here, root)
        for entry in entries:
            if entry.path == private:
                continue
            inside = os.path.join(directory, entry.name)
            is_directory = entry.is_dir(follow_symlinks=False)
            if entry.name == ".git" and is_directory:
                yield from git_repositories.of_git(entry.path, root)
            elif entry.name in git_repositories.OTHERS and is_directory:
                yield from git_repositories.of_other(entry.path, entry.name)
            elif entry.name == ".git" and entry.is_file(follow_symlinks=False):
                yield entry.path
                yield from _elsewhere(entry.path, root)
            elif is_directory and (missing := _allowed_in(entry)):
                yield from _around(entry.path, missing)
            elif runs_here(inside):
                if not entry.is_symlink() or entry.name in (".git", _OURS):
                    yield entry.path
                yield from _targets(entry, root, private)
            elif is_directory and level < DEPTH and entry.name not in EXEMPT:
                waiting.append((inside, level + 1))


def _allowed_in(entry: os.DirEntry[str]) -> set[str]:
    """Return files that may be created in a protected directory, and do not exist yet."""
    names = {
        file for name, _, file in (path.partition("/") for path in ALLOWED) if name == entry.name
    }
    return {name for name in names if not os.path.lexists(os.path.join(entry.path, name))}


def _around(directory: str, missing: set[str]) -> Iterator[str]:
    """Yield the content of a directory, but not the directory: files may be created in it. Each
    creation is checked separately (`sandbox/processes/creations`)."""
    for entry in _entries(directory):
        if entry.name not in missing and not entry.is_symlink():
            yield entry.path


def _targets(entry: os.DirEntry[str], root: str, private: str | None) -> Iterator[str]:
    """Yield the target of a protected link, and the links in a protected directory."""
    waiting, looked_at = [entry], 0
    real = os.path.realpath(root)
    while waiting and looked_at < MOST_LINKS:
        each = waiting.pop()
        looked_at += 1
        if each.is_dir(follow_symlinks=False):
            waiting += (below for below in _entries(each.path) if below.path != private)
        elif each.is_symlink() and each.name not in (".git", _OURS):
            target = os.path.realpath(each.path)
            if target.startswith(real.rstrip("/") + "/") and os.path.exists(target):
                yield os.path.join(root, os.path.relpath(target, real))


def _elsewhere(file: str, root: str) -> Iterator[str]:
    """Yield the paths of the repository that a `.git` file names, at any depth in the workspace."""
    named = git_repositories.named_by(file)
    real = os.path.realpath(root)
    if named is not None and named.startswith(real.rstrip("/") + "/"):
        yield from git_repositories.of_git(os.path.join(root, os.path.relpath(named, real)), root)


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:  # unreadable for us, or gone: a command could not change it either
        return []
