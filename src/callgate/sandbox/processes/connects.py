"""Connections of a command that callgate makes on its behalf: the keeper's part.

    connect() --stopped--> its own loopback, or no TCP?    performed here, on a copy of the socket
                           a socket from the runtime?      refused: it is connected
                           any other address               held; the runtime decides and connects
    runtime: a connected socket --> replaces the command's socket --> connect() returns 0
             an error number    --> connect() fails with it

The command has its own network namespace, but the sockets from the runtime do not belong to it. If
the command could disconnect one, it could reach any address with it, this machine's loopback
included. The kernel therefore never performs a stopped call itself: the command could change the
address or the descriptor after our check. The keeper connects a copy of the socket to the address
that it read. The call filter refuses `MSG_FASTOPEN`, which connects without this call.

A command without its own network namespace makes no connection itself: its filter permits sockets
for outgoing TCP alone, and the runtime decides about every address, the loopback included.

The new socket has the mode (blocking or not), the options and the close-on-exec flag of the one
that it replaces. A nonblocking connect waits, too, and then has succeeded. Servers on Unix sockets
see the keeper's process number.
The broker imports this: no msgspec.
"""

from __future__ import annotations

import _socket
import _thread
import errno
import os
import socket
import struct
import sys

from callgate.sandbox import kernel
from callgate.sandbox.processes import locations
from callgate.sandbox.processes.supervisor import failure, result

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.sandbox.processes.supervisor import Answer, Call, Handler, Supervisor

WANTED = struct.Struct("<BQH16s?")
"""Kind of the message, id of the call, port, address (IPv4 as mapped), and whether the socket is
one for IPv6; then the program."""
REPLY = struct.Struct("<cQi")
"""A mark, the id, and an error number; if that is 0, the connected socket comes with it."""
CONNECTED = b"c"
MOST_HELD = 256
LONGEST_PROGRAM = 255
WANTS, KEPT_OUT = 7, 8
"""The kinds of messages about connections; `watch` has the others. KEPT_OUT has the form of WANTS,
and reports the refusal of a local service."""
_DOMAIN_NAMES = 53
_ANY, _INET, _INET6 = int(socket.AF_UNSPEC), int(socket.AF_INET), int(socket.AF_INET6)
_COOKIE_OF_THE_NETWORK = 71
"""SO_NETNS_COOKIE, since Linux 5.14."""
_PATH_AT = 2
MAPPED = b"\0" * 10 + b"\xff" * 2
_ADDRESS = struct.Struct("=H2s4s")
_ADDRESS_6 = struct.Struct("=H2s4s16s")
_LARGEST_ADDRESS = 128
_FLAGS_LINE = b"flags:"
_INHERITABLE_OPTIONS = (
    (int(socket.SOL_SOCKET), socket.SO_KEEPALIVE, 4),
    (int(socket.SOL_SOCKET), socket.SO_LINGER, 8),
    (int(socket.SOL_SOCKET), socket.SO_RCVTIMEO, 16),
    (int(socket.SOL_SOCKET), socket.SO_SNDTIMEO, 16),
    (int(socket.SOL_SOCKET), socket.SO_OOBINLINE, 4),
    (int(socket.IPPROTO_TCP), socket.TCP_NODELAY, 4),
    (int(socket.IPPROTO_TCP), socket.TCP_KEEPIDLE, 4),
    (int(socket.IPPROTO_TCP), socket.TCP_KEEPINTVL, 4),
    (int(socket.IPPROTO_TCP), socket.TCP_KEEPCNT, 4),
    (int(socket.IPPROTO_TCP), socket.TCP_USER_TIMEOUT, 4),
)
_STREAM, _DATAGRAM = int(socket.SOCK_STREAM), int(socket.SOCK_DGRAM)
_UNIX = int(socket.AF_UNIX)


class _Held:
    """A stopped call: the descriptor's number, its flags, and a copy of its socket.

    The copy is None if a container permits none; the options of the socket are then lost."""

    def __init__(self, number: int, flags: int, copy: _socket.socket | None) -> None:
        self.number = number
        self.flags = flags
        self.copy = copy

    def close(self) -> None:
        if self.copy is not None:
            self.copy.close()


class Connects:
    """The entries of the supervisor's table for one command. `send` sends the runtime a message.
    `isolated`: the command has its own network namespace."""

    def __init__(self, send: Callable[[bytes], bool], *, isolated: bool = True) -> None:
        self.supervisor: Supervisor | None = None
        """Answers held calls; None after its end."""
        self._send = send
        self._isolated = isolated
        with socket.socket(socket.AF_UNIX) as ours:
            self._network = _network(ours)
        self._held: dict[int, _Held] = {}
        self._waiting = 0

    def handlers(self) -> dict[int, Handler]:
        return {kernel.NUMBERS[kernel.machine()]["connect"]: self._handle}

    def _handle(self, call: Call) -> Answer | None:
        raw = address_of(call)
        if not self._isolated:
            return self._leave(call, raw)
        copy: _socket.socket | None = copy_of(call.pid, call.arguments[0] & 0xFFFFFFFF)
        assert copy is not None
        try:
            call.still_waits()
            if self._is_from_outside(copy, raw):
                return failure(errno.EOPNOTSUPP if _family(raw) == _ANY else errno.EISCONN)
            found = read_address(raw)
            if found is None or not _is_unconnected_tcp(copy) or is_own(*found):
                return self._perform(call, copy, raw)
            held_copy, copy = copy, None
            return self._hold(call, held_copy, held_copy.family == _INET6, *found)
        finally:
            if copy is not None:
                copy.close()

    def _leave(self, call: Call, raw: bytes) -> Answer | None:
        """Pass a connection to the runtime. Only the runtime may use this machine's network."""
        found = read_address(raw)
        if found is None:
            return failure(errno.EOPNOTSUPP if _family(raw) == _ANY else errno.EAFNOSUPPORT)
        number = call.arguments[0] & 0xFFFFFFFF
        try:
            copy = copy_of(call.pid, number)
        except PermissionError:  # a container without `pidfd_getfd`
            if not os.readlink(f"/proc/{call.pid}/fd/{number}").startswith("socket:"):
                return failure(errno.ENOTSOCK)
            return self._hold(call, None, _family(raw) == _INET6, *found)
        if not _is_unconnected_tcp(copy):
            number = errno.EISCONN if copy.family in (_INET, _INET6) else errno.EAFNOSUPPORT
            copy.close()
            return failure(number)
        return self._hold(call, copy, copy.family == _INET6, *found)

    def _is_from_outside(self, copy: _socket.socket, raw: bytes) -> bool:
        """Whether a socket is one that we gave the command."""
        network = _network(copy)
        if network is not None:
            return network != self._network
        # An older kernel: each connected socket may be one, and one that was reset looks unused.
        return copy.type == _STREAM and (_family(raw) == _ANY or _is_connected(copy))

    def _hold(
        self, call: Call, copy: _socket.socket | None, six: bool, address: bytes, port: int
    ) -> Answer | None:
        number = call.arguments[0] & 0xFFFFFFFF
        waiting = _Held(number, _flags(call.pid, number), copy)
        if len(self._held) >= MOST_HELD:
            self._drop_ended()
        if len(self._held) >= MOST_HELD:
            waiting.close()
            return failure(errno.EAGAIN)
        call.still_waits()
        program = os.fsencode(_program(call.pid))[-LONGEST_PROGRAM:]
        self._held[call.id] = waiting
        wanted = WANTED.pack(WANTS, call.id, port, address, six)
        if not self._send(wanted + program):
            waiting.close()
            del self._held[call.id]
            return failure(errno.EAGAIN)
        return None

    def _perform(self, call: Call, copy: _socket.socket, raw: bytes) -> Answer | None:
        """Connect a socket inside the network of the command, as the kernel would."""
        target = -1
        if copy.family == _UNIX and raw[_PATH_AT:][:1] not in (b"", b"\0"):
            target = locations.open_path(call.pid, raw[_PATH_AT:].partition(b"\0")[0])
            raw = raw[:_PATH_AT] + b"/proc/self/fd/%d\0" % target
        if not os.get_blocking(copy.fileno()) or copy.type == _DATAGRAM:
            return _ended(_connect(_dup(copy), raw, target))
        if self._waiting >= MOST_HELD:
            return failure(errno.EAGAIN)
        self._waiting += 1
        _thread.start_new_thread(self._wait, (call.id, _dup(copy), raw, target))
        return None

    def _wait(self, id: int, copy: _socket.socket, raw: bytes, target: int) -> None:
        """Connect in a thread, because this may wait for a server of the command."""
        answer = _ended(_connect(copy, raw, target))
        self._waiting -= 1
        if self.supervisor is not None:
            self.supervisor.answer(id, answer)

    def _drop_ended(self) -> None:
        """Forget held calls whose process has ended."""
        supervisor = self.supervisor
        for id in list(self._held):
            if supervisor is None or not supervisor.is_waiting(id):
                self._held.pop(id).close()

    def finish(self, message: bytes, descriptors: list[int]) -> None:
        """Answer a held call with the runtime's result."""
        supervisor = self.supervisor
        _, id, number = REPLY.unpack(message)
        waiting = self._held.pop(id, None)
        try:
            if waiting is None or supervisor is None:
                return
            if not number and not descriptors:
                number = errno.ECONNABORTED
            if number:
                supervisor.answer(id, failure(number))
                return
            cloexec = bool(waiting.flags & os.O_CLOEXEC)
            new = _socket.socket(fileno=descriptors.pop())
            try:
                _match(waiting, new)
                supervisor.give(id, new.fileno(), at=waiting.number, cloexec=cloexec)
            except OSError as error:  # the process ended, or may not have the descriptor
                supervisor.answer(id, failure(error.errno))
                return
            finally:
                new.close()
            supervisor.answer(id, result())
        finally:
            if waiting is not None:
                waiting.close()
            for descriptor in descriptors:
                os.close(descriptor)


def address_of(call: Call) -> bytes:
    """Return the address of a call. Raises OSError like the call itself."""
    size = call.arguments[2] & 0xFFFFFFFF
    if size > _LARGEST_ADDRESS:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    raw = call.memory(call.arguments[1], size) if size else b""
    if len(raw) < size:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    return raw


def _connect(copy: _socket.socket, raw: bytes, target: int) -> int:
    """Connect a socket, close our descriptors, and return the error number."""
    try:
        while True:
            try:
                kernel.call("connect", copy.fileno(), raw, len(raw))
                return 0
            except OSError as error:
                if error.errno != errno.EINTR:
                    return error.errno or errno.EPERM
    finally:
        copy.close()
        if target >= 0:
            os.close(target)


def _ended(number: int) -> Answer:
    return failure(number) if number else result()


def _network(each: _socket.socket) -> int | None:
    """Return the cookie of a network namespace; None if the kernel has none."""
    try:
        value = each.getsockopt(socket.SOL_SOCKET, _COOKIE_OF_THE_NETWORK, 8)
    except OSError:
        return None
    return int.from_bytes(value, sys.byteorder)


def _family(raw: bytes) -> int | None:
    return int.from_bytes(raw[:2], sys.byteorder) if len(raw) >= 2 else None


def read_address(raw: bytes) -> tuple[bytes, int] | None:
    """Return address and port; None if it is not a complete internet address."""
    family = _family(raw)
    if family == _INET and len(raw) >= _ADDRESS.size:
        _, port, address = _ADDRESS.unpack_from(raw)
        return MAPPED + address, int.from_bytes(port)
    if family == _INET6 and len(raw) >= _ADDRESS_6.size:
        _, port, _, address = _ADDRESS_6.unpack_from(raw)
        return address, int.from_bytes(port)
    return None


def is_own(address: bytes, port: int) -> bool:
    """Whether an address is in the command's own network: its loopback, or the empty address.
    Name servers are not."""
    if port == _DOMAIN_NAMES:
        return False
    if address.startswith(MAPPED):
        return address[12] == 127 or address[12:] == b"\0" * 4
    return address in (b"\0" * 16, b"\0" * 15 + b"\1")


def copy_of(pid: int, number: int) -> _socket.socket:
    """Return our own descriptor of a socket of another process."""
    try:
        process = os.pidfd_open(pid)
    except OSError:  # a thread that is not the first one of its process
        process = os.pidfd_open(_first_thread(pid))
    try:
        descriptor = kernel.call("pidfd_getfd", process, number, 0)
    finally:
        os.close(process)
    try:
        return _socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise


def _dup(copy: _socket.socket) -> _socket.socket:
    return _socket.socket(fileno=os.dup(copy.fileno()))


def _first_thread(thread: int) -> int:
    with open(f"/proc/{thread}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Tgid:"))


def _is_unconnected_tcp(copy: _socket.socket) -> bool:
    if copy.family not in (_INET, _INET6) or copy.type != _STREAM:
        return False
    if copy.getsockopt(_socket.SOL_SOCKET, _socket.SO_ACCEPTCONN):
        return False
    return not _is_connected(copy)


def _is_connected(copy: _socket.socket) -> bool:
    try:
        copy.getpeername()
    except OSError:
        return False
    return True


def _flags(pid: int, number: int) -> int:
    file = os.open(f"/proc/{pid}/fdinfo/{number}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(file, 256)
    finally:
        os.close(file)
    return int(text[text.index(_FLAGS_LINE) + len(_FLAGS_LINE) :].split(None, 1)[0], 8)


def _program(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def _match(waiting: _Held, new: _socket.socket) -> None:
    """Copy the mode and the options of the replaced socket to the new one."""
    old = waiting.copy
    if old is None:
        new.setblocking(not waiting.flags & os.O_NONBLOCK)
        return
    new.setblocking(os.get_blocking(old.fileno()))
    if new.family not in (_INET, _INET6):
        return
    for level, name, size in _INHERITABLE_OPTIONS:
        try:
            value = old.getsockopt(level, name, size)
            if value != new.getsockopt(level, name, size):
                new.setsockopt(level, name, value)
        except OSError:
            continue  # the kernel does not support it for this kind
