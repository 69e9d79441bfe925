"""Which files a host is made of, as far as its command tells, and whether they changed.

A look costs a `stat` for each file. What a plugin loads from elsewhere is not seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

SUFFIXES = (".py", ".mjs", ".cjs", ".js")
MOST_FILES = 1_000
"""Of one directory."""

Stamps = dict[str, tuple[int, int, int]]
"""When each file was changed, its size, and its inode."""


def stamps(command: Sequence[str], cwd: str) -> Stamps:
    """The files that a command names, and beside those that are code, all others of the kind."""
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
    """What the words of a command can mean: a file, or a module by its dots."""
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
