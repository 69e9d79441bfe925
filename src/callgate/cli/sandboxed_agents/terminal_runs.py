"""Runs one sandboxed program with this process's own input, output and terminal."""

from __future__ import annotations

import os
import signal
import socket
import sys

from callgate.sandbox.backends import namespaces
from callgate.sandbox.backends.restrict import STEPS
from callgate.sandbox.processes import keeper
from callgate.sandbox.processes.keeper_messages import (
    END,
    ENDED,
    EXITED,
    LONGEST_MESSAGE,
    MESSAGE,
    NOT_CREATED,
    REFUSED,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from callgate.sandbox.orders import Order

_GRACE_S = 5.0
NOT_STARTED, NOT_FOUND = 126, 127


class Refused(OSError):
    """The system refused a step of the sandbox. The program was not started."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(number, os.strerror(number))
        self.step = step


def run(order: Order) -> tuple[int, list[str]]:
    """Run the program of an order. Its exit code, or 128 plus the signal that ended it, and the
    files that it was not allowed to create.

    Raises `Refused`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    streams = (os.dup(0), os.dup(1), os.dup(2))
    lease = os.open(os.devnull, os.O_RDONLY)
    owner = (os.geteuid(), os.getegid())
    sys.stdout.flush()
    layout = order["layout"]
    try:
        pid = os.fork() if layout is None else namespaces.begin(layout["own_network"])
    except OSError as error:
        for descriptor in (*streams, lease):
            os.close(descriptor)
        ours.close()
        theirs.close()
        raise Refused("namespaces", error.errno or 0) from error
    if pid == 0:
        code = 1
        try:
            ours.close()
            code = 1 if keeper.keep(order, theirs, streams, owner, lease) else 0
        finally:
            os._exit(code)
    theirs.close()
    for descriptor in (*streams, lease):
        os.close(descriptor)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: _stop(ours))
    try:
        return _wait(ours)
    finally:
        os.waitpid(pid, 0)
        ours.close()


def _stop(control: socket.socket) -> None:
    try:
        control.send(END.pack(_GRACE_S))
    except OSError:
        pass  # it has ended


def _wait(control: socket.socket) -> tuple[int, list[str]]:
    code, not_created = NOT_STARTED, []
    while message := control.recv(LONGEST_MESSAGE):
        if message[0] == NOT_CREATED:
            not_created.append(os.fsdecode(message[1:]))
            continue
        if len(message) != MESSAGE.size:
            continue
        kind, first, second, *_ = MESSAGE.unpack(message)
        if kind == REFUSED:
            raise Refused(STEPS[first] if first < len(STEPS) else "start", second)
        if kind == EXITED:
            code = os.waitstatus_to_exitcode(first)
            code = code if code >= 0 else 128 - code
        if kind == ENDED:
            break
    return code, not_created
