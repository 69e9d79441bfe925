"""A warm process that has imported all that a host needs, and forks a ready one when asked.

    {"argv": ["tools.py"], "cwd": "/w", "env": {}}    with stdin, stdout, stderr attached
    {"pid": 17}                                       it runs
    {"pid": 17, "status": 0}                          it has ended; as `os.waitpid` has it

Its own stdin is a Unix socket, on which these lines go both ways; when that ends, so does it.
A host that it forked is a process like any other: the leader of a session of its own, and
nothing is left in it of the zygote but imported code. It has not run a line of any plugin.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence

import msgspec

from callgate.protocol.ndjson import Framer, line

_MAX_LINE = 1024 * 1024
_FDS = 3


class Order(msgspec.Struct, frozen=True):
    argv: list[str]
    """As for `python -m callgate.host`."""
    cwd: str
    env: dict[str, str]
    """All that it sees."""


class Forked(msgspec.Struct, frozen=True, omit_defaults=True):
    pid: int | None = None
    status: int | None = None
    problem: str | None = None
    """Why nothing was forked."""


def order(control: socket.socket, asked: Order, fds: Sequence[int]) -> None:
    """Ask for a host with these for stdin, stdout and stderr. Its pid comes as a line."""
    data = line(asked)
    sent = socket.send_fds(control, [data], list(fds))
    control.sendall(data[sent:])


def serve(main: Callable[[Sequence[str]], int]) -> int:
    """Fork hosts that run `main` until the socket ends; the exit code, in each process its own."""
    control = socket.socket(fileno=os.dup(0))
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakes.fileno())
    gc.collect()
    gc.freeze()  # so that a collection in a host does not copy what it shares with us
    framer = Framer(_MAX_LINE)
    held: list[int] = []
    """Descriptors that came before the end of their line."""
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            _tell_ended(control)
        if control not in ready:
            continue
        data, fds, _, _ = socket.recv_fds(control, 64 * 1024, _FDS)
        held += fds
        if not data:
            return 0
        for each in framer.feed(data):
            taken, held = held[:_FDS], held[_FDS:]
            asked = _read(each, taken)
            if isinstance(asked, Forked):
                control.sendall(line(asked))
            elif (pid := _fork()) == 0:
                for mine in (control, woken, wakes):
                    mine.close()
                for other in held:
                    os.close(other)
                return _become(asked, taken, main)
            else:
                answer = Forked(pid=pid) if pid is not None else Forked(problem="no more processes")
                control.sendall(line(answer))
            for fd in taken:
                os.close(fd)


def _read(received: bytes | None, fds: list[int]) -> Order | Forked:
    if received is None or len(fds) != _FDS:
        return Forked(problem="an order is one line, with three descriptors")
    try:
        return msgspec.json.decode(received, type=Order)
    except (msgspec.MsgspecError, RecursionError) as error:
        return Forked(problem=str(error))


def _fork() -> int | None:
    try:
        return os.fork()
    except OSError:
        return None


def _become(asked: Order, fds: list[int], main: Callable[[Sequence[str]], int]) -> int:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(asked.env)
    try:
        os.chdir(asked.cwd)
    except OSError as error:
        print(f"callgate host: {asked.cwd}: {error.strerror}", file=sys.stderr)
        return 1
    sys.argv[1:] = asked.argv
    return main(asked.argv)


def _tell_ended(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        control.sendall(line(Forked(pid=pid, status=status)))
