"""The files of a workspace, as tools see them: nine operations behind one wall.

Each one opens first, then lets the guard judge the real path of what is open, and only
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
from callgate.core.resolved_paths import ResolvedPath
from callgate.core.sessions import Root
from callgate.workspace import refusals
from callgate.workspace.edits import replace_once
from callgate.workspace.noting import (
    Changes,
    Noting,
    PathLocks,
    Standing,
    Withdraw,
    change,
    look,
)
from callgate.workspace.opening import READ, Opener, best_opener
from callgate.workspace.paths import sayable
from callgate.workspace.protected import is_protected
from callgate.workspace.replace import Changed, made_directories, replace, sync_names
from callgate.workspace.roots import Directory
from callgate.workspace.walk import Spot
from callgate.workspace.wall import Wall

T = TypeVar("T")
Access = Literal["read", "write"]
Guard = Callable[[str, Access], None]
"""Raises a `ToolPermissionDenied` to refuse. Given the real path of what is open, before
anything is read, made, changed or deleted."""

MAX_BYTES = 256 * 1024 * 1024
"""The largest file that is read whole."""
_BLOCK = 1024 * 1024
_USUAL_MODE = 0o644

_rewriting = PathLocks()
"""Who reads a file to write it again does so alone in this process."""


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
        """`changes` is told of every change before it is made. `synced`: a change is on the disk
        when its method returns, which then waits for the disk: call it in a thread."""
        self.workspace_root = os.path.abspath(workspace_root)
        roots = (Root(self.workspace_root, writable=True), *extra_roots)
        self.wall = Wall(roots, opener or best_opener())
        self._guard = guard
        self._changes = changes
        self.synced = synced

    def guarded(self, guard: Guard | None, changes: Changes | None = None) -> WorkspaceFileAPI:
        """The same files under another guard, and with another history or none; cheap, because
        the open roots are shared."""
        other = object.__new__(type(self))
        other.workspace_root = self.workspace_root
        other.wall = self.wall
        other._guard = guard
        other._changes = changes
        other.synced = self.synced
        return other

    def locate(self, path: str) -> ResolvedPath:
        """Where a path leads, for whoever decides about it before anything is opened."""
        return self.wall.locate(path)

    def resolved(self, real: str) -> ResolvedPath:
        """The place of a real path, such as a guard is given; asks the disk nothing."""
        return self.wall.resolved(real)

    def called(self, resolved: ResolvedPath) -> str:
        """How to name a place: from the workspace, or absolute where it lies in another root."""
        return (
            resolved.relative
            if resolved.root == sayable(self.wall.workspace.real)
            else resolved.real
        )

    def absolute(self, resolved: ResolvedPath) -> str:
        """The same for other programs, which open their files from the roots as given."""
        return self.wall.spelled(resolved)

    def judged(self, path: str, *access: Access) -> ResolvedPath | None:
        """Where a path leads, for whoever opens it elsewhere: all is refused that would be here.

        None where no text can name the place."""
        with self.wall.spot(path) as spot, refusals.answering(path):
            self._check(spot, path)
            real = self.wall.real(spot, path)
            for kind in access:
                self.judge(real, kind, spot.root, path)
        return self.resolved(real) if sayable(real) == real else None

    def status(self, path: str) -> os.stat_result:
        """What the system knows about a file; of a link, about the link."""
        self.wall.locate(path)
        with self.wall.spot(path, follow=False) as spot, refusals.answering(path):
            if len(spot.rest) > 1 or (spot.rest and (spot.status is None or spot.slash)):
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
        """The first bytes of a file."""
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
        """Create or replace a file, with the directories on the way to it."""
        with self.wall.spot(path) as spot:
            self.replace(spot, path, content)

    def put(self, path: str, content: str, look: Callable[[], T]) -> tuple[ResolvedPath, T | None]:
        """Write a text: where it is now, and what `look` found, if there was something before."""
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
        """Whether something is there; False as well for what may not be seen."""
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
        """The names in a directory with their kinds, sorted; links are not followed."""
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
        """Remove a file; of a link, the link. One that leads out is refused like any path."""
        self.wall.locate(path)
        with self.wall.spot(path, follow=False) as spot, refusals.answering(path):
            if not spot.rest:
                if not spot.parents:
                    raise refusals.root_itself(path)
                raise refusals.wrong_type(path, "is a directory")
            if len(spot.rest) > 1 or spot.status is None or spot.slash:
                raise self.wall.absent(path)
            self.remove(spot, path)

    def patch(self, path: str, old: str, new: str) -> None:
        """Replace the one place where `old` stands; with none or several nothing changes."""
        with self._rewriting(path) as spot:
            found, status = self._existing(spot, path, "read", "write")
            text = replace_once(_text(found, path), old, new)
            self.replace(spot, path, _encoded(text), status)

    @contextmanager
    def _rewriting(self, path: str) -> Iterator[Spot]:
        """The spot of a file that is read to be written again."""
        with self.wall.spot(path) as spot, refusals.answering(path):
            real = self.wall.real(spot, path)
        with _rewriting.holding(real), self.wall.spot(path) as spot:  # as it is by now
            yield spot

    def judge(self, real: str, access: Access, root: Directory, path: str) -> None:
        """Ask the guard about the real path of what is open in a root."""
        if access == "write" and not root.writable:
            raise refusals.read_only_root(path)
        if self._guard is not None:
            self._guard(sayable(real), access)
        elif access == "write" and (
            is_protected(root.relative(real)) or self.wall.locate(path).protected
        ):
            raise refusals.protected(path)

    def _check(self, spot: Spot, path: str) -> None:
        """Refuse a spot where no regular file is or could be."""
        if not spot.rest or spot.slash:
            raise refusals.wrong_type(path, "is a directory")
        if b".." in spot.rest or (len(spot.rest) > 1 and spot.status is not None):
            raise self.wall.absent(path)
        if spot.status is not None and not stat.S_ISREG(spot.status.st_mode):
            raise refusals.wrong_type(path, "is not a regular file")

    def _existing(self, spot: Spot, path: str, *access: Access) -> tuple[bytes, os.stat_result]:
        """The content of the file that a spot stands for, judged, and its status."""
        self._check(spot, path)
        if spot.status is None:
            raise refusals.missing(path)
        with refusals.answering(path):
            fd = self.wall.opener.step(spot.fd, spot.rest[0], READ)
            try:
                real = self.wall.real(spot, path)
                for kind in access:
                    self.judge(real, kind, spot.root, path)
                return _content(fd, path), os.fstat(fd)
            finally:
                os.close(fd)

    # What others change: they say so before, and their change is noted once it was made.

    def standing(self, path: str) -> Standing | None:
        """What stands at a path that another program is about to change; refused like a change
        of ours. None: nothing."""
        with self.wall.spot(path) as spot, refusals.answering(path):
            self._check(spot, path)
            self.judge_change(spot, path)
            if len(spot.rest) > 1:
                return None
            limit = MAX_BYTES if self._changes is None else self._changes.limit
            return look(self.wall.opener, spot.fd, spot.rest[0], limit)

    def note_made(self, path: str, before: Standing | None) -> Standing | None:
        """Tell the history what another program has made of what stood there; what stands there
        now."""
        after = self.standing(path)
        if self._changes is not None and after != before:
            with self.wall.spot(path) as spot, refusals.answering(path):
                self._changes.note(self.wall.real(spot, path), before, after)
        return after

    # What a spot stands for is changed here and nowhere else.

    def replace(
        self,
        spot: Spot,
        path: str,
        content: bytes,
        read: os.stat_result | None = None,
        mode: int | None = None,
    ) -> str:
        """Put content where a spot stands; `read` is what the content was made from. Its real
        path."""
        self._check(spot, path)
        opener, (*parents, name) = self.wall.opener, spot.rest
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
        """Remove the file or the link that a spot stands for; `read` is what it must be."""
        (_, note), name = self.judge_change(spot, path), spot.rest[0]

        def unlink() -> None:
            os.unlink(name, dir_fd=spot.fd)

        try:
            change(self.wall.opener, spot.fd, name, unlink, after=None, note=note, read=read)
        except Changed:
            raise refusals.changed(path) from None
        if self.synced:
            sync_names(self.wall.opener, spot.fd)

    def expect(self, path: str, content: bytes) -> Withdraw:
        """Tell whoever keeps a history of a change that another program is about to make, as if it
        were made here; what is returned takes that back. A file in a directory that is yet to be
        made is not told of."""
        with self.wall.spot(path) as spot, refusals.answering(path):
            self._check(spot, path)
            _, note = self.judge_change(spot, path)
            if note is None or len(spot.rest) != 1:
                return lambda: None
            before = look(self.wall.opener, spot.fd, spot.rest[0], note.limit)
            mode = _USUAL_MODE if before is None else before.mode
            return note(before, Standing("file", mode, len(content), content))

    def judge_change(self, spot: Spot, path: str) -> tuple[str, Noting | None]:
        """Ask the guard about changing what a spot stands for; its real path and who is to be
        told."""
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
    while block := os.read(fd, _BLOCK):  # it grows, or the system does not know its size
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
    # A name that is no text can neither be sent nor asked for; it is shown all the same.
    name = sayable(entry.name)
    if entry.is_symlink():
        return Entry(name, "link")
    if entry.is_dir(follow_symlinks=False):
        return Entry(name, "directory")
    return Entry(name, "file" if entry.is_file(follow_symlinks=False) else "other")
