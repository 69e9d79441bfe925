"""Go through the files below a directory of the workspace, without following links.

Every directory is opened in the one above it, so the search cannot be led out; only files
that match, that no ignore rule leaves out and that the guard lets be read come out of it.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from callgate.core.errors import ToolCancelled, ToolPermissionDenied
from callgate.workspace import refusals
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.git.ignores import NAMES, Ignores
from callgate.workspace.globs import Glob
from callgate.workspace.opening import DIRECTORY, READ
from callgate.workspace.roots import Directory

MAX_DEPTH = 100
"""Directories below one another: each is held open while the search is in it."""
MAX_ENTRIES = 500_000
_MAX_RULES = 256 * 1024
_NOTHING = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class File(NamedTuple):
    """A regular file, while the directory it lies in is open."""

    dir_fd: int
    name: bytes
    path: str
    """As the other tools take it: from the workspace, or absolute in another root."""


class Tree:
    """The files below `path` whose path from there matches; a file is a tree of one."""

    def __init__(
        self,
        files: WorkspaceFileAPI,
        path: str,
        glob: Glob | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        deadline: float = math.inf,
    ) -> None:
        """`deadline`: of the monotonic clock; nothing is looked at after it."""
        self.complete = True
        """False once something was left out because there is too much of it, or by a failure."""
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
            if len(spot.rest) == 1 and (self._glob is None or self._glob.matches(names[-1])):
                yield File(spot.fd, spot.rest[0], self._named(root, names))

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
        """A directory that is not ours to read, or gone, has nothing for us; of another, nobody
        knows what is in it."""
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
        """The rules of the directories around the one where the search begins.

        None of them count if they would leave it out: it was asked for by name.
        """
        opener, ignores, fds = self._files.wall.opener, Ignores(), [root.fd]
        try:
            for depth, name in enumerate(names, start=1):
                ignores = ignores.within(self._rules(fds[-1], NAMES))
                if ignores.cover(names[:depth], is_directory=True):
                    return Ignores(depth=len(names))
                fds.append(opener.step(fds[-1], os.fsencode(name), DIRECTORY))
        except OSError:
            return Ignores(depth=len(names))  # it changes under us: search it all
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
    """Whether a name can be said at all: others can neither be shown nor asked for."""
    return name.isascii() or not any("\ud800" <= char <= "\udfff" for char in name)
