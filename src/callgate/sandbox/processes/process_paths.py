"""Where a path of another process leads, by the kernel's own rules.

The kernel follows `/proc/self` for whoever asks, so a path of another process that leads through
it would lead us elsewhere. Paths are looked up without magic links first, which takes one call;
where there is one, or a link at the end, they are walked name by name (`_walk`).

The broker imports this: no msgspec.
"""

from __future__ import annotations

import errno
import os
import struct

from callgate.sandbox import kernel

_AT_CWD = (-100, -100 & 0xFFFFFFFF)
_LONGEST = 4096
_MOST_LINKS = 40
_NO_MAGIC_LINKS = 2
_WALKED = (errno.ELOOP, errno.ENOSYS, errno.EPERM, errno.ENOENT)
"""Errors after which a path is walked. ENOENT: through `/proc/self`, which is us for the kernel."""
_HOW = struct.pack("=3Q", os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY, 0, _NO_MAGIC_LINKS)


def memory(pid: int, address: int, most: int = _LONGEST) -> bytes:
    """Bytes from an address on; fewer where its memory ends before."""
    descriptor = os.open(b"/proc/%d/mem" % pid, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, most, address)
    finally:
        os.close(descriptor)


def operand(pid: int, directory: int | None, address: int | None) -> tuple[bytes, bytes]:
    """The directory that a path of a call is relative to, as we can open it, and the path.
    `directory` is a descriptor of the process; None: its working directory."""
    raw = memory(pid, address).partition(b"\0")[0] if address else b""
    process = b"/proc/%d/" % pid
    if raw.startswith(b"/"):
        return process + b"root", raw.lstrip(b"/")
    number = _AT_CWD[0] if directory is None else directory & 0xFFFFFFFF
    return process + (b"cwd" if number in _AT_CWD else b"fd/%d" % number), raw


def location(pid: int, base: bytes, raw: bytes, *, follow: bool) -> bytes:
    """The path of a name that may not exist. `follow`: through a link at its end, too."""
    raw = raw.rstrip(b"/")
    head, tail = os.path.split(raw)
    if tail in (b"", b".", b".."):
        return _walk(pid, base, raw, follow=follow)
    if not head and not base.endswith(b"/root"):
        if follow and _is_link(base + b"/" + tail):
            return _walk(pid, base, raw, follow=True)
        return os.path.join(os.readlink(base), tail)
    try:
        descriptor = _open_directory(base, head or b".")
    except OSError as error:
        if error.errno not in _WALKED:
            raise
        return _walk(pid, base, raw, follow=follow)
    try:
        if follow and _is_link(tail, descriptor):
            return _walk(pid, base, raw, follow=True)
        return os.path.join(_path(descriptor), tail)
    finally:
        os.close(descriptor)


def _open_directory(base: bytes, head: bytes) -> int:
    descriptor = os.open(base, os.O_PATH | os.O_CLOEXEC)
    try:
        return kernel.call("openat2", descriptor, head, _HOW, len(_HOW))
    finally:
        os.close(descriptor)


def _walk(pid: int, base: bytes, raw: bytes, *, follow: bool) -> bytes:
    pending = raw.split(b"/")[::-1]
    at = os.open(base, os.O_PATH | os.O_CLOEXEC)
    links = 0
    try:
        while pending:
            name = pending.pop()
            if name in (b"", b"."):
                continue
            if name in (b"self", b"thread-self") and _path(at) == b"/proc":
                # Our own /proc: in that of another namespace it has another number, and to us
                # this link leads nowhere.
                at = _replaced(at, os.open(b"/proc/%d" % pid, _STEP))
                continue
            target = None if name == b".." else _target(name, at)
            if target is None or (not pending and not follow):
                if not pending and name != b"..":
                    return os.path.join(_path(at), name)
                at = _replaced(at, os.open(name, _STEP, dir_fd=at))
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            here = _path(at)
            if here.startswith(b"/proc/"):  # a magic link, of the process that is named
                at = _replaced(at, os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=at))
            else:
                if target.startswith(b"/"):
                    at = _replaced(at, os.open(b"/proc/%d/root" % pid, _STEP & ~os.O_NOFOLLOW))
                pending += target.split(b"/")[::-1]
        return _path(at)
    finally:
        os.close(at)


_STEP = os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW


def _replaced(old: int, new: int) -> int:
    os.close(old)
    return new


def _target(name: bytes, directory: int) -> bytes | None:
    """The text of a link; None: it is none, or nothing is there."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _is_link(name: bytes, directory: int | None = None) -> bool:
    try:
        os.readlink(name, dir_fd=directory)
    except OSError:
        return False
    return True


def _path(descriptor: int) -> bytes:
    return os.readlink(b"/proc/self/fd/%d" % descriptor)
