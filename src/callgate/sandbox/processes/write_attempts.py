"""Calls of a command that could change a file: the keeper checks them before the kernel runs them.

    command --open for writing--> kernel --notification--> keeper: below a watched path? report it
                                    ^                         |    a protected name? refuse it
                                    +----- continue ----------+

The `supervisor` stops those calls (`traps`) until the keeper has answered. There are two reasons:

- Write attempts at read-only paths are reported, although they fail: the rest of the jail refuses
  them. A process that changes its memory during the check hides an attempt, which still fails.
- Names that a program executes later are not created (`creations`). The same race lets an
  attacker create one, so the workspace is also searched after the run.

A call that would change nothing (a mkdir of an existing directory) is not reported. The same
applies to optional writes of programs: caches, git's refreshed index, a database that is opened for
writing but only read. The broker imports this: no msgspec.
"""

from __future__ import annotations

import errno
import os

from callgate.sandbox import kernel
from callgate.sandbox.backends import seccomp
from callgate.sandbox.processes import creations
from callgate.sandbox.processes.creations import LINK, NODE, OPEN, RENAME, SYMLINK, Creations
from callgate.sandbox.processes.supervisor import CONTINUE, failure, result

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.sandbox.orders import Listener
    from callgate.sandbox.processes.supervisor import Answer, Call, Handler

_AT_CWD = -100
_MOST_LINKS = 8

_PRESENT, _ABSENT, _EITHER = "present", "absent", "either"
"""Whether a call changes something only if the path exists, only if it is missing, or always."""

_Operand = tuple[int | None, int | None, str, bool]
"""Positions of the directory (None: the working directory) and the path (None: the descriptor
itself), the condition, and whether the call follows a link at its end."""


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
"""The kind of a call that creates a name, and the positions of its directory and its path."""
_SOURCES: dict[str, tuple[int | None, int]] = {
    "link": (None, 0),
    "linkat": (0, 1),
    "rename": (None, 0),
    "renameat": (0, 1),
    "renameat2": (0, 1),
}
_EXCHANGE = 2
_MOST_REFUSALS = 1_000
"""Maximum refused names in a report. It need not be complete, because none was created."""


def traps(*, watches: bool, has_names: bool) -> seccomp.Traps:
    """Return the calls to stop; opens only if they are for writing."""
    found: seccomp.Traps = {name: None for name in _OPERANDS if watches or name in _CREATES}
    found |= {name: (at, _MAY_CHANGE) for name, at in _FLAGS.items()}
    if has_names and not watches:
        found |= {name: (at, seccomp.SET_GID) for name, at in seccomp.CHMODS.items()}
    return found


class WriteAttempts:
    """The entries of the supervisor's table for one command."""

    def __init__(
        self,
        order: Listener,
        report: Callable[[bytes], None],
        report_refusal: Callable[[bytes], None],
    ) -> None:
        self.armed = False
        """Whether to report the next attempt; a report disarms it."""
        self._report = report
        self._report_refusal = report_refusal
        self._roots = tuple(order["watched"])
        names = order["names"]
        self.creations = None if names is None else Creations(names, order["writable"])
        self._refusals: set[bytes] = set()
        numbers = kernel.NUMBERS[kernel.machine()]
        self._names = {numbers[name]: name for name in _OPERANDS if name in numbers}

    def handlers(self) -> dict[int, Handler]:
        return dict.fromkeys(self._names, self._handle)

    def observe(self, call: Call) -> None:
        """Report the call if it is the next attempt to write to a watched path."""
        if not self.armed or not self._roots or call.number not in self._names:
            return
        try:
            path = self._attempt(call, self._names[call.number])
        except (OSError, LookupError, ValueError, OverflowError):
            return  # the path is missing, or the process has ended
        if path is not None:
            self.armed = False
            self._report(path)

    def _handle(self, call: Call) -> Answer:
        self.observe(call)
        if self.creations is None:
            return CONTINUE
        return self._decide(self.creations, call, self._names[call.number])

    def _decide(self, creations: Creations, call: Call, name: str) -> Answer:
        if name in seccomp.CHMODS:
            mode = call.arguments[seccomp.CHMODS[name]] & 0xFFFF
            if not mode & seccomp.SET_GID:
                return CONTINUE
            directory, at, _, _ = _OPERANDS[name][0]
            return _change_mode(_operand(call, directory, at, follow=True), mode & 0o7777)
        if name not in _CREATES:
            return CONTINUE
        kind, directory, at = _CREATES[name]
        target = _new_name(call, name, directory, at)
        source = None
        if name in _SOURCES:
            source = _operand(call, *_SOURCES[name], follow=False)
        refused = creations.refuses(target, kind, source, call.pid)
        if name == "renameat2" and call.arguments[4] & _EXCHANGE and source is not None:
            refused = refused or creations.refuses(source, kind, target, call.pid)
        if not refused:
            return CONTINUE
        if target not in self._refusals and len(self._refusals) < _MOST_REFUSALS:
            self._refusals.add(target)
            self._report_refusal(target)
        return failure(errno.EPERM)

    def _attempt(self, call: Call, name: str) -> bytes | None:
        """Return the watched path that a call would change."""
        flags = _open_flags(name, call.arguments)
        if flags is not None and not flags & _MAY_CHANGE:
            return None
        for directory, at, when, follow in _OPERANDS[name]:
            text = _text(call, directory, at)
            follow = follow and not (flags or 0) & os.O_NOFOLLOW
            path, is_there = _locate(text, b"/proc/%d/root" % call.pid, follow=follow)
            root = next((each for each in self._roots if _is_below(path, each)), None)
            if root is None or when == (_ABSENT if is_there else _PRESENT):
                continue
            if flags is not None and is_there and not _opens_to_change(path, flags):
                continue
            if not _is_by_the_way(path[len(root) :], path):
                return path
        return None


def _new_name(call: Call, name: str, directory: int | None, at: int) -> bytes:
    """Return the name that a call would create. An open follows links, even to a missing name."""
    flags = _open_flags(name, call.arguments) or 0
    exclusive = flags & os.O_EXCL and flags & os.O_CREAT
    follow = _CREATES[name][0] == OPEN and not flags & os.O_NOFOLLOW and not exclusive
    return _operand(call, directory, at, follow=follow)


def _operand(call: Call, directory: int | None, at: int | None, *, follow: bool) -> bytes:
    base, raw = creations.operand(
        call,
        None if directory is None else call.arguments[directory],
        None if at is None else call.arguments[at],
    )
    return creations.location(call.pid, base, raw, follow=follow)


def _change_mode(path: bytes, mode: int) -> Answer:
    """Set the mode of a directory of our user, on the checked descriptor, so that no race can
    replace it with a file."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
    except OSError as error:
        return failure(errno.EPERM if error.errno == errno.ENOTDIR else error.errno)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return failure(errno.EPERM)
        os.chmod(b"/proc/self/fd/%d" % descriptor, mode)
        return result()
    except OSError as error:
        return failure(error.errno)
    finally:
        os.close(descriptor)


def _is_below(path: bytes, root: bytes) -> bool:
    return path == root or path.startswith(root.rstrip(b"/") + b"/")


def _opens_to_change(path: bytes, flags: int) -> bool:
    """Whether an open of an existing file changes it: O_CREAT and O_EXCL alone do not."""
    if flags & os.O_EXCL and flags & os.O_CREAT:
        return False
    if flags & os.O_TRUNC or flags & os.O_ACCMODE == os.O_WRONLY:
        return True
    return bool(flags & os.O_RDWR) and not _is_database(path)


def _is_database(path: bytes) -> bool:
    """Whether a file is an SQLite database, which is opened for writing if possible."""
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
    """Whether a write is optional for programs, such as a cache."""
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
    """Return the flags of an open; None for other calls."""
    if name == "creat":
        return os.O_CREAT | os.O_WRONLY | os.O_TRUNC
    return arguments[_FLAGS[name]] if name in _FLAGS else None


def _text(call: Call, directory: int | None, at: int | None) -> bytes:
    """Return a call's path as a path for us, from the view of the process."""
    raw = b""
    if at is not None and call.arguments[at]:
        raw = call.text(call.arguments[at])
    process = b"/proc/%d/" % call.pid
    if raw.startswith(b"/"):
        for prefix in (b"/proc/self/", b"/proc/thread-self/"):
            if raw.startswith(prefix):
                return process + raw[len(prefix) :]
        return process + b"root" + raw
    number = _AT_CWD if directory is None else call.arguments[directory] & 0xFFFFFFFF
    is_cwd = number in (_AT_CWD, _AT_CWD & 0xFFFFFFFF)
    base = process + (b"cwd" if is_cwd else b"fd/%d" % number)
    return base + b"/" + raw if raw else base


def _locate(text: bytes, top: bytes, *, follow: bool) -> tuple[bytes, bool]:
    """Resolve a path by the kernel's own rules. Returns it, and whether it exists."""
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
