"""Find files by name and lines by content, within bounds that are told when reached."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator

import msgspec

from callgate.core.errors import ToolCancelled
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.globs import Glob
from callgate.workspace.match_lines import LONGEST_LINE
from callgate.workspace.matching import LineMatcher
from callgate.workspace.opening import READ, Opener
from callgate.workspace.tree import File, Tree

MAX_FILE = 8 * 1024 * 1024
"""Bytes; a larger file is not searched."""
MAX_TOTAL = 1024 * 1024 * 1024
MAX_SECONDS = 30.0
_SNIFF = 8_192
"""Bytes in which a NUL says that a file is not text."""


def _never() -> bool:
    return False


class Paths(msgspec.Struct, frozen=True):
    paths: list[str]
    complete: bool
    """False if there may be more: a bound was reached."""


class Match(msgspec.Struct, frozen=True):
    path: str
    line: int
    """From 1."""
    text: str
    before: list[str] = []
    after: list[str] = []


class Matches(msgspec.Struct, frozen=True):
    matches: list[Match]
    complete: bool
    files_searched: int
    too_large: list[str]
    """Files that were not searched because of their size."""


def find(
    files: WorkspaceFileAPI,
    pattern: str,
    path: str = ".",
    limit: int = 1_000,
    *,
    should_stop: Callable[[], bool] = _never,
) -> Paths:
    """The files below `path` whose name or path from there matches a glob, sorted."""
    tree = Tree(files, path, Glob(pattern), should_stop, time.monotonic() + MAX_SECONDS)
    found: list[str] = []
    for file in tree:
        if len(found) >= limit:
            return Paths(found, complete=False)
        found.append(file.path)
    return Paths(found, complete=tree.complete)


def search(
    files: WorkspaceFileAPI,
    pattern: str,
    path: str = ".",
    *,
    glob: str | None = None,
    ignore_case: bool = False,
    context: int = 0,
    limit: int = 1_000,
    should_stop: Callable[[], bool] = _never,
) -> Matches:
    """The lines below `path` in which a regular expression is found.

    Binary files are passed over, and of a long line only the first 2,000 characters count.
    """
    deadline = time.monotonic() + MAX_SECONDS
    tree = Tree(files, path, Glob(glob) if glob else None, should_stop, deadline)
    matches: list[Match] = []
    too_large: list[str] = []
    searched, total, complete = 0, 0, True
    with LineMatcher(pattern, ignore_case=ignore_case, should_stop=should_stop) as matcher:
        for file in tree:
            if should_stop():
                raise ToolCancelled
            if total > MAX_TOTAL or time.monotonic() > deadline:
                complete = False
                break
            content = _content(files.wall.opener, file)
            if content is None:
                too_large.append(file.path)
                continue
            searched, total = searched + 1, total + len(content)
            if b"\0" in content[:_SNIFF]:
                continue
            numbers = matcher.lines(content, limit - len(matches) + 1)
            matches.extend(_matches(file.path, content, numbers, context))
            if len(matches) > limit:
                del matches[limit:]
                complete = False
                break
    return Matches(matches, complete and tree.complete, searched, too_large)


def _content(opener: Opener, file: File) -> bytes | None:
    """The bytes of a file; None if it is too large, none if it cannot be read."""
    try:
        fd = opener.step(file.dir_fd, file.name, READ)
    except OSError:
        return b""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return b""
        if status.st_size > MAX_FILE:
            return None
        blocks, size = [], 0
        while size <= MAX_FILE and (block := os.read(fd, 1 << 20)):
            blocks.append(block)
            size += len(block)
        return b"".join(blocks) if size <= MAX_FILE else None
    except OSError:
        return b""
    finally:
        os.close(fd)


def _matches(path: str, content: bytes, numbers: list[int], context: int) -> Iterator[Match]:
    if not numbers:
        return
    lines = content.decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()
    for number in numbers:
        if number >= len(lines):
            continue  # a pattern that matches nothing matches after the last line, too
        yield Match(
            path,
            number + 1,
            _line(lines[number]),
            [_line(line) for line in lines[max(number - context, 0) : number]],
            [_line(line) for line in lines[number + 1 : number + 1 + context]],
        )


def _line(line: str) -> str:
    return line[:LONGEST_LINE].removesuffix("\r")
