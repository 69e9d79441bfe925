"""Hosts from a warm process are hosts like any other."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from callgate.host.zygote import Order, order
from tests.needs import needs
from tests.unit.host.driving import PATIENCE_S, SAMPLES

pytestmark = needs("linux")

INIT = b'{"v":1,"id":"1","method":"init","params":{}}\n'


class Warm:
    def __init__(self) -> None:
        self.control, theirs = socket.socketpair()
        self.control.settimeout(PATIENCE_S)
        self.process = subprocess.Popen([sys.executable, "-m", "callgate.host", "--zygote"], stdin=theirs)
        theirs.close()
        self.lines = self.control.makefile("rb")

    def told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.lines.readline())
        return told

    def start(self, *argv: str, cwd: str = "/", env: dict[str, str] | None = None) -> tuple[int, IO[bytes], IO[bytes], IO[bytes]]:
        """Its pid, stdin, stdout and stderr."""
        (in_, stdin), (stdout, out), (stderr, err) = os.pipe(), os.pipe(), os.pipe()
        order(self.control, Order(list(argv), cwd, env or {}), [in_, out, err])
        for fd in (in_, out, err):
            os.close(fd)
        told = self.told()
        return told["pid"], os.fdopen(stdin, "wb", 0), os.fdopen(stdout, "rb"), os.fdopen(stderr, "rb")

    def end(self) -> int:
        self.lines.close()
        self.control.close()
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def warm() -> Iterator[Warm]:
    warm = Warm()
    yield warm
    assert warm.end() == 0


def test_a_forked_host_answers_and_its_end_is_told(warm: Warm) -> None:
    pid, stdin, stdout, stderr = warm.start(str(SAMPLES))
    with stdin, stdout, stderr:
        stdin.write(INIT)
        assert json.loads(stdout.readline())["ok"] is True
        assert os.getsid(pid) == pid
        stdin.close()
        assert (stdout.read(), stderr.read()) == (b"", b"")
    assert warm.told() == {"pid": pid, "status": 0}


def test_hosts_of_one_zygote_know_nothing_of_each_other(warm: Warm) -> None:
    first, second = warm.start(str(SAMPLES)), warm.start(str(SAMPLES))
    second[1].write(INIT)
    assert json.loads(second[2].readline())["ok"] is True
    open_files = [os.readlink(each) for each in Path(f"/proc/{second[0]}/fd").iterdir() if each.is_symlink()]
    assert not [each for each in open_files if each.startswith("socket:")]
    os.kill(first[0], signal.SIGKILL)
    assert warm.told() == {"pid": first[0], "status": signal.SIGKILL}
    second[1].write(INIT)
    assert json.loads(second[2].readline())["ok"] is True
    second[1].close()
    assert warm.told() == {"pid": second[0], "status": 0}
    for each in (*first[1:], *second[1:]):
        each.close()


def test_a_forked_host_has_the_directory_and_the_environment_of_its_order(warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(
        "import os, sys\nfrom callgate import tool\n"
        "@tool(side_effects='none')\n"
        "def where() -> list[object]:\n"
        "    'Where.'\n"
        "    return [os.getcwd(), dict(os.environ), sys.argv[1:]]\n"
    )
    _, stdin, stdout, stderr = warm.start("tools.py", cwd=str(tmp_path), env={"ONLY": "this"})
    with stdin, stdout, stderr:
        stdin.write(b'{"v":1,"id":"1","method":"execute_tool","params":{"tool_name":"where"}}\n')
        assert json.loads(stdout.readline())["result"]["value"]["result"] == [str(tmp_path), {"ONLY": "this"}, ["tools.py"]]


def test_a_host_that_cannot_begin_says_so_on_its_own_stderr(warm: Warm) -> None:
    for argv, cwd, said in (("missing.py", "/", b"missing.py"), (str(SAMPLES), "/no/such/place", b"/no/such/place")):
        pid, stdin, stdout, stderr = warm.start(argv, cwd=cwd)
        with stdin, stdout, stderr:
            assert said in stderr.read()
        told = warm.told()
        assert (told["pid"], os.waitstatus_to_exitcode(told["status"])) == (pid, 1)


def test_an_order_that_cannot_be_read_is_refused_and_the_next_one_is_met(warm: Warm) -> None:
    warm.control.sendall(b'{"argv":["x"],"cwd":"/","env":{}}\n')
    assert "problem" in warm.told()
    for wrong in (b"nonsense\n", b'{"argv":"x"}\n'):
        socket.send_fds(warm.control, [wrong], [0, 1, 2])
        assert "problem" in warm.told()
    pid, *streams = warm.start(str(SAMPLES))
    for each in streams:
        each.close()
    assert warm.told()["pid"] == pid
