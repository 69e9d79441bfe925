"""The keeper's second thread: it watches the command, outside the Landlock domain of the first one.

    first thread:  starts Beside -> enters the domain -> forks the command -> serves its calls
    second thread:          waits in `read` ................ begin(work) -> work -> ended

The first thread forks by a bare system call where control groups exist. That is safe only if no
other thread uses the interpreter in that moment, so `is_parked` asks the kernel.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import _thread
import os
import select

from callgate.sandbox import kernel

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.sandbox.processes.supervisor import Supervisor

_MOST_LOOKS = 1_000


class Beside:
    def __init__(self) -> None:
        self._work: Callable[[], int | None] | None = None
        self._result = 1
        self._thread = 0
        self._started = _thread.allocate_lock()
        self._started.acquire()
        self._begin, self._beginning = os.pipe()
        self.ended, self._ending = os.pipe()
        _thread.start_new_thread(self._run, ())

    def is_parked(self) -> bool:
        """Whether the thread waits in the kernel until `begin`, so that it uses no lock.

        Call it once."""
        self._started.acquire()
        awaited = str(kernel.NUMBERS[kernel.machine()]["read"]), hex(self._begin)
        for _ in range(_MOST_LOOKS):
            if _system_call(self._thread) == awaited:
                return True
            os.sched_yield()
        return False

    def begin(self, work: Callable[[], int | None]) -> None:
        self._work = work
        os.write(self._beginning, b".")

    def result(self) -> int:
        os.read(self.ended, 1)
        return self._result

    def _run(self) -> None:
        self._thread = _thread.get_native_id()
        self._started.release()
        os.read(self._begin, 1)
        try:
            if self._work is not None:
                self._result = self._work() or 0
        finally:
            os.write(self._ending, b".")


def _system_call(thread: int) -> tuple[str, str] | None:
    """Return the number and the first argument of the system call of a waiting thread."""
    try:
        file = os.open(f"/proc/self/task/{thread}/syscall", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        words = os.read(file, 256).decode().split()
    except OSError:
        return None
    finally:
        os.close(file)
    return (words[0], words[1]) if len(words) > 1 else None


def serve(supervisor: Supervisor, ended: int) -> None:
    """Answer calls until the listener is closed, or the watch ends."""
    poll = select.poll()
    poll.register(supervisor.listener, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if ended in ready:
            return
        if not ready.get(supervisor.listener, 0) & select.POLLIN or not supervisor.serve():
            supervisor.close()
            return
