"""Egress of a jail with allowed hosts: our proxy, one for each command.

    command --127.0.0.1 of its network namespace--> Egress --the checked address--> host

The listening socket is created in the command's network, and the proxy accepts on it from outside.
A command without its own network has no listener: its connections are adopted one by one.
Each connection is one request. A host is checked by its name and looked up once, and only addresses
that its entry permits are connected. Only the command can reach the listener. `close` ends all
connections. The command's exit reports refused requests. If hosts can be approved, a connection to
an unlisted one waits for the answer (`host_approvals`). A tunnel that begins with TLS must name
the checked host (`server_names`).

    CONNECT host:port HTTP/1.1                 a tunnel
    GET http://host[:port]/path HTTP/1.1       one request, forwarded as `GET /path`

Request heads are parsed strictly, never repaired, and without I/O. A head that two programs could
parse differently is refused. A body has exactly one length. The forwarded head is rebuilt with
the target's own name as Host, so the server sees the host that was checked.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from callgate.core.tasks import start_task
from callgate.sandbox import allowed_hosts, server_names
from callgate.sandbox.allowed_hosts import AllowedHost, Resolve, look_up
from callgate.sandbox.host_approvals import HostApprovals, Unapproved

LARGEST_HEAD = 32 * 1024
_MOST_FIELDS = 200

_REQUEST_LINE = re.compile(rb"([A-Z]{1,32}) ([\x21-\x7e]{1,16384}) HTTP/1\.[01]\Z")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\x20-\x7e\x80-\xff\t]*)\Z")
_ABSOLUTE = re.compile(r"http://([^/?#]*)([/?][^#]*)?\Z", re.IGNORECASE)
_LENGTH = re.compile(rb"[0-9]{1,18}\Z")
_OF_A_CONNECTION = frozenset(
    {
        b"connection",
        b"proxy-connection",
        b"proxy-authorization",
        b"keep-alive",
        b"te",
        b"trailer",
        b"upgrade",
        b"host",
        b"content-length",
    }
)
"""Fields that are not forwarded: they are about this connection, or are rebuilt."""


class Malformed(ValueError):
    """A request that is refused, with the status of the answer."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class ConnectRequest(msgspec.Struct, frozen=True):
    host: str
    port: int
    head: bytes = b""
    """The first bytes for the server. Empty: a tunnel, in which all bytes are the command's."""
    body: int = 0
    """Number of the command's bytes after the head."""

    @property
    def authority(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"


def parse(head: bytes) -> ConnectRequest:
    """Parse a head, including its empty line. Raises `Malformed`."""
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    request_line = _REQUEST_LINE.match(lines[0])
    if request_line is None:
        raise Malformed(400, "this is not an HTTP/1 request")
    fields = _fields(lines[1:])
    method, target = request_line[1], request_line[2].decode("ascii")
    if method == b"CONNECT":
        host, port = _split(target)
        if port is None:
            raise Malformed(400, "CONNECT names a host and a port")
        return ConnectRequest(host, port)
    found = _ABSOLUTE.match(target)
    if found is None:
        raise Malformed(400, "a proxy takes http://host/path, or CONNECT")
    host, port = _split(found[1])
    length = _body_length(fields)
    named = _bracketed(host) + ("" if port is None else f":{port}")
    passed_on = [
        method + b" /" + (found[2] or "").removeprefix("/").encode("ascii") + b" HTTP/1.1",
        b"Host: " + named.encode("ascii"),
        *(name + b": " + value for name, value in _end_to_end(fields)),
        *([] if length is None else [b"Content-Length: %d" % length]),
        b"Connection: close",
    ]
    return ConnectRequest(host, port or 80, b"\r\n".join(passed_on) + b"\r\n\r\n", length or 0)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _split(authority: str) -> tuple[str, int | None]:
    try:
        return allowed_hosts.split(authority)
    except ValueError as error:
        raise Malformed(400, str(error)) from None


def _fields(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    if len(lines) > _MOST_FIELDS:
        raise Malformed(431, "too many fields")
    found = [_FIELD.match(line) for line in lines]
    fields = [(field[1], field[2].strip(b" \t")) for field in found if field is not None]
    if len(fields) != len(lines):
        raise Malformed(400, "a header field is malformed")
    for once in (b"host", b"content-length"):
        if len(_values(fields, once)) > 1:
            raise Malformed(400, f"{once.decode()} appears twice")
    return fields


def _values(fields: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for each, value in fields if each.lower() == name]


def _body_length(fields: list[tuple[bytes, bytes]]) -> int | None:
    lengths = _values(fields, b"content-length")
    if _values(fields, b"transfer-encoding"):
        if lengths:
            raise Malformed(400, "a body has either a length or an encoding")
        raise Malformed(411, "a body needs a content-length")
    if not lengths:
        return None
    if _LENGTH.match(lengths[0]) is None:
        raise Malformed(400, "content-length is not a number")
    return int(lengths[0])


def _end_to_end(fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    named = b",".join(_values(fields, b"connection")).split(b",")
    dropped = _OF_A_CONNECTION | {name.strip().lower() for name in named}
    return [(name, value) for name, value in fields if name.lower() not in dropped]


_CHUNK = 64 * 1024
_ACCEPT_AGAIN_S = 0.1

_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    411: "Length Required",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    504: "Gateway Timeout",
}

T = TypeVar("T")


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits for each part of a connection, and a limit on connections."""

    head_s: float = 30.0
    connect_s: float = 20.0
    """For the lookup of the name, and then for each of its addresses."""
    idle_s: float = 300.0
    leave_s: float = 2.0
    """For reading a refusal; or the rest of an answer, if another request follows already."""
    connections: int = 64
    """Maximum concurrent connections; others wait. A wait for approval does not count."""


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Egress:
    """Serves one command from its creation until `close`."""

    def __init__(
        self,
        listener: socket.socket | None,
        hosts: tuple[AllowedHost, ...] | HostApprovals,
        *,
        patience: Patience = Patience(),  # noqa: B008  # frozen
        resolve: Resolve = look_up,
    ) -> None:
        if listener is not None:
            listener.setblocking(False)
        self.reached = 0
        """Number of connections made for the command."""
        self._listener = listener
        self._adopted: asyncio.Queue[socket.socket] = asyncio.Queue()
        self.approvals = hosts if isinstance(hosts, HostApprovals) else HostApprovals(hosts)
        self._patience = patience
        self._resolve = resolve
        self._free = asyncio.Semaphore(patience.connections)
        self._serving = start_task(self._serve())
        self._serving.add_done_callback(lambda _: self._close())

    @property
    def blocked(self) -> tuple[str, ...]:
        """`host:port` of the first refused connections, each once."""
        return self.approvals.blocked

    def close(self) -> None:
        """Begin to end every connection, and accept no new one."""
        self.approvals.close()
        self._serving.cancel()

    def adopt(self, peer: socket.socket) -> None:
        """Serve a connection that did not arrive at the listener."""
        peer.setblocking(False)
        self._adopted.put_nowait(peer)

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        while not self._adopted.empty():
            self._adopted.get_nowait().close()

    async def wait_closed(self) -> None:
        await asyncio.wait([self._serving])

    async def _accept(self) -> socket.socket:
        if self._listener is None:
            return await self._adopted.get()
        peer, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        return peer

    async def _serve(self) -> None:
        free = self._free

        def ended(peer: socket.socket) -> None:
            peer.close()  # needed for a connection whose task never began
            free.release()

        async with asyncio.TaskGroup() as connections:
            while True:
                await free.acquire()
                try:
                    peer = await self._accept()
                except OSError:  # already closed, or no free descriptor
                    free.release()
                    await asyncio.sleep(_ACCEPT_AGAIN_S)
                    continue
                task = connections.create_task(self._connection(peer))
                task.add_done_callback(lambda _, peer=peer: ended(peer))  # type: ignore[misc]

    async def _connection(self, peer: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=peer, limit=LARGEST_HEAD)
        except OSError:
            return
        try:
            request = await self._read(reader)
            there, out = await self._connect(request, reader)
            try:
                await self._relay(request, reader, writer, there, out)
            finally:
                out.transport.abort()
        except _Refused as refused:
            await self._answer(reader, writer, refused)
        except (OSError, EOFError):
            pass
        finally:
            writer.transport.abort()

    # --- the request ----------------------------------------------------------------------

    async def _read(self, reader: asyncio.StreamReader) -> ConnectRequest:
        try:
            async with asyncio.timeout(self._patience.head_s):
                return parse(await reader.readuntil(b"\r\n\r\n"))
        except Malformed as error:
            raise _Refused(error.status, f"not understood: {error}") from None
        except asyncio.LimitOverrunError:
            raise _Refused(431, "the head of the request is too large") from None
        except TimeoutError:
            raise _Refused(408, "the request did not arrive") from None

    async def _connect(
        self, request: ConnectRequest, reader: asyncio.StreamReader
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Check and look up the host, and connect to an address."""
        for address in await self._permitted(request, reader):
            try:
                async with asyncio.timeout(self._patience.connect_s):
                    connection = await asyncio.open_connection(address, request.port)
            except OSError:  # includes a timeout
                continue
            self.reached += 1
            return connection
        raise _Refused(502, f"{request.authority} cannot be reached")

    async def _permitted(self, request: ConnectRequest, reader: asyncio.StreamReader) -> list[str]:
        """Return the permitted addresses of a host. An unlisted host needs approval."""
        approvals, host, port = self.approvals, request.host, request.port
        try:
            if approvals.covers(host, port) or not approvals.asks:
                entries = await approvals.entries(host, port)
            else:
                entries = await self._await_approval(request, reader, approvals.entries(host, port))
            addresses = await self._addresses(request)
            permitted = [a for a in addresses if any(entry.permits(a) for entry in entries)]
            if addresses and not permitted:
                private = approvals.private(host, port, addresses[0])
                entry = await self._await_approval(request, reader, private)
                permitted = [address for address in addresses if entry.permits(address)]
        except Unapproved as refused:
            raise _Refused(403, str(refused)) from None
        return permitted

    async def _await_approval(
        self,
        request: ConnectRequest,
        reader: asyncio.StreamReader,
        approval: Coroutine[Any, Any, T],
    ) -> T:
        """Wait for an approval, without a slot for a connection. Raises `EOFError` if the command
        gives up; its next attempt finds the answer."""
        self._free.release()
        asking = start_task(approval)
        # A tunnel sends nothing before the answer; the body of another request may be on its way.
        leaving = start_task(reader.read(1)) if not request.head else None
        try:
            waiting = {asking} if leaving is None else {asking, leaving}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise EOFError
            if leaving is not None and leaving.done() and not leaving.cancelled():
                raise EOFError
            return asking.result()
        finally:
            asking.cancel()
            if leaving is not None:
                leaving.cancel()
                await asyncio.wait({leaving})
            await self._free.acquire()

    async def _addresses(self, request: ConnectRequest) -> list[str]:
        if allowed_hosts.is_address(request.host):
            return [request.host]
        try:
            async with asyncio.timeout(self._patience.connect_s):
                return await self._resolve(request.host, request.port)
        except TimeoutError:
            raise _Refused(504, f"{request.authority} could not be looked up") from None
        except (OSError, UnicodeError):
            raise _Refused(502, f"{request.authority} has no address") from None

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, refused: _Refused
    ) -> None:
        body = f"callgate: {refused}\n".encode()
        head = (
            f"HTTP/1.1 {refused.status} {_REASONS[refused.status]}\r\n"
            f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        try:
            async with asyncio.timeout(self._patience.leave_s):
                writer.write(head.encode("ascii") + body)
                writer.write_eof()
                await _until_left(reader)
        except OSError:  # includes a timeout
            pass

    # --- forwarding -----------------------------------------------------------------------

    async def _relay(
        self,
        request: ConnectRequest,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        out: asyncio.StreamWriter,
    ) -> None:
        """Forward in both directions until both have ended, one fails, or both are idle."""
        try:
            async with asyncio.timeout(self._patience.idle_s) as limit:
                pipe = _Pipe(limit, self._patience)
                async with asyncio.TaskGroup() as ways:
                    if not request.head:
                        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                        ways.create_task(self._pass_tunnel(request, reader, out, pipe))
                        await pipe.pass_on(there, writer)
                    else:
                        out.write(request.head)
                        asking = ways.create_task(pipe.pass_body(reader, out, request.body))
                        await pipe.pass_on(there, writer)
                        asking.cancel()
                if request.head:
                    await _until_left(reader)
                for stream in (out, writer):
                    stream.close()
                    await stream.wait_closed()
        except* (OSError, Unapproved):  # includes a timeout
            pass

    async def _pass_tunnel(
        self,
        request: ConnectRequest,
        reader: asyncio.StreamReader,
        out: asyncio.StreamWriter,
        pipe: _Pipe,
    ) -> None:
        """Forward the command's bytes in a tunnel, unless its TLS server name is another host."""
        await pipe.write(await self._start(request, reader), out)
        await pipe.pass_on(reader, out)

    async def _start(self, request: ConnectRequest, reader: asyncio.StreamReader) -> bytes:
        """Return the first bytes of a tunnel after a check of the server name."""
        data = b""
        while chunk := await reader.read(_CHUNK):
            data += chunk
            try:
                name = server_names.read(data)
            except server_names.Incomplete:
                continue
            except ValueError:
                name = ""
            if name in (None, request.host) or allowed_hosts.is_address(request.host):
                return data
            raise self.approvals.mismatch(request.host, request.port, name)
        return b"" if data[:1] == server_names.TLS else data


async def _until_left(reader: asyncio.StreamReader) -> None:
    """Read until the peer leaves: a close with unread bytes would discard our answer."""
    while await reader.read(_CHUNK):
        pass


class _Pipe:
    """Moves bytes, and extends the time limit with each chunk."""

    def __init__(self, limit: asyncio.Timeout, patience: Patience) -> None:
        self._limit = limit
        self._idle_s = patience.idle_s
        self._leave_s = patience.leave_s
        self._loop = asyncio.get_running_loop()

    async def pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Forward all data, and then its end; the other direction may continue."""
        while data := await source.read(_CHUNK):
            await self.write(data, sink)
        sink.write_eof()

    async def pass_body(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, length: int
    ) -> None:
        """Forward exactly the body. Another request after it is not served."""
        try:
            while length:
                data = await source.read(min(length, _CHUNK))
                if not data:
                    sink.write_eof()  # too short, which the server will detect
                    return
                length -= len(data)
                await self.write(data, sink)
        except OSError:  # the server stopped reading, perhaps with an answer
            return
        if await source.read(1):
            self._idle_s = self._leave_s
            self._put_off()

    async def write(self, data: bytes, sink: asyncio.StreamWriter) -> None:
        self._put_off()
        sink.write(data)
        await sink.drain()

    def _put_off(self) -> None:
        if not self._limit.expired():
            self._limit.reschedule(self._loop.time() + self._idle_s)
