"""The way out of a jail that may reach some hosts: a proxy of ours, one for each command.

    command --127.0.0.1 of its own network--> Egress --the address that was checked--> host

The listening socket was made in the command's network and belongs to it; we accept on it from
outside. Each connection is one request: a tunnel, or one plain HTTP request and its answer.
A host is judged by its name, then looked up once, and only addresses that its entry permits
are connected to. Nobody but the command can reach the listener, and `close` ends all.

What was refused is kept, to be told with the command's end.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

import msgspec

from callgate.core.task_sets import start_task
from callgate.sandbox import allowed_hosts
from callgate.sandbox.allowed_hosts import AllowedHost
from callgate.sandbox.egress import requests as egress_requests
from callgate.sandbox.egress.requests import LARGEST_HEAD, Malformed, Request

_CHUNK = 64 * 1024
_ACCEPT_AGAIN_S = 0.1
_MOST_NAMED = 50
_RESOLVERS = ThreadPoolExecutor(4, "callgate-resolver")
"""Of its own: slow names must not hold up what else the runtime does in threads."""

_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    411: "Length Required",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    504: "Gateway Timeout",
}

Resolve = Callable[[str, int], Awaitable[list[str]]]


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long each part of a connection may take, in seconds, and how many there may be."""

    head_s: float = 30.0
    connect_s: float = 20.0
    """Looking up the name, and then each of its addresses."""
    idle_s: float = 300.0
    leave_s: float = 2.0
    """To take a refusal and go; or the rest of an answer, if more is asked for already."""
    connections: int = 64
    """At once; more wait until one ends."""


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of a name, as the system knows them."""
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(
        _RESOLVERS, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    texts = (str(address[0]).partition("%")[0] for *_, address in found)
    return list(dict.fromkeys(str(ip_address(text)) for text in texts))


class Egress:
    """Serves one command from when it is made until `close`."""

    def __init__(
        self,
        listener: socket.socket,
        hosts: tuple[AllowedHost, ...],
        *,
        patience: Patience = Patience(),  # noqa: B008  # frozen
        resolve: Resolve = look_up,
    ) -> None:
        listener.setblocking(False)
        self.reached = 0
        """Connections that were made for it."""
        self._listener = listener
        self._hosts = hosts
        self._patience = patience
        self._resolve = resolve
        self._blocked: dict[str, None] = {}
        self._serving = start_task(self._serve())
        self._serving.add_done_callback(lambda _: listener.close())

    @property
    def blocked(self) -> tuple[str, ...]:
        """`host:port` of what was refused, each once, the first of them."""
        return tuple(self._blocked)

    def close(self) -> None:
        """Begin to end every connection; nothing new is accepted."""
        self._serving.cancel()

    async def wait_closed(self) -> None:
        await asyncio.wait([self._serving])

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        free = asyncio.Semaphore(self._patience.connections)

        def ended(peer: socket.socket) -> None:
            peer.close()  # which a connection that never began has not done itself
            free.release()

        async with asyncio.TaskGroup() as connections:
            while True:
                await free.acquire()
                try:
                    peer, _ = await loop.sock_accept(self._listener)
                except OSError:  # gone already, or no descriptor left for it
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
            there, out = await self._connect(request)
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

    # --- what is asked for ----------------------------------------------------------------

    async def _read(self, reader: asyncio.StreamReader) -> Request:
        try:
            async with asyncio.timeout(self._patience.head_s):
                return egress_requests.parse(await reader.readuntil(b"\r\n\r\n"))
        except Malformed as error:
            raise _Refused(error.status, f"not understood: {error}") from None
        except asyncio.LimitOverrunError:
            raise _Refused(431, "the head of the request is too large") from None
        except TimeoutError:
            raise _Refused(408, "the request did not come") from None

    async def _connect(self, request: Request) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Judge, look up, connect to what was looked up."""
        entries = allowed_hosts.find(self._hosts, request.host, request.port)
        if not entries:
            raise self._refusal(request, "is not among the hosts that this command may reach")
        addresses = await self._addresses(request)
        permitted = [a for a in addresses if any(entry.permits(a) for entry in entries)]
        if addresses and not permitted:
            raise self._refusal(request, "has no public address; private: would be needed")
        for address in permitted:
            try:
                async with asyncio.timeout(self._patience.connect_s):
                    connection = await asyncio.open_connection(address, request.port)
            except OSError:  # which a timeout is too
                continue
            self.reached += 1
            return connection
        raise _Refused(502, f"{request.authority} cannot be reached")

    async def _addresses(self, request: Request) -> list[str]:
        if allowed_hosts.is_address(request.host):
            return [request.host]
        try:
            async with asyncio.timeout(self._patience.connect_s):
                return await self._resolve(request.host, request.port)
        except TimeoutError:
            raise _Refused(504, f"{request.authority} could not be looked up") from None
        except (OSError, UnicodeError):
            raise _Refused(502, f"{request.authority} has no address") from None

    def _refusal(self, request: Request, why: str) -> _Refused:
        if len(self._blocked) < _MOST_NAMED:
            self._blocked[request.authority] = None
        return _Refused(
            403,
            f"blocked: {request.authority} {why}. To allow it, name it in `network`, "
            "in [sandbox] or in a rule of settings.toml.",
        )

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
        except OSError:  # which a timeout is too
            pass

    # --- and passed on --------------------------------------------------------------------

    async def _relay(
        self,
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        out: asyncio.StreamWriter,
    ) -> None:
        """Both ways until both have ended, one fails, or nothing has come for too long."""
        try:
            async with asyncio.timeout(self._patience.idle_s) as limit:
                pipe = _Pipe(limit, self._patience)
                async with asyncio.TaskGroup() as ways:
                    if not request.head:
                        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                        ways.create_task(pipe.pass_on(reader, out))
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
        except* OSError:  # which a timeout is too
            pass


async def _until_left(reader: asyncio.StreamReader) -> None:
    """Take what a peer still says: to close on unread bytes would take back what we said."""
    while await reader.read(_CHUNK):
        pass


class _Pipe:
    """Moves bytes, and puts the limit off whenever some came."""

    def __init__(self, limit: asyncio.Timeout, patience: Patience) -> None:
        self._limit = limit
        self._idle_s = patience.idle_s
        self._leave_s = patience.leave_s
        self._loop = asyncio.get_running_loop()

    async def pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """All there is, and then its end: the other way may go on."""
        while data := await source.read(_CHUNK):
            await self._write(data, sink)
        sink.write_eof()

    async def pass_body(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, length: int
    ) -> None:
        """Exactly the body. What follows it is another request, and has no place here."""
        try:
            while length:
                data = await source.read(min(length, _CHUNK))
                if not data:
                    sink.write_eof()  # less than was said, as the server will see
                    return
                length -= len(data)
                await self._write(data, sink)
        except OSError:  # the server wants no more of it, and may have said why
            return
        if await source.read(1):
            self._idle_s = self._leave_s
            self._put_off()

    async def _write(self, data: bytes, sink: asyncio.StreamWriter) -> None:
        self._put_off()
        sink.write(data)
        await sink.drain()

    def _put_off(self) -> None:
        if not self._limit.expired():
            self._limit.reschedule(self._loop.time() + self._idle_s)
