"""Namespaces of one command: mounts, processes, network and users.

    begin()    fork this process as the first one of new namespaces (raw clone)
    enter()    in the child: map the user, lay out the file system, raise the loopback
    listen()   a socket in its network, served from outside
    release_placeholders()   remove the placeholders from the disk

The layout, from the bottom up:

    /                 the real one, read-only (unless all is writable)
    /dev /proc /tmp   new: harmless devices, own processes read-only, empty
    opaque paths      empty, read-only, except for readable roots and links in them
    writable roots    their state before all turned read-only, or their replacements
    protected paths   themselves, read-only, mounted on themselves
    hidden paths      empty, read-only, except for revealed paths in them; protected and other
                      hidden paths in those come afterwards, or the mount would cover them

Renaming a parent directory cannot remove a protected path: each directory between it and its
root is a separate mount, and mounts cannot be renamed. Missing parts of the path are created
(`placeholders`); `release_placeholders` removes them after their last use. A symbolic link on the
way cannot be protected, and ends the start with ELOOP.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import struct

from callgate.sandbox import kernel
from callgate.sandbox.backends import placeholders

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from collections.abc import Iterable

    from callgate.sandbox.backends.cgroups import Group
    from callgate.sandbox.orders import Layout

_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000

_AT_FDCWD, _AT_NOFOLLOW, _AT_EMPTY, _AT_RECURSIVE = -100, 0x100, 0x1000, 0x8000
_TREE_CLONE = 1
_FROM_FD, _TO_FD = 0x4, 0x40
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REC, _PRIVATE = 1, 2, 4, 8, 1 << 14, 1 << 18

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_TMP = "/tmp"  # noqa: S108 the place itself, to put another one on it
_TMP_SIZE = "size=1g,nr_inodes=1m"
_OPAQUE_SIZE = "size=1m,nr_inodes=10k"
_SIOCSIFFLAGS, _UP_AND_RUNNING = 0x8914, 0x41
_BACKLOG = 128


def begin(own_network: bool, group: Group | None = None) -> int:
    """Fork like `os.fork`, with the child as process 1 of new namespaces. Single-threaded only."""
    flags = _NEWUSER | _NEWNS | _NEWPID | _NEWIPC | _NEWUTS | _NEWCGROUP
    if own_network:
        flags |= _NEWNET
    if group is not None:
        return group.fork(flags)
    return kernel.call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)


def enter(layout: Layout, user: int, group: int) -> dict[str, int]:
    """Lay out the namespaces. Returns the input of `release_placeholders`.

    `user` and `group` are our ids outside.
    """
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")
    _mount("none", "/", None, _REC | _PRIVATE)
    if "stand_in" in layout:
        _stand_in(*layout["stand_in"])
    roots = sorted({*layout["writable"], *layout["readable"]} - {"/"}, key=_depth)
    sources = layout.get("replacements", {})
    clones = {
        path: clone for path in roots if (clone := _clone(sources.get(path, path))) is not None
    }
    for path in set(clones).difference(layout["writable"]):
        _make_read_only(clones[path])
    revealed = {path: clone for path in layout["revealed"] if (clone := _clone(path)) is not None}
    for path in set(revealed).difference(layout["writable"]):
        _make_read_only(revealed[path])
    if "/" not in layout["writable"]:
        _make_read_only(_AT_FDCWD, "/")
    elif (kernel_settings := _clone("/sys")) is not None:  # root could write without a capability
        _make_read_only(kernel_settings)
        _attach(kernel_settings, os.open("/sys", os.O_PATH | os.O_CLOEXEC))
    _fill_dev()
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC | _RDONLY)
    if layout["fresh_tmp"]:
        _mount("tmpfs", _TMP, "tmpfs", _NOSUID | _NODEV, f"mode=1777,{_TMP_SIZE}")
    empty = [path for path in layout["opaque"] if os.path.isdir(path)]
    for path in empty:
        _mount("tmpfs", path, "tmpfs", _NOSUID | _NODEV, f"mode=755,{_OPAQUE_SIZE}")
    fresh = (*empty, *((_TMP,) if layout["fresh_tmp"] else ()))
    for path in roots:
        if path in clones:
            if path.startswith(tuple(f"{parent}/" for parent in fresh)):
                _make_place(path, clones[path])
            _attach(clones[path], os.open(path, os.O_PATH | os.O_CLOEXEC))
    for path, target in layout["links"]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    for path in empty:
        _make_read_only(_AT_FDCWD, path, alone=True)
    placeholder_fds: dict[str, int] = {}
    try:
        _cover(layout, revealed, placeholder_fds)
    except OSError:
        release_placeholders(placeholder_fds)
        raise
    if layout["own_network"]:
        _raise_loopback()
    return placeholder_fds


def listen(layout: Layout) -> socket.socket | None:
    """Return the listening socket of our proxy. A socket stays in the network of its creation."""
    if "proxy" not in layout:
        return None
    return socket.create_server(("127.0.0.1", layout["proxy"]), backlog=_BACKLOG)


def release_placeholders(placeholder_fds: dict[str, int], *, mounted: bool = True) -> None:
    """Remove the placeholders that no other command needs. Process 1 calls it at the very end."""
    for path, descriptor in reversed(placeholder_fds.items()):
        placeholders.release(path, descriptor, mounted=mounted)


# --- protected and hidden paths -------------------------------------------------------------


def _cover(layout: Layout, revealed: dict[str, int], placeholder_fds: dict[str, int]) -> None:
    """Protect and hide paths. `revealed` are clones of the visible paths in hidden directories."""
    pinned: set[str] = set()
    in_revealed = tuple(f"{path}/" for path in revealed)
    protected = sorted(layout["protected"], key=_depth)
    around = [path for path in layout["hidden"] if _inside(path, revealed)]
    for path in protected:
        if not path.startswith(in_revealed):
            _protect(path, _root_of(path, layout["writable"]), placeholder_fds, pinned)
    for path in around:
        inside = {each: revealed.pop(each) for each in _inside(path, revealed)}
        if inside:
            _hide_around(path, inside)
    for path in protected:
        if path.startswith(in_revealed):
            _protect(path, _root_of(path, layout["writable"]), placeholder_fds, pinned)
    for path in layout["hidden"]:
        if path not in around:
            _hide(path)


def _inside(directory: str, paths: Iterable[str]) -> list[str]:
    return sorted((path for path in paths if path.startswith(directory + "/")), key=_depth)


def _protect(path: str, root: str, placeholder_fds: dict[str, int], pinned: set[str]) -> None:
    """Make `path` read-only, and every directory from `root` to it unmovable, once."""
    names = path[len(root.rstrip("/")) :].strip("/").split("/")
    entry = root
    for index, name in enumerate(names):
        entry = entry.rstrip("/") + "/" + name
        last = index == len(names) - 1
        if entry in placeholder_fds:
            return
        if entry in pinned:
            continue
        descriptor = placeholders.hold(entry, as_directory=not last)
        if descriptor is None:
            return
        mode = os.fstat(descriptor).st_mode
        kind = mode & 0o170000
        if kind == 0o120000:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), entry)
        clone = _clone(entry)
        if clone is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), entry)
        final = last or kind != 0o040000 or placeholders.is_one(mode)
        if final:
            _make_read_only(clone)
            placeholder_fds[entry] = descriptor
        else:
            os.close(descriptor)
            pinned.add(entry)
        _attach(clone, os.open(entry, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW))
        if final:
            return


def _root_of(path: str, roots: list[str]) -> str:
    """Return the innermost writable root around a path."""
    inside = [root for root in roots if path.startswith(root.rstrip("/") + "/")]
    return max(inside, key=len)


# --- substitutes ----------------------------------------------------------------------------


def _stand_in(target: str, other: str, work: str) -> None:
    """Mount another directory in the place of one, or an overlay that stores its changes there.

    The overlay's options contain descriptors, because paths may contain its separators. An overlay
    covers one file system: mounts below the target are not part of it, which the caller must
    consider.
    """
    if not work:
        clone = _clone(other)
        if clone is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), other)
        _attach(clone, os.open(target, os.O_PATH | os.O_CLOEXEC))
        return
    descriptors = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (target, other, work)]
    lower, upper, working = (f"/proc/self/fd/{descriptor}" for descriptor in descriptors)
    options = f"lowerdir={lower},upperdir={upper},workdir={working},userxattr"
    _mount("overlay", target, "overlay", _NOSUID | _NODEV, options)
    for descriptor in descriptors:
        os.close(descriptor)


# --- single hidden paths, devices, network --------------------------------------------------


def _hide(path: str) -> None:
    """Cover a path with an empty file or directory. A missing path needs no cover."""
    try:
        mode = os.lstat(path).st_mode & 0o170000
    except OSError:
        return
    if mode == 0o040000:
        _mount("tmpfs", path, "tmpfs", _NOSUID | _NODEV | _NOEXEC | _RDONLY, "mode=0,size=4k")
    else:
        clone = _clone("/dev/hidden")
        assert clone is not None
        _make_read_only(clone)
        _attach(clone, os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW))


def _hide_around(path: str, clones: dict[str, int]) -> None:
    """Cover a directory, except for these clones at their paths."""
    _mount("tmpfs", path, "tmpfs", _NOSUID | _NODEV | _NOEXEC, f"mode=711,{_OPAQUE_SIZE}")
    for each, clone in clones.items():
        _make_place(each, clone)
        _attach(clone, os.open(each, os.O_PATH | os.O_CLOEXEC))
    _make_read_only(_AT_FDCWD, path, alone=True)


def _fill_dev() -> None:
    """Create a /dev without disks, memory, or terminals of other processes."""
    nodes = {name: _clone(f"/dev/{name}") for name in _DEVICES}
    _mount("tmpfs", "/dev", "tmpfs", _NOSUID, "mode=755,size=64m")
    for name, clone in nodes.items():
        if clone is not None:
            os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
            _attach(clone, os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC))
    for name, target in _LINKS.items():
        os.symlink(target, f"/dev/{name}")
    os.close(os.open("/dev/hidden", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0))
    os.mkdir("/dev/shm")  # noqa: S108
    os.mkdir("/dev/pts")
    options = "newinstance,ptmxmode=0666,mode=620"
    _mount("devpts", "/dev/pts", "devpts", _NOSUID | _NOEXEC, options)
    _make_read_only(_AT_FDCWD, "/dev")
    _mount("tmpfs", "/dev/shm", "tmpfs", _NOSUID | _NODEV, f"mode=1777,{_TMP_SIZE}")  # noqa: S108


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        request = struct.pack("16sh22x", b"lo", _UP_AND_RUNNING)
        fcntl.ioctl(any_socket.fileno(), _SIOCSIFFLAGS, request)


# --- single steps ---------------------------------------------------------------------------


def _clone(path: str) -> int | None:
    """Return a detached copy of a path with all its mounts; None if it is missing."""
    flags = _TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE | _AT_NOFOLLOW
    try:
        return kernel.call("open_tree", _AT_FDCWD, os.fsencode(path), flags)
    except FileNotFoundError:
        return None


def _attach(clone: int, target: int) -> None:
    kernel.call("move_mount", clone, b"", target, b"", _FROM_FD | _TO_FD)
    os.close(clone)
    os.close(target)


def _make_place(path: str, clone: int) -> None:
    """Create a mount point of the same kind for a clone."""
    is_directory = os.fstat(clone).st_mode & 0o170000 == 0o040000
    os.makedirs(path if is_directory else os.path.dirname(path), exist_ok=True)
    if not is_directory and not os.path.lexists(path):
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _make_read_only(mount: int, path: str = "", *, alone: bool = False) -> None:
    """Make a mount read-only. `alone`: without the mounts below it."""
    attributes = struct.pack("=4Q", _RDONLY, 0, 0, 0)
    flags = (0 if alone else _AT_RECURSIVE) | (0 if path else _AT_EMPTY)
    kernel.call("mount_setattr", mount, os.fsencode(path), flags, attributes, len(attributes))


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    kernel.call(
        "mount",
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        flags,
        options.encode(),
    )


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _depth(path: str) -> tuple[int, str]:
    return path.count("/"), path
