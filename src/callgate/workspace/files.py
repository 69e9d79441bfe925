"""File operations of a workspace for tools: nine operations inside the workspace boundary.

Each operation opens the file first, lets the guard check the real path of the open file, and only
then reads or changes anything.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar

import msgspec

from callgate.core.errors import (
    ToolExecutionError,
    ToolPermissionDenied,
    ToolValidationError,
)
from callgate.core.sessions import ResolvedPath, Root
from callgate.workspace import refusals
from callgate.workspace.excerpts import replace_once
from callgate.workspace.noting import (
    Changed,
    Changes,
    Noting,
    PathLocks,
    Standing,
    change,
    look,
    made_directories,
    replace,
    sync_names,
)
from callgate.workspace.opening import READ, Directory, Opener, Spot, best_opener
from callgate.workspace.paths import sayable
from callgate.workspace.protected import is_protected
from callgate.workspace.wall import Wall

T = TypeVar("T")
Access = Literal["read", "write"]
Guard = Callable[[str, Access], None]
"""Check of the real path of an open file, before anything is read, created, changed or deleted.
Raises `ToolPermissionDenied` to refuse.
"""

MAX_BYTES = 256 * 1024 * 1024
"""Maximum size of a file that is read as a whole."""
_BLOCK = 1024 * 1024

_rewriting = PathLocks()
"""Serializes operations that read a file and write it again, in this process."""


class Entry(msgspec.Struct, frozen=True):
    """One name in a directory."""

    name: str
    kind: Literal["file", "directory", "link", "other"]


Entries = list[Entry]


class WorkspaceFileAPI:
    """`context.workspace_files` of a tool. Paths are relative to the workspace or absolute inside
    a root."""

    def __init__(
        self,
        workspace_root: str,
        *,
        extra_roots: Sequence[Root] = (),
        guard: Guard | None = None,
        changes: Changes | None = None,
        opener: Opener | None = None,
        synced: bool = True,
    ) -> None:
        """`changes` is notified of every change in advance. If `synced`, a method returns after its
        change is on disk: call it in a thread, because it blocks."""
        self.workspace_root = os.path.abspath(workspace_root)
        roots = (Root(self.workspace_root, writable=True), *extra_roots)
        self.wall = Wall(roots, opener or best_opener())
        self._guard = guard
        self._changes = changes
        self.synced = synced

    @property
    def changes(self) -> Changes | None:
        """The store of the history."""
        return self._changes

    def guarded(self, guard: Guard | None, changes: Changes | None = None) -> WorkspaceFileAPI:
        """Return the files with another guard and another history, or none. Cheap, because the open
        roots are shared."""
        other = object.__new__(type(self))
        other.workspace_root = self.workspace_root
        other.wall = self.wall
        other._guard = guard
        other._changes = changes
        other.synced = self.synced
        return other

    def locate(self, path: str) -> ResolvedPath:
        """Resolve a path for the decision about a call, without opening the file."""
        return self.wall.locate(path)

    def resolved(self, real: str) -> ResolvedPath:
        """Return the location of a real path, such as the guard receives, without access to the
        disk."""
        return self.wall.resolved(real)

    def called(self, resolved: ResolvedPath) -> str:
        """Return the name of a location: relative to the workspace, or absolute in another root."""
        return (
            resolved.relative
            if resolved.root == sayable(self.wall.workspace.real)
            else resolved.real
        )

    def absolute(self, resolved: ResolvedPath) -> str:
        """Return the absolute path for other programs, with its root in the configured spelling."""
        return self.wall.spelled(resolved)

    def judged(self, path: str, *access: Access) -> ResolvedPath | None:
        """Resolve a path that another program will open, with the usual refusals.

        None if no text can name the location.
        """
        with self.wall.spot(path) as spot, refusals.answering(path):
            self._check(spot, path)
            real = self.wall.real(spot, path)
            for kind in access:
                self.judge(real, kind, spot.root, path)
        return self.resolved(real) if sayable(real) == real else None

    def status(self, path: str) -> os.stat_result:
        """Return the status of a file, or of the link itself."""
        self.wall.locate(path)
        with self.wall.spot(path, follow=False) as spot, refusals.answering(path):
            if len(spot.remaining) > 1 or (spot.remaining and (spot.status is None or spot.slash)):
                raise self.wall.absent(path)
            self.judge(self.wall.real(spot, path), "read", spot.root, path)
            return spot.status or os.fstat(spot.fd)

    def read(self, path: str) -> str:
        return _text(self.read_bytes(path), path)

    def read_bytes(self, path: str) -> bytes:
        fd, real, root = self.wall.open(path, READ)
        try:
            self.judge(real, "read", root, path)
            return _content(fd, path)
        except OSError as error:
            raise refusals.of(error, path) from error
        finally:
            os.close(fd)

    def head(self, path: str, most: int) -> bytes:
        """Return the first bytes of a file."""
        fd, real, root = self.wall.open(path, READ)
        try:
            self.judge(real, "read", root, path)
            _ensure_regular(os.fstat(fd), path)
            return os.read(fd, most)
        except OSError as error:
            raise refusals.of(error, path) from error
        finally:
            os.close(fd)

    def write(self, path: str, content: str) -> None:
        self.write_bytes(path, _encoded(content))

    def write_bytes(self, path: str, content: bytes) -> None:
        """Create or replace a file, with its missing parent directories."""
        with self.wall.spot(path) as spot:
            self.replace(spot, path, content)

    def put(self, path: str, content: str, look: Callable[[], T]) -> tuple[ResolvedPath, T | None]:
        """Write a text. Returns its location, and the result of `look` if the file existed."""
        with self.wall.spot(path) as spot:
            found = None if spot.status is None else look()
            real = self.replace(spot, path, _encoded(content))
        return self.resolved(real), found

    def append(self, path: str, content: str) -> None:
        added = _encoded(content)
        with self._rewriting(path) as spot:
            if spot.status is None:
                self.replace(spot, path, added)
            else:
                found, status = self._existing(spot, path, "write")
                self.replace(spot, path, found + added, status)

    def exists(self, path: str) -> bool:
        """Whether a path exists and is readable for this call."""
        try:
            resolved = self.wall.locate(path)
            if resolved.exists and self._guard is not None:
                self._guard(resolved.real, "read")
        except (ToolPermissionDenied, ToolExecutionError):
            return False
        return resolved.exists

    def list(self, path: str) -> list[str]:
        return [entry.name for entry in self.entries(path)]

    def entries(self, path: str) -> Entries:
        """Return the sorted names in a directory with their kinds, without following links."""
        fd, real, root = self.wall.open(path, READ)
        try:
            self.judge(real, "read", root, path)
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                raise refusals.wrong_type(path, "is not a directory")
            with os.scandir(fd) as found:
                return sorted(map(_entry, found), key=lambda entry: entry.name)
        except OSError as error:
            raise refusals.of(error, path) from error
        finally:
            os.close(fd)

    def delete(self, path: str) -> None:
        """Remove a file, or the link itself. A link out of the workspace is refused."""
        self.wall.locate(path)
        with self.wall.spot(path, follow=False) as spot, refusals.answering(path):
            if not spot.remaining:
                if not spot.parents:
                    raise refusals.root_itself(path)
                raise refusals.wrong_type(path, "is a directory")
            if len(spot.remaining) > 1 or spot.status is None or spot.slash:
                raise self.wall.absent(path)
            self.remove(spot, path)

    def patch(self, path: str, old: str, new: str) -> None:
        """Replace the only occurrence of `old`. Raises if there is none, or several."""
        with self._rewriting(path) as spot:
            found, status = self._existing(spot, path, "read", "write")
            text = replace_once(_text(found, path), old, new)
            self.replace(spot, path, _encoded(text), status)

    @contextmanager
    def _rewriting(self, path: str) -> Iterator[Spot]:
        """Yield the spot of a file that is read to be rewritten."""
        with self.wall.spot(path) as spot, refusals.answering(path):
            real = self.wall.real(spot, path)
        with _rewriting.holding(real), self.wall.spot(path) as spot:  # its state under the lock
            yield spot

    def judge(self, real: str, access: Access, root: Directory, path: str) -> None:
        """Let the guard check the real path of an open file in a root."""
        if access == "write" and not root.writable:
            raise refusals.read_only_root(path)
        if self._guard is not None:
            self._guard(sayable(real), access)
        elif access == "write" and (
            is_protected(root.relative(real)) or self.wall.locate(path).protected
        ):
            raise refusals.protected(path)

    def _check(self, spot: Spot, path: str) -> None:
        """Refuse a spot that is not, and cannot become, a regular file."""
        if not spot.remaining or spot.slash:
            raise refusals.wrong_type(path, "is a directory")
        if b".." in spot.remaining or (len(spot.remaining) > 1 and spot.status is not None):
            raise self.wall.absent(path)
        if spot.status is not None and not stat.S_ISREG(spot.status.st_mode):
            raise refusals.wrong_type(path, "is not a regular file")

    def _existing(self, spot: Spot, path: str, *access: Access) -> tuple[bytes, os.stat_result]:
        """Return the content of the file at a spot, after the guard's check, and its status."""
        self._check(spot, path)
        if spot.status is None:
            raise refusals.missing(path)
        with refusals.answering(path):
            fd = self.wall.opener.step(spot.fd, spot.remaining[0], READ)
            try:
                real = self.wall.real(spot, path)
                for kind in access:
                    self.judge(real, kind, spot.root, path)
                return _content(fd, path), os.fstat(fd)
            finally:
                os.close(fd)

    # Changes of other programs: announced in advance, and recorded afterwards.

    def standing(self, path: str) -> Standing | None:
        """Return the state of a path that another program is about to change, after the checks
        for callgate's changes. None if the path does not exist."""
        with self.wall.spot(path) as spot, refusals.answering(path):
            self._check(spot, path)
            self.judge_change(spot, path)
            if len(spot.remaining) > 1:
                return None
            limit = MAX_BYTES if self._changes is None else self._changes.limit
            return look(self.wall.opener, spot.fd, spot.remaining[0], limit)

    def note_made(self, path: str, before: Standing | None) -> Standing | None:
        """Record the change that another program made to a path, and return its new state."""
        after = self.standing(path)
        if self._changes is not None and after != before:
            with self.wall.spot(path) as spot, refusals.answering(path):
                self._changes.note(self.wall.real(spot, path), before, after)
        return after

    # Only these methods change the target of a spot.

    def replace(
        self,
        spot: Spot,
        path: str,
        content: bytes,
        read: os.stat_result | None = None,
        mode: int | None = None,
    ) -> str:
        """Write content to the target of a spot; `read` is the status of its source. Return its
        real path."""
        self._check(spot, path)
        opener, (*parents, name) = self.wall.opener, spot.remaining
        like = read or spot.status
        with refusals.answering(path):
            real, note = self.judge_change(spot, path)
            with made_directories(opener, spot.fd, parents, note, synced=self.synced) as fd:
                try:
                    replace(
                        opener,
                        fd,
                        name,
                        content,
                        like=like,
                        read=read,
                        mode=mode,
                        note=note,
                        synced=self.synced,
                    )
                except Changed:
                    raise refusals.changed(path) from None
        return real

    def remove(self, spot: Spot, path: str, read: os.stat_result | None = None) -> None:
        """Remove the file or link at a spot; `read` is its expected status."""
        (_, note), name = self.judge_change(spot, path), spot.remaining[0]

        def unlink() -> None:
            os.unlink(name, dir_fd=spot.fd)

        try:
            change(self.wall.opener, spot.fd, name, unlink, after=None, note=note, read=read)
        except Changed:
            raise refusals.changed(path) from None
        if self.synced:
            sync_names(self.wall.opener, spot.fd)

    def judge_change(self, spot: Spot, path: str) -> tuple[str, Noting | None]:
        """Let the guard check a change at a spot; return its real path and the history."""
        real = self.wall.real(spot, path)
        self.judge(real, "write", spot.root, path)
        return real, None if self._changes is None else Noting(self._changes, real)


def _content(fd: int, path: str) -> bytes:
    status = os.fstat(fd)
    _ensure_regular(status, path)
    if status.st_size > MAX_BYTES:
        raise refusals.too_large(path, MAX_BYTES)
    content = os.read(fd, status.st_size + 1)
    if len(content) == status.st_size > 0:
        return content
    blocks = [content]
    size = len(content)
    while block := os.read(fd, _BLOCK):  # the size may change, or be unknown
        blocks.append(block)
        size += len(block)
        if size > MAX_BYTES:
            raise refusals.too_large(path, MAX_BYTES)
    return b"".join(blocks)


def _ensure_regular(status: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        is_directory = stat.S_ISDIR(status.st_mode)
        raise refusals.wrong_type(
            path, "is a directory" if is_directory else "is not a regular file"
        )


def _text(content: bytes, path: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise refusals.not_text(path) from None


def _encoded(content: str) -> bytes:
    try:
        return content.encode("utf-8")
    except UnicodeEncodeError:
        raise ToolValidationError("The content is not valid Unicode") from None


def _entry(entry: os.DirEntry[str]) -> Entry:
    # A name that is not text can neither be sent nor requested, but is listed.
    name = sayable(entry.name)
    if entry.is_symlink():
        return Entry(name, "link")
    if entry.is_dir(follow_symlinks=False):
        return Entry(name, "directory")
    return Entry(name, "file" if entry.is_file(follow_symlinks=False) else "other")
