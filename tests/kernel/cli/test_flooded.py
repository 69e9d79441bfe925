"""A real instance that somebody without a token floods: its owner is answered all the same."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.kernel.cli.instances import short_directory
from tests.kernel.cli.running import CALLGATE, LIMIT_S, callgate, environment

_FILES = 512
"""What an instance may open: less than there are peers."""
_PEERS = 600


class Instance:
    def __init__(self, base: Path) -> None:
        self.home, self.ws = base / "h", base / "ws"
        self.home.mkdir(mode=0o700)
        self.ws.mkdir()
        self.env = {"CALLGATE_HOME": str(self.home)}
        self.process = subprocess.Popen(
            ["bash", "-c", f'ulimit -n {_FILES}; exec "$0" serve --http 127.0.0.1:0', CALLGATE],
            cwd=self.ws,
            env=environment(self.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(b"callgate: listening on ")
        (record,) = (self.home / "instances").glob("*.json")
        self.address = urlsplit(json.loads(record.read_text())["httpUrl"])

    def connect(self) -> socket.socket:
        assert self.address.port is not None
        return socket.create_connection(("127.0.0.1", self.address.port), LIMIT_S)

    def ask(self, path: str, **headers: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.address.port, timeout=LIMIT_S)
        try:
            connection.request("GET", path, headers=headers)
            with connection.getresponse() as answer:
                answer.read()
                return answer.status
        finally:
            connection.close()

    def close(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=LIMIT_S)


@pytest.fixture
def instance() -> Iterator[Instance]:
    with short_directory() as base:
        made = Instance(base)
        try:
            yield made
        finally:
            made.close()


_HOST = b"Host: 127.0.0.1\r\n"
_UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
_FLOODS = {
    "silent": b"",
    "unfinished head": b"GET /v1/tools HTTP/1.1\r\n" + _HOST + b"X-A: b\r\n",
    "slow body": b"POST /v1/calls HTTP/1.1\r\n" + _HOST + b"Content-Length: 1000000\r\n\r\n{",
    "chunks": b"POST /mcp HTTP/1.1\r\n" + _HOST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    "login": b"POST /login?code=x HTTP/1.1\r\n" + _HOST + b"Content-Length: 1000000\r\n\r\n{",
    "upgrade": b"GET /v1/stream HTTP/1.1\r\n" + _HOST + _UPGRADE,
}


@pytest.mark.parametrize("flood", _FLOODS)
def test_the_owner_is_answered_while_many_without_a_token_hold_on(instance: Instance, flood: str) -> None:
    held = []
    for _ in range(_PEERS):
        peer = instance.connect()
        held.append(peer)
        try:
            peer.sendall(_FLOODS[flood])
        except OSError:  # it was let go already
            pass
    try:
        (token,) = (instance.home / "run").glob("*.token")
        bearer = f"Bearer {token.read_text().strip()}"
        assert instance.ask("/v1/tools", Authorization=bearer) == 200
        link = callgate("dashboard", "--no-open", cwd=instance.ws, env=instance.env)
        assert link.code == 0, link.err
        parts = urlsplit(link.out.strip())
        assert instance.ask(f"{parts.path}?{parts.query}", Host=parts.netloc) == 303
    finally:
        for peer in held:
            peer.close()


def test_a_peer_of_the_socket_that_asks_is_answered_while_many_say_nothing(
    instance: Instance,
) -> None:
    (record,) = (instance.home / "instances").glob("*.json")
    path = json.loads(record.read_text())["socketPath"]
    held = []
    try:
        for _ in range(_PEERS):
            held.append(socket.socket(socket.AF_UNIX))
            held[-1].connect(path)
        ran = callgate("call", "list_dir", "-v", cwd=instance.ws, env=instance.env)
        assert (ran.code, "callgate: instance at" in ran.err) == (0, True), ran.err
    finally:
        for peer in held:
            peer.close()
