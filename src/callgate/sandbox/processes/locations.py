"""Paths of another process, resolved from its view to an open location.

    place = parent directory (open) + last name          `locate(...)` -> Location

The kernel resolves a path for the calling process, so `/proc/self` and `/dev/fd` would mean the
keeper. A path is first looked up without magic links, in one call. If that leads into /proc or
meets a magic link, it is walked name by name, with the caller's /proc.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import errno
import os
import struct

from callgate.sandbox import kernel

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from callgate.sandbox.processes.supervisor import Call

_AT_CWD = -100 & 0xFFFFFFFF
_MOST_LINKS = 40
_NO_MAGIC_LINKS = 2
_HOW = struct.pack("=3Q", os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY, 0, _NO_MAGIC_LINKS)
_STEP = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW


class Location:
    """The location of a path: a name in an open directory, or an open file."""

    __slots__ = ("_target", "descriptor", "name", "parent", "path", "slash")

    def __init__(
        self, parent: int, name: bytes, path: bytes, slash: bytes = b"", target: int | None = None
    ) -> None:
        self.parent = parent
        self.name = name
        self.path = path
        """The kernel's present path of the file."""
        self.slash = slash
        """A slash after the name, which requires a directory."""
        self.descriptor: int | None = None
        """The caller's descriptor, if the call has no path."""
        self._target = target

    def __enter__(self) -> Location:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.parent >= 0:
            os.close(self.parent)
        if self._target is not None:
            os.close(self._target)

    def move(self, directory: bytes) -> None:
        """Let the same name be in another directory. A file that is itself open stays."""
        if self.parent < 0:
            return
        parent = os.open(directory, _STEP | os.O_DIRECTORY)
        os.close(self.parent)
        self.parent = parent
        self.path = os.path.join(directory, self.name)

    def open(self) -> int | None:
        """Return a descriptor that only refers to the file; None if it is missing."""
        if self._target is not None:
            return os.dup(self._target)
        try:
            return os.open(self.name + self.slash, _STEP, dir_fd=self.parent)
        except FileNotFoundError:
            return None

    def open_existing(self) -> int:
        found = self.open()
        if found is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return found

    def status(self) -> os.stat_result:
        """Return the status of the name itself. Raises `FileNotFoundError`."""
        return os.stat(self.name, dir_fd=self.parent, follow_symlinks=False)

    def exists(self) -> bool:
        found = self.open()
        if found is not None:
            os.close(found)
        return found is not None

    def named(self) -> Location:
        """Return this location. Raises EEXIST if it is not a name in a directory."""
        if self.parent < 0:
            self.close()
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        return self


def locate(
    call: Call,
    directory: int | None,
    address: int,
    *,
    follow: bool,
    empty: bool = False,
) -> Location:
    """Resolve a call's path. `directory`: a descriptor of the caller, None: its working directory.
    `follow`: through a link at the end, even to a missing name. `empty`: if the path is empty, the
    descriptor itself."""
    raw = call.text(address) if address else b""
    if not raw:
        if not empty:
            raise OSError(errno.ENOENT if address else errno.EFAULT, "no path")
        return _of_descriptor(call, directory)
    location = _located(call.pid, _base(call, directory, raw), raw, follow=follow)
    try:
        call.still_waits()
    except BaseException:
        location.close()
        raise
    return location


def open_path(pid: int, raw: bytes) -> int:
    """Return a descriptor of the file that a path means for a process. Raises OSError."""
    directory = b"/" if raw.startswith(b"/") else b"/proc/%d/cwd" % pid
    base = os.open(directory, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
    with _located(pid, base, raw, follow=True) as location:
        return location.open_existing()


def _of_descriptor(call: Call, directory: int | None) -> Location:
    number = None if directory is None else directory & 0xFFFFFFFF
    if number is None or number == _AT_CWD:
        target = os.open(b"/proc/%d/cwd" % call.pid, os.O_PATH | os.O_CLOEXEC)
        return Location(-1, b"", path_of(target), target=target)
    try:
        target = os.open(b"/proc/%d/fd/%d" % (call.pid, number), os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
    location = Location(-1, b"", path_of(target), target=target)
    location.descriptor = number
    try:
        call.still_waits()
    except BaseException:
        location.close()
        raise
    return location


def _base(call: Call, directory: int | None, raw: bytes) -> int:
    if raw.startswith(b"/"):
        return os.open(b"/", os.O_PATH | os.O_CLOEXEC)
    number = None if directory is None else directory & 0xFFFFFFFF
    if number is None or number == _AT_CWD:
        return os.open(b"/proc/%d/cwd" % call.pid, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        return os.open(
            b"/proc/%d/fd/%d" % (call.pid, number), os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY
        )
    except FileNotFoundError:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None


def _located(pid: int, base: int, raw: bytes, *, follow: bool) -> Location:
    """Resolve a path from an open directory. Closes `base`."""
    slash = b"/" if raw.endswith(b"/") else b""
    plain = raw.rstrip(b"/")
    head, _, tail = plain.rpartition(b"/")
    if tail in (b"", b".", b".."):
        return _walk(pid, base, raw, follow=follow)
    try:
        parent = kernel.call("openat2", base, head.lstrip(b"/") or b".", _HOW, len(_HOW))
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOSYS, errno.EPERM, errno.ENOENT):
            os.close(base)
            raise
        return _walk(pid, base, raw, follow=follow)
    here = path_of(parent)
    if is_of_proc(here) or ((follow or slash) and _target(tail, parent) is not None):
        os.close(parent)
        return _walk(pid, base, raw, follow=follow)
    os.close(base)
    return Location(parent, tail, os.path.join(here, tail), slash)


def _walk(pid: int, at: int, raw: bytes, *, follow: bool) -> Location:
    """Resolve a path name by name, without following links in the kernel. Closes `at`."""
    slash = b"/" if raw.endswith(b"/") else b""
    pending = [name for name in raw.split(b"/")[::-1] if name not in (b"", b".")]
    links = 0
    try:
        while True:
            if not pending:
                return Location(-1, b"", path_of(at), target=os.dup(at))
            name = pending.pop()
            here = path_of(at)
            if name in (b"self", b"thread-self") and here == b"/proc":
                at = _replaced(at, os.open(b"/proc/%d" % pid, _STEP | os.O_DIRECTORY))
                continue
            last = not pending
            target = None if name == b".." else _target(name, at)
            if target is None:
                if last and name != b"..":
                    return Location(os.dup(at), name, os.path.join(here, name), slash)
                at = _replaced(at, os.open(name, _STEP | os.O_DIRECTORY, dir_fd=at))
                continue
            if last and not follow and not slash:
                return Location(os.dup(at), name, os.path.join(here, name))
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if is_of_proc(here):  # a magic link of the named process
                if _is_ours(here):
                    raise OSError(errno.EACCES, os.strerror(errno.EACCES))
                at = _replaced(at, os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=at))
                continue
            if target.startswith(b"/"):
                at = _replaced(at, os.open(b"/", os.O_PATH | os.O_CLOEXEC))
            pending += [each for each in target.split(b"/")[::-1] if each not in (b"", b".")]
    finally:
        os.close(at)


def is_of_proc(path: bytes) -> bool:
    return path == b"/proc" or path.startswith(b"/proc/")


def _is_ours(path: bytes) -> bool:
    """Whether a directory of /proc belongs to the keeper, by the number of any of its threads."""
    number = path.split(b"/")[2]
    descriptor = os.open(b"/proc/%s/status" % number, os.O_RDONLY | os.O_CLOEXEC)
    try:
        lines = os.read(descriptor, 4096).splitlines()
    finally:
        os.close(descriptor)
    return b"Tgid:\t%d" % os.getpid() in lines


def _target(name: bytes, directory: int) -> bytes | None:
    """Return the target of a link; None if it is not a link, or missing."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _replaced(old: int, new: int) -> int:
    os.close(old)
    return new


def path_of(descriptor: int) -> bytes:
    return os.readlink(b"/proc/self/fd/%d" % descriptor)
