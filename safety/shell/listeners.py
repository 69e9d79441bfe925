"""Servers on loopback: the user's, which has pages, and the attacker's, which notes what comes."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

_LONGEST = 1 << 20
_QUIET_S = 0.2
_LIMIT_S = 10.0


class Listener:
    """TCP and UDP on one port of one loopback address; answers HTTP, notes everything."""

    def __init__(self, host: str, pages: Mapping[str, str] | None = None) -> None:
        self.host = host
        self._pages = pages or {}
        self._notes: list[bytes] = []
        self._tcp = socket.create_server((host, 0), backlog=64)
        self.port: int = self._tcp.getsockname()[1]
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind((host, self.port))
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.settle()
        for each in (self._tcp, self._udp, self._wake, self._woken):
            each.close()

    def settle(self) -> bytes:
        """Stop, when everything that was sent before has been noted; all of it."""
        if self._thread.is_alive():
            self._wake.send(b"x")
            self._thread.join(_LIMIT_S)
        return b"\n".join(self._notes)

    def _serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._tcp, self._udp, self._woken], [], [])
            if self._udp in ready:
                self._notes.append(self._udp.recv(65536))
            if self._tcp in ready:
                connection, _ = self._tcp.accept()
                with connection:
                    self._answer(connection)
            elif ready == [self._woken]:  # nobody else is waiting
                return

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_QUIET_S)
        request = b""
        try:
            while len(request) < _LONGEST and not _is_whole(request):
                received = connection.recv(65536)
                if not received:
                    break
                request += received
                if b"Expect: 100-continue" in request and request.endswith(b"\r\n\r\n"):
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        except OSError:  # nothing more came
            pass
        self._notes.append(request)
        self._reply(connection, request)

    def _reply(self, connection: socket.socket, request: bytes) -> None:
        words = request.split(b" ", 2)
        path = words[1].decode("latin-1") if len(words) > 1 else ""
        body = self._pages.get(path, "ok\n").encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        try:
            connection.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)
        except OSError:  # who wrote has gone
            pass


def _is_whole(request: bytes) -> bool:
    """Whether an HTTP request has ended; anything else ends when nothing more comes."""
    head, ended, body = request.partition(b"\r\n\r\n")
    if not ended or not head.split(b"\r\n")[0].endswith((b"HTTP/1.1", b"HTTP/1.0")):
        return False
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return len(body) >= int(value)
        if name.lower() == b"transfer-encoding":
            return body.endswith(b"0\r\n\r\n")
    return True
