"""A warm process that has imported all modules of a host, and forks on request.

    +, and a socket    fork a broker (`sandbox/processes/broker`) with the socket as its lifeline

That broker and the runtime (`sandbox.processes.zygotes`) do the rest: an order, a keeper,
a sandbox, as for any command. At the point where a command would be executed, `enter` instead runs
a host in the same process. The zygote sees no order and runs no code of a plugin. It
ends when its control socket is closed.
"""

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

from callgate.host.__main__ import main
from callgate.sandbox.backends import restrict
from callgate.sandbox.orders import Order
from callgate.sandbox.processes import broker


def serve(control: int) -> NoReturn:
    """Fork brokers until the control socket is closed."""
    restrict.enter = enter
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the exit status of brokers is not needed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runtime handles Ctrl-C
    gc.collect()
    gc.freeze()  # so that a collection in a host does not copy shared memory
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
                os.close(lifeline)  # the other end notices if there is no broker


def _fork() -> int:
    try:
        return os.fork()
    except OSError:
        return -1


def enter(order: Order) -> NoReturn:
    """Become the ordered host, as if Python had just started."""
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
    """Exit like Python does, without returning to the code that forked."""
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
