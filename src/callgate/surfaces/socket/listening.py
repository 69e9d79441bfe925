"""Making the socket: only its owner reaches it, and nobody's living socket is taken.

    directory 0700, made first -> lock -> probe what is there -> bind under umask 077

The lock is a file beside the socket, held for as long as it is served: of two who start at the
same moment one gets it. What lies at the path is removed only if it is a socket behind which
nobody answers.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import socket
import stat
import struct
import tempfile

BACKLOG = 512
_LONGEST = 107
"""Bytes of a path that the system takes for a socket."""


class CannotListen(Exception):
    """Why there is no socket; safe to show."""


class Listener:
    """A bound, listening socket and the lock that says it is ours."""

    def __init__(self, path: str, listening: socket.socket, lock: int) -> None:
        self.path = path
        self.socket = listening
        self._lock = lock

    def close(self) -> None:
        """Stop listening and remove the socket. Twice equals once."""
        if self._lock < 0:
            return
        self.socket.close()
        for path in (self.path, _lock_path(self.path)):
            try:
                os.unlink(path)
            except OSError:
                pass
        os.close(self._lock)
        self._lock = -1


def listen(path: str) -> Listener:
    """Listen at a path. `CannotListen` says why that is not possible or not safe."""
    path = os.path.abspath(path)
    if len(os.fsencode(path)) > _LONGEST:
        raise CannotListen(f"{path} is too long for a socket: at most {_LONGEST} bytes")
    _make_directory(os.path.dirname(path))
    lock = _take_lock(path)
    try:
        _clear(path)
        return Listener(path, _bind(path), lock)
    except BaseException:
        os.close(lock)
        raise


def fitting(path: str) -> str:
    """The path, or where it is too long for a socket, a short one for the same purpose."""
    if len(os.fsencode(path)) <= _LONGEST:
        return path
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return os.path.join(base, f"callgate-{os.getuid()}", f"{name}.sock")


def peer_uid(connection: socket.socket) -> int:
    """Who is at the other end, as the system knows it."""
    if hasattr(socket, "SO_PEERCRED"):
        size = struct.calcsize("3i")
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return int(struct.unpack("3i", told)[1])
    peercred, local = 0x001, 0  # LOCAL_PEERCRED at SOL_LOCAL: version, uid, ... (macOS)
    told = connection.getsockopt(local, peercred, 76)
    return int(struct.unpack_from("Ii", told)[1])


def _make_directory(directory: str) -> None:
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        status = os.lstat(directory)
    except OSError as error:
        raise CannotListen(f"{directory} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise CannotListen(f"{directory} is not a directory of yours")
    if status.st_mode & 0o077:
        raise CannotListen(f"{directory} is open to others: chmod 700 it first")


def _lock_path(path: str) -> str:
    return f"{path}.lock"


def _take_lock(path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        try:
            lock = os.open(_lock_path(path), flags, 0o600)
        except OSError as error:
            raise CannotListen(f"{path} cannot be locked: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise CannotListen(f"another instance serves {path}") from None
        try:  # whoever had it may have removed the file meanwhile
            if os.path.samestat(os.fstat(lock), os.stat(_lock_path(path))):
                return lock
        except FileNotFoundError:
            pass
        os.close(lock)


def _clear(path: str) -> None:
    """Remove the socket of a process that is gone; anything else stays where it is."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise CannotListen(f"{path} is there and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            if error.errno == errno.ENOENT:
                return
            raise CannotListen(f"{path} is in use: {error.strerror or error}") from error
    raise CannotListen(f"another instance serves {path}")


def _bind(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        made.bind(path)
    except OSError as error:
        made.close()
        raise CannotListen(f"{path} cannot be made: {error.strerror}") from error
    finally:
        os.umask(before)
    made.listen(BACKLOG)
    made.setblocking(False)
    return made
