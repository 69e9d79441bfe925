"""One process beside each command, which knows everything that the command left in the system.

The keeper is forked by the broker and is the command's reaper: whatever descendant loses its
parent becomes the keeper's child, so nothing can leave. In namespaces it is process 1, and
everything ends with it. It talks to the runtime by a socket of its own. When that closes,
because the runtime is gone or no longer cares, the keeper ends the command by itself.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import errno
import os
import signal
import socket

from callgate.sandbox import kernel, meters
from callgate.sandbox.backends import namespaces, placeholders, restrict
from callgate.sandbox.backends.restrict import STEPS
from callgate.sandbox.processes.keeper_messages import ENDED, MESSAGE, REFUSED, STARTED, tell
from callgate.sandbox.processes.watch import Watch
from callgate.sandbox.processes.write_attempts import WriteAttempts

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from callgate.sandbox.backends.cgroups import Group
    from callgate.sandbox.orders import Order


def keep(
    order: Order,
    control: socket.socket,
    streams: tuple[int, int, int],
    owner: tuple[int, int],
    lease: int,
    group: Group | None = None,
    moves_to: int | None = None,
) -> int:
    """Start the command, report on it, and return when nothing of it is left, or how many.

    `lease` is a descriptor that stays open as long, and not a moment longer than we say.

    `owner` is our user and group as the broker sees them: in new namespaces we are nobody yet.
    In a control group of the command's is, without namespaces, only the command and not we.
    `moves_to` is one that it moves to by itself (`pids_groups`).
    """
    step = "fork"
    placeholder_fds: dict[str, int] = {}
    mounted = order["layout"] is not None
    listener = None
    try:
        wake, signalled = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(signalled, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        kernel.become_subreaper()
        step = "process limit"
        nproc = _bound_processes(
            order, root=owner[0] == 0, by_group=moves_to is not None or _is_bounded(group)
        )
        if order["layout"] is not None:
            step = "namespaces"
            placeholder_fds = namespaces.enter(order["layout"], *owner)
            listener = namespaces.listen(order["layout"])
        for path, as_directory in order["placeholders"]:
            step = "namespaces"
            descriptor = placeholders.hold(path, as_directory=as_directory)
            if descriptor is not None:
                placeholder_fds[path] = descriptor
        step = "fork"
        outside = None if mounted else group
        leader, failures = _fork(order, streams, outside, moves_to, nproc)
    except OSError as error:
        namespaces.release_placeholders(placeholder_fds, mounted=mounted)
        tell(control, REFUSED, STEPS.index(step), error.errno or 0)
        return 0
    for stream in set(streams):
        os.close(stream)
    failure, attempts = _outcome(failures, order)
    if failure:
        os.waitpid(leader, 0)
        namespaces.release_placeholders(placeholder_fds, mounted=mounted)
        tell(control, REFUSED, *restrict.FAILURE.unpack(failure))
        return 0
    _started(control, listener)
    meter = _meter(order)
    watch = Watch(control, wake, leader, alone=mounted, group=outside, meter=meter)
    watch.attempts = attempts
    ended, survivors = watch.run()
    namespaces.release_placeholders(placeholder_fds, mounted=mounted)
    limit = watch.limit or (meters.NONE if group is None else group.limit_reached())
    if not survivors:
        os.close(lease)
    tell(control, ENDED, ended, survivors, limit)
    return survivors


def _is_bounded(group: Group | None) -> bool:
    return group is not None and group.bounds_processes


def _bound_processes(order: Order, *, root: bool, by_group: bool) -> int:
    """See to it that the kernel bounds the command's processes. RLIMIT_NPROC for that; 0: none.

    A command that nothing bounds, and that must be, is not started.
    """
    memory, processes = order["watched"]
    if not memory and not processes:
        return 0
    alone = order["layout"] is not None
    if meters.prepare(processes, alone=alone) or by_group or not processes:
        return 0
    if root and not meters.nproc_binds():
        if order["bounded"]:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return 0
    return 0 if alone else meters.nproc_for(processes)  # in a user namespace the order has one


def _meter(order: Order) -> meters.Meter | None:
    """What measures the command, if anything is limited."""
    memory, processes = order["watched"]
    if not memory and not processes:
        return None
    layout = order["layout"]
    in_memory = () if layout is None else ("/dev/shm",)  # noqa: S108
    if layout is not None and layout["fresh_tmp"]:
        in_memory = (*in_memory, "/tmp")  # noqa: S108
    return meters.Meter(memory, processes, alone=layout is not None, own_tmp=in_memory)


def _started(control: socket.socket, listener: socket.socket | None) -> None:
    """Say so, and give away the socket on which the command finds its proxy."""
    if listener is None:
        tell(control, STARTED)
        return
    with listener:
        try:
            message = MESSAGE.pack(STARTED, 0, 0, 0, 0.0, 0.0, 0)
            socket.send_fds(control, [message], [listener.fileno()])
        except OSError:
            pass  # nobody listens any more; the work goes on


def _fork(
    order: Order,
    streams: tuple[int, int, int],
    group: Group | None,
    moves_to: int | None,
    nproc: int,
) -> tuple[int, socket.socket]:
    failures, telling = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    leader = os.fork() if group is None else group.fork()
    if leader == 0:
        restrict.become(order, streams, telling.detach(), group=moves_to, nproc=nproc)
    telling.close()
    return leader, failures


def _outcome(failures: socket.socket, order: Order) -> tuple[bytes, WriteAttempts | None]:
    """What failed before the command ran, and what sees its attempts to write, if it is watched."""
    attempts = None
    with failures:
        while True:
            message, descriptors, _, _ = socket.recv_fds(failures, restrict.FAILURE.size, 1)
            for descriptor in descriptors:
                attempts = WriteAttempts(descriptor, order["listener"])
            if message != restrict.LISTENER:
                return message, attempts
