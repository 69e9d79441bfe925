"""Placeholders for missing protected paths, so that a command cannot create them.

A mount needs an existing path. Therefore a missing protected path is created, empty, made read-only
for the command, and removed when no command needs it any more. All programs see it during that
time, so it must have no effect. Its mode identifies it.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import errno
import fcntl
import os

from callgate.sandbox import kernel

MODE = 0o1400
"""Mode of a placeholder file, which no program uses."""
DIRECTORY_MODE = 0o1555
"""Mode of a placeholder directory. Programs search it for settings, and must find none."""

_NO_SETTINGS = b"{}\n"
_CONTENTS = {
    "commondir": b".\n",
    "settings.json": _NO_SETTINGS,
    "settings.local.json": _NO_SETTINGS,
    "hooks.json": _NO_SETTINGS,
    "mcp.json": _NO_SETTINGS,
    "opencode.json": _NO_SETTINGS,
    "opencode.jsonc": _NO_SETTINGS,
}
"""Contents of placeholders that must not be empty. git ignores most empty files, but fails on an
empty `commondir`, so this one names the default. Agents fail on settings that are not JSON."""
_DETACH, _NO_LINK = 2, 8


def is_one(mode: int) -> bool:
    is_directory = mode & 0o170000 == 0o040000
    return mode & 0o7777 == (DIRECTORY_MODE if is_directory else MODE)


def is_empty(name: str, parent: int, facts: os.stat_result) -> bool:
    """Whether a file that looks like a placeholder is one: a command can use the same mode.
    `parent` is a descriptor of its directory."""
    if facts.st_mode & 0o170000 != 0o040000:
        return facts.st_size == len(_CONTENTS.get(name, b""))
    try:
        directory = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return False
    try:
        return not os.listdir(directory)
    finally:
        os.close(directory)


def hold(path: str, *, as_directory: bool) -> int | None:
    """Return a descriptor of a path, or of a placeholder, locked against its removal.

    None: the path is missing and we cannot create it, so the command cannot either.
    """
    while True:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            try:
                _make(path, as_directory)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                    return None
                raise
            continue
        except OSError:  # a link, a socket, or unreadable: not a placeholder
            return os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        if not is_one(os.fstat(descriptor).st_mode):
            return descriptor
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        try:
            if os.path.samestat(os.lstat(path), os.fstat(descriptor)):
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)  # its last user removed it before we had the lock


def release(path: str, descriptor: int, *, mounted: bool) -> None:
    """Remove a placeholder that no other command needs. `mounted`: we mounted it on itself."""
    try:
        if not is_one(os.fstat(descriptor).st_mode):
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if mounted:
            kernel.call("umount2", os.fsencode(path), _DETACH | _NO_LINK)
        if os.path.samestat(os.lstat(path), os.fstat(descriptor)):
            os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
    except OSError:
        pass  # another command uses it, or it is already gone
    finally:
        os.close(descriptor)


def _make(path: str, as_directory: bool) -> None:
    content = b"" if as_directory else _CONTENTS.get(os.path.basename(path), b"")
    temporary = f"{path}.callgate-{os.urandom(6).hex()}" if content else path
    try:
        if as_directory:
            os.mkdir(path, 0o700)
        else:
            file = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, content)
            finally:
                os.close(file)
        os.chmod(temporary, DIRECTORY_MODE if as_directory else MODE)
        if content:
            os.link(temporary, path)  # never visible without its content
    except FileExistsError:
        pass
    finally:
        if content and os.path.lexists(temporary):
            os.unlink(temporary)
