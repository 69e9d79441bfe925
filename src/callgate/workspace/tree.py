"""Iterate over the files below a directory of the workspace that match a glob.

The search opens every directory beneath its parent and follows no link, so it cannot leave the
workspace. It returns only files that match, that no ignore rule excludes and that may be read.
Globs have `*`, `?`, `[ab]`, `{a,b}`, and `**` for any directories; a pattern without a slash
matches the last name, at any depth.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from callgate.core.errors import ToolCancelled, ToolPermissionDenied, ToolValidationError
from callgate.core.patterns import DEEP, PathGlob, compile_tokens, parse_wildcards
from callgate.workspace import refusals
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.git_ignores import NAMES, Ignores
from callgate.workspace.opening import DIRECTORY, READ, Directory
from callgate.workspace.paths import shown

_MAX_PATTERN = 1_000
_MAX_CHOICES = 256
_BRACES = re.compile(r"\{([^{}]*)\}")


class Glob:
    """A compiled pattern. Raises `ToolValidationError` if it is invalid."""

    def __init__(self, pattern: str) -> None:
        if not pattern or "\0" in pattern or len(pattern) > _MAX_PATTERN:
            raise ToolValidationError(f"Not a usable glob pattern: {shown(pattern)}")
        self._choices = [_read(choice) for choice in _expanded(pattern)]

    def matches(self, path: str) -> bool:
        names = path.split("/")
        return any(choice.matches(names) for choice in self._choices)


def _expanded(pattern: str) -> Iterator[str]:
    """Expand `{a,b}`, innermost first."""
    pending, count = [pattern], 0
    while pending:
        text = pending.pop()
        braces = _BRACES.search(text)
        if braces is None:
            yield text
            continue
        choices = braces[1].split(",")
        count += len(choices)
        if count > _MAX_CHOICES:
            raise ToolValidationError(f"Too many choices in glob pattern: {shown(pattern)}")
        pending.extend(text[: braces.start()] + one + text[braces.end() :] for one in choices)


def _read(pattern: str) -> PathGlob:
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    if "/" not in pattern:
        names = [DEEP, *names]
    return PathGlob(
        None if name == DEEP else compile_tokens(parse_wildcards(name, classes=True))
        for name in names
    )


MAX_DEPTH = 100
"""Maximum depth of directories: each is open while the search is inside it."""
MAX_ENTRIES = 500_000
_MAX_RULES = 256 * 1024
_NOTHING = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class File(NamedTuple):
    """A regular file, valid while its directory is open."""

    dir_fd: int
    name: bytes
    path: str
    """Path for other tools: relative to the workspace, or absolute in another root."""


class Tree:
    """The files below `path` whose relative path matches; a file is a tree of one."""

    def __init__(
        self,
        files: WorkspaceFileAPI,
        path: str,
        glob: Glob | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        deadline: float = math.inf,
    ) -> None:
        """`deadline`: end of the search by the monotonic clock."""
        self.complete = True
        """False if a limit or a failure made it incomplete."""
        self._files = files
        self._path = path
        self._glob = glob
        self._should_stop = should_stop
        self._deadline = deadline
        self._seen = 0

    def __iter__(self) -> Iterator[File]:
        fd, real, root = self._files.wall.open(self._path, READ)
        try:
            self._files.judge(real, "read", root, self._path)
            mode = os.fstat(fd).st_mode
            relative = root.relative(real)
            names = [] if relative == "." else relative.split("/")
            if stat.S_ISREG(mode):
                yield from self._alone(root, names)
            elif stat.S_ISDIR(mode):
                start = len(names)
                yield from self._below(fd, root, names, start, self._rules_above(root, names))
            else:
                raise refusals.wrong_type(self._path, "is not a directory")
        finally:
            os.close(fd)

    def _alone(self, root: Directory, names: list[str]) -> Iterator[File]:
        with self._files.wall.spot(self._path) as spot:
            if len(spot.remaining) == 1 and (self._glob is None or self._glob.matches(names[-1])):
                yield File(spot.fd, spot.remaining[0], self._named(root, names))

    def _below(
        self, fd: int, root: Directory, names: list[str], start: int, above: Ignores
    ) -> Iterator[File]:
        try:
            with os.scandir(fd) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            self._passed_over(error)
            return
        ignores = above.within(self._rules(fd, {entry.name for entry in entries}))
        for entry in entries:
            self._seen += 1
            if self._should_stop():
                raise ToolCancelled
            if self._seen > MAX_ENTRIES or time.monotonic() > self._deadline:
                self.complete = False
                return
            path = [*names, entry.name]
            is_directory = entry.is_dir(follow_symlinks=False)
            if not is_directory and not entry.is_file(follow_symlinks=False):
                continue
            if not _is_text(entry.name) or ignores.cover(path, is_directory):
                continue
            if is_directory:
                yield from self._into(fd, root, path, start, ignores)
            elif self._wanted(root, path, start):
                yield File(fd, os.fsencode(entry.name), self._named(root, path))

    def _into(
        self, fd: int, root: Directory, path: list[str], start: int, ignores: Ignores
    ) -> Iterator[File]:
        if len(path) - start > MAX_DEPTH:
            self.complete = False
            return
        try:
            inner = self._files.wall.opener.step(fd, os.fsencode(path[-1]), READ | os.O_DIRECTORY)
        except OSError as error:
            self._passed_over(error)
            return
        try:
            yield from self._below(inner, root, path, start, ignores)
        finally:
            os.close(inner)

    def _passed_over(self, error: OSError) -> None:
        """Handle a skipped directory: without access, or deleted, it counts as empty; otherwise its
        content is unknown."""
        if error.errno not in _NOTHING:
            self.complete = False

    def _wanted(self, root: Directory, path: list[str], start: int) -> bool:
        if self._glob is not None and not self._glob.matches("/".join(path[start:])):
            return False
        try:
            self._files.judge(root.prefix + "/".join(path), "read", root, self._path)
        except ToolPermissionDenied:
            return False
        return True

    def _named(self, root: Directory, path: list[str]) -> str:
        prefix = "" if root is self._files.wall.workspace else root.prefix
        return prefix + "/".join(path)

    def _rules_above(self, root: Directory, names: list[str]) -> Ignores:
        """Return the rules of the directories above the start of the search.

        Rules that would exclude the start are ignored, because it was requested by name.
        """
        opener, ignores, fds = self._files.wall.opener, Ignores(), [root.fd]
        try:
            for depth, name in enumerate(names, start=1):
                ignores = ignores.within(self._rules(fds[-1], NAMES))
                if ignores.cover(names[:depth], is_directory=True):
                    return Ignores(depth=len(names))
                fds.append(opener.step(fds[-1], os.fsencode(name), DIRECTORY))
        except OSError:
            return Ignores(depth=len(names))  # it is changing: search all of it
        finally:
            for fd in fds[1:]:
                os.close(fd)
        return ignores

    def _rules(self, fd: int, present: Iterable[str]) -> list[str]:
        there = frozenset(present)
        texts = (self._rules_in(fd, name) for name in NAMES if name in there)
        return [text for text in texts if text]

    def _rules_in(self, dir_fd: int, name: str) -> str:
        try:
            fd = self._files.wall.opener.step(dir_fd, name.encode(), READ)
        except OSError:
            return ""
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return ""
            return os.read(fd, _MAX_RULES).decode("utf-8", "replace")
        except OSError:
            return ""
        finally:
            os.close(fd)


def _is_text(name: str) -> bool:
    """Whether a name is valid text: other names can be neither displayed nor requested."""
    return name.isascii() or not any("\ud800" <= char <= "\udfff" for char in name)
