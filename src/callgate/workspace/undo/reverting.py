"""Execute a plan that reverts changes of commands: identities, contents, modes, in this order.

    detach    files that must go, innermost first; moved ones get a temporary name
    attach    files of the earlier state, outermost first, by their path before the changes
    write     contents of files that a command changed in place
    modes     of directories, innermost first

Every step is recorded like a change of a command, so that an undo can be undone and a crash loses
nothing. Each operation takes place in a directory that was opened name by name, without links.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import NamedTuple

import msgspec

from callgate.core.errors import ToolError
from callgate.core.local.preimage_store import write_parts
from callgate.core.local.preimages import Recorder
from callgate.workspace import refusals
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.paths import sayable
from callgate.workspace.undo.history import History
from callgate.workspace.undo.records import State, is_linked, node_of
from callgate.workspace.undo.steps import Step

_TEMPORARY = ".callgate-undo-"
_MOST_SEARCHED = 200_000
_NOFOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
_FORMATS = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "link": stat.S_IFLNK}
_REPLACED = frozenset({"file", "link"})


class Spot(NamedTuple):
    """A name in an open directory."""

    path: bytes
    parent: int
    name: bytes

    def status(self) -> os.stat_result:
        return os.stat(self.name, dir_fd=self.parent, follow_symlinks=False)

    def open_existing(self) -> int:
        return os.open(self.name, os.O_PATH | _NOFOLLOW, dir_fd=self.parent)


class Reverter:
    """Executes the steps of one plan."""

    def __init__(
        self, files: WorkspaceFileAPI, history: History, steps: Sequence[Step], recorder: Recorder
    ) -> None:
        self._files = files
        self._history = history
        self._steps = steps
        self._recorder = recorder
        self._wanted: dict[str, int] = {}
        for step in steps:
            if step.then is not None and step.then.node is not None and not _stays(step):
                self._wanted[step.then.node] = self._wanted.get(step.then.node, 0) + 1
        self._staged: dict[str, str] = {}
        """By node: its temporary path."""
        self._attached: dict[str, str] = {}
        self._living: dict[str, str] | None = None
        self._left: set[Step] = set()
        self._modes: dict[str, int] = {}
        """Directories with a temporary mode, and their final modes."""
        self.done: list[tuple[Step, bool]] = []

    def run(self) -> None:
        """Execute all steps. `done` lists the finished steps, and whether each changed its path."""
        for step in sorted(self._steps, key=lambda each: _depth(each.real), reverse=True):
            if step.now is not None and not _stays(step):
                self._detach(step, step.now)
            if step.then is None:
                self.done.append((step, step not in self._left))
        for step in self._steps:
            if _stays(step) and step.target == step.real and step.now and step.now.node:
                self._attached[step.now.node] = step.real
        for step in sorted(self._steps, key=lambda each: _depth(each.target)):
            if step.then is not None:
                if not _stays(step):
                    self._attach(step, step.then)
                self._dress(step, step.then)
                self.done.append((step, True))
        by_depth = sorted(self._modes.items(), key=lambda each: _depth(each[0]), reverse=True)
        for path, mode in by_depth:
            try:
                self._change_mode(path, mode)
            except (ToolError, FileNotFoundError):
                continue  # a directory that only the steps needed

    def _detach(self, step: Step, now: State) -> None:
        node, then = now.node, step.then
        is_wanted = node is not None and node in self._wanted
        if is_wanted and node is not None and node not in self._staged:
            beside = self._temporary(step.real)
            self._in(step.real, lambda at: self._move(at, beside, now))
            self._staged[node] = beside
            return
        if now.kind == "directory":
            self._remove_directory(step)
            return
        if now.first_mode is not None:
            self._restore_inode(step.real, now, now.first_mode)
        is_replaced = then is not None and then.kind in _REPLACED and now.kind in _REPLACED
        if is_wanted or not is_replaced:
            self._in(step.real, lambda at: self._unlink(at, now))
        elif now.first_mode is None:
            self._in(step.real, lambda at: _check(at, now))  # replaced in one step later

    def _restore_inode(self, path: str, now: State, mode: int) -> None:
        """Restore a file that has other names, before it loses this one."""
        if now.body is not None:
            earlier = msgspec.structs.replace(now, sha256=None)
            self._in(path, lambda at: self._write_body(at, earlier))
        if now.attributes:
            self._in(path, lambda at: self._set_attributes(at, now))
        self._change_mode(path, mode)

    def _remove_directory(self, step: Step) -> None:
        def remove(at: Spot) -> None:
            with self._recorder.removal(at):
                os.rmdir(at.name, dir_fd=at.parent)

        try:
            self._in(step.real, remove)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._left.add(step)

    def _attach(self, step: Step, then: State) -> None:
        path = step.target
        staged = None if then.node is None else self._staged.pop(then.node, None)
        if staged is not None:
            self._in(staged, lambda at: self._move(at, path, None))
        elif then.node is not None and then.node in self._attached and then.kind == "file":
            source = self._attached[then.node]
            self._in(path, lambda at: self._make(at, lambda new: self._link_to(source, new)))
        elif then.kind == "directory":
            self._in(path, self._make_directory)
        elif (name := self._living_name(then)) is not None:
            self._in(path, lambda at: self._make(at, lambda new: self._link_to(name, new)))
        else:
            self._in(path, lambda at: self._make(at, lambda new: self._create(new, then)))
        if then.node is not None:
            self._attached[then.node] = path

    def _living_name(self, then: State) -> str | None:
        """Return another name of a file that was copied when it lost one, because a hard link was
        impossible. No line of the log has that name, so it is searched."""
        is_alive = then.kind == "file" and then.node is not None and not then.ended
        if not is_alive or then.stored is None or is_linked(then.stored):
            return None
        if self._living is None:
            self._living = self._found()
        return self._living.get(then.node or "")

    def _found(self) -> dict[str, str]:
        """Search the workspace for the files of all steps, up to a limit."""
        wanted = {step.then.node for step in self._steps if step.then is not None}
        found: dict[str, str] = {}
        count = 0
        for directory, _, names in os.walk(os.path.realpath(self._files.workspace_root)):
            for name in names:
                path = os.path.join(directory, name)
                facts = os.lstat(path)
                node = node_of("file", facts.st_dev, facts.st_ino)
                if stat.S_ISREG(facts.st_mode) and node in wanted:
                    found.setdefault(node or "", path)
            count += len(names)
            if count > _MOST_SEARCHED:
                break
        return found

    def _make_directory(self, at: Spot) -> None:
        try:
            with self._recorder.creation(at.path):
                os.mkdir(at.name, 0o700, dir_fd=at.parent)
        except FileExistsError:
            if not stat.S_ISDIR(at.status().st_mode):
                raise  # else it remains, because it is not empty

    def _make(self, at: Spot, create: Callable[[Spot], None]) -> None:
        """Create a file under a temporary name, and move it to its path."""
        name = os.fsencode(_TEMPORARY + secrets.token_hex(8))
        new = Spot(os.path.join(os.path.dirname(at.path), name), at.parent, name)
        create(new)
        with self._recorder.renaming(new, at, exchange=False):
            os.rename(new.name, at.name, src_dir_fd=at.parent, dst_dir_fd=at.parent)

    def _link_to(self, source: str, new: Spot) -> None:
        def link(at: Spot) -> None:
            file = at.open_existing()
            try:
                with self._recorder.linking(file, at.path, new.path):
                    os.link(
                        at.name,
                        new.name,
                        src_dir_fd=at.parent,
                        dst_dir_fd=new.parent,
                        follow_symlinks=False,
                    )
            finally:
                os.close(file)

        self._in(source, link)

    def _create(self, new: Spot, then: State) -> None:
        if then.kind == "other":
            with self._recorder.creation(new.path):
                os.mkfifo(new.name, 0o600, dir_fd=new.parent)
            return
        stored = then.stored
        if stored is not None and is_linked(stored) and self._link_stored(new, stored):
            return
        if then.kind == "link":
            content = self._history.content(then)
            if content is None:
                raise refusals.missing(sayable(os.fsdecode(new.path)))
            with self._recorder.creation(new.path):
                os.symlink(content, new.name, dir_fd=new.parent)
            return
        with self._recorder.creation(new.path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW
            file = os.open(new.name, flags, 0o600, dir_fd=new.parent)
        try:
            self._recorder.created(os.fstat(file))
            self._fill(file, then, new)
        finally:
            os.close(file)

    def _fill(self, file: int, then: State, at: Spot) -> None:
        """Write the content of a state to an empty file. It need not fit into the memory."""
        name = then.body or then.stored
        content = None
        if name is None or then.sha256 is not None:  # a content with a known hash is verified
            content = self._history.content(then)
            if content is None:
                raise refusals.missing(sayable(os.fsdecode(at.path)))
        if name is None:
            write_parts(file, len(content or b""), [(0, content or b"")])
            return
        try:
            with self._history.stored_parts(name) as (size, blocks):
                write_parts(file, size, blocks)
        except ValueError:
            raise refusals.missing(sayable(os.fsdecode(at.path))) from None

    def _link_stored(self, new: Spot, name: str) -> bool:
        """Give a stored file its inode back, if it is on the same file system."""
        source = self._history.stored_path(name)
        try:
            with self._recorder.arrival(os.lstat(source), new.path):
                os.link(source, new.name, dst_dir_fd=new.parent)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            return False
        return True

    def _dress(self, step: Step, then: State) -> None:
        """Restore the content, the attributes and the mode of an attached file."""
        path = step.target
        if then.kind == "file" and then.body is not None:
            self._in(path, lambda at: self._write_body(at, then))
        if then.attributes:
            self._in(path, lambda at: self._set_attributes(at, then))
        if then.kind == "directory":
            self._modes[path] = step.mode
        elif then.kind != "link":
            self._change_mode(path, step.mode)

    def _write_body(self, at: Spot, then: State) -> None:
        if not self._history.has(then):
            raise refusals.missing(sayable(os.fsdecode(at.path)))
        mode = stat.S_IMODE(at.status().st_mode)
        if not mode & stat.S_IWUSR:
            self._set_mode(at, mode | stat.S_IWUSR)
        file = os.open(at.name, os.O_WRONLY | _NOFOLLOW, dir_fd=at.parent)
        try:
            with self._recorder.write(file, at.path):
                os.ftruncate(file, 0)
            self._fill(file, then, at)
        finally:
            os.close(file)

    def _set_attributes(self, at: Spot, then: State) -> None:
        file = at.open_existing()
        try:
            path = b"/proc/self/fd/%d" % file
            for key, value in then.attributes:
                with self._recorder.attribute_change(file, at.path, key):
                    if value is not None:
                        os.setxattr(path, key, value)
                    elif key in map(os.fsencode, os.listxattr(path)):
                        os.removexattr(path, key)
        finally:
            os.close(file)

    def _change_mode(self, path: str, mode: int) -> None:
        def change(at: Spot) -> None:
            if stat.S_IMODE(at.status().st_mode) != mode:
                self._set_mode(at, mode)

        self._in(path, change)

    def _set_mode(self, at: Spot, mode: int) -> None:
        file = at.open_existing()
        try:
            with self._recorder.mode_change(file, at.path):
                os.chmod(b"/proc/self/fd/%d" % file, mode)
        finally:
            os.close(file)

    def _move(self, at: Spot, target: str, expected: State | None) -> None:
        if expected is not None:
            _check(at, expected)

        def move(to: Spot) -> None:
            with self._recorder.renaming(at, to, exchange=False):
                os.rename(at.name, to.name, src_dir_fd=at.parent, dst_dir_fd=to.parent)

        self._in(target, move)

    def _unlink(self, at: Spot, now: State) -> None:
        if now.first_mode is None:
            _check(at, now)
        with self._recorder.removal(at):
            os.unlink(at.name, dir_fd=at.parent)

    def _temporary(self, real: str) -> str:
        with self._files.wall.spot_of(real) as spot:
            return os.path.join(spot.root.real, _TEMPORARY + secrets.token_hex(8))

    def _in(self, path: str, act: Callable[[Spot], None]) -> None:
        """Act on a name in its open directory. Make the directory writable if necessary."""
        with self._open(path) as at:
            try:
                act(at)
            except PermissionError:
                if not self._make_writable(at):
                    raise
                act(at)

    @contextmanager
    def _open(self, path: str) -> Iterator[Spot]:
        parent, _, name = path.rpartition("/")
        with self._files.wall.spot_of(parent) as spot:
            if spot.remaining:
                raise refusals.changed(sayable(path))
            yield Spot(os.fsencode(path), spot.fd, os.fsencode(name))

    def _make_writable(self, at: Spot) -> bool:
        facts = os.fstat(at.parent)
        path = os.fsdecode(os.path.dirname(at.path))
        mode = stat.S_IMODE(facts.st_mode)
        if mode & 0o700 == 0o700 or facts.st_uid != os.geteuid():
            return False
        with self._open(path) as above:
            self._set_mode(above, mode | 0o700)
        self._modes.setdefault(path, mode)
        return True


def _check(at: Spot, expected: State) -> None:
    """Refuse a file that is no longer the planned one."""
    try:
        facts = at.status()
    except FileNotFoundError:
        raise refusals.changed(sayable(os.fsdecode(at.path))) from None
    is_same = stat.S_IFMT(facts.st_mode) == _FORMATS.get(expected.kind, stat.S_IFMT(facts.st_mode))
    if expected.node is not None:
        node = node_of(expected.kind, facts.st_dev, facts.st_ino)
        is_same = is_same and node == expected.node
    if expected.kind == "file":
        present = (facts.st_size, facts.st_mtime_ns)
        is_same = is_same and present == (expected.size, expected.mtime_ns)
    elif expected.kind == "link" and is_same:
        target = os.readlink(at.name, dir_fd=at.parent)
        is_same = sha256(target).hexdigest() == expected.sha256
    if not is_same:
        raise refusals.changed(sayable(os.fsdecode(at.path)))


def _stays(step: Step) -> bool:
    """Whether the file itself remains, so that at most its content and its mode change."""
    now, then = step.now, step.then
    if now is None or then is None or now.kind != then.kind:
        return False
    return now.sha256 == then.sha256 if now.kind == "link" else now.node == then.node


def _depth(path: str) -> tuple[int, str]:
    return path.count("/"), path
