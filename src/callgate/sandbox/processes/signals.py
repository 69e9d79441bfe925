"""Signals to other processes, if Landlock does not confine them (before its sixth version).

A signal is permitted if its target is a descendant of the keeper. The arguments are numbers, which
the command cannot change after the check. The number of a process that ends at this moment may
be reused.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import errno
import os

from callgate.sandbox import kernel, meters
from callgate.sandbox.processes.supervisor import CONTINUE, failure

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from callgate.sandbox.backends import seccomp
    from callgate.sandbox.processes.supervisor import Answer, Call, Handler

_CALLS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")


def traps() -> seccomp.Traps:
    return dict.fromkeys(_CALLS)


def handlers() -> dict[int, Handler]:
    numbers = kernel.NUMBERS[kernel.machine()]
    return {numbers[name]: _kill if name == "kill" else _queue for name in _CALLS}


def _kill(call: Call) -> Answer:
    target = _signed(call.arguments[0])
    if target > 0:
        return _to_process(target)
    if target == 0:
        return CONTINUE  # a process group is in one session, and the command began its own
    if target == -1:
        return failure(errno.EPERM)
    groups = {meters.process_group(pid) for pid in meters.descendants(os.getpid())}
    return CONTINUE if -target in groups else failure(errno.EPERM)


def _queue(call: Call) -> Answer:
    return _to_process(_signed(call.arguments[0]))


def _to_process(target: int) -> Answer:
    process = _process_of(target)
    if process is None:
        return failure(errno.ESRCH)
    return CONTINUE if process in meters.descendants(os.getpid()) else failure(errno.EPERM)


def _process_of(thread: int) -> int | None:
    for line in meters.read(f"/proc/{thread}/status").splitlines():
        if line.startswith(b"Tgid:"):
            return int(line.split()[1])
    return None


def _signed(number: int) -> int:
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number
