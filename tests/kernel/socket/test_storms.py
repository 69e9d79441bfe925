"""Peers that leave in the middle of what they say take their memory with them."""

from __future__ import annotations

import json
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from callgate.socket.buffers import Unfinished
from callgate.socket.instances import token_path
from tests.kernel.socket.test_serving import Served
from tests.needs import needs

STORM = 240
LINE = 8 * 1024 * 1024 - 1024
LIMIT_S = 60.0

pytestmark = needs("linux")


@pytest.fixture
def served() -> Iterator[Served]:
    base = Path(tempfile.mkdtemp(prefix="cg"))  # short enough for a socket
    served = Served(base)
    yield served
    served.leave()
    shutil.rmtree(base)


def resident(served: Served, field: str = "VmRSS") -> int:
    """Bytes of its memory that are in use."""
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def http(served: Served) -> tuple[str, int, str]:
    record = json.loads((served.home / "instances" / f"{served.process.pid}.json").read_text())
    host, port = record["httpUrl"].removeprefix("http://").split(":")
    return host, int(port), Path(token_path(str(served.home), served.process.pid)).read_text().strip()


def line_peer(served: Served) -> tuple[socket.socket, bytes]:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(LIMIT_S)
    peer.connect(str(served.path))
    return peer, b'{"type":"tool_call","requestId":"r","toolName":"' + b"a" * LINE


def http_peer(served: Served) -> tuple[socket.socket, bytes]:
    host, port, token = http(served)
    head = (
        f"POST /v1/sessions HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {LINE + 1}\r\n\r\n"
    )
    return socket.create_connection((host, port), LIMIT_S), head.encode() + b" " * LINE


def websocket_peer(served: Served) -> tuple[socket.socket, bytes]:
    host, port, token = http(served)
    head = (
        f"GET /v1/stream HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    peer = socket.create_connection((host, port), LIMIT_S)
    peer.sendall(head.encode())
    assert peer.recv(65_536).startswith(b"HTTP/1.1 101 ")
    size = 1024 * 1024 - 1024
    return peer, b"\x81\xff" + size.to_bytes(8, "big") + b"mask" + b"a" * (size - 1)


PEERS = {"lines": line_peer, "bodies": http_peer, "messages": websocket_peer}


def storm(served: Served, kind: str, count: int) -> None:
    peers = []
    for _ in range(count):
        peer, beginning = PEERS[kind](served)
        with suppress(BrokenPipeError, ConnectionResetError):  # one too many
            peer.sendall(beginning)
        peers.append(peer)
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("kind", ["lines", "messages", pytest.param("bodies", marks=pytest.mark.soak)])
def test_a_storm_of_what_is_never_ended_leaves_the_memory_as_it_was(served: Served, kind: str) -> None:
    witness = served.peer()
    witness.call("read_file", {"path": "a.txt"}, cwd=served.ws)
    witness.until("tool_result")
    storm(served, kind, 1)  # what it takes is loaded
    before = resident(served)
    storm(served, kind, STORM)
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:  # it hears of their going in the meantime
        witness.send(type="check_alive", requestId="p")
        assert witness.read()["type"] == "alive"
        if resident(served) <= before * 1.2:
            break
    print(before >> 20, resident(served) >> 20, resident(served, "VmHWM") >> 20)
    assert resident(served) <= before * 1.2
    assert resident(served, "VmHWM") < before + 256 * 1024 * 1024


def test_the_one_that_has_begun_most_is_refused_and_the_others_go_on() -> None:
    refused = []

    class Peer:
        def __init__(self, name: str) -> None:
            self.name = name

        def overflow(self) -> None:
            refused.append(self.name)

    unfinished = Unfinished(most=100)
    one, two, small = Peer("one"), Peer("two"), Peer("small")
    unfinished.hold(one, 40)
    unfinished.hold(two, 55)
    unfinished.hold(small, 5)
    assert refused == []
    unfinished.hold(small, 6)
    assert refused == ["two"]
    unfinished.hold(one, 94)
    assert refused == ["two"]
    unfinished.hold(one, 0)
    unfinished.hold(two, 94)
    assert refused == ["two"]


def test_who_is_refused_hears_why(served: Served) -> None:
    small = served.peer()
    small.raw(b'{"type":"check_alive",')
    first = [line_peer(served) for _ in range(9)]
    for peer, beginning in first:
        with suppress(BrokenPipeError, ConnectionResetError):
            peer.sendall(beginning)
    said = first[0][0].makefile("rb").readline()
    assert (json.loads(said)["type"], json.loads(said)["reason"]) == ("closing", "overloaded")
    small.raw(b'"requestId":"p"}\n')
    assert small.read()["type"] == "alive"
    for peer, _ in first:
        peer.close()
