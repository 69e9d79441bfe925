"""The keeper: one process next to each command, which tracks all descendants of the command.

The broker forks the keeper, which is the command's reaper: a descendant that loses its parent
becomes the keeper's child, so none can escape. The keeper of new namespaces is process 1, and all
processes end with it. It has a separate socket to the runtime. If that closes, because the runtime
is gone or has abandoned the command, the keeper ends the command.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import _thread
import errno
import os
import select
import signal
import socket

from callgate.core.local.preimages import Recorder
from callgate.sandbox import kernel, meters
from callgate.sandbox.backends import namespaces, placeholders, restrict
from callgate.sandbox.backends.restrict import STEPS
from callgate.sandbox.processes import own_tmp
from callgate.sandbox.processes.preimages import RemoteStore
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
    from collections.abc import Callable

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
    step = "fork"
    placeholder_fds: dict[str, int] = {}
    mounted = order["layout"] is not None
    listener = None
    beside: _Beside | None = None
    tmp: own_tmp.OwnTmp | None = None
    try:
        wake, signalled = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(signalled, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        kernel.become_subreaper()
        recorder = _recorder(order, storing)
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
        if "listener" in order and "performed" in order["listener"]:
            step = "landlock"
            if group is not None and not mounted:
                moves_to = os.open("cgroup.procs", os.O_WRONLY, dir_fd=group.directory)
            tmp = _own_tmp(order)
            beside = _Beside()
            if not mounted:
                _confine(order)
        step = "fork"
        outside = None if mounted else group
        # `Group.fork` is a bare system call: a second thread may have Python's lock in that moment.
        forks = outside if beside is None else None
        leader, failures = _fork(order, streams, forks, moves_to, nproc)
    except OSError as error:
        _remove(tmp, beside)
        namespaces.release_placeholders(placeholder_fds, mounted=mounted)
        tell(control, REFUSED, STEPS.index(step), error.errno or 0)
        return 0
    for stream in set(streams):
        os.close(stream)
    failure, calls = _outcome(failures)
    if failure:
        os.waitpid(leader, 0)
        _remove(tmp, beside)
        namespaces.release_placeholders(placeholder_fds, mounted=mounted)
        tell(control, REFUSED, *restrict.FAILURE.unpack(failure))
        return 0
    _started(control, listener)
    meter = _meter(order)
    watch = Watch(control, wake, leader, alone=mounted, group=outside, meter=meter)
    supervisor = (
        None
        if calls is None
        else watch.supervise(calls, order["listener"], recorder, beside is None)
    )

    def look_after() -> int:
        ended, survivors = watch.run()
        # Another process can delay a call, for example by a lease, beyond the end of its caller.
        idle = supervisor is None or supervisor.is_idle(KILL_PATIENCE_S)
        if not survivors and idle:
            recorder.end()
        namespaces.release_placeholders(placeholder_fds, mounted=mounted)
        limit = watch.limit or (meters.NONE if group is None else group.limit_reached())
        if not survivors:
            os.close(lease)
            if tmp is not None:
                tmp.remove()
        tell(control, ENDED, ended, survivors, limit)
        if not idle:
            os._exit(1)  # the call ends with us, unperformed
        return survivors

    if beside is None or supervisor is None:
        return look_after()
    kernel.drop_capabilities(*((kernel.SYS_PTRACE,) if mounted else ()))
    beside.begin(look_after)
    _serve(supervisor, beside.ended)
    return beside.result()


def _recorder(order: Order, storing: tuple[socket.socket, int] | None) -> Recorder:
    """Return the recorder of the command's changes, which records nothing without an order."""
    if storing is None or "preimages" not in order:
        return Recorder([], -1, None)
    channel, log = storing
    return Recorder(order["preimages"]["roots"], log, RemoteStore(channel))


def _own_tmp(order: Order) -> own_tmp.OwnTmp | None:
    """Create a private directory for the command's temporary files, if its rules have one."""
    rules = order["landlock"]
    if rules is None or "own_tmp" not in rules:
        return None
    directory = own_tmp.OwnTmp(rules["own_tmp"])
    performed = order["listener"]["performed"]
    for each in (directory.path, directory.shared_memory):
        rules["rules"].append((each, restrict.READ | restrict.WRITE))
        performed["writable"].append(os.fsencode(each))
    performed["shared_memory"] = os.fsencode(directory.shared_memory)
    path = os.fsencode(directory.path)
    order["env"] |= dict.fromkeys((b"TMPDIR", b"TMP", b"TEMP"), path)
    return directory


def _remove(tmp: own_tmp.OwnTmp | None, beside: _Beside | None) -> None:
    """Remove the directory of a command that did not start, outside the domain of this thread."""
    if tmp is None:
        return
    if beside is None:
        tmp.remove()
        return
    beside.begin(tmp.remove)
    beside.result()


def _confine(order: Order) -> None:
    """Enter a Landlock domain with the command's rules, which will contain the command's domain.

    A process may inspect processes in domains below its own. For that it may also read /proc."""
    rules = order["landlock"]
    if rules is None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    granted = rules["rules"]
    rules["rules"] = restrict.beneath(granted)
    kernel.no_new_privileges()
    restrict.apply(
        [*granted, ("/proc", restrict.READ)],
        version=rules["version"],
        tcp=rules["tcp"],
        scopes=rules["scopes"],
    )


class _Beside:
    """A thread that starts before the restriction of the main one, and watches the command."""

    def __init__(self) -> None:
        self._work: Callable[[], int | None] | None = None
        self._result = 1
        self._begin = _thread.allocate_lock()
        self._begin.acquire()
        self.ended, self._ending = os.pipe()
        _thread.start_new_thread(self._run, ())

    def begin(self, work: Callable[[], int | None]) -> None:
        self._work = work
        self._begin.release()

    def result(self) -> int:
        os.read(self.ended, 1)
        return self._result

    def _run(self) -> None:
        self._begin.acquire()
        try:
            if self._work is not None:
                self._result = self._work() or 0
        finally:
            os.write(self._ending, b".")


def _serve(supervisor: Supervisor, ended: int) -> None:
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


def _is_bounded(group: Group | None) -> bool:
    return group is not None and group.bounds_processes


def _bound_processes(order: Order, *, root: bool, by_group: bool) -> int:
    """Ensure that the kernel limits the command's processes. Returns its RLIMIT_NPROC; 0: none.

    A command without a required kernel limit is not started.
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
    return 0 if alone else meters.nproc_for(processes)  # the order of a user namespace has a limit


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
