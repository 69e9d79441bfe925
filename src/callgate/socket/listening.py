"""Listening sockets: a local one that only its owner reaches, or TCP for HTTP.

    directory 0700, created first -> lock -> probe the existing path -> bind under umask 077

The lock is a file next to the socket, locked while the socket is served: if two processes start
concurrently, one of them gets it. An existing path is removed only if it is a socket without a
listener.

Few connections are accepted per iteration of the loop, and none while no file can be opened.
asyncio's own servers listen with a queue of 100, accept the whole queue in one iteration, and log a
traceback for each connection if there is no free descriptor.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import ipaddress
import logging
import os
import resource
import select
import socket
import stat
import tempfile
from collections.abc import Callable
from typing import NamedTuple, Protocol

from callgate.core.local.disk import ensure_excludes, make_private_directory, try_lock, unlocked
from callgate.core.stores import StoreUnlocked
from callgate.core.tasks import TaskSet

BACKLOG = 512
"""Length of the system's queue of connections that are not accepted yet."""
_MOST_AT_ONCE = 16
_RETRY_S = 1.0
"""Pause after the system had no resources for another connection."""
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger("callgate.surfaces")


class Listening(Protocol):
    """A bound, listening, non-blocking socket."""

    def fileno(self) -> int: ...

    def accept(self) -> tuple[socket.socket, object]: ...

    def close(self) -> None: ...


class Acceptor:
    def __init__(
        self,
        listening: Listening,
        factory: Callable[[], asyncio.BaseProtocol],
        *,
        retry_s: float = _RETRY_S,
    ) -> None:
        self._listening = listening
        self._factory = factory
        self._retry_s = retry_s
        self._retry: asyncio.TimerHandle | None = None
        self._is_full = False
        """Whether the last attempt failed."""
        self._tasks = TaskSet(_log, "a connection could not be set up")

    def start(self) -> None:
        self._retry = None
        asyncio.get_running_loop().add_reader(self._listening.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting, and close the listening socket. Idempotent."""
        if self._retry is not None:
            self._retry.cancel()
        elif self._listening.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listening.fileno())
        self._listening.close()

    def _accept(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            self._is_full = False
            connection.setblocking(False)
            self._connect(connection)

    def _pause(self, error: OSError) -> None:
        """Pause accepting. Peers stay in the queue, and would otherwise wake the loop
        constantly.
        """
        if not self._is_full:
            self._is_full = True
            effect = "peers wait" if error.errno in _NO_ROOM else "no peer was accepted"
            _log.error("%s: %s", effect, error.strerror or error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening.fileno())
        self._retry = loop.call_later(self._retry_s, self.start)

    def _connect(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._tasks.start(loop.connect_accepted_socket(self._factory, connection))


USUAL_HOST = "127.0.0.1"
USUAL_PORT = 4177


class BadAddress(ValueError):
    """An address at which callgate cannot, or must not, listen. `str` is safe to show."""


class Address(NamedTuple):
    host: str
    """Without brackets."""
    port: int

    @property
    def written(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        found = _ip(self.host)
        return found is not None and found.is_loopback

    @property
    def is_any(self) -> bool:
        found = _ip(self.host)
        return found is not None and found.is_unspecified


def read_address(text: str, *, allow_remote: bool) -> Address:
    """Parse an address such as `127.0.0.1:4177` or `[::1]:0`. Raises `BadAddress`."""
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_bracketed else host
    is_ipv6 = isinstance(_ip(host), ipaddress.IPv6Address)
    if not colon or not host or is_bracketed != is_ipv6 or not set("[]@/").isdisjoint(host):
        raise BadAddress(f"{text!r} is not HOST:PORT, such as {USUAL_HOST}:{USUAL_PORT}")
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 65_536):
        raise BadAddress(f"{port!r} is not a port")
    address = Address(host.lower(), int(port))
    if not address.is_local and not allow_remote:
        raise BadAddress(
            f"{text} can be reached from other machines, where only the token would protect it"
        )
    return address


def bind(address: Address) -> socket.socket:
    """Return a listening socket. Raises `BadAddress`."""
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, where = found[0]
        listening = socket.socket(family, kind, protocol)  # asyncio recognizes TCP by these
    except (OSError, UnicodeError) as error:
        raise BadAddress(f"{address.written} is not an address of this machine: {error}") from error
    try:
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        detail = error.strerror or str(error)
        raise BadAddress(f"callgate cannot listen at {address.written}: {detail}") from error
    return listening


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_ip(host: str) -> bool:
    return _ip(host) is not None


_LONGEST = 107
"""Maximum bytes of a socket path."""

_MOST_FILES = 65_536
_HANDED_OVER = 3
"""The first descriptor of a passed socket, by systemd's convention."""


class CannotListen(Exception):
    """A socket cannot be created; the message is safe to show."""


class Listener:
    """A bound, listening socket, and the lock that protects its path."""

    def __init__(self, path: str, listening: socket.socket, lock: int | None) -> None:
        """Without a lock the socket belongs to the parent process, which passed it."""
        self.path = path
        self.socket = listening
        self._lock = lock
        self._file = os.lstat(path)

    @property
    def is_reachable(self) -> bool:
        """Whether the path still leads to this socket."""
        return _is_there(self.path, self._file)

    def close(self) -> None:
        """Stop listening, and remove the socket unless it was passed. Idempotent."""
        if self._lock is not None:
            _remove(self.path, self._file)
            _remove(_lock_path(self.path), os.fstat(self._lock))
        self._let_go()

    def renew(self) -> Listener:
        """Listen at the same path again, after the socket was removed. Raises `CannotListen`."""
        if self._lock is None:
            raise CannotListen(f"{self.path} is gone, and only its creator can create it again")
        self._let_go()
        renewed = listen(self.path)
        # Clients compare its time with the settings that the instance has read.
        os.utime(self.path, ns=(self._file.st_atime_ns, self._file.st_mtime_ns))
        return renewed

    def _let_go(self) -> None:
        self.socket.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def listen(path: str) -> Listener:
    """Listen at a path. Raises `CannotListen` if that is impossible or unsafe."""
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
    """Raise the limit of open files, for as many connections as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, _MOST_FILES) if hard != resource.RLIM_INFINITY else _MOST_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def file_limit() -> int:
    """Return the limit of open files, capped at a sufficient number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else min(soft, _MOST_FILES)


def handed_over() -> Listener | None:
    """Return the listening socket that the parent process passed (`LISTEN_FDS`)."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    count = os.environ.pop("LISTEN_FDS", "")
    for name in ("LISTEN_PID", "LISTEN_FDNAMES"):  # not for child processes
        os.environ.pop(name, None)
    if count != "1":
        raise CannotListen(f"exactly one socket must be passed, not {count or 'none'}")
    os.set_inheritable(_HANDED_OVER, False)
    try:
        handed = socket.socket(fileno=_HANDED_OVER)
        listening = handed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise CannotListen(f"the passed descriptor is not a socket: {error.strerror}") from error
    path = handed.getsockname()
    kind = handed.family, handed.type & socket.SOCK_STREAM
    if not listening or kind != (socket.AF_UNIX, socket.SOCK_STREAM) or not isinstance(path, str):
        raise CannotListen("the passed descriptor is not a listening local socket with a path")
    if os.lstat(path).st_mode & 0o077:
        raise CannotListen(f"{path} is open to others: SocketMode=0600 is needed")
    handed.setblocking(False)
    return Listener(path, handed, None)


def fitting(path: str) -> str:
    """Return the path, or a short alternative if it is too long for a socket."""
    if len(os.fsencode(path)) <= _LONGEST:
        return path
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return os.path.join(base, f"callgate-{os.getuid()}", f"{name}.sock")


def has_hung_up(connection: socket.socket) -> bool:
    """Whether the other end has closed the connection, and is not only silent."""
    looking = select.poll()
    looking.register(connection.fileno(), 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in looking.poll(0))


def _make_directory(directory: str) -> None:
    try:
        make_private_directory(directory)
        status = os.lstat(directory)
    except OSError as error:
        raise CannotListen(f"{directory} cannot be created: {error.strerror}") from error
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
    """Remove a file of this process; a file that has replaced it stays."""
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
    """Take the lock; False if its file was removed in between. Raises `CannotListen`."""
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
    """Remove the socket of a dead process. Raises `CannotListen` for any other file."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise CannotListen(f"{path} exists and is not a socket")
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
        raise CannotListen(f"{path} cannot be created: {error.strerror}") from error
    finally:
        os.umask(before)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener
