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
import resource
import select
import socket
import stat
import tempfile

from callgate.core.directories import make_private_directory
from callgate.core.disk.file_locks import ensure_excludes, try_lock, unlocked
from callgate.core.stores import StoreUnlocked
from callgate.surfaces.accepting import BACKLOG

_LONGEST = 107
"""Bytes of a path that the system takes for a socket."""

_MOST_FILES = 65_536
_HANDED_OVER = 3
"""The descriptor of the first socket that comes with a process, by systemd's convention."""


class CannotListen(Exception):
    """Why there is no socket; safe to show."""


class Listener:
    """A bound, listening socket and the lock that says it is ours."""

    def __init__(self, path: str, listening: socket.socket, lock: int | None) -> None:
        """Without a lock it is somebody else's, who started us to serve it."""
        self.path = path
        self.socket = listening
        self._lock = lock
        self._file = os.lstat(path)

    @property
    def is_reachable(self) -> bool:
        """Whether the path still leads here."""
        return _is_there(self.path, self._file)

    def close(self) -> None:
        """Stop listening, and remove the socket if it is ours. Idempotent."""
        if self._lock is not None:
            _remove(self.path, self._file)
            _remove(_lock_path(self.path), os.fstat(self._lock))
        self._let_go()

    def renew(self) -> Listener:
        """Listen at the same path once more, whose socket is gone. Raises `CannotListen`."""
        if self._lock is None:
            raise CannotListen(f"{self.path} is gone, and whoever started us made it")
        self._let_go()
        renewed = listen(self.path)
        # By its age a client knows which settings the instance has read.
        os.utime(self.path, ns=(self._file.st_atime_ns, self._file.st_mtime_ns))
        return renewed

    def _let_go(self) -> None:
        self.socket.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


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


def expect_many() -> None:
    """Be able to hold as many connections as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, _MOST_FILES) if hard != resource.RLIM_INFINITY else _MOST_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def file_limit() -> int:
    """How many files this process may open, or more than it will ever need."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else min(soft, _MOST_FILES)


def handed_over() -> Listener | None:
    """The socket that whoever started us listens at already (`LISTEN_FDS`, as systemd does)."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    count = os.environ.pop("LISTEN_FDS", "")
    for name in ("LISTEN_PID", "LISTEN_FDNAMES"):  # meant for us, not for what we start
        os.environ.pop(name, None)
    if count != "1":
        raise CannotListen(f"one socket is to be handed over, not {count or 'none'}")
    os.set_inheritable(_HANDED_OVER, False)
    try:
        handed = socket.socket(fileno=_HANDED_OVER)
        listening = handed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise CannotListen(f"what was handed over is no socket: {error.strerror}") from error
    path = handed.getsockname()
    kind = handed.family, handed.type & socket.SOCK_STREAM
    if not listening or kind != (socket.AF_UNIX, socket.SOCK_STREAM) or not isinstance(path, str):
        raise CannotListen("what was handed over is not a listening local socket with a path")
    if os.lstat(path).st_mode & 0o077:
        raise CannotListen(f"{path} is open to others: SocketMode=0600 is needed")
    handed.setblocking(False)
    return Listener(path, handed, None)


def fitting(path: str) -> str:
    """The path, or where it is too long for a socket, a short one for the same purpose."""
    if len(os.fsencode(path)) <= _LONGEST:
        return path
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return os.path.join(base, f"callgate-{os.getuid()}", f"{name}.sock")


def has_hung_up(connection: socket.socket) -> bool:
    """Whether the other end is gone, and not only silent."""
    looking = select.poll()
    looking.register(connection.fileno(), 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in looking.poll(0))


def _make_directory(directory: str) -> None:
    try:
        make_private_directory(directory)
        status = os.lstat(directory)
    except OSError as error:
        raise CannotListen(f"{directory} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise CannotListen(f"{directory} is not a directory of yours")
    if status.st_mode & 0o077:
        raise CannotListen(f"{directory} is open to others: chmod 700 it first")


def _is_there(path: str, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.lstat(path), file)
    except OSError:
        return False


def _remove(path: str, file: os.stat_result) -> None:
    """Remove what is ours; whatever else lies there by now stays."""
    if _is_there(path, file):
        try:
            os.unlink(path)
        except OSError:
            pass


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
            if _has_lock(lock, path):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _has_lock(lock: int, path: str) -> bool:
    """Take the lock; False if its file was removed meanwhile. Raises `CannotListen`."""
    try:
        if not try_lock(lock, fcntl.LOCK_EX):
            raise CannotListen(f"another instance serves {path}")
        if not os.path.samestat(os.fstat(lock), os.stat(_lock_path(path))):
            return False
        ensure_excludes(lock, _lock_path(path))
    except FileNotFoundError:
        return False
    except StoreUnlocked as error:
        raise CannotListen(str(error)) from None
    except OSError as error:
        problem = unlocked(os.path.dirname(path), error)
        reason = problem or f"{path} cannot be locked: {error.strerror}"
        raise CannotListen(str(reason)) from error
    return True


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
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    except OSError as error:
        listener.close()
        raise CannotListen(f"{path} cannot be made: {error.strerror}") from error
    finally:
        os.umask(before)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener
