"""Paths of another process mean what they mean for that process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.sandbox.processes import locations
from tests.needs import needs

pytestmark = needs("linux")

_HOLDER = "import os, sys; os.open('there', os.O_PATH); print(flush=True); sys.stdin.read()"


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A process in `tmp_path` that holds a descriptor of its directory `there`, at the lowest number."""
    (tmp_path / "there").mkdir()
    command = [sys.executable, "-I", "-S", "-c", _HOLDER]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid, tmp_path
        process.kill()


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/fd/3/own.sock",
        "/proc/thread-self/fd/3/own.sock",
        "/dev/fd/3/own.sock",
        "/proc/self/cwd/there/own.sock",
        "there/own.sock",
        "link",
    ],
)
def test_a_socket_is_found_where_its_caller_finds_it(holder: tuple[int, Path], path: str) -> None:
    pid, directory = holder
    (directory / "link").symlink_to("/proc/self/fd/3/own.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / "there/own.sock"))
        found = locations.open_path(pid, path.encode())
        try:
            assert os.path.samestat(os.fstat(found), (directory / "there/own.sock").stat())
        finally:
            os.close(found)


def test_a_missing_socket_is_an_error(holder: tuple[int, Path]) -> None:
    with pytest.raises(FileNotFoundError):
        locations.open_path(holder[0], b"/proc/self/fd/3/own.sock")
