"""A warm process that has imported all that a host needs, and forks when asked.

    +, and a socket    fork a broker (`sandbox/processes/broker`) with the socket for its lifeline

The rest is between that broker and the runtime (`sandbox.processes.zygotes`): an order, a keeper,
a jail, as for any command. Only at its end, where a command would be executed, `enter` runs a
host in the process that is there. This process sees no order and runs no line of any plugin. It
ends when the socket does on which it is asked."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from typing import NoReturn

from callgate.host import scripts as scripts  # loaded here, not in each host
from callgate.host.main import main
from callgate.sandbox.backends import restrict
from callgate.sandbox.orders import Order
from callgate.sandbox.processes import broker


def serve(control: int) -> NoReturn:
    """Fork brokers until the socket ends."""
    restrict.enter = enter
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a broker ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the runtime to answer
    gc.collect()
    gc.freeze()  # so that a collection in a host does not copy what it shares with us
    with socket.socket(fileno=control) as connection:
        while True:
            data, lifelines, _, _ = socket.recv_fds(connection, 1, 1)
            if not data:
                os._exit(0)
            for lifeline in lifelines:
                if _fork() == 0:
                    connection.close()
                    broker.main(lifeline, grouped=False, stays=True)
                    os._exit(0)
                os.close(lifeline)  # whoever has the other end sees if there is no broker


def _fork() -> int:
    try:
        return os.fork()
    except OSError:
        return -1


def enter(order: Order) -> NoReturn:
    """Be the host that is ordered, as if Python had just been started."""
    code: object = 1
    try:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environb.update(order["env"])
        time.tzset()
        arguments, path = ([os.fsdecode(each) for each in some] for some in order["warm"])
        sys.path[:] = dict.fromkeys([*map(os.path.abspath, path), *sys.path])
        sys.argv = ["callgate.host", *arguments]
        gc.enable()
        code = main(arguments)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    _end(code)


def _end(code: object) -> NoReturn:
    """What Python does at its end, without going back to those who forked us."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # ends pools, and waits for threads
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit((code or 0) & 0xFF)
