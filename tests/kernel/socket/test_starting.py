"""How an instance is started: in the background, by another for its socket, and where it may not
be.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.socket.instances import live
from tests.kernel.socket.test_serving import Peer, Served

CALLGATE = [sys.executable, "-m", "callgate"]


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cg") as name:
        made = Path(name)
        (made / "ws").mkdir()
        (made / "ws" / "a.txt").write_text("hello\n")
        yield made


def run(base: Path, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CALLGATE_HOME": str(base / "h")}
    return subprocess.run(
        [*CALLGATE, *words], cwd=base / "ws", env=env, capture_output=True, text=True, timeout=60, **more
    )


def test_an_instance_goes_into_the_background_and_can_be_stopped(base: Path) -> None:
    begun = run(base, "serve", "--detach")
    assert begun.returncode == 0
    assert begun.stdout.startswith(f"callgate: listening on {base}/h/run/callgate.sock\n")
    (instance,) = live(str(base / "h"))
    peer = Peer(base / "h" / "run" / "callgate.sock")
    peer.call("read_file", {"path": "a.txt"}, base / "ws")
    assert peer.read()["result"]["content"] == "hello\n"
    peer.close()
    assert os.getsid(instance.pid) == instance.pid
    stopped = run(base, "stop")
    assert (stopped.returncode, stopped.stdout) == (0, f"stopped {instance.pid} (ws)\n")
    assert run(base, "status").returncode == 1


def test_a_background_that_cannot_begin_says_why_and_fails(base: Path) -> None:
    served = Served(base)
    try:
        second = run(base, "serve", "--detach")
        assert (second.returncode, "another instance" in second.stderr) == (1, True)
    finally:
        served.leave()


@pytest.fixture
def handed(base: Path) -> Iterator[socket.socket]:
    (base / "run").mkdir(mode=0o700)
    listening = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    listening.bind(str(base / "run" / "s"))
    os.umask(before)
    listening.listen()
    yield listening
    listening.close()


ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="callgate")
os.execv(sys.executable, [sys.executable, "-m", "callgate", "serve"])
"""


def activated(base: Path, handed: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", ACTIVATE, str(handed.fileno())],
        cwd=base / "ws",
        pass_fds=[handed.fileno()],
        env={**os.environ, "CALLGATE_HOME": str(base / "h")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_an_instance_serves_the_socket_it_was_started_for(base: Path, handed: socket.socket) -> None:
    early = Peer(base / "run" / "s")  # before anybody serves it: this is what starts one
    early.call("read_file", {"path": "a.txt"}, base / "ws")
    process = activated(base, handed)
    try:
        assert early.read()["result"]["content"] == "hello\n"
        early.call("shell", {"command": "env"}, base / "ws")
        assert process.stdout is not None
        assert process.stdout.readline() == f"callgate: listening on {base}/run/s\n".encode()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    early.close()
    assert process.returncode == 0
    assert (base / "run" / "s").exists()  # whoever made it still listens there


@pytest.mark.parametrize("wrong", ["file", "stream", "open"])
def test_something_else_that_is_handed_over_is_refused(base: Path, handed: socket.socket, wrong: str) -> None:
    if wrong == "open":
        os.chmod(base / "run" / "s", 0o666)
    one, two = socket.socketpair()
    with one, two, (base / "x").open("w") as file:
        process = activated(base, {"file": file, "stream": one, "open": handed}[wrong])
        _, error = process.communicate(timeout=60)
    assert (process.returncode, b"the passed descriptor" in error or b"open to others" in error) == (1, True)


def test_a_socket_around_the_workspace_is_refused(base: Path) -> None:
    os.chmod(base, 0o700)
    refused = run(base, "serve", "--socket", str(base / "s"))
    assert refused.returncode == 1
    assert not (base / "s").exists()
    assert list((base / "h" / "instances").glob("*")) == []


@pytest.mark.spec("S0-16", "T07")
def test_commands_do_not_reach_the_socket_wherever_it_is(base: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="cg", dir="/var/tmp") as elsewhere:  # not in /tmp, which is hidden
        path = Path(elsewhere) / "s"
        served = Served(base, "--mode", "write", "--socket", str(path))
        try:
            peer = Peer(path)
            peer.call("shell", {"command": f"ls -d /var/tmp; ls {elsewhere} {base}/h/run"}, base / "ws")
            result = peer.until("tool_result")["result"]
            peer.close()
        finally:
            served.leave()
    if "content" not in result and result["error"]["details"]["reason"] == "sandbox_unavailable":
        pytest.skip("needs a sandbox: not for us here")
    assert result["content"]["stdout"] == "/var/tmp\n"


MARKED = 1 << 59


def test_what_a_running_call_started_cannot_answer_its_question(base: Path) -> None:
    """As where the settings say that there is no sandbox."""
    served = Served(base)
    code = (
        "import json, socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "f = s.makefile('rwb');"
        'f.write(b\'{"type":"subscribe","requestId":"s","confirmer":true}\\n\'); f.flush();'
        "print(json.loads(f.readline())['type']);"
        'f.write(b\'{"type":"answer_confirmation","requestId":"a","confirmationId":"x","decision":"allow"}\\n\');'
        "f.flush(); print(json.loads(f.readline())['message'])"
    )
    _, hard = resource.getrlimit(10)
    try:
        said = [
            subprocess.run(
                [sys.executable, "-c", code, str(served.path)],
                capture_output=True,
                text=True,
                timeout=30,
                preexec_fn=before,
            ).stdout.splitlines()
            for before in (None, lambda: resource.setrlimit(10, (MARKED, hard)))
        ]
    finally:
        served.leave()
    assert [lines[0] for lines in said] == ["subscribed", "error"]
    assert said[0][1] != said[1][1]


@pytest.mark.spec("S0-13")
def test_a_number_that_another_process_has_by_now_is_not_the_instance(base: Path) -> None:
    served = Served(base)
    record = base / "h" / "instances" / f"{served.process.pid}.json"
    said = json.loads(record.read_text())
    served.process.kill()
    served.process.wait()
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        record.unlink()
        taken = base / "h" / "instances" / f"{other.pid}.json"
        taken.write_text(json.dumps({**said, "pid": other.pid}))
        assert live(str(base / "h")) == []
        assert run(base, "stop").returncode != 0
        assert other.poll() is None
    finally:
        other.communicate(b"\n")
    served.leave()
