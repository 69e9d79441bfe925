"""Write a workspace as it was at an earlier moment to another directory.

    changes since the moment --> plan of their undo --> earlier states, first
    present workspace        --> every other path, at its earlier place

An earlier state is written from the history, or from the present file with its inode. A file that
another program changed since, without a record, has its present content and is reported. The
workspace is only read, name by name and without links; no path leads outside the target directory.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.paths import opening, sayable
from callgate.workspace.undo.comparing import Contents, open_regular
from callgate.workspace.undo.history import History
from callgate.workspace.undo.planning import plan
from callgate.workspace.undo.records import PIPE, Change, State, node_of
from callgate.workspace.undo.steps import Step

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PERMISSIONS = 0o777
_IN_THE_WAY = frozenset({errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.EISDIR})


class CheckoutRefused(Exception):
    """The target directory is unsuitable. Nothing was written."""


class Written(NamedTuple):
    files: int
    """Number of files, links and directories in the target."""
    changed: list[str]
    """Paths that another program changed since. They have their present content."""
    missing: list[str]
    """Paths whose earlier content is not stored, or no longer. They are absent."""
    skipped: list[str]
    """Present paths that were not copied: sockets, devices, unreadable files."""


def target_of(directory: str, workspace: str, home: str) -> str:
    """Return the real path of a suitable target: new or empty, and outside workspace and home."""
    real = os.path.realpath(os.path.abspath(os.path.expanduser(directory)))
    for name, location in (("workspace", workspace), ("callgate's home", home)):
        root = os.path.realpath(location)
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
        self._plan = plan(WorkspaceFileAPI(root), history, later, only_look=True)
        self._present = {
            step.now.node: step.real
            for step in self._plan.steps
            if step.now is not None and step.now.node is not None
        }
        with opening():
            self._target = os.open(target, _DIRECTORY)
        self._inodes: dict[str, tuple[State, int]] = {}
        """Files by their earlier inode, with mode: a change through one name changes all names."""
        for step in self._plan.steps:
            then = step.then
            if then is not None and then.node is not None and then.kind == "file":
                known = self._inodes.get(then.node)
                if known is None or (known[0].body is None and then.body is not None):
                    self._inodes[then.node] = (then, step.mode)
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
        earlier = [(self._relative(each.target), each) for each in self._plan.steps]
        placed = [(path, each) for path, each in earlier if path is not None]
        directories = {
            path: each.mode
            for path, each in placed
            if each.then is not None and each.then.kind == "directory"
        }
        for path in sorted(directories, key=lambda each: each.count("/")):
            self._make_directory(path, directories[path])
        for path, each in placed:
            if each.then is not None and each.then.kind != "directory":
                self._restore(path, each.then, each.mode)
        self._copy_present()
        self._modes.update(directories)
        for path, mode in sorted(self._modes.items(), key=lambda pair: -pair[0].count("/")):
            with self._parent(path) as (parent, name):
                os.chmod(name, mode & _PERMISSIONS, dir_fd=parent)
        others = [*(each.real for each in self._plan.conflicts), *self._plan.swapped]
        others += (each for each in self._plan.outside if self._relative(each) is not None)
        changed = [sayable(each.removeprefix(self._prefix)) for each in others]
        return Written(self._count, sorted(changed), sorted(self._missing), sorted(self._skipped))

    def _relative(self, real: str | None) -> str | None:
        if real is None or not real.startswith(self._prefix):
            return None  # an extra root
        return real[len(self._prefix) :]

    # --- recorded states ----------------------------------------------------------------------

    def _restore(self, path: str, before: State, mode: int) -> None:
        known = None if before.node is None else self._inodes.get(before.node)
        if known is not None and before.kind == "file" and before.body is None:
            before = known[0]
        source = None if before.body or before.node is None else self._present.get(before.node)
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
                os.mkfifo(name, mode & _PERMISSIONS, dir_fd=parent)
        else:
            file = None if source is None else open_regular(source)
            file = self._contents.open(before) if file is None else file
            if file is None:
                self._missing.append(sayable(path))
                return
            try:
                self._write(path, file, mode)
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
        moved, changed = _present_places(self._plan.steps)
        locations: dict[str, str | None] = {self._root: ""}
        """Directories of the workspace, and their paths in the target; None: did not exist."""
        for directory, directories, files, fd in os.fwalk(self._root, follow_symlinks=False):
            location = locations.pop(directory, None)
            for name in (*directories, *files):
                real = os.path.join(directory, name)
                earlier = None if location is None else os.path.join(location, name)
                if real in moved:
                    earlier = self._relative(moved[real])
                elif real in changed:
                    earlier = None
                locations[real] = earlier
                if earlier is not None and not self._copy(earlier, fd, name):
                    self._skipped.append(sayable(real[len(self._prefix) :]))
                    locations[real] = None

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
        elif (earlier := self._other_name(facts)) is not None:
            self._restore(path, *earlier)
            return True
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

    def _other_name(self, facts: os.stat_result) -> tuple[State, int] | None:
        """Return the earlier state of a file that was changed through another name."""
        node = node_of("file", facts.st_dev, facts.st_ino)
        return None if node is None or facts.st_nlink == 1 else self._inodes.get(node)


def _present_places(steps: Sequence[Step]) -> tuple[dict[str, str], set[str]]:
    """Return the directories that were elsewhere, and the paths that are written from the history
    or did not exist."""
    moved: dict[str, str] = {}
    changed: set[str] = set()
    earlier = {
        each.then.node: each.target
        for each in steps
        if each.then is not None and each.then.kind == "directory" and each.then.node is not None
    }
    for each in steps:
        if each.now is None:
            continue
        if each.now.kind == "directory" and each.now.node in earlier:
            moved[each.real] = earlier[each.now.node]
        else:
            changed.add(each.real)
    return moved, changed
