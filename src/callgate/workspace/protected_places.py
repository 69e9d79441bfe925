"""Where a workspace holds what a command must leave as it is: protected names, as paths.

File tools are judged name by name, at any depth (`protected`). A sandbox needs to know the
places beforehand, so they are looked for: in the directories next to the root, and not in
those that hold other people's code. Version control must go on working, so of a repository
only what makes it run programs is meant (`protected_repositories`).

Our own directory is there always, also where it does not exist: nobody may create it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator

from callgate.workspace.git import protected_repositories
from callgate.workspace.protected import ALLOWED, EXEMPT, runs_here

DEPTH = 6
"""Levels of directories that are looked at, the root's own among them."""
MOST_DIRECTORIES = 2_000
MOST_LINKS = 2_000
"""Names in one protected directory that are looked at for links."""

_OURS = ".callgate"


def protected_places(root: str) -> tuple[str, ...]:
    """Absolute paths below a root, sorted. Instead of a protected link its target is named, if it
    is below the root: a link cannot be kept in its place. One for a repository or for us is named
    itself."""
    found = {os.path.join(root, _OURS, "settings.toml"), *_found(root)}
    if os.path.join(root, _OURS) in found:
        found.discard(os.path.join(root, _OURS, "settings.toml"))
    return tuple(sorted(found))


def _found(root: str) -> Iterator[str]:
    waiting = deque([("", 1)])
    looked_at = 0
    while waiting and looked_at < MOST_DIRECTORIES:
        directory, level = waiting.popleft()
        looked_at += 1
        entries = _entries(os.path.join(root, directory))
        here = os.path.join(root, directory)
        if protected_repositories.is_bare(here, {entry.name for entry in entries}):
            yield from protected_repositories.of_git(here, root)
        for entry in entries:
            inside = os.path.join(directory, entry.name)
            is_directory = entry.is_dir(follow_symlinks=False)
            if entry.name == ".git" and is_directory:
                yield from protected_repositories.of_git(entry.path, root)
            elif entry.name in protected_repositories.OTHERS and is_directory:
                yield from protected_repositories.of_other(entry.path, entry.name)
            elif entry.name == ".git" and entry.is_file(follow_symlinks=False):
                yield entry.path
                yield from _elsewhere(entry.path, root)
            elif is_directory and (missing := _allowed_in(entry)):
                yield from _around(entry.path, missing)
            elif runs_here(inside):
                if not entry.is_symlink() or entry.name in (".git", _OURS):
                    yield entry.path
                yield from _targets(entry, root)
            elif is_directory and level < DEPTH and entry.name not in EXEMPT:
                waiting.append((inside, level + 1))


def _allowed_in(entry: os.DirEntry[str]) -> set[str]:
    """Files that may be created in a protected directory, and do not exist yet."""
    names = {
        file for name, _, file in (path.partition("/") for path in ALLOWED) if name == entry.name
    }
    return {name for name in names if not os.path.lexists(os.path.join(entry.path, name))}


def _around(directory: str, missing: set[str]) -> Iterator[str]:
    """What a directory contains, but not itself: a file may be created in it. Which one is
    decided when it is created (`sandbox/processes/creations`)."""
    for entry in _entries(directory):
        if entry.name not in missing and not entry.is_symlink():
            yield entry.path


def _targets(entry: os.DirEntry[str], root: str) -> Iterator[str]:
    """What a protected link leads to, and the links in a protected directory."""
    waiting, looked_at = [entry], 0
    real = os.path.realpath(root)
    while waiting and looked_at < MOST_LINKS:
        each = waiting.pop()
        looked_at += 1
        if each.is_dir(follow_symlinks=False):
            waiting += _entries(each.path)
        elif each.is_symlink() and each.name not in (".git", _OURS):
            target = os.path.realpath(each.path)
            if target.startswith(real.rstrip("/") + "/") and os.path.exists(target):
                yield os.path.join(root, os.path.relpath(target, real))


def _elsewhere(file: str, root: str) -> Iterator[str]:
    """Of the repository that a `.git` names, if it is in the workspace: at whatever depth."""
    named = protected_repositories.named_by(file)
    real = os.path.realpath(root)
    if named is not None and named.startswith(real.rstrip("/") + "/"):
        yield from protected_repositories.of_git(
            os.path.join(root, os.path.relpath(named, real)), root
        )


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:  # not ours to read, or gone: nothing that a command could change either
        return []
