"""Calls that write or name files: the keeper performs them in place of the command.

    stopped call -> copy its path -> resolve it as the caller -> protected? -> perform, answer
                                                       EBUSY, EPERM <-+

Landlock cannot remove a right inside a writable directory. Therefore these calls never continue:
the keeper copies the path once, resolves it, checks the result, and performs the call there. The
command cannot change the path between check and use. Its other calls wait, so that no directory
can move during a call.

- The performing thread is in a Landlock domain with the rules of the command, without capabilities,
  so the kernel refuses the same accesses as for the command. The command's own domain is below
  that one, so the keeper may read its memory and its links in /proc.
- A path is resolved for the caller: with its directory, its descriptors, its /proc/self, its umask.
  The kernel never follows a link of /proc on our side (`locations`).
- `Protection` decides about unchangeable paths. It recognizes existing hard links by their inode.
- Modes, owners, times and attributes can change only below writable roots, and of files that the
  caller has open for writing.

A `Recorder` stores old contents between the check and the operation, when the operands are open
descriptors that no other call can move (`preimages`). Nothing may move into or out of the recorded
directories in one step: programs then copy.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import _thread
import errno
import os
import stat

from callgate.core.local.preimages import NOTHING
from callgate.sandbox import kernel
from callgate.sandbox.backends import seccomp
from callgate.sandbox.processes.creations import LINK, NODE, OPEN, RENAME, SYMLINK, Creations
from callgate.sandbox.processes.locations import Location, is_of_proc, locate, path_of
from callgate.sandbox.processes.supervisor import CONTINUE, failure, result

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.core.local.preimages import Noted, Recorder
    from callgate.sandbox.orders import Performed
    from callgate.sandbox.processes.supervisor import Answer, Call, Handler, Supervisor

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_TMPFILE = os.O_TMPFILE & ~os.O_DIRECTORY
_AT_CWD = -100
_AT_NOFOLLOW, _AT_REMOVEDIR, _AT_FOLLOW, _AT_EMPTY = 0x100, 0x200, 0x400, 0x1000
_EXCHANGE = 2
_LONGEST_VALUE = 65536
_MOST_ATTEMPTS = 8
_MOST_BLOCKED = 64
"""Maximum opens that wait for the other end of a pipe; each has a separate thread."""
_MOST_INODES = 20_000
_MOST_REFUSALS = 1_000
_SHARED_MEMORY = b"/dev/shm"
_OWN_TERMINAL = os.makedev(5, 0)
"""/dev/tty"""

_METADATA = """
    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat
    setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
"""
_NAMING = """
    truncate mkdir mkdirat mknod mknodat symlink symlinkat link linkat
    unlink rmdir unlinkat rename renameat renameat2
"""


_UNRECORDED = ("chown", "utime", "futimesat")
"""Parts of the names of calls that leave no pre-image."""


def traps(*, confines: bool = True) -> seccomp.Traps:
    """Return the calls to perform. `umask` is only noted: masks may differ from now on.
    `confines`: all calls that could change a file outside of the writable directories; otherwise
    only the calls with pre-images."""
    metadata = [
        name
        for name in _METADATA.split()
        if confines or not any(part in name for part in _UNRECORDED)
    ]
    found: seccomp.Traps = dict.fromkeys((*metadata, *_NAMING.split(), "creat", "umask"))
    return found | {"open": (1, _WRITES), "openat": (2, _WRITES)}


class Protection:
    """The paths that calls of one command may not change."""

    def __init__(self, order: Performed, creations: Creations | None) -> None:
        self._writable = tuple(order["writable"])
        self._protected = tuple(order["protected"])
        self._above = {above for path in self._protected for above in _above(path)}
        self._creations = creations
        self._inodes: frozenset[tuple[int, int]] | None = None

    def is_writable(self, path: bytes) -> bool:
        return any(_is_below(path, root) for root in self._writable)

    def keeps(self, path: bytes) -> bool:
        """Whether a path is protected, or in a protected directory."""
        return any(_is_below(path, each) for each in self._protected)

    def pins(self, path: bytes) -> bool:
        """Whether a protected path would move with this one."""
        return path in self._above or self.keeps(path)

    def keeps_file(self, facts: os.stat_result) -> bool:
        """Whether a file is a hard link of a protected one."""
        if facts.st_nlink < 2 or stat.S_ISDIR(facts.st_mode):
            return False
        if self._inodes is None:
            self._inodes = _linked(self._protected)
        return self._inodes is _TOO_MANY or (facts.st_dev, facts.st_ino) in self._inodes

    def refuses_name(self, path: bytes, kind: str, source: bytes | None, pid: int) -> bool:
        return self._creations is not None and self._creations.refuses(path, kind, source, pid)


class PathCalls:
    """The entries of the supervisor's table for one command."""

    def __init__(
        self,
        order: Performed,
        creations: Creations | None,
        report: Callable[[bytes], None],
        recorder: Recorder,
    ) -> None:
        self._recorder = recorder
        self._protection = Protection(order, creations)
        self._largest = order["file_bytes"]
        self._shared_memory = order.get("shared_memory")
        self._report = report
        self._mask = os.umask(0o077)
        os.umask(self._mask)
        self._first_mask = self._mask
        self._masks_differ = False
        self._blocked = 0
        self._refusals: set[bytes] = set()
        self.supervisor: Supervisor | None = None
        numbers = kernel.NUMBERS[kernel.machine()]
        self._names = {numbers[name]: name for name in traps() if name in numbers}
        self._operations = {
            "open": self._open,
            "openat": self._open,
            "creat": self._open,
            "truncate": self._truncate,
            **dict.fromkeys(("mkdir", "mkdirat"), self._mkdir),
            **dict.fromkeys(("mknod", "mknodat"), self._mknod),
            **dict.fromkeys(("symlink", "symlinkat"), self._symlink),
            **dict.fromkeys(("link", "linkat"), self._link),
            **dict.fromkeys(("unlink", "rmdir", "unlinkat"), self._unlink),
            **dict.fromkeys(("rename", "renameat", "renameat2"), self._rename),
            **dict.fromkeys(_METADATA.split(), self._change),
            "umask": self._umask,
        }

    def handlers(self) -> dict[int, Handler]:
        return dict.fromkeys(self._names, self.perform)

    def perform(self, call: Call) -> Answer | None:
        name = self._names[call.number]
        try:
            return self._operations[name](call, name)
        except _Refused as refused:
            if refused.path not in self._refusals and len(self._refusals) < _MOST_REFUSALS:
                self._refusals.add(refused.path)
                self._report(refused.path)
            return failure(errno.EPERM)

    # --- opens --------------------------------------------------------------------------------

    def _open(self, call: Call, name: str) -> Answer | None:
        directory, address, flags, mode = _open_arguments(call, name)
        if flags & os.O_PATH or not flags & _WRITES:
            return CONTINUE  # the flags are a number, which the caller can no longer change
        is_exclusive = bool(flags & os.O_EXCL and flags & os.O_CREAT)
        follow = not (flags & os.O_NOFOLLOW or is_exclusive)
        with self._locate(call, directory, address, follow=follow) as at:
            for _ in range(_MOST_ATTEMPTS):
                target = at.open()
                try:
                    return self._open_place(call, at, target, flags, mode)
                except FileExistsError:
                    if target is not None:
                        raise
                finally:
                    if target is not None:
                        os.close(target)
        return failure(errno.EEXIST)

    def _open_place(
        self, call: Call, at: Location, target: int | None, flags: int, mode: int
    ) -> Answer | None:
        if target is None:
            if not flags & os.O_CREAT:
                return failure(errno.ENOENT)
            if at.slash:
                return failure(errno.EISDIR)
            self._check_new(call, at.path, OPEN)
            return self._give(call, self._create(call, at, flags, mode), flags)
        facts = os.fstat(target)
        if flags & os.O_EXCL and flags & os.O_CREAT:
            return failure(errno.EEXIST)
        if stat.S_ISLNK(facts.st_mode):
            return failure(errno.ELOOP)
        if flags & _TMPFILE and stat.S_ISDIR(facts.st_mode):
            self._use_mask(call)
        elif stat.S_ISDIR(facts.st_mode):
            return failure(errno.EISDIR)
        path = path_of(target)
        if is_of_proc(path):
            return failure(errno.EACCES)  # the keeper may read more of /proc than the command
        if stat.S_ISCHR(facts.st_mode) and facts.st_rdev == _OWN_TERMINAL:
            return failure(errno.ENXIO)  # the keeper's terminal: the command's session has none
        if flags & (os.O_TRUNC | os.O_ACCMODE):
            self._check_changed(path, facts)
        if flags & os.O_TRUNC and not self._may_cut(path, facts):
            return failure(errno.EACCES)
        again = flags & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW) | os.O_CLOEXEC | os.O_NOCTTY
        if flags & _TMPFILE and stat.S_ISDIR(facts.st_mode):
            again |= flags & os.O_EXCL
        if stat.S_ISFIFO(facts.st_mode) and not flags & os.O_NONBLOCK:
            return self._open_later(call, os.dup(target), again, flags)
        writes = flags & (os.O_TRUNC | os.O_ACCMODE)
        with self._recorder.write(target, path) if writes else NOTHING:
            opened = os.open(b"/proc/self/fd/%d" % target, again, mode)
        return self._give(call, opened, flags)

    def _create(self, call: Call, at: Location, flags: int, mode: int) -> int:
        """Create a file. Raises `FileExistsError` if it exists by now."""
        self._use_mask(call)
        flags |= os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with self._recorder.creation(at.path):
            opened = os.open(at.name, flags, mode, dir_fd=at.parent)
        if self._recorder.covers(at.path):
            self._recorder.created(os.fstat(opened))
        return opened

    def _open_later(self, call: Call, target: int, again: int, flags: int) -> Answer | None:
        """Open a pipe in a thread, because the wait for its other end would delay other calls."""
        if self._blocked >= _MOST_BLOCKED:
            os.close(target)
            return failure(errno.EMFILE)
        self._blocked += 1

        def wait() -> None:
            assert self.supervisor is not None
            try:
                answer = self._give(call, os.open(b"/proc/self/fd/%d" % target, again), flags)
            except OSError as error:
                answer = failure(error.errno)
            self.supervisor.answer(call.id, answer)
            os.close(target)
            self._blocked -= 1

        _thread.start_new_thread(wait, ())
        return None

    def _give(self, call: Call, opened: int, flags: int) -> Answer:
        """Give the command our descriptor, and close ours before the call returns: a program that
        is open for writing anywhere cannot be started."""
        assert self.supervisor is not None
        try:
            number = self.supervisor.give(call.id, opened, cloexec=bool(flags & os.O_CLOEXEC))
        except OSError as error:
            return failure(error.errno)
        finally:
            os.close(opened)
        return result(number)

    # --- names --------------------------------------------------------------------------------

    def _truncate(self, call: Call, name: str) -> Answer:
        address, length = call.arguments[:2]
        if length >= 1 << 63:
            return failure(errno.EINVAL)
        if self._largest and length > self._largest:
            return failure(errno.EFBIG)
        with self._locate(call, None, address, follow=True) as at:
            target = at.open_existing()
            try:
                self._check_changed(at.path, os.fstat(target))
                with self._recorder.write(target, path_of(target)):
                    opened = os.open(
                        b"/proc/self/fd/%d" % target, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK
                    )
            finally:
                os.close(target)
            try:
                os.ftruncate(opened, length)
            finally:
                os.close(opened)
        return result()

    def _mkdir(self, call: Call, name: str) -> Answer:
        directory, address, mode = _at(call, name == "mkdirat", 1)
        with self._locate(call, directory, address, follow=False).named() as at:
            if self._protection.keeps(at.path):
                return failure(errno.EEXIST if at.exists() else errno.EACCES)
            self._use_mask(call)
            with self._recorder.creation(at.path):
                os.mkdir(at.name, mode & 0o1777, dir_fd=at.parent)
        return result()

    def _mknod(self, call: Call, name: str) -> Answer:
        directory, address, mode = _at(call, name == "mknodat", 1)
        device = call.arguments[3 if name == "mknodat" else 2]
        if not stat.S_IFMT(mode):
            mode |= stat.S_IFREG
        if stat.S_IFMT(mode) in (stat.S_IFCHR, stat.S_IFBLK):
            return failure(errno.EPERM)
        with self._locate(call, directory, address, follow=False).named() as at:
            self._check_new(call, at.path, NODE)
            self._use_mask(call)
            with self._recorder.creation(at.path):
                os.mknod(at.name + at.slash, mode & 0xFFFF & ~0o6000, device, dir_fd=at.parent)
        return result()

    def _symlink(self, call: Call, name: str) -> Answer:
        text = call.text(call.arguments[0])
        directory, address, _ = _at(call, name == "symlinkat", 0, first=1)
        with self._locate(call, directory, address, follow=False).named() as at:
            self._check_new(call, at.path, SYMLINK)
            with self._recorder.creation(at.path):
                os.symlink(text, at.name + at.slash, dir_fd=at.parent)
        return result()

    def _link(self, call: Call, name: str) -> Answer:
        arguments = call.arguments
        if name == "link":
            old, source, new, target, flags = None, arguments[0], None, arguments[1], 0
        else:
            old, source, new, target, flags = arguments[:5]
        if flags & ~(_AT_FOLLOW | _AT_EMPTY):
            return failure(errno.EINVAL)
        follow, empty = bool(flags & _AT_FOLLOW), bool(flags & _AT_EMPTY)
        with self._locate(call, old, source, follow=follow, empty=empty) as before:
            file = before.open_existing()
            try:
                facts = os.fstat(file)
                path = path_of(file)
                if self._protection.keeps(path) or self._protection.keeps_file(facts):
                    return failure(errno.EPERM)
                with self._locate(call, new, target, follow=False).named() as at:
                    self._check_new(call, at.path, LINK, path)
                    if facts.st_nlink and self._recorder.crosses(path, at.path):
                        return failure(errno.EXDEV)
                    with self._recorder.linking(file, path, at.path):
                        if facts.st_nlink and not follow and not empty:
                            os.link(
                                before.name,
                                at.name,
                                src_dir_fd=before.parent,
                                dst_dir_fd=at.parent,
                                follow_symlinks=False,
                            )
                        else:
                            link = b"/proc/self/fd/%d" % file
                            kernel.call("linkat", _AT_CWD, link, at.parent, at.name, _AT_FOLLOW)
            finally:
                os.close(file)
        return result()

    def _unlink(self, call: Call, name: str) -> Answer:
        directory, address, flags = _at(call, name == "unlinkat", 1)
        is_directory = name == "rmdir" or (name == "unlinkat" and bool(flags & _AT_REMOVEDIR))
        if name == "unlinkat" and flags & ~_AT_REMOVEDIR:
            return failure(errno.EINVAL)
        with self._locate(call, directory, address, follow=False).named() as at:
            if self._protection.pins(at.path) and at.exists():
                return failure(errno.EBUSY)
            with self._recorder.removal(at):
                if is_directory:
                    os.rmdir(at.name, dir_fd=at.parent)
                else:
                    os.unlink(at.name + at.slash, dir_fd=at.parent)
        return result()

    def _rename(self, call: Call, name: str) -> Answer:
        arguments = call.arguments
        if name == "rename":
            old, source, new, target, flags = None, arguments[0], None, arguments[1], 0
        else:
            old, source, new, target, flags = arguments[:5]
        if name != "renameat2":
            flags = 0
        flags &= 0xFFFFFFFF
        with (
            self._locate(call, old, source, follow=False).named() as before,
            self._locate(call, new, target, follow=False).named() as after,
        ):
            facts = os.stat(before.name, dir_fd=before.parent, follow_symlinks=False)
            if self._protection.pins(before.path) or self._protection.pins(after.path):
                return failure(errno.EBUSY)
            self._check_new(call, after.path, RENAME, before.path)
            if flags & _EXCHANGE:
                self._check_new(call, before.path, RENAME, after.path)
            if self._protection.keeps_file(facts):
                return failure(errno.EBUSY)
            if self._recorder.crosses(before.path, after.path):
                return failure(errno.EXDEV)
            with self._recorder.renaming(before, after, exchange=bool(flags & _EXCHANGE)):
                kernel.call(
                    "renameat2",
                    before.parent,
                    before.name + before.slash,
                    after.parent,
                    after.name + after.slash,
                    flags,
                )
        return result()

    # --- modes, owners, times and attributes --------------------------------------------------

    def _change(self, call: Call, name: str) -> Answer:
        """Change metadata of a file, by descriptor or path."""
        directory, address, follow, empty = _subject(call, name)
        with self._locate(call, directory, address, follow=follow, empty=empty) as at:
            target = at.open_existing()
            try:
                facts = os.fstat(target)
                path = path_of(target)
                if is_of_proc(path) or not self._may_change(call, at, path, facts):
                    return failure(errno.EPERM)
                with self._noted(call, name, target, path):
                    return _apply(call, name, target, facts)
            finally:
                os.close(target)

    def _noted(self, call: Call, name: str, target: int, path: bytes) -> Noted:
        """Note a change of metadata. Owners and times leave no pre-image."""
        if name in seccomp.CHMODS:
            return self._recorder.mode_change(target, path)
        if "xattr" in name:
            key = call.text(call.arguments[1])
            return self._recorder.attribute_change(target, path, key)
        return NOTHING

    def _may_change(self, call: Call, at: Location, path: bytes, facts: os.stat_result) -> bool:
        kind = stat.S_IFMT(facts.st_mode)
        if kind in (stat.S_IFCHR, stat.S_IFBLK) or self._protection.keeps_file(facts):
            return False
        if facts.st_nlink and path.startswith(b"/"):
            return self._protection.is_writable(path) and not self._protection.keeps(path)
        return at.descriptor is not None and _is_open_for_writing(call.pid, at.descriptor)

    def _umask(self, call: Call, name: str) -> Answer:
        self._masks_differ = True
        return CONTINUE

    # --- checks -------------------------------------------------------------------------------

    def _check_new(self, call: Call, path: bytes, kind: str, source: bytes | None = None) -> None:
        protection = self._protection
        moves = kind in (RENAME, SYMLINK)
        if protection.pins(path) if moves else protection.keeps(path):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        if protection.refuses_name(path, kind, source, call.pid):
            raise _Refused(path)

    def _check_changed(self, path: bytes, facts: os.stat_result) -> None:
        if self._protection.keeps(path) or self._protection.keeps_file(facts):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    def _may_cut(self, path: bytes, facts: os.stat_result) -> bool:
        """Whether a file may be truncated. Landlock checks this only since its third version."""
        return not stat.S_ISREG(facts.st_mode) or self._protection.is_writable(path)

    def _locate(
        self, call: Call, directory: int | None, address: int, *, follow: bool, empty: bool = False
    ) -> Location:
        """The place of a path. Of a name in /dev/shm it is in a directory of the command's own."""
        location = locate(call, directory, address, follow=follow, empty=empty)
        if self._shared_memory and os.path.dirname(location.path) == _SHARED_MEMORY:
            try:
                location.move(self._shared_memory)
            except BaseException:
                location.close()
                raise
        return location

    def _use_mask(self, call: Call) -> None:
        """Set the caller's umask. All processes have the first one until one changes it."""
        mask = _mask_of(call.pid) if self._masks_differ else self._first_mask
        if mask != self._mask:
            os.umask(mask)
            self._mask = mask


class _Refused(Exception):
    def __init__(self, path: bytes) -> None:
        self.path = path


def _open_arguments(call: Call, name: str) -> tuple[int | None, int, int, int]:
    """Return directory, address of the path, flags and mode."""
    arguments = call.arguments
    if name == "creat":
        return None, arguments[0], os.O_CREAT | os.O_WRONLY | os.O_TRUNC, arguments[1] & 0o7777
    if name == "open":
        return None, arguments[0], arguments[1] & 0xFFFFFFFF, arguments[2] & 0o7777
    return arguments[0], arguments[1], arguments[2] & 0xFFFFFFFF, arguments[3] & 0o7777


def _at(call: Call, has_directory: bool, more: int, first: int = 0) -> tuple[int | None, int, int]:
    """Return directory, address of the path, and the number after it if there is `more`."""
    at = first + 1 if has_directory else first
    number = call.arguments[at + 1] & 0xFFFFFFFF if more else 0
    return (call.arguments[first] if has_directory else None), call.arguments[at], number


_BY_DESCRIPTOR = frozenset({"fchmod", "fchown", "fsetxattr", "fremovexattr"})
_BELOW_DIRECTORY = {"fchmodat": 0, "fchmodat2": 3, "fchownat": 4, "utimensat": 3, "futimesat": 0}
"""Position of their flags; 0: they have none."""
_NOT_THROUGH_LINKS = frozenset({"lchown", "lsetxattr", "lremovexattr"})


def _subject(call: Call, name: str) -> tuple[int | None, int, bool, bool]:
    """Return directory or descriptor, address of a path or 0, and whether to follow a link and to
    permit an empty path."""
    arguments = call.arguments
    if name in _BY_DESCRIPTOR:
        return arguments[0], 0, True, True
    if name in _BELOW_DIRECTORY:
        flags = arguments[_BELOW_DIRECTORY[name]] if _BELOW_DIRECTORY[name] else 0
        empty = bool(flags & _AT_EMPTY) or (
            arguments[1] == 0 and name in ("utimensat", "futimesat")
        )
        return arguments[0], arguments[1], not flags & _AT_NOFOLLOW, empty
    return None, arguments[0], name not in _NOT_THROUGH_LINKS, False


def _apply(call: Call, name: str, target: int, facts: os.stat_result) -> Answer:
    arguments = call.arguments
    path = b"/proc/self/fd/%d" % target
    is_link = stat.S_ISLNK(facts.st_mode)
    if name in seccomp.CHMODS:
        mode = arguments[seccomp.CHMODS[name]] & 0o7777
        if mode & 0o4000 or (mode & 0o2000 and not stat.S_ISDIR(facts.st_mode)):
            return failure(errno.EPERM)
        if is_link:
            return failure(errno.EOPNOTSUPP)
        os.chmod(path, mode)
    elif "chown" in name:
        at = 2 if name == "fchownat" else 1
        owner, group = (_signed(arguments[at]), _signed(arguments[at + 1]))
        kernel.call("fchownat", target, b"", owner, group, _AT_EMPTY)
    elif "utime" in name:
        times = _times(call, name)
        if is_link:
            return failure(errno.EOPNOTSUPP)
        kernel.call("utimensat", _AT_CWD, path, times, 0)
    elif is_link:
        return failure(errno.EPERM)
    elif name.endswith("removexattr"):
        os.removexattr(path, call.text(arguments[1]))
    else:
        _, key, value, size, flags = arguments[:5]
        if size > _LONGEST_VALUE:
            return failure(errno.E2BIG)
        content = call.memory(value, size) if size else b""
        if len(content) < size:
            return failure(errno.EFAULT)
        os.setxattr(path, call.text(key), content, flags & 0xFFFFFFFF)
    return result()


def _times(call: Call, name: str) -> bytes | None:
    """Return two times in the form of `utimensat`; None: now."""
    at = 2 if name in ("utimensat", "futimesat") else 1
    address = call.arguments[at]
    if not address:
        return None
    size = 16 if name == "utime" else 32
    content = call.memory(address, size)
    if len(content) < size:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    if name == "utimensat":
        return content
    words = [content[start : start + 8] for start in range(0, size, 8)]
    if name == "utime":
        return words[0] + bytes(8) + words[1] + bytes(8)
    numbers = [int.from_bytes(word, "little", signed=True) for word in words]
    if not 0 <= numbers[1] < 1_000_000 or not 0 <= numbers[3] < 1_000_000:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    ordered = (numbers[0], numbers[1] * 1000, numbers[2], numbers[3] * 1000)
    return b"".join(part.to_bytes(8, "little", signed=True) for part in ordered)


def _signed(number: int) -> int:
    number &= 0xFFFFFFFF
    return -1 if number == 0xFFFFFFFF else number


def _is_open_for_writing(pid: int, descriptor: int) -> bool:
    text = _read(b"/proc/%d/fdinfo/%d" % (pid, descriptor))
    for line in text.splitlines():
        if line.startswith(b"flags:"):
            flags = int(line.split()[1], 8)
            return not flags & os.O_PATH and flags & os.O_ACCMODE != os.O_RDONLY
    return False


def _mask_of(pid: int) -> int:
    for line in _read(b"/proc/%d/status" % pid).splitlines():
        if line.startswith(b"Umask:"):
            return int(line.split()[1], 8)
    raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))


def _read(path: bytes) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def _is_below(path: bytes, root: bytes) -> bool:
    return path == root or path.startswith(root.rstrip(b"/") + b"/")


def _above(path: bytes) -> list[bytes]:
    found = []
    while (path := os.path.dirname(path)) != b"/":
        found.append(path)
    return found


_TOO_MANY = frozenset[tuple[int, int]]([(-1, -1)])


def _linked(paths: tuple[bytes, ...]) -> frozenset[tuple[int, int]]:
    """Return the inodes of protected files that have several names; `_TOO_MANY`: all such files."""
    found = []
    waiting = list(paths)
    count = 0
    while waiting:
        path = waiting.pop()
        count += 1
        if count > _MOST_INODES:
            return _TOO_MANY
        try:
            facts = os.lstat(path)
            if stat.S_ISDIR(facts.st_mode):
                waiting += [os.path.join(path, name) for name in os.listdir(path)]
            elif facts.st_nlink > 1:
                found.append((facts.st_dev, facts.st_ino))
        except OSError:
            continue
    return frozenset(found)
