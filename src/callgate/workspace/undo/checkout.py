"""Write a workspace as it was at an earlier moment to another directory.

    changes since the moment --> net --> recorded earlier states, first
    present workspace        --> every other path, at its earlier place

A recorded state is written from the history. A file that another program changed since, without a
record, has its present content. The workspace is only read, name by name and without links; no
path leads outside the target directory.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from callgate.workspace.paths import opening, sayable
from callgate.workspace.undo.comparing import Contents, Difference, net
from callgate.workspace.undo.history import History
from callgate.workspace.undo.records import PIPE, Change, State

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PERMISSIONS = 0o777
_IN_THE_WAY = frozenset({errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.EISDIR})


class CheckoutRefused(Exception):
    """The target directory is unsuitable. Nothing was written."""


class Written(NamedTuple):
    files: int
    """Number of files, links and directories in the target."""
    missing: list[str]
    """Paths whose earlier content is not stored, or no longer. They are absent."""
    skipped: list[str]
    """Present paths that were not copied: sockets, devices, unreadable files."""


def target_of(directory: str, workspace: str, home: str) -> str:
    """Return the real path of a suitable target: new or empty, and outside workspace and home."""
    real = os.path.realpath(os.path.abspath(os.path.expanduser(directory)))
    for name, place in (("workspace", workspace), ("callgate's home", home)):
        root = os.path.realpath(place)
        if os.path.commonpath((root, real)) == root:
            raise CheckoutRefused(f"{sayable(directory)!r} is inside the {name}")
    try:
        names = os.listdir(real)
    except FileNotFoundError:
        return real
    except NotADirectoryError:
        raise CheckoutRefused(f"{sayable(directory)!r} is not a directory") from None
    if names:
        raise CheckoutRefused(f"{sayable(directory)!r} is not empty")
    return real


def write(history: History, later: Sequence[Change], workspace: str, target: str) -> Written:
    """Write a workspace without the changes `later`. Blocks. After an error, the target is empty
    again."""
    is_new = not os.path.exists(target)
    with opening():
        os.makedirs(target, 0o700, exist_ok=True)
    root = os.path.realpath(workspace)
    checkout = _Checkout(history, later, root, target)
    try:
        return checkout.run()
    except BaseException:
        for name in os.listdir(target):
            path = os.path.join(target, name)
            is_directory = os.path.isdir(path) and not os.path.islink(path)
            shutil.rmtree(path, ignore_errors=True) if is_directory else os.unlink(path)
        if is_new:
            os.rmdir(target)
        raise
    finally:
        checkout.close()


class _Checkout:
    def __init__(self, history: History, later: Sequence[Change], root: str, target: str) -> None:
        self._contents = Contents(history, later)
        self._root = root
        self._prefix = root.rstrip("/") + "/"
        self._differences = net(later)
        with opening():
            self._target = os.open(target, _DIRECTORY)
        self._modes: dict[str, int] = {}
        """Directories in the target, and their final modes."""
        self._links: dict[tuple[int, int], str] = {}
        """Copied files with several names: their first path in the target."""
        self._count = 0
        self._missing: list[str] = []
        self._skipped: list[str] = []

    def close(self) -> None:
        os.close(self._target)

    def run(self) -> Written:
        earlier = [(self._relative(each.first), each) for each in self._differences]
        placed = [(path, each) for path, each in earlier if path is not None]
        for path, each in sorted(placed, key=lambda pair: pair[0].count("/")):
            assert each.before is not None
            if each.before.kind == "directory":
                self._make_directory(path, each.before.mode)
        for path, each in placed:
            assert each.before is not None
            if each.before.kind != "directory":
                self._restore(path, each.before, each.last or each.first)
        self._copy_present()
        for path, mode in sorted(self._modes.items(), key=lambda pair: -pair[0].count("/")):
            with self._parent(path) as (parent, name):
                os.chmod(name, mode & _PERMISSIONS, dir_fd=parent)
        return Written(self._count, sorted(self._missing), sorted(self._skipped))

    def _relative(self, real: str | None) -> str | None:
        if real is None or not real.startswith(self._prefix):
            return None  # an extra root
        return real[len(self._prefix) :]

    # --- recorded states ----------------------------------------------------------------------

    def _restore(self, path: str, before: State, source: str | None) -> None:
        if before.kind == "link":
            link = self._contents.read(before, source)
            if link is None:
                self._missing.append(sayable(path))
                return
            with self._parent(path) as (parent, name):
                os.symlink(link, os.fsencode(name), dir_fd=parent)
        elif before.kind == "other":
            if before.target != PIPE:
                self._missing.append(sayable(path))
                return
            with self._parent(path) as (parent, name):
                os.mkfifo(name, before.mode & _PERMISSIONS, dir_fd=parent)
        else:
            file = self._contents.open(before, source)
            if file is None:
                self._missing.append(sayable(path))
                return
            try:
                self._write(path, file, before.mode)
            finally:
                os.close(file)
        self._count += 1

    def _make_directory(self, path: str, mode: int) -> None:
        with self._parent(path) as (parent, name):
            try:
                os.mkdir(name, 0o700, dir_fd=parent)
            except FileExistsError:
                os.close(os.open(name, _DIRECTORY, dir_fd=parent))  # made for a path below it
            else:
                self._count += 1
        self._modes[path] = mode

    def _write(
        self, path: str, source: int, mode: int, times: os.stat_result | None = None
    ) -> None:
        with self._parent(path) as (parent, name):
            file = os.open(name, _NEW, 0o600, dir_fd=parent)
            with os.fdopen(file, "wb") as copy, os.fdopen(os.dup(source), "rb") as original:
                shutil.copyfileobj(original, copy, 1024 * 1024)
                copy.flush()
                os.fchmod(file, mode & _PERMISSIONS)
                if times is not None:
                    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Open the directory of a path in the target, name by name, and make it if necessary."""
        *above, name = path.split("/")
        current = os.dup(self._target)
        try:
            for number, each in enumerate(above):
                try:
                    os.mkdir(each, 0o700, dir_fd=current)
                except FileExistsError:
                    pass
                else:
                    self._count += 1
                    self._modes["/".join(above[: number + 1])] = 0o755
                inner = os.open(each, _DIRECTORY, dir_fd=current)
                os.close(current)
                current = inner
            yield current, name
        finally:
            os.close(current)

    # --- the present workspace ----------------------------------------------------------------

    def _copy_present(self) -> None:
        moved, changed = _present_places(self._differences)
        places: dict[str, str | None] = {self._root: ""}
        """Directories of the workspace, and their paths in the target; None: did not exist."""
        for directory, directories, files, fd in os.fwalk(self._root, follow_symlinks=False):
            place = places.pop(directory, None)
            for name in (*directories, *files):
                real = os.path.join(directory, name)
                earlier = None if place is None else os.path.join(place, name)
                if real in moved:
                    earlier = self._relative(moved[real])
                elif real in changed:
                    earlier = None
                places[real] = earlier
                if earlier is not None and not self._copy(earlier, fd, name):
                    self._skipped.append(sayable(real[len(self._prefix) :]))
                    places[real] = None

    def _copy(self, path: str, directory: int, name: str) -> bool:
        """Copy one name of an open directory. Returns whether that was possible."""
        try:
            return self._copy_facts(path, directory, name)
        except FileNotFoundError:
            return True  # it was deleted just now
        except OSError as error:
            if isinstance(error, PermissionError) or error.errno in _IN_THE_WAY:
                return False
            raise

    def _copy_facts(self, path: str, directory: int, name: str) -> bool:
        facts = os.stat(name, dir_fd=directory, follow_symlinks=False)
        mode = stat.S_IMODE(facts.st_mode)
        if stat.S_ISDIR(facts.st_mode):
            if path not in self._modes:
                self._make_directory(path, mode)
            self._modes[path] = mode
            return True
        if stat.S_ISLNK(facts.st_mode):
            target = os.readlink(os.fsencode(name), dir_fd=directory)
            with self._parent(path) as (parent, new):
                os.symlink(target, os.fsencode(new), dir_fd=parent)
        elif not stat.S_ISREG(facts.st_mode):
            return False
        elif (known := self._links.get((facts.st_dev, facts.st_ino))) is not None:
            with self._parent(known) as (parent, old), self._parent(path) as (other, new):
                os.link(old, new, src_dir_fd=parent, dst_dir_fd=other, follow_symlinks=False)
        else:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            source = os.open(name, flags, dir_fd=directory)
            try:
                if not stat.S_ISREG(os.fstat(source).st_mode):
                    return False
                self._write(path, source, mode, facts)
            finally:
                os.close(source)
            if facts.st_nlink > 1:
                self._links[facts.st_dev, facts.st_ino] = path
        self._count += 1
        return True


def _present_places(differences: Sequence[Difference]) -> tuple[dict[str, str], set[str]]:
    """Return the directories that were elsewhere, and the paths that are written from the history
    or did not exist."""
    moved: dict[str, str] = {}
    changed: set[str] = set()
    for each in differences:
        if each.last is None or each.after is None:
            continue
        is_directory = each.after.kind == "directory"
        if is_directory and each.before is not None and each.before.kind == "directory":
            if each.first is not None and each.first != each.last:
                moved[each.last] = each.first
        else:
            changed.add(each.last)
    return moved, changed
