"""Many peers at once: all are taken in, however slow we are and however few files we may open."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from callgate.cli.connection import ConnectionLost, InstanceConnection
from callgate.client.blocking import connect
from callgate.client.link import NoInstance
from callgate.socket.listening import Acceptor, listen
from tests.kernel.socket.test_serving import Served

CROWD = 400
LIMIT_S = 60.0

pytestmark = pytest.mark.skipif(
    int(Path("/proc/sys/net/core/somaxconn").read_text()) < CROWD,
    reason="the system lets fewer peers wait",
)


@pytest.fixture
def base() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="cg"))  # short enough for a socket
    yield made
    shutil.rmtree(made)


@pytest.fixture
def served(base: Path) -> Iterator[Served]:
    served = Served(base)
    yield served
    os.kill(served.process.pid, signal.SIGCONT)
    served.leave()


def stand_still(served: Served) -> None:
    os.kill(served.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, served.process.pid, os.WSTOPPED | os.WNOWAIT)


@pytest.fixture
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 4 * CROWD:
        pytest.skip("too few files may be opened")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 4 * CROWD), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_files")
def test_a_crowd_that_comes_while_the_loop_stands_still_waits_and_is_served(
    served: Served,
) -> None:
    stand_still(served)
    crowd = [socket.socket(socket.AF_UNIX) for _ in range(CROWD)]
    try:
        for peer in crowd:
            peer.setblocking(False)
            peer.connect(str(served.path))
        os.kill(served.process.pid, signal.SIGCONT)
        for peer in crowd:
            peer.settimeout(LIMIT_S)
            peer.sendall(b'{"type":"check_alive","requestId":"p"}\n')
        assert {json.loads(peer.makefile("rb").readline())["type"] for peer in crowd} == {"alive"}
    finally:
        for peer in crowd:
            peer.close()


@pytest.mark.usefixtures("many_files")
def test_a_crowd_at_the_http_address_waits_and_is_served(served: Served) -> None:
    record = json.loads((served.home / "instances" / f"{served.process.pid}.json").read_text())
    host, port = record["httpUrl"].removeprefix("http://").split(":")
    request = f"GET /healthz HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()
    with closing(socket.create_connection((host, int(port)), LIMIT_S)) as first:  # it has loaded
        first.sendall(request)
        assert first.recv(9) == b"HTTP/1.1 "
    stand_still(served)
    crowd = []
    try:
        for _ in range(CROWD):
            crowd.append(socket.create_connection((host, int(port)), LIMIT_S))
            crowd[-1].sendall(request)
        queue = _queue_at(int(port))
        assert queue == CROWD  # the system holds all of them: none has to knock again
        os.kill(served.process.pid, signal.SIGCONT)
        assert {peer.recv(9) for peer in crowd} == {b"HTTP/1.1 "}
    finally:
        for peer in crowd:
            peer.close()


def _queue_at(port: int) -> int:
    """How many wait at a listening port: `rx_queue` of its line in /proc/net/tcp."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (line,) = [each for each in lines if each[1].endswith(f":{port:04X}") and each[3] == "0A"]
    return int(line[4].split(":")[1], 16)


def _fill(listening: socket.socket, path: str) -> list[socket.socket]:
    """Peers in the queue of a socket until no more fits."""
    listening.listen(0)
    waiting = []
    while True:
        peer = socket.socket(socket.AF_UNIX)
        peer.setblocking(False)
        waiting.append(peer)
        try:
            peer.connect(path)
        except BlockingIOError:
            return waiting


def _take_all(listening: socket.socket, count: int) -> None:
    listening.setblocking(True)
    for _ in range(count):
        listening.accept()[0].close()


async def test_a_client_for_whom_there_is_no_room_yet_tries_again(base: Path) -> None:
    listener = listen(str(base / "run" / "a.sock"))
    waiting = _fill(listener.socket, listener.path)
    refused = asyncio.Event()
    loop = asyncio.get_running_loop()

    def come() -> None:
        with pytest.raises(ConnectionLost, match="too many"):
            InstanceConnection(listener.path, 0.05)  # nobody takes any: it gives up, and says why
        loop.call_soon_threadsafe(refused.set)
        InstanceConnection(listener.path, LIMIT_S).__exit__()

    coming = threading.Thread(target=come)
    coming.start()
    await asyncio.wait_for(refused.wait(), LIMIT_S)
    _take_all(listener.socket, len(waiting))  # the last of `waiting` came in vain; `come` did not
    coming.join(LIMIT_S)
    assert not coming.is_alive()
    for peer in waiting:
        peer.close()
    listener.close()


async def test_a_full_queue_is_not_taken_for_another_users_socket(base: Path) -> None:
    listener = listen(str(base / "run" / "a.sock"))
    waiting = _fill(listener.socket, listener.path)
    with pytest.raises(NoInstance, match="too many"):
        async with connect(socket=listener.path, patience_s=0.05):
            raise AssertionError
    for peer in waiting:
        peer.close()
    listener.close()
    with pytest.raises(NoInstance, match="No such file"):
        async with connect(socket=listener.path, patience_s=0.05):
            raise AssertionError


class _Silent(asyncio.Protocol):
    def __init__(self, made: asyncio.Queue[None]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.put_nowait(None)


async def test_few_are_taken_in_one_turn_of_the_loop(base: Path) -> None:
    listener = listen(str(base / "run" / "a.sock"))
    crowd = [socket.socket(socket.AF_UNIX) for _ in range(100)]
    for peer in crowd:
        peer.connect(listener.path)
    turns, made = 0, asyncio.Queue[None]()
    acceptor = Acceptor(listener.socket, lambda: _Silent(made))
    acceptor.start()
    while made.qsize() < len(crowd):
        turns += 1
        await asyncio.sleep(0)
    assert turns >= len(crowd) / 16
    acceptor.close()
    listener.close()
    for peer in crowd:
        peer.close()


async def test_without_files_peers_wait_and_the_log_has_one_line(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    listener = listen(str(base / "run" / "a.sock"))
    made = asyncio.Queue[None]()
    errors = 0
    loop = asyncio.get_running_loop()
    tried = asyncio.Event()

    class Exhausted:
        """A listening socket of a process that may open no more files, until it may."""

        full = True

        def fileno(self) -> int:
            return listener.socket.fileno()

        def close(self) -> None:
            listener.socket.close()

        def accept(self) -> tuple[socket.socket, object]:
            nonlocal errors
            if self.full:
                errors += 1
                if errors == 3:
                    loop.call_soon(tried.set)
                raise OSError(24, "Too many open files")
            return listener.socket.accept()

    exhausted = Exhausted()
    acceptor = Acceptor(exhausted, lambda: _Silent(made), retry_s=0.01)
    acceptor.start()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(listener.path)
        await asyncio.wait_for(tried.wait(), LIMIT_S)
        assert len(caplog.records) == 1
        exhausted.full = False
        await asyncio.wait_for(made.get(), LIMIT_S)
    acceptor.close()
    listener.close()
