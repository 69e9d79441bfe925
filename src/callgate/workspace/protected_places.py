"""Where a workspace holds what a command must leave as it is: protected names, as paths.

File tools are judged name by name, at any depth (`protected`). A sandbox needs to know the
places beforehand, so they are looked for: in the directories next to the root, and not in
those that hold other people's code. Version control must go on working, so of a repository
only what makes it run programs is meant: its hooks and its configuration.

Our own directory is there always, also where it does not exist: nobody may create it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator

from callgate.workspace.protected import is_protected

DEPTH = 3
"""Levels of directories that are looked at, the root's own among them."""
MOST_DIRECTORIES = 2_000

_OURS = ".callgate"
_NOT_ENTERED = frozenset({"node_modules", ".venv", "venv", ".tox", ".nox", "__pycache__"})
_REPOSITORIES = {
    ".git": ("hooks", "config", "config.worktree", "commondir"),
    ".hg": ("hgrc",),
    ".jj": ("repo/config.toml",),
    ".bzr": ("branch/branch.conf",),
    ".svn": (),
}
_ALSO_IF_MISSING = frozenset({"hooks", "config"})
"""git reads an empty one as if there were none; an empty `commondir` would stop it."""


def protected_places(root: str) -> tuple[str, ...]:
    """Absolute paths below a root, sorted. A protected link is left out, unless it stands for
    a repository or for us: a link cannot be kept in its place, and its target is elsewhere."""
    found = {os.path.join(root, _OURS, "settings.toml"), *_found(root)}
    if os.path.join(root, _OURS) in found:
        found.discard(os.path.join(root, _OURS, "settings.toml"))
    return tuple(sorted(found))


def _found(root: str) -> Iterator[str]:
    if all(os.path.exists(os.path.join(root, name)) for name in ("HEAD", "objects", "refs")):
        yield from _of_repository(root, ".git")  # a bare one
    waiting = deque([("", 1)])
    looked_at = 0
    while waiting and looked_at < MOST_DIRECTORIES:
        directory, level = waiting.popleft()
        looked_at += 1
        for entry in _entries(os.path.join(root, directory)):
            inside = os.path.join(directory, entry.name)
            is_directory = entry.is_dir(follow_symlinks=False)
            if entry.name in _REPOSITORIES and is_directory:
                yield from _of_repository(entry.path, entry.name)
            elif is_protected(inside):
                if not entry.is_symlink() or entry.name in (".git", _OURS):
                    yield entry.path
            elif is_directory and level < DEPTH and entry.name not in _NOT_ENTERED:
                waiting.append((inside, level + 1))


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:  # not ours to read, or gone: nothing that a command could change either
        return []


def _of_repository(path: str, kind: str) -> Iterator[str]:
    if kind == ".git" and not os.path.exists(os.path.join(path, "HEAD")):
        return  # not one yet: `git init` must be able to make it
    for name in _REPOSITORIES[kind]:
        place = os.path.join(path, name)
        if name in _ALSO_IF_MISSING or os.path.lexists(place):
            yield place
