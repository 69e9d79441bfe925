"""Calls of a command that could change a file, seen by its keeper before the kernel performs them.

    command --open for writing--> kernel --notification--> keeper: below a watched path? report it
                                    ^                         |    a protected name? refuse it
                                    +----- go on as usual ----+

A filter (`program`) stops those calls until the keeper has answered. There are two reasons:

- Attempts to write where a process may not are reported, although they fail: what refuses them is
  the rest of the jail. A process that changes its memory while the keeper reads it hides an
  attempt that fails all the same.
- A name that some program executes later is not created (`creations`). Here the same race lets
  an attacker create one, so the workspace is searched after the run, too.

Not reported is what would change nothing (a directory that is there already), and what programs
write along the way and can do without: caches, git's refreshed index, a database that is opened
for writing to be read. The broker imports this: no msgspec.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from callgate.sandbox import kernel
from callgate.sandbox.backends import seccomp
from callgate.sandbox.processes import process_paths
from callgate.sandbox.processes.creations import LINK, NODE, OPEN, RENAME, SYMLINK, Creations

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.sandbox.orders import Listener

_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
"""Id, process, flags, number of the call, architecture, address, arguments."""
_ANSWER = struct.Struct("=QqiI")
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
_AT_CWD = -100
_MOST_LINKS = 8

_PRESENT, _ABSENT, _EITHER = "present", "absent", "either"
"""Whether a call changes something only if the path is there, if it is not, or in either case."""

_Operand = tuple[int | None, int | None, str, bool]
"""Arguments with the directory (None: the working directory) and the path (None: the descriptor
itself), when it counts, and whether a link at its end is followed."""


_BY_PATH = ("chmod", "chown", "utime", "utimes", "setxattr", "removexattr")
_BELOW_DIRECTORY = ("fchmodat", "fchmodat2", "fchownat", "utimensat", "futimesat")
_BY_DESCRIPTOR = ("fchmod", "fchown", "fsetxattr", "fremovexattr")
_OPERANDS: dict[str, tuple[_Operand, ...]] = {
    "open": ((None, 0, _EITHER, True),),
    "creat": ((None, 0, _EITHER, True),),
    "openat": ((0, 1, _EITHER, True),),
    "truncate": ((None, 0, _PRESENT, True),),
    "mkdir": ((None, 0, _ABSENT, False),),
    "mkdirat": ((0, 1, _ABSENT, False),),
    "mknod": ((None, 0, _ABSENT, False),),
    "mknodat": ((0, 1, _ABSENT, False),),
    "symlink": ((None, 1, _ABSENT, False),),
    "symlinkat": ((1, 2, _ABSENT, False),),
    "link": ((None, 1, _ABSENT, False),),
    "linkat": ((2, 3, _ABSENT, False),),
    "unlink": ((None, 0, _PRESENT, False),),
    "rmdir": ((None, 0, _PRESENT, False),),
    "unlinkat": ((0, 1, _PRESENT, False),),
    "rename": ((None, 0, _PRESENT, False), (None, 1, _EITHER, False)),
    "renameat": ((0, 1, _PRESENT, False), (2, 3, _EITHER, False)),
    "renameat2": ((0, 1, _PRESENT, False), (2, 3, _EITHER, False)),
    **dict.fromkeys(_BY_PATH, ((None, 0, _PRESENT, True),)),
    **dict.fromkeys(("lchown", "lsetxattr", "lremovexattr"), ((None, 0, _PRESENT, False),)),
    **dict.fromkeys(_BELOW_DIRECTORY, ((0, 1, _PRESENT, True),)),
    **dict.fromkeys(_BY_DESCRIPTOR, ((0, None, _PRESENT, True),)),
}
_FLAGS = {"open": 1, "openat": 2}
"""Position of the flags of an open. `openat2`, which has them in memory, is refused (`seccomp`)."""
_MAY_CHANGE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


_CREATES: dict[str, tuple[str, int | None, int]] = {
    "open": (OPEN, None, 0),
    "creat": (OPEN, None, 0),
    "openat": (OPEN, 0, 1),
    "mknod": (NODE, None, 0),
    "mknodat": (NODE, 0, 1),
    "symlink": (SYMLINK, None, 1),
    "symlinkat": (SYMLINK, 1, 2),
    "link": (LINK, None, 1),
    "linkat": (LINK, 2, 3),
    "rename": (RENAME, None, 1),
    "renameat": (RENAME, 2, 3),
    "renameat2": (RENAME, 2, 3),
}
"""The kind of a call that creates a name, and the arguments with its directory and its path."""
_SOURCES: dict[str, tuple[int | None, int]] = {
    "link": (None, 0),
    "linkat": (0, 1),
    "rename": (None, 0),
    "renameat": (0, 1),
    "renameat2": (0, 1),
}
_EXCHANGE = 2
_EPERM = 1
_MOST_REFUSALS = 1_000
"""Names whose refusal is reported. Nothing was created, so nobody needs a complete list."""


def program(machine: str, *, watches: bool, has_names: bool) -> bytes:
    """A filter that stops those calls, and opens only if they are for writing."""
    numbers = kernel.NUMBERS[machine]
    always = {name for name in _OPERANDS if watches or name in _CREATES} - {*_FLAGS}
    flagged = {name: (at, _MAY_CHANGE) for name, at in _FLAGS.items()}
    if has_names and not watches:
        flagged |= {name: (at, seccomp.SET_GID) for name, at in seccomp.CHMODS.items()}
    return seccomp.notifying(
        machine,
        always=[numbers[name] for name in always if name in numbers],
        flagged={numbers[name]: at for name, at in flagged.items() if name in numbers},
    )


class WriteAttempts:
    """The keeper's end of the filter of one command."""

    def __init__(self, listener: int, order: Listener) -> None:
        self.listener = listener
        self.armed = False
        """Whether the next attempt is reported; reporting one disarms it."""
        self._roots = tuple(order["watched"])
        names = order["names"]
        self._creations = None if names is None else Creations(names, order["writable"])
        self._refusals: set[bytes] = set()
        numbers = kernel.NUMBERS[kernel.machine()]
        self._names = {numbers[name]: name for name in _OPERANDS if name in numbers}

    def serve(
        self, report: Callable[[bytes], None], report_refusal: Callable[[bytes], None]
    ) -> bool:
        """Answer one call. False if there will never be another."""
        received = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, received)
        except OSError as error:
            return error.errno in (2, 4)  # ENOENT: it was ended meanwhile; EINTR
        id, pid, _, number, _, _, *arguments = _NOTIFICATION.unpack(received)
        name = self._names[number]
        try:
            path = self._attempt(pid, name, arguments) if self.armed and self._roots else None
        except (OSError, LookupError, ValueError, OverflowError):
            path = None  # nothing that is there, or nobody who is
        if path is not None:
            self.armed = False
            report(path)
        answer = (0, 0, _CONTINUE)
        if self._creations is not None:
            try:
                answer = self._decide(self._creations, pid, name, arguments, report_refusal)
            except OSError as error:
                answer = (0, -(error.errno or _EPERM), 0)  # as the call itself would fail
            except (LookupError, ValueError, OverflowError):
                answer = (0, -_EPERM, 0)
        try:
            fcntl.ioctl(self.listener, _SEND, _ANSWER.pack(id, *answer))
        except OSError:
            pass  # it was ended meanwhile
        return True

    def _decide(
        self,
        creations: Creations,
        pid: int,
        name: str,
        arguments: list[int],
        report: Callable[[bytes], None],
    ) -> tuple[int, int, int]:
        """Value, error and flags of the answer."""
        if name in seccomp.CHMODS:
            mode = arguments[seccomp.CHMODS[name]] & 0xFFFF
            if not mode & seccomp.SET_GID:
                return 0, 0, _CONTINUE
            directory, at, _, _ = _OPERANDS[name][0]
            return _change_mode(_operand(pid, directory, at, arguments, follow=True), mode & 0o7777)
        if name not in _CREATES:
            return 0, 0, _CONTINUE
        kind, directory, at = _CREATES[name]
        target = _new_name(pid, name, directory, at, arguments)
        source = None
        if name in _SOURCES:
            source = _operand(pid, *_SOURCES[name], arguments, follow=False)
        refused = creations.refuses(target, kind, source, pid)
        if name == "renameat2" and arguments[4] & _EXCHANGE and source is not None:
            refused = refused or creations.refuses(source, kind, target, pid)
        if not refused:
            return 0, 0, _CONTINUE
        if target not in self._refusals and len(self._refusals) < _MOST_REFUSALS:
            self._refusals.add(target)
            report(target)
        return 0, -_EPERM, 0

    def _attempt(self, pid: int, name: str, arguments: list[int]) -> bytes | None:
        """The watched path that a call would change."""
        flags = _open_flags(name, arguments)
        if flags is not None and not flags & _MAY_CHANGE:
            return None
        for directory, at, when, follow in _OPERANDS[name]:
            text = _text(pid, directory, at, arguments)
            follow = follow and not (flags or 0) & os.O_NOFOLLOW
            path, is_there = _locate(text, b"/proc/%d/root" % pid, follow=follow)
            root = next((each for each in self._roots if _is_below(path, each)), None)
            if root is None or when == (_ABSENT if is_there else _PRESENT):
                continue
            if flags is not None and is_there and not _opens_to_change(path, flags):
                continue
            if not _is_by_the_way(path[len(root) :], path):
                return path
        return None


def _new_name(pid: int, name: str, directory: int | None, at: int, arguments: list[int]) -> bytes:
    """Where a call would create a name. An open follows links, also to a name that is missing."""
    flags = _open_flags(name, arguments) or 0
    exclusive = flags & os.O_EXCL and flags & os.O_CREAT
    follow = _CREATES[name][0] == OPEN and not flags & os.O_NOFOLLOW and not exclusive
    return _operand(pid, directory, at, arguments, follow=follow)


def _operand(
    pid: int, directory: int | None, at: int | None, arguments: list[int], *, follow: bool
) -> bytes:
    base, raw = process_paths.operand(
        pid,
        None if directory is None else arguments[directory],
        None if at is None else arguments[at],
    )
    return process_paths.location(pid, base, raw, follow=follow)


def _change_mode(path: bytes, mode: int) -> tuple[int, int, int]:
    """Set the mode of a directory of our user. We change what we looked at, so no race makes it a
    file."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
    except OSError as error:
        not_one = error.errno == errno.ENOTDIR
        return 0, -(_EPERM if not_one else error.errno or _EPERM), 0
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return 0, -_EPERM, 0
        os.chmod(b"/proc/self/fd/%d" % descriptor, mode)
        return 0, 0, 0
    except OSError as error:
        return 0, -(error.errno or _EPERM), 0
    finally:
        os.close(descriptor)


def _is_below(path: bytes, root: bytes) -> bool:
    return path == root or path.startswith(root.rstrip(b"/") + b"/")


def _opens_to_change(path: bytes, flags: int) -> bool:
    """Of a file that is there: O_CREAT alone does nothing, nor does O_EXCL."""
    if flags & os.O_EXCL and flags & os.O_CREAT:
        return False
    if flags & os.O_TRUNC or flags & os.O_ACCMODE == os.O_WRONLY:
        return True
    return bool(flags & os.O_RDWR) and not _is_database(path)


def _is_database(path: bytes) -> bool:
    """SQLite opens its files for writing, and for reading if it may not."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.read(descriptor, 15) == b"SQLite format 3"
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _is_by_the_way(inside: bytes, path: bytes) -> bool:
    """What programs write beside their work, and do without where they cannot."""
    names = inside.split(b"/")
    if any(map(_is_cache, names)):
        return True
    if names[-2:] == [b".git", b"index.lock"]:
        return True
    base, _, suffix = path.rpartition(b"-")
    return suffix in (b"journal", b"wal", b"shm") and _is_database(base)


def _is_cache(name: bytes) -> bool:
    return name == b"__pycache__" or (name.startswith(b".") and name.endswith(b"cache"))


def _open_flags(name: str, arguments: list[int]) -> int | None:
    """None: it is no open."""
    if name == "creat":
        return os.O_CREAT | os.O_WRONLY | os.O_TRUNC
    return arguments[_FLAGS[name]] if name in _FLAGS else None


def _text(pid: int, directory: int | None, at: int | None, arguments: list[int]) -> bytes:
    """The path that a call names, as we can open it: from where the process sees it."""
    raw = b""
    if at is not None and arguments[at]:
        raw = process_paths.memory(pid, arguments[at]).partition(b"\0")[0]
    process = b"/proc/%d/" % pid
    if raw.startswith(b"/"):
        for prefix in (b"/proc/self/", b"/proc/thread-self/"):
            if raw.startswith(prefix):
                return process + raw[len(prefix) :]
        return process + b"root" + raw
    number = _AT_CWD if directory is None else arguments[directory] & 0xFFFFFFFF
    is_cwd = number in (_AT_CWD, _AT_CWD & 0xFFFFFFFF)
    base = process + (b"cwd" if is_cwd else b"fd/%d" % number)
    return base + b"/" + raw if raw else base


def _locate(text: bytes, top: bytes, *, follow: bool) -> tuple[bytes, bool]:
    """Where a path leads, by the kernel's own rules, and whether something is there."""
    for _ in range(_MOST_LINKS):
        try:
            return _opened(text, 0 if follow else os.O_NOFOLLOW), True
        except FileNotFoundError:
            head, tail = os.path.split(text.rstrip(b"/"))
            if not follow or not os.path.islink(text):
                return os.path.join(_opened(head or b"/", os.O_DIRECTORY), tail), False
            target = os.readlink(text)
            text = top + target if target.startswith(b"/") else os.path.join(head, target)
    raise OSError(40, os.strerror(40))  # ELOOP


def _opened(text: bytes, flags: int) -> bytes:
    descriptor = os.open(text, os.O_PATH | os.O_CLOEXEC | flags)
    try:
        return os.readlink(b"/proc/self/fd/%d" % descriptor)
    finally:
        os.close(descriptor)
