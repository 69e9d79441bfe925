"""Syslog, RFC 5424: a local socket, UDP (RFC 5426), TCP with octet counts (RFC 6587), or TLS.

Syslog acknowledges nothing. What a socket took counts as accepted; a connection that broke is made
again, and the rows that were being sent are sent again. Over UDP any of them may be lost.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import urlsplit

from callgate.export.formats import Row
from callgate.export.sinks.sink import SinkUnavailable, TooLarge

LOCAL = "/dev/log"
_FACILITY = 13
"""Log audit."""
_LIMIT_S = 10.0
_UNPRINTED = re.compile(r"[^\x21-\x7e]")
_PORTS = {"udp": 514, "tcp": 601, "tls": 6514}


class SyslogAddress(NamedTuple):
    transport: str
    """unix, udp, tcp or tls."""
    host: str
    """The path, for unix."""
    port: int = 0


def parse_syslog(text: str) -> SyslogAddress:
    """`syslog:`, `syslog+unix:///PATH`, `syslog+udp|tcp|tls://HOST[:PORT]`. `ValueError`."""
    if text in ("syslog:", "syslog"):
        return SyslogAddress("unix", LOCAL)
    url = urlsplit(text)
    transport = url.scheme.removeprefix("syslog+")
    if transport == "unix" and url.path.startswith("/") and not url.netloc:
        return SyslogAddress("unix", url.path)
    if transport not in _PORTS or not url.hostname or url.path.strip("/") or "@" in url.netloc:
        raise ValueError("write syslog:, syslog+unix:///PATH or syslog+udp|tcp|tls://HOST[:PORT]")
    return SyslogAddress(transport, url.hostname, url.port or _PORTS[transport])


def message(row: Row, hostname: str, pid: int) -> bytes:
    """A row as RFC 5424 writes it."""
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

    async def send(self, rows: Sequence[Row]) -> None:
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
                    "a record is larger than a datagram may be: use syslog+tcp or another sink",
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
            made = socket.socket(family, kind, protocol)
            made.connect(address)
            return made
        made = socket.create_connection((host, port), timeout=_LIMIT_S)
        if transport == "tls":
            return ssl.create_default_context().wrap_socket(made, server_hostname=host)
        return made

    def _connect_unix(self, path: str) -> socket.socket:
        """Most listen for datagrams; some for a stream, on which octets are counted, too."""
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            made = socket.socket(socket.AF_UNIX, kind)
            made.settimeout(_LIMIT_S)
            try:
                made.connect(path)
            except OSError as error:
                made.close()
                if error.errno != errno.EPROTOTYPE or kind == socket.SOCK_STREAM:
                    raise
                continue
            self._is_stream = kind == socket.SOCK_STREAM
            return made
        raise AssertionError("one of the kinds fits, or raises")

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def close(self) -> None:
        self._drop()
