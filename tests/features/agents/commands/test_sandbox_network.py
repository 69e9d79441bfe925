"""`callgate sandbox --network ask`: a host waits for its approval inside `connect`."""

from __future__ import annotations

import os
import pty
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.features.agents.commands.sandbox import _network
from callgate.features.agents.settings import HooksTable
from callgate.sandbox.jails import Network
from tests.needs import needs

pytestmark = needs("linux", "/usr/bin/python3")

CALLGATE = """
import socket, sys
look_up = socket.getaddrinfo
def local(host, *args, **more):
    return look_up("127.0.0.1" if host == "build.test" else host, *args, **more)
socket.getaddrinfo = local
from callgate.cli.main import main
if "without" in sys.argv[1]:
    from callgate.sandbox import machines
    found = machines.look
    async def look(*args, **more):
        return tuple(each for each in await found(*args, **more) if each.name not in ("namespaces", "bubblewrap"))
    machines.look = look
sys.exit(main(["sandbox", *sys.argv[2:]]))
"""
CLIENT = """
import socket, sys
connection = socket.socket()
try:
    connection.connect((socket.gethostbyname("build.test"), int(sys.argv[1])))
    print("got", connection.recv(9).decode(), flush=True)
except OSError as error:
    print("failed", error.errno, flush=True)
"""


@pytest.fixture(params=["namespaces", "without"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.send(b"hello")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def environment(place: Path) -> dict[str, str]:
    for name in ("work", "gate", "person"):
        (place / name).mkdir(mode=0o700, exist_ok=True)
    return {**os.environ, "CALLGATE_HOME": str(place / "gate"), "HOME": str(place / "person")}


def command(way: str, port: int) -> list[str]:
    client = ["/usr/bin/python3", "-I", "-S", "-c", CLIENT, str(port)]
    return [sys.executable, "-c", CALLGATE, way, "--network", "ask", "--", *client]


@pytest.mark.parametrize("answer", ["allow", "deny"])
def test_a_host_waits_until_another_terminal_answers(tmp_path: Path, way: str, port: int, answer: str) -> None:
    env = environment(tmp_path)
    with subprocess.Popen(
        command(way, port), cwd=tmp_path / "work", env=env, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as running:  # fmt: skip
        assert running.stdout is not None and running.stderr is not None
        lines = []
        for line in running.stderr:  # until its end
            lines.append(line)
            found = re.search(r"build\.test:?\d* waits for approval: callgate confirmations allow (\S+)", line)
            if found is not None:  # the name, and then its private address
                answering = [sys.executable, "-m", "callgate", "confirmations", answer, found[1]]
                subprocess.run(answering, env=env, check=True, timeout=60, capture_output=True)
        out = running.stdout.read()
        running.wait(60)
    asked = [line for line in lines if "waits for approval" in line]
    expected = ("got hello\n", 2) if answer == "allow" else ("failed 13\n", 1)
    assert (out, len(asked)) == expected, lines


def test_the_question_is_asked_at_the_terminal_of_the_program(tmp_path: Path, way: str, port: int) -> None:
    env = environment(tmp_path)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path / "work")
        os.execve(sys.executable, command(way, port), {**env, "TERM": "dumb"})
    seen, answered = b"", 0
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        seen += piece
        if seen.count(b"[y]es once") > answered and seen.endswith(b"> "):
            answered += 1
            os.write(terminal, b"y\n")
    os.waitpid(pid, 0)
    os.close(terminal)
    assert answered == 2, seen.decode()
    assert b"got hello" in seen


def test_a_network_that_asks_is_no_host_called_ask() -> None:
    assert _network("ask", HooksTable()) == (Network.ASK, ())
    assert _network(None, HooksTable(network="ask")) == (Network.ASK, ())
