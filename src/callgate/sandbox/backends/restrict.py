"""What a forked child does between fork and exec: give things up, one step after another.

    process limit -> session -> descriptors -> cwd -> landlock -> limits -> privileges
        -> seccomp -> exec

Whatever fails, the name of its step and the error number go through a pipe to whoever forked
us, and the child ends. There is no path from a failed step to `exec`: nothing runs with less
around it than was ordered. The pipe closes by itself when `exec` works.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct

from callgate.sandbox import kernel
from callgate.sandbox.backends import landlock, seccomp

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from callgate.sandbox.orders import Listener, Order

STEPS = (
    "namespaces",
    "fork",
    "process limit",
    "session",
    "descriptors",
    "cwd",
    "landlock",
    "limits",
    "privileges",
    "seccomp",
    "exec",
)
FAILURE = struct.Struct("<Bi")
"""A step's place in STEPS, and an error number."""
LISTENER = b"l"
"""What comes instead, with a descriptor, from a command whose attempts to write are watched."""
INHERITED = 10
"""The first descriptor under which an order's `inherited` is found."""

enter: Callable[[Order], NoReturn] | None = None
"""What runs a warm order in this process; only a zygote has it."""

_LOST = 5  # EIO, where an exception has no number


def become(
    order: Order,
    streams: tuple[int, int, int],
    failures: int,
    *,
    group: int | None = None,
    nproc: int = 0,
) -> NoReturn:
    """Turn this process into the command. `failures` closes on exec.

    `group` is a descriptor by which we move to a control group (`pids_groups`), `nproc` a limit
    that depends on what else runs now (`meters`).
    """
    step = "process limit"
    try:
        if group is not None:
            os.write(group, b"0")
        step = "session"
        os.setsid()
        for number in signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)  # Python, or we, changed them
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        step = "descriptors"
        failures = _arrange(streams, order["inherited"], failures)
        step = "cwd"
        os.chdir(order["cwd"])
        if not order["bare"]:
            kernel.no_new_privileges()
        step = "landlock"
        rules = order["landlock"]
        if rules is not None:
            landlock.apply(
                rules["rules"],
                version=rules["version"],
                tcp=rules["tcp"],
                scopes=rules["scopes"],
            )
        step = "limits"
        if nproc:
            _limit([(resource.RLIMIT_NPROC, nproc)], 0)
        _limit(order["limits"], order["mark"])
        step = "privileges"
        if not order["bare"] and not order["keep_capabilities"]:
            kernel.drop_capabilities()
        step = "seccomp"
        if order["filter"]:
            seccomp.install(order["filter"])
        if "listener" in order:
            _hand_over_listener(order["listener"], failures)
        step = "exec"
        if enter is not None and "warm" in order:
            os.close(failures)
            enter(order)
        _execute(order["argv"], order["env"])
    except BaseException as error:
        cause = error.errno if isinstance(error, OSError) and error.errno else _LOST
        os.write(failures, FAILURE.pack(STEPS.index(step), cause))
    os._exit(127)


def _hand_over_listener(order: Listener, channel: int) -> None:
    """Give the keeper what it needs to see our calls. It must answer them from here on."""
    listener = seccomp.install_listener(order["program"])
    if listener is None:
        if order["without"]:
            seccomp.install(order["without"])
        return
    with socket.socket(fileno=os.dup(channel)) as keeper:
        socket.send_fds(keeper, [LISTENER], [listener])
    os.close(listener)


def _arrange(streams: tuple[int, int, int], inherited: list[bytes], failures: int) -> int:
    """Leave open what the command is to have, and nothing else. Gives the pipe's new number."""
    last = INHERITED + len(inherited)
    above = [os.dup(failures)]
    while above[-1] <= last:  # out of the way of the numbers that mean something
        above.append(os.dup(failures))
    failures = above[-1]
    moved = [_above(stream, last) for stream in streams]
    for index, content in enumerate(inherited):
        memory = os.memfd_create("callgate")
        os.write(memory, content)
        os.lseek(memory, 0, os.SEEK_SET)
        os.dup2(_above(memory, last), INHERITED + index)
    for number, stream in enumerate(moved):
        os.dup2(stream, number)
    os.closerange(3, INHERITED)
    os.closerange(last, failures)
    os.closerange(failures + 1, _most_descriptors())
    os.set_inheritable(failures, False)
    return failures


def _above(descriptor: int, floor: int) -> int:
    while descriptor <= floor:
        descriptor = os.dup(descriptor)
    return descriptor


def _most_descriptors() -> int:
    """One more than the highest descriptor that is open now."""
    return max(map(int, os.listdir("/proc/self/fd")), default=1023) + 1


def _limit(limits: list[tuple[int, int]], mark: int) -> None:
    for kind, value in limits:
        _, hard = resource.getrlimit(kind)
        unlimited = hard == resource.RLIM_INFINITY
        least = value if unlimited else min(value, hard)
        # The signal at the soft limit says what it is for; the one at the hard limit is SIGKILL.
        later = kind == resource.RLIMIT_CPU and (unlimited or least < hard)
        most = least + 1 if later else least
        resource.setrlimit(kind, (least, most))
    if mark:
        locks = 10  # RLIMIT_LOCKS, which no kernel looks at
        _, hard = resource.getrlimit(locks)
        if hard == resource.RLIM_INFINITY or mark <= hard:
            resource.setrlimit(locks, (mark, hard))


def _execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """Replace this process; come back only by an OSError."""
    name = argv[0]
    if b"/" in name:
        os.execve(name, argv, env)  # noqa: S606
    failure = OSError(2, os.strerror(2))
    for directory in env.get(b"PATH", os.defpath.encode()).split(b":"):
        try:
            os.execve(os.path.join(directory or b".", name), argv, env)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failure = error
    raise failure
