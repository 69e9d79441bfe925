"""Connections of a command that callgate makes on its behalf, and a resolver for its names.

    address from the keeper --> port 53?               our resolver answers (below)
                            --> one of its addresses?  the name of that address
                            --> any other address      unchanged
                            --> loopback without namespaces: our proxy, or a listed port
            --> listed or approved (`host_approvals`) --> looked up --> connected --> to the keeper

A destination of a listed host is remembered for a while (`Route`), so that the next connection
needs neither a lookup nor a task.

So rules about host names bind every program that resolves names with the C library. No answer of a
name server changes the destination, because callgate looks the name up itself.

A resolver for one command: each name gets a placeholder address that maps back to the name.

    query over TCP --> A: 198.18.0.0/15, an address for each name   anything else: no records

The addresses are reserved for benchmarks, so no host has one. The resolver looks up nothing,
because a query would reveal the name to a server. Queries are parsed strictly; a malformed one ends
the connection.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from callgate.core.tasks import start_task
from callgate.sandbox import allowed_hosts
from callgate.sandbox.allowed_hosts import Resolve, look_up
from callgate.sandbox.host_approvals import HostApprovals, Unapproved

NETWORK = ipaddress.IPv4Network("198.18.0.0/15")
MOST_NAMES = 4_096
_HEAD = struct.Struct("!6H")
_QUESTION = struct.Struct("!2H")
_RECORD = struct.Struct("!3HIH4s")
_ADDRESS, _INTERNET = 1, 1
_RESPONSE, _KEPT_FLAGS, _AVAILABLE = 0x8000, 0x0100, 0x0080
_SERVER_FAILURE, _NO_NAME = 2, 3
_TO_NAME = 0xC00C
_LONGEST_LABEL = 63
_TTL_S = 60
_IDLE_S = 60.0


class StubResolver:
    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def name_of(self, address: str) -> str | None:
        """Return the name of a placeholder address; None if it has none. Any other address is
        returned unchanged."""
        is_ours = ipaddress.ip_address(address) in NETWORK
        return self._names.get(address) if is_ours else address

    async def serve(self, connection: socket.socket) -> None:
        """Answer queries until the peer closes the connection, or is idle for a while."""
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            while True:
                async with asyncio.timeout(_IDLE_S):
                    length = int.from_bytes(await reader.readexactly(2))
                    query = await reader.readexactly(length)
                answer = self.answer(query)
                writer.write(len(answer).to_bytes(2) + answer)
                await writer.drain()
        except (OSError, EOFError, ValueError):
            pass
        finally:
            writer.transport.abort()

    def answer(self, query: bytes) -> bytes:
        """Return the answer to one query. Raises `ValueError` for a malformed one."""
        try:
            id, flags, questions, *_ = _HEAD.unpack_from(query)
            name, end = _name(query, _HEAD.size)
            kind, network = _QUESTION.unpack_from(query, end)
        except (struct.error, IndexError, UnicodeDecodeError):
            raise ValueError("not a query") from None
        if questions != 1 or flags & _RESPONSE:
            raise ValueError("not a query with one question")
        question = query[_HEAD.size : end + _QUESTION.size]
        records, code = b"", 0
        try:
            host = allowed_hosts.normal_host(name)
        except ValueError:
            code = _NO_NAME
        else:
            if kind == _ADDRESS and network == _INTERNET:
                address = self._address(host)
                if address is None:
                    code = _SERVER_FAILURE
                else:
                    content = ipaddress.IPv4Address(address).packed
                    records = _RECORD.pack(_TO_NAME, kind, network, _TTL_S, 4, content)
        head_flags = _RESPONSE | flags & _KEPT_FLAGS | _AVAILABLE | code
        head = _HEAD.pack(id, head_flags, 1, 1 if records else 0, 0, 0)
        return head + question + records

    def _address(self, host: str) -> str | None:
        """Return the address of a name; None if too many names have one."""
        known = self._addresses.get(host)
        if known is None and len(self._names) < MOST_NAMES:
            known = self._addresses[host] = str(NETWORK[len(self._names) + 1])
            self._names[known] = host
        return known


def _name(query: bytes, at: int) -> tuple[str, int]:
    """Return the name of the question, without compression, and the index after it."""
    labels = []
    while length := query[at]:
        if length > _LONGEST_LABEL:
            raise ValueError("a label of a query is too long")
        labels.append(query[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels), at + 1


_DOMAIN_NAMES = 53
_MOST_RESOLVING = 128
"""Connections of one command to our resolver."""
_CONNECT_S = 60.0
"""Time limit of the lookup, and of each address."""

_ROUTE_S = 30.0
_MOST_ROUTES = 256

Reply = Callable[[int, int, socket.socket | None], None]
"""Takes the id of a call, an error number, and the connected socket if that is 0."""

Proxy = tuple[int, Callable[[socket.socket], None]]
"""The port of our proxy, and a function that serves a connection to it."""


class Route(msgspec.Struct, frozen=True):
    """A permitted destination that answered a connection to an address of the command."""

    family: int
    target: tuple[str, int]
    until: float


class Connector:
    """Makes connections for one command."""

    def __init__(
        self,
        approvals: HostApprovals,
        reply: Reply,
        proxy: Proxy,
        *,
        resolve: Resolve = look_up,
    ) -> None:
        self.reached = 0
        """Number of connections made for the command."""
        self._approvals = approvals
        self._reply = reply
        self._proxy_port, self._to_proxy = proxy
        self._resolve = resolve
        self._resolver = StubResolver()
        self._resolving = 0
        self._routes: dict[tuple[bytes, int, bool], Route] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def connect(self, id: int, port: int, address: bytes, six: bool, program: str) -> None:
        """Start to connect; `reply` receives the result. `six`: the socket is for IPv6."""
        endpoint = address, port, six
        route = self._route(endpoint)
        if route is not None:
            self._connect_again(id, endpoint, route, program or None)
            return
        self._start(self._answer(id, endpoint, program or None))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = start_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _route(self, endpoint: tuple[bytes, int, bool]) -> Route | None:
        route = self._routes.get(endpoint)
        if route is not None and route.until < time.monotonic():
            del self._routes[endpoint]
            return None
        return route

    def _connect_again(
        self, id: int, endpoint: tuple[bytes, int, bool], route: Route, program: str | None
    ) -> None:
        """Connect to a remembered destination, without a task if the answer is immediate."""
        connection = socket.socket(route.family, socket.SOCK_STREAM)
        connection.setblocking(False)
        number = connection.connect_ex(route.target)
        if number == errno.EINPROGRESS:
            number = connection.connect_ex(route.target)  # see `_established`
        if number == errno.EALREADY:
            self._start(self._answer(id, endpoint, program, (connection, route)))
            return
        with connection:
            if number:
                self._routes.pop(endpoint, None)
                self._start(self._answer(id, endpoint, program))
                return
            self.reached += 1
            self._reply(id, 0, connection)

    async def _answer(
        self,
        id: int,
        endpoint: tuple[bytes, int, bool],
        program: str | None,
        begun: tuple[socket.socket, Route] | None = None,
    ) -> None:
        """Connect, and reply. `begun`: a socket that is connecting by a route."""
        number, connected = errno.ECONNABORTED, None
        try:
            if begun is not None:
                connected = await self._finished(*begun, endpoint)
            if connected is not None:
                pass
            elif endpoint[1] == _DOMAIN_NAMES:
                connected = self._name_server()
            else:
                connected = await self._connect(endpoint, program)
            number = 0
        except Unapproved:
            number = errno.EACCES
        except TimeoutError:
            number = errno.ETIMEDOUT
        except OSError as error:
            number = error.errno or errno.EHOSTUNREACH
            if isinstance(error, socket.gaierror):
                number = errno.EHOSTUNREACH
        finally:
            self._reply(id, number, connected)
            if connected is not None:
                connected.close()

    def _name_server(self) -> socket.socket:
        """A connection to our resolver."""
        if self._resolving >= _MOST_RESOLVING:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        theirs, ours = socket.socketpair()
        theirs.bind("")  # to no name, so that the command cannot bind it to one of this machine
        self._resolving += 1
        self._start(self._serve_names(ours))
        return theirs

    async def _serve_names(self, connection: socket.socket) -> None:
        try:
            await self._resolver.serve(connection)
        finally:
            self._resolving -= 1

    async def _finished(
        self, connection: socket.socket, route: Route, endpoint: tuple[bytes, int, bool]
    ) -> socket.socket | None:
        """Wait for a connection by a route. None: it failed, and the route is forgotten."""
        try:
            await self._established(connection, route.target)
        except OSError:
            self._routes.pop(endpoint, None)
            return None
        self.reached += 1
        return connection

    async def _connect(
        self, endpoint: tuple[bytes, int, bool], program: str | None
    ) -> socket.socket:
        packed, port, six = endpoint
        number = ipaddress.IPv6Address(packed)
        host = self._resolver.name_of(str(number.ipv4_mapped or number))
        if host is None:
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        if allowed_hosts.is_address(host) and _is_loopback(host):
            return await self._connect_loopback(host, port, six)
        entries = await self._approvals.entries(host, port, program)
        addresses = [host]
        if not allowed_hosts.is_address(host):
            async with asyncio.timeout(_CONNECT_S):
                addresses = await self._resolve(host, port)
        permitted = [each for each in addresses if any(entry.permits(each) for entry in entries)]
        if addresses and not permitted:
            entry = await self._approvals.private(host, port, addresses[0], program)
            permitted = [each for each in addresses if entry.permits(each)]
        failed = OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
        for each in permitted:
            try:
                connection = await self._connected(each, port, six)
            except OSError as error:
                failed = error
                continue
            self.reached += 1
            if self._approvals.permits(host, port, each):
                self._remember(endpoint, connection)
            return connection
        raise failed

    def _remember(self, endpoint: tuple[bytes, int, bool], connection: socket.socket) -> None:
        """Remember the destination of a host that needs no further approval."""
        if len(self._routes) >= _MOST_ROUTES:
            self._routes.clear()
        target = connection.getpeername()[:2]
        self._routes[endpoint] = Route(connection.family, target, time.monotonic() + _ROUTE_S)

    async def _connect_loopback(self, host: str, port: int, six: bool) -> socket.socket:
        """Connect to our proxy or to a listed port. Other ports are refused without a question,
        because programs try many ports of their loopback."""
        if port == self._proxy_port:
            return await self._connect_to_proxy(six)
        names = (host, "localhost")
        if not any(self._approvals.permits(name, port, host) for name in names):
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        connection = await self._connected(host, port, six)
        self.reached += 1
        return connection

    async def _connect_to_proxy(self, six: bool) -> socket.socket:
        """Return a connection to our proxy. No other process can use its listener."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            connection = await self._connected("127.0.0.1", listener.getsockname()[1], six)
            try:
                listener.setblocking(False)
                while True:  # another process may have been first
                    peer, address = listener.accept()
                    if address[1] == connection.getsockname()[1]:
                        self._to_proxy(peer)
                        return connection
                    peer.close()
            except BaseException:
                connection.close()
                raise

    async def _connected(self, address: str, port: int, six: bool) -> socket.socket:
        if six and ":" not in address and socket.has_dualstack_ipv6():
            address = f"::ffff:{address}"
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        await self._established(connection, (address, port))
        return connection

    async def _established(self, connection: socket.socket, target: tuple[str, int]) -> None:
        """Wait until a socket is connected; close it if that fails."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.get_running_loop().sock_connect(connection, target)
            # Until a second call the kernel has it as connecting, and takes a reset for the end of
            # that: the command could then connect it to any other address.
            connection.connect(target)
        except BaseException:
            connection.close()
            raise


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host)
    return address.is_loopback or address.is_unspecified
