"""The keeper: one process next to each command, which tracks all descendants of the command.

The broker forks the keeper, which is the command's reaper: a descendant that loses its parent
becomes the keeper's child, so none can escape. The keeper of new namespaces is process 1, and all
processes end with it. It has a separate socket to the runtime. If that closes, because the runtime
is gone or has abandoned the command, the keeper ends the command.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import os
import signal
import socket

from callgate.sandbox import kernel, meters
from callgate.sandbox.backends import restrict
from callgate.sandbox.backends.restrict import STEPS
from callgate.sandbox.processes import beside
from callgate.sandbox.processes.preparing import Preparation
from callgate.sandbox.processes.watch import (
    ENDED,
    KILL_PATIENCE_S,
    MESSAGE,
    REFUSED,
    STARTED,
    Watch,
    tell,
)

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from callgate.sandbox.backends.cgroups import Group
    from callgate.sandbox.orders import Order
    from callgate.sandbox.processes.supervisor import Supervisor


def keep(
    order: Order,
    control: socket.socket,
    streams: tuple[int, int, int],
    owner: tuple[int, int],
    lease: int,
    group: Group | None = None,
    moves_to: int | None = None,
    storing: tuple[socket.socket, int] | None = None,
) -> int:
    """Start and watch the command. Returns the number of survivors after its end.

    `lease` is a descriptor that stays open until the last process ends.

    `owner` is our user and group in the broker's namespace: in a new one we have no mapping yet.
    `group` contains only the command, not the keeper, unless there are namespaces. `moves_to` is a
    group that the command enters itself (`cgroups.PidsGroups`). `storing`: a socket to the process
    that stores pre-images, and their log.
    """
    prepared = Preparation(order, owner, group, moves_to, storing)
    try:
        wake = _wake_on_ended_child()
        kernel.become_subreaper()
        prepared.prepare()
        leader, failures = prepared.fork(streams)
    except OSError as error:
        prepared.undo()
        tell(control, REFUSED, STEPS.index(prepared.step), error.errno or 0)
        return 0
    for stream in set(streams):
        os.close(stream)
    failure, calls = _outcome(failures)
    if failure:
        os.waitpid(leader, 0)
        prepared.undo()
        tell(control, REFUSED, *restrict.FAILURE.unpack(failure))
        return 0
    _started(control, prepared.listener)
    watch = Watch(
        control,
        wake,
        leader,
        alone=prepared.mounted,
        group=prepared.outside,
        meter=_meter(order),
    )
    second = prepared.beside
    supervisor = None
    if calls is not None:
        supervisor = watch.supervise(calls, order["listener"], prepared.recorder, second is None)

    def look_after() -> int:
        return _look_after(watch, supervisor, prepared, control, lease, group)

    if second is None or supervisor is None:
        return look_after()
    kernel.drop_capabilities(*((kernel.SYS_PTRACE,) if prepared.mounted else ()))
    second.begin(look_after)
    beside.serve(supervisor, second.ended)
    return second.result()


def _wake_on_ended_child() -> int:
    """Return a pipe that becomes readable if a child ends."""
    wake, signalled = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(signalled, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    return wake


def _look_after(
    watch: Watch,
    supervisor: Supervisor | None,
    prepared: Preparation,
    control: socket.socket,
    lease: int,
    group: Group | None,
) -> int:
    """Watch the command until its end, and clean up. Returns the number of survivors."""
    ended, survivors = watch.run()
    # Another process can delay a call, for example by a lease, beyond the end of its caller.
    idle = supervisor is None or supervisor.is_idle(KILL_PATIENCE_S)
    if not survivors and idle:
        prepared.recorder.end()
    prepared.release_placeholders()
    limit = watch.limit or (meters.NONE if group is None else group.limit_reached())
    if not survivors:
        os.close(lease)
        if prepared.tmp is not None:
            prepared.tmp.remove()
    tell(control, ENDED, ended, survivors, limit)
    if not idle:
        os._exit(1)  # the call ends with us, unperformed
    return survivors


def _meter(order: Order) -> meters.Meter | None:
    """Return the meter of the command; None without limits."""
    memory, processes = order["watched"]
    if not memory and not processes:
        return None
    layout = order["layout"]
    in_memory = () if layout is None else ("/dev/shm",)  # noqa: S108
    if layout is not None and layout["fresh_tmp"]:
        in_memory = (*in_memory, "/tmp")  # noqa: S108
    return meters.Meter(memory, processes, alone=layout is not None, own_tmp=in_memory)


def _started(control: socket.socket, listener: socket.socket | None) -> None:
    """Report the start, and send the listening socket of the proxy."""
    if listener is None:
        tell(control, STARTED)
        return
    with listener:
        try:
            message = MESSAGE.pack(STARTED, 0, 0, 0, 0.0, 0.0, 0)
            socket.send_fds(control, [message], [listener.fileno()])
        except OSError:
            pass  # the runtime has closed the socket; the work continues


def _outcome(failures: socket.socket) -> tuple[bytes, int | None]:
    """Return the failure before the start of the command, and the listener of its calls."""
    calls = None
    with failures:
        while True:
            message, descriptors, _, _ = socket.recv_fds(failures, restrict.FAILURE.size, 1)
            for descriptor in descriptors:
                calls = descriptor
            if message != restrict.LISTENER:
                return message, calls
