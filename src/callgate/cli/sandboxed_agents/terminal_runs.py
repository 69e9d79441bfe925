"""Runs one sandboxed program with this process's own input, output and terminal.

Light to import: `prepared` starts programs without anything else of ours.
"""

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
    REFUSED,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from callgate.sandbox.orders import Order

_GRACE_S = 5.0
NOT_STARTED = 126


def run(order: Order) -> int:
    """Run what was ordered; its exit code, or 128 and the signal that ended it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    streams = (os.dup(0), os.dup(1), os.dup(2))
    lease = os.open(os.devnull, os.O_RDONLY)
    owner = (os.geteuid(), os.getegid())
    sys.stdout.flush()
    layout = order["layout"]
    pid = os.fork() if layout is None else namespaces.begin(layout["own_network"])
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
    status = _wait(ours)
    os.waitpid(pid, 0)
    return status


def _stop(control: socket.socket) -> None:
    try:
        control.send(END.pack(_GRACE_S))
    except OSError:
        pass  # it has ended


def _wait(control: socket.socket) -> int:
    code = NOT_STARTED
    while message := control.recv(LONGEST_MESSAGE):
        if len(message) != MESSAGE.size:
            continue
        kind, first, second, *_ = MESSAGE.unpack(message)
        if kind == REFUSED:
            step = STEPS[first] if first < len(STEPS) else "start"
            sys.stderr.write(f"callgate: nothing was run: {step}: {os.strerror(second)}\n")
            return 127 if step == "exec" else NOT_STARTED
        if kind == EXITED:
            code = os.waitstatus_to_exitcode(first)
            code = code if code >= 0 else 128 - code
        if kind == ENDED:
            break
    return code
