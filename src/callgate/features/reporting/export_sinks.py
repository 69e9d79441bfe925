"""Targets of an export: a file, an HTTP server, or syslog; the port and its two kinds of errors.

A file, or a stream such as stdout. A continued file gets no line twice, and has no gap:

    |...... certainly written ........|...... possibly written ......|
                                      ^ the cursor's output_size

A killed export may have written lines after its last cursor update. The next export produces the
same lines again, and skips them as long as they equal the present ones.

An HTTP server gets one POST per batch, accepted by any 2xx. No redirect is followed. A token is
sent only to its own address, over an encrypted connection or loopback.

Syslog, RFC 5424: a local socket, UDP (RFC 5426), TCP with octet counts (RFC 6587), or TLS. Syslog
acknowledges nothing. Rows count as accepted when the socket takes them. A broken connection is
opened again, and the rows in flight are sent again. UDP may lose rows.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import BinaryIO, NamedTuple, Protocol
from urllib.parse import urlsplit

import httpx2

from callgate.core.http import is_loopback, is_untrusted, open_client, post, retry_after
from callgate.core.local.disk import sync_file
from callgate.core.version import __version__
from callgate.features.reporting.export_formats import Encoding, ExportRow


class SinkUnavailable(Exception):
    """The sink may accept the same rows later."""

    def __init__(self, problem: str, wait_s: float | None = None) -> None:
        """`wait_s`: seconds until the next attempt, if the sink requests a wait."""
        super().__init__(problem)
        self.wait_s = wait_s


class SinkRefused(Exception):
    """The sink will never accept these rows."""


class TooLarge(SinkRefused):
    """The sink may accept fewer rows, or a shorter row."""

    def __init__(self, problem: str, accepted: int = 0) -> None:
        """`accepted`: number of accepted rows before the one that was too large."""
        super().__init__(problem)
        self.accepted = accepted


class Sink(Protocol):
    async def send(self, rows: Sequence[ExportRow]) -> None:
        """Send rows, and return when the sink has accepted all, as far as it acknowledges.

        Raises `SinkUnavailable` or `SinkRefused`. Then no row counts as accepted, although some
        may have arrived.
        """
        ...

    async def close(self) -> None: ...


_LONGEST_TAIL = 64 * 1024 * 1024


class StreamSink:
    def __init__(self, write: Callable[[bytes], object], head: bytes) -> None:
        self._write = write
        self._head = head

    async def send(self, rows: Sequence[ExportRow]) -> None:
        lines = [row.line for row in rows]
        if self._head:
            lines, self._head = [self._head, *lines], b""
        self._write(b"".join(line + b"\n" for line in lines))

    async def close(self) -> None:
        """Do nothing."""


class FileSink:
    """A new or a continued file. Raises `OSError`."""

    def __init__(self, path: str, head: bytes, written: tuple[int, int] | None = None) -> None:
        """`written`: the inode and size in a cursor (zeros: none) of a file to append to. Without
        it, an existing file is replaced.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if written is None else 0)
        inode, size = written or (0, 0)
        self._path = path
        self._file: BinaryIO = os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0)
        status = os.fstat(self._file.fileno())
        self._tail = b""
        if inode == status.st_ino and size <= status.st_size:
            self._file.seek(size)
            self._tail = self._file.read(_LONGEST_TAIL) or b""
            self._file.seek(size)
        else:  # a different file, or the first run
            self._file.seek(0, os.SEEK_END)
        self._head = head if self._file.tell() == 0 else b""

    @property
    def written(self) -> tuple[int, int]:
        """The inode of the file, and its size that is certainly on the disk."""
        return os.fstat(self._file.fileno()).st_ino, self._file.tell()

    async def send(self, rows: Sequence[ExportRow]) -> None:
        lines = [row.line for row in rows]
        if self._head:
            lines, self._head = [self._head, *lines], b""
        try:
            for line in lines:
                self._append(line + b"\n")
            sync_file(self._file.fileno())
        except OSError as error:
            raise SinkRefused(f"{self._path} cannot be written: {error.strerror}") from error

    def _append(self, line: bytes) -> None:
        if self._tail:
            if self._tail.startswith(line):
                self._tail = self._tail[len(line) :]
                self._file.seek(len(line), os.SEEK_CUR)
                return
            if not line.startswith(self._tail):  # another program wrote there: its data stays
                self._file.seek(0, os.SEEK_END)
                line = line if self._tail.endswith(b"\n") else b"\n" + line
            # otherwise the tail is a truncated line, which the same line overwrites
            self._tail = b""
        view = memoryview(line)
        while view:
            view = view[self._file.write(view) :]

    async def close(self) -> None:
        self._file.close()


SILENT_S = 30.0
_LIMIT_S = 60.0
"""Time limit for one request."""
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT_S = 300.0


class HttpSink:
    def __init__(self, url: str, encoding: Encoding, token: str | None = None) -> None:
        """Raises `ValueError` if the address is invalid."""
        try:
            self._url = httpx2.URL(url)
        except httpx2.InvalidURL as error:
            raise ValueError(str(error)) from None
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise ValueError("use http://HOST/PATH or https://HOST/PATH")
        if self._url.userinfo:
            raise ValueError("pass the token with --token-env, not in the address")
        if token is not None and self._url.scheme == "http" and not is_loopback(self._url.host):
            raise ValueError("a token needs https, or an address on this machine")
        self._encoding = encoding
        self._headers: Mapping[str, str] = {
            "content-type": encoding.media_type,
            "user-agent": f"callgate/{__version__}",
            **({} if token is None else {"authorization": f"Bearer {token}"}),
        }
        self._client = open_client(self._url, silent_s=SILENT_S)

    async def send(self, rows: Sequence[ExportRow]) -> None:
        """Send rows. The header `idempotency-key` identifies them, so that a server can detect
        duplicates.
        """
        head = [self._encoding.head] if self._encoding.head else []
        body = b"".join(line + b"\n" for line in (*head, *(row.line for row in rows)))
        key = f"{rows[0].id}-{rows[-1].id}-{len(rows)}"
        try:
            async with asyncio.timeout(_LIMIT_S):
                headers = {**self._headers, "idempotency-key": key}
                status, answered = await post(self._client, self._url, body, headers)
        except TimeoutError:
            raise SinkUnavailable(f"{self._url.host} timed out") from None
        except httpx2.HTTPError as error:
            if is_untrusted(error):
                raise SinkRefused(f"the certificate of {self._url.host} is not trusted") from None
            problem = str(error) or type(error).__name__
            raise SinkUnavailable(f"{self._url.host} does not answer: {problem}") from None
        if 200 <= status < 300:
            return
        problem = f"{self._url.host} answered {status}"
        if status in _LATER:
            wait = retry_after(answered, datetime.now(UTC))
            raise SinkUnavailable(problem, None if wait is None else min(wait, _LONGEST_WAIT_S))
        if status == httpx2.codes.REQUEST_ENTITY_TOO_LARGE:
            raise TooLarge(problem)
        raise SinkRefused(problem)

    async def close(self) -> None:
        await self._client.aclose()


LOCAL = "/dev/log"
_FACILITY = 13
"""The facility "log audit"."""
_SYSLOG_S = 10.0
_UNPRINTED = re.compile(r"[^\x21-\x7e]")
_PORTS = {"udp": 514, "tcp": 601, "tls": 6514}


class SyslogAddress(NamedTuple):
    transport: str
    """unix, udp, tcp or tls."""
    host: str
    """The path, for unix."""
    port: int = 0


def parse_syslog(text: str) -> SyslogAddress:
    """Parse `syslog:`, `syslog+unix:///PATH` or `syslog+udp|tcp|tls://HOST[:PORT]`. Raises
    `ValueError`.
    """
    if text in ("syslog:", "syslog"):
        return SyslogAddress("unix", LOCAL)
    url = urlsplit(text)
    transport = url.scheme.removeprefix("syslog+")
    if transport == "unix" and url.path.startswith("/") and not url.netloc:
        return SyslogAddress("unix", url.path)
    if transport not in _PORTS or not url.hostname or url.path.strip("/") or "@" in url.netloc:
        raise ValueError("use syslog:, syslog+unix:///PATH or syslog+udp|tcp|tls://HOST[:PORT]")
    return SyslogAddress(transport, url.hostname, url.port or _PORTS[transport])


def message(row: ExportRow, hostname: str, pid: int) -> bytes:
    """Return a row in the format of RFC 5424."""
    when = datetime.fromtimestamp(row.ts / 1000, UTC).isoformat(timespec="milliseconds")
    host = _UNPRINTED.sub("-", hostname)[:255] or "-"
    priority = _FACILITY * 8 + row.severity
    head = f"<{priority}>1 {when.replace('+00:00', 'Z')} {host} callgate {pid} call - "
    return head.encode("ascii") + row.line


class SyslogSink:
    def __init__(self, address: SyslogAddress) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._is_stream = address.transport in ("tcp", "tls")

    async def send(self, rows: Sequence[ExportRow]) -> None:
        hostname, pid = socket.gethostname(), os.getpid()
        messages = [message(row, hostname, pid) for row in rows]
        await asyncio.to_thread(self._send, messages)

    def _send(self, messages: list[bytes]) -> None:
        accepted = 0
        try:
            if self._socket is None:
                self._socket = self._connect()
            for each in messages:
                framed = b"%d " % len(each) + each if self._is_stream else each
                self._socket.sendall(framed)
                accepted += 1
        except OSError as error:
            self._drop()
            if error.errno == errno.EMSGSIZE:
                raise TooLarge(
                    "a record exceeds the size of a datagram; use syslog+tcp or another sink",
                    accepted,
                ) from error
            name = self._address.host
            raise SinkUnavailable(f"syslog at {name}: {error.strerror or error}") from error

    def _connect(self) -> socket.socket:
        transport, host, port = self._address
        if transport == "unix":
            return self._connect_unix(host)
        if transport == "udp":
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_DGRAM
            )[0]
            connection = socket.socket(family, kind, protocol)
            connection.connect(address)
            return connection
        connection = socket.create_connection((host, port), timeout=_SYSLOG_S)
        if transport == "tls":
            return ssl.create_default_context().wrap_socket(connection, server_hostname=host)
        return connection

    def _connect_unix(self, path: str) -> socket.socket:
        """Connect to a local socket. Most are datagram sockets; a stream socket needs octet
        counts.
        """
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            connection = socket.socket(socket.AF_UNIX, kind)
            connection.settimeout(_SYSLOG_S)
            try:
                connection.connect(path)
            except OSError as error:
                connection.close()
                if error.errno != errno.EPROTOTYPE or kind == socket.SOCK_STREAM:
                    raise
                continue
            self._is_stream = kind == socket.SOCK_STREAM
            return connection
        raise AssertionError("unreachable: a socket kind fits or raises")

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def close(self) -> None:
        self._drop()
