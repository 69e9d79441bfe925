"""Stopped calls of another process: answered now or later, in any order, from any thread."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from callgate.sandbox import kernel
from callgate.sandbox.processes.supervisor import Answer, Call, Supervisor, failure, result
from tests.needs import needs

if TYPE_CHECKING:
    from callgate.sandbox.processes.supervisor import Handler

pytestmark = needs("linux")
LIMIT_S = 30.0
STOPPED = """
import os, socket, sys, threading
from callgate.sandbox import kernel
from callgate.sandbox.backends import seccomp
channel = socket.socket(fileno=int(sys.argv[1]))
kernel.no_new_privileges()
traps = {"mkdirat": None, "unlinkat": None, "openat": (2, os.O_CREAT)}
listener = seccomp.install_listener(seccomp.notifying(kernel.machine(), traps))
socket.send_fds(channel, [b"l"], [listener])
os.close(listener)
here = os.open(".", os.O_RDONLY)
def attempt(name, work):
    try:
        print(name, work(), flush=True)
    except OSError as error:
        print(name, error.errno, flush=True)
def run(name, work):
    thread = threading.Thread(target=attempt, args=(name, work))
    thread.start()
    return thread
for line in sys.stdin:
    exec(line)
"""


class Stopped:
    """A process whose calls stop, and what it says."""

    def __init__(self, directory: Path) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-c", STOPPED, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=directory,
                pass_fds=[theirs.fileno()],
                text=True,
            )
            ours.settimeout(LIMIT_S)
            _, (self.listener,), _, _ = socket.recv_fds(ours, 1, 1)

    def do(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def hear(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT_S)
        assert ready
        return self.process.stdout.readline().strip()


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Stopped]:
    made = Stopped(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()
    for stream in made.process.stdin, made.process.stdout:
        assert stream is not None
        with contextlib.suppress(BrokenPipeError):
            stream.close()
    os.close(made.listener)


def table(**handlers: Handler) -> dict[int, Handler]:
    numbers = kernel.NUMBERS[kernel.machine()]
    return {numbers[name]: handler for name, handler in handlers.items()}


def serve(supervisor: Supervisor) -> None:
    ready, _, _ = select.select([supervisor.listener], [], [], LIMIT_S)
    assert ready and supervisor.serve()


def test_a_held_call_delays_no_other_and_is_answered_from_another_thread(stopped: Stopped) -> None:
    held: list[Call] = []
    names: list[bytes] = []

    def hold(call: Call) -> None:
        held.append(call)

    def answer(call: Call) -> Answer:
        names.append(call.text(call.arguments[1]))
        return failure(errno.EEXIST)

    supervisor = Supervisor(stopped.listener, table(mkdirat=hold, unlinkat=answer))
    stopped.do("run('first', lambda: os.mkdir('a', dir_fd=here))")
    serve(supervisor)
    for count in range(3):
        stopped.do(f"run('second', lambda: os.unlink('b{count}', dir_fd=here))")
        serve(supervisor)
        assert stopped.hear() == f"second {errno.EEXIST}"
    assert names == [b"b0", b"b1", b"b2"]
    assert supervisor.is_waiting(held[0].id)
    answering = threading.Thread(target=supervisor.answer, args=(held[0].id, failure(errno.EDQUOT)))
    answering.start()
    assert stopped.hear() == f"first {errno.EDQUOT}"
    answering.join()
    assert not supervisor.is_waiting(held[0].id)
    assert not supervisor.answer(held[0].id, result())


def test_a_call_returns_with_a_descriptor_of_ours(stopped: Stopped, tmp_path: Path) -> None:
    reading, writing = os.pipe()

    def give(call: Call) -> Answer:
        return result(supervisor.give(call.id, writing, cloexec=True))

    supervisor = Supervisor(stopped.listener, table(openat=give))
    stopped.do(
        "file = os.open('x', os.O_CREAT | os.O_WRONLY); os.write(file, b'through'); print(os.get_inheritable(file))"
    )
    serve(supervisor)
    assert stopped.hear() == "False"
    assert os.read(reading, 100) == b"through"
    assert not (tmp_path / "x").exists()
    os.close(reading)
    os.close(writing)


def test_nothing_is_read_of_a_process_that_ended_during_its_call(stopped: Stopped) -> None:
    held: list[Call] = []

    def hold(call: Call) -> None:
        held.append(call)

    supervisor = Supervisor(stopped.listener, table(mkdirat=hold))
    stopped.do("os.mkdir('a', dir_fd=here)")
    serve(supervisor)
    stopped.process.kill()
    stopped.process.wait()
    with pytest.raises(OSError):
        held[0].text(held[0].arguments[1])
    with pytest.raises(FileNotFoundError):
        supervisor.give(held[0].id, 0, cloexec=True)
    assert not supervisor.answer(held[0].id, result())


def test_a_handler_that_fails_fails_the_call(stopped: Stopped) -> None:
    def broken(call: Call) -> Answer:
        raise LookupError

    def refuse(call: Call) -> Answer:
        raise OSError(errno.ENOSPC, "full")

    supervisor = Supervisor(stopped.listener, table(mkdirat=broken, unlinkat=refuse))
    stopped.do("run('first', lambda: os.mkdir('a', dir_fd=here)).join()")
    serve(supervisor)
    assert stopped.hear() == f"first {errno.EPERM}"
    stopped.do("run('second', lambda: os.unlink('a', dir_fd=here)).join()")
    serve(supervisor)
    assert stopped.hear() == f"second {errno.ENOSPC}"


def test_calls_fail_when_nobody_listens_any_more(stopped: Stopped) -> None:
    other = os.dup(stopped.listener)
    os.close(stopped.listener)
    os.close(other)
    stopped.listener = os.open(os.devnull, os.O_RDONLY)
    stopped.do("run('first', lambda: os.mkdir('a', dir_fd=here)).join()")
    assert stopped.hear() == f"first {errno.ENOSYS}"
