"""The socket is its owner's alone, and a living one is never taken."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.config.instance_records import peer
from callgate.socket.listening import CannotListen, fitting, listen


@pytest.fixture
def run() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="cg"))  # short enough for a socket
    yield made / "run"
    shutil.rmtree(made)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def connect(path: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    return client


@pytest.mark.spec("S0-16", "T29")
def test_only_the_owner_reaches_the_socket_and_its_directory(run: Path) -> None:
    listener = listen(str(run / "a.sock"))
    assert (mode(run), mode(run / "a.sock")) == (0o700, 0o600)
    with connect(listener.path):
        accepted, _ = listener.socket.accept()
        assert peer(accepted) == (os.getuid(), os.getpid())
        accepted.close()
    listener.close()
    listener.close()
    assert list(run.iterdir()) == []


@pytest.mark.spec("S0-15")
def test_a_living_socket_is_never_taken(run: Path) -> None:
    listener = listen(str(run / "a.sock"))
    with pytest.raises(CannotListen):
        listen(str(run / "a.sock"))
    connect(listener.path).close()  # and it still answers
    listener.close()
    foreign = socket.socket(socket.AF_UNIX)  # of a program that knows no lock
    foreign.bind(str(run / "a.sock"))
    foreign.listen()
    with pytest.raises(CannotListen):
        listen(str(run / "a.sock"))
    connect(str(run / "a.sock")).close()
    foreign.close()


def test_the_socket_of_a_dead_process_is_replaced(run: Path) -> None:
    run.mkdir(mode=0o700)
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(run / "a.sock"))
    dead.close()
    listener = listen(str(run / "a.sock"))
    connect(listener.path).close()
    listener.close()


@pytest.mark.parametrize("what", ["file", "link", "directory"])
def test_what_is_no_socket_stays_where_it_is(run: Path, what: str) -> None:
    run.mkdir(mode=0o700)
    path = run / "a.sock"
    if what == "file":
        path.write_text("mine")
    elif what == "link":
        path.symlink_to("/etc/passwd")
    else:
        path.mkdir()
    with pytest.raises(CannotListen):
        listen(str(path))
    assert os.path.lexists(path)


def test_a_directory_that_others_can_enter_is_refused(run: Path) -> None:
    run.mkdir(mode=0o755)
    with pytest.raises(CannotListen):
        listen(str(run / "a.sock"))
    other = run.parent / "link"
    (run.parent / "private").mkdir(mode=0o700)
    other.symlink_to(run.parent / "private")
    with pytest.raises(CannotListen):
        listen(str(other / "a.sock"))


def test_a_path_that_is_too_long_gets_a_short_one(run: Path) -> None:
    long = str(run / ("x" * 200))
    with pytest.raises(CannotListen):
        listen(long)
    assert len(fitting(long)) <= 107
    assert fitting(long) == fitting(long) != fitting(long + "y")
    assert fitting("/short") == "/short"
