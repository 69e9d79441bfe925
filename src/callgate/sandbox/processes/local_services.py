"""Connections of a command with the whole network: all but those to local services of others.

    connect() --stopped--> TCP to the loopback? --no--> performed here, on a copy of the socket
                                | yes
                                +--> a listed service, or one of the command itself? performed
                                +--> any other: refused, and reported to the runtime

The kernel never performs a stopped call itself, because the command could change the address after
the check. Name servers (port 53) count as part of the network. UDP is not checked.

A service belongs to the command if all sockets that listen on its port belong to processes of the
command. The broker imports this: no msgspec.
"""

from __future__ import annotations

import errno
import os
import socket

from callgate.sandbox.processes import connects
from callgate.sandbox.processes.connects import Connects
from callgate.sandbox.processes.supervisor import failure

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable, Collection

    from callgate.sandbox.processes.supervisor import Answer, Call

_TABLES = ("tcp", "tcp6")
_LISTENS = "0A"
_SOCKET = "socket:["


class LocalServices(Connects):
    """The entries of the supervisor's table for one command. `members` returns its processes."""

    def __init__(
        self,
        send: Callable[[bytes], bool],
        services: list[tuple[bytes, int]],
        members: Callable[[], Collection[int]],
    ) -> None:
        super().__init__(send)
        self._services = frozenset(services)
        self._members = members

    def _handle(self, call: Call) -> Answer | None:
        raw = connects.address_of(call)
        copy = connects.copy_of(call.pid, call.arguments[0] & 0xFFFFFFFF)
        try:
            call.still_waits()
            if self._is_foreign(copy, raw):
                self._report(call.pid, raw)
                return failure(errno.ECONNREFUSED)
            return self._perform(call, copy, raw)
        finally:
            copy.close()

    def _is_foreign(self, copy: _socket.socket, raw: bytes) -> bool:
        """Whether a connection leads to a local service of another program."""
        found = connects.read_address(raw)
        if found is None or not connects.is_own(*found):
            return False
        if copy.type == int(socket.SOCK_DGRAM):
            return False
        address, port = found
        if not self._services.isdisjoint(((b"", port), (address, port))):
            return False
        return not self._is_of_command(port)

    def _is_of_command(self, port: int) -> bool:
        listening = _listening(port)
        if not listening:
            return False
        for pid in self._members():
            listening -= _sockets(pid)
            if not listening:
                return True
        return False

    def _report(self, pid: int, raw: bytes) -> None:
        found = connects.read_address(raw)
        if found is not None:
            address, port = found
            self._send(connects.WANTED.pack(connects.KEPT_OUT, 0, port, address, False))


def mapped(address: str) -> bytes:
    """Return the 16 bytes of an address, an IPv4 one as mapped."""
    if ":" in address:
        return socket.inet_pton(socket.AF_INET6, address)
    return connects.MAPPED + socket.inet_aton(address)


def _listening(port: int) -> set[str]:
    """Return the sockets of this network that listen on a port, by number."""
    found = set()
    for table in _TABLES:
        try:
            with open(f"/proc/thread-self/net/{table}", encoding="ascii") as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                found.add(words[9])
    return found


def _sockets(pid: int) -> set[str]:
    """Return the numbers of the sockets that a process has open."""
    found = set()
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    target = os.readlink(entry.path)
                except OSError:
                    continue
                if target.startswith(_SOCKET):
                    found.add(target[len(_SOCKET) : -1])
    except OSError:
        pass  # it has ended
    return found
