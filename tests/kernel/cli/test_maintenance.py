"""An instance can be found and stopped for as long as it lives, whatever happens to its files."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.socket.test_serving import Served

LIMIT_S = 60.0


@pytest.fixture
def base() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="cg"))  # short enough for a socket
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def served(base: Path) -> Iterator[Served]:
    served = Served(base)
    yield served
    served.leave()


def command(served: Served, *given: str) -> tuple[int, Any]:
    ran = subprocess.run(
        [sys.executable, "-m", "callgate", *given, "--json"],
        capture_output=True,
        text=True,
        cwd=served.ws.parent,
        env={**os.environ, "CALLGATE_HOME": str(served.home)},
    )
    answer = json.loads(ran.stdout)
    answer.pop("answered_by", None)
    return ran.returncode, answer


def wait_for(seen: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not seen():
        assert time.monotonic() < until
        time.sleep(0.02)


def answers(served: Served) -> bool:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(LIMIT_S)
        try:
            peer.connect(str(served.path))
        except OSError:
            return False
        peer.sendall(b'{"type":"check_alive","requestId":"p"}\n')
        return b'"alive"' in peer.recv(65_536)


@pytest.mark.parametrize("what", ["run/callgate.sock", "run", "run/callgate.sock.lock"])
def test_a_socket_that_was_deleted_is_made_again(served: Served, what: str) -> None:
    guest, age = served.peer(), served.path.stat().st_mtime_ns
    gone = served.home / what
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    wait_for(lambda: answers(served))
    assert served.path.stat().st_mode & 0o777 == 0o600
    assert served.path.stat().st_mtime_ns == age  # by which clients know what settings it has read
    guest.send(type="check_alive", requestId="p")
    assert guest.read()["type"] == "alive"  # whoever was there has lost nothing
    code, shown = command(served, "status")
    assert (code, [each["pid"] for each in shown["instances"]]) == (0, [served.process.pid])


def test_records_that_were_deleted_are_written_again(served: Served) -> None:
    shutil.rmtree(served.home / "instances")
    (served.home / "config.json").unlink()
    wait_for((served.home / "config.json").exists)
    assert command(served, "status")[1]["instances"][0]["pid"] == served.process.pid
    assert command(served, "stop") == (0, {"stopped": served.process.pid})


def test_status_and_stop_know_an_instance_whose_socket_is_gone(served: Served) -> None:
    os.kill(served.process.pid, 19)  # SIGSTOP: it cannot make it again
    served.path.unlink()
    (shown,) = command(served, "status")[1]["instances"]
    assert (shown["pid"], shown["reachable"]) == (served.process.pid, False)
    os.kill(served.process.pid, 18)
    assert command(served, "stop") == (0, {"stopped": served.process.pid})
    assert served.process.wait(LIMIT_S) == 0


def test_an_instance_whose_socket_cannot_be_made_again_ends(served: Served) -> None:
    os.kill(served.process.pid, 19)
    served.path.unlink()
    served.path.write_text("mine")
    os.kill(served.process.pid, 18)
    assert served.process.wait(LIMIT_S) == 1
    assert served.path.read_text() == "mine"
    assert command(served, "status") == (1, {"instances": []})


def test_an_instance_whose_socket_another_took_ends_and_leaves_it(served: Served) -> None:
    os.kill(served.process.pid, 19)
    served.path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(served.path))
        other.listen()
        os.kill(served.process.pid, 18)
        assert served.process.wait(LIMIT_S) == 1
        assert served.path.is_socket()


@pytest.mark.parametrize("comes_back", [False, True])
def test_an_instance_whose_home_is_gone_ends(served: Served, comes_back: bool) -> None:
    os.kill(served.process.pid, 19)
    shutil.rmtree(served.home)
    if comes_back:
        served.home.mkdir(mode=0o700)
    os.kill(served.process.pid, 18)
    assert served.process.wait(LIMIT_S) == 1
    assert not (served.home / "run").exists()
