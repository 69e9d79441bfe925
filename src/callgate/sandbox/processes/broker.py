"""The process that starts all commands: small, single-threaded, and gone with the runtime.

    runtime ==lifeline==> broker --fork--> keeper --fork--> command
       ^                                     |
       +---------- a socket for each command +

Forking is expensive in a large process and dangerous in one with threads, so the runtime does not
fork. It sends an order over the lifeline, together with the command's descriptors, and the broker
forks a `keeper` for it. When the lifeline closes, the broker ends, and so do all commands: each
keeper has a socket to the same runtime, which closes too.

If a command ends its own keeper, or outlasts it, its remaining processes become the broker's
children, which the broker kills. If the system permits control groups, each command has a separate
one (`cgroups`), which the broker removes.

It starts as `python -I -S -E -c BOOT`: without site packages and environment, and with only those
modules of this package that need neither.
"""

from __future__ import annotations

import gc
import marshal
import os
import select
import signal
import socket
import struct

from callgate.sandbox import kernel, meters
from callgate.sandbox.backends import cgroups, namespaces
from callgate.sandbox.backends.restrict import STEPS
from callgate.sandbox.processes import keeper, preimages
from callgate.sandbox.processes.watch import REFUSED, tell

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from callgate.sandbox.backends.cgroups import Group, Groups, PidsGroups
    from callgate.sandbox.orders import Order

LENGTH = struct.Struct("<I")
LARGEST_ORDER = 8 * 1024 * 1024
_NUMBER = struct.Struct("=i")
DESCRIPTORS = 5
"""Descriptors of an order: the keeper's socket, then standard input, output and error, and one that
the keeper leaves open until the command's last process ends."""

BOOT = (
    "import sys; package = type(sys)('callgate'); package.__path__ = [sys.argv[1]]; "
    "sys.modules['callgate'] = package; "
    "from callgate.sandbox.processes import broker; broker.main(int(sys.argv[2]))"
)
"""Loads the package without its `__init__`, which needs our dependencies."""


def encode(order: Order) -> bytes:
    """Encode an order with marshal: it needs no import, and both ends are the same program."""
    data = marshal.dumps(dict(order))
    if len(data) > LARGEST_ORDER:
        raise OSError(7, os.strerror(7))  # E2BIG
    return LENGTH.pack(len(data)) + data


def main(lifeline: int, *, grouped: bool = True, stays: bool = False) -> None:
    """Run the broker. `grouped`: with control groups, if they are available. `stays`: wait for the
    end of all commands, for a broker that no process waits for."""
    with socket.socket(fileno=lifeline) as peer:
        gc.disable()  # it would write to, and so copy, memory that all forks share
        kernel.become_subreaper()
        Broker(peer, cgroups.find() if grouped else None).run(stays=stays)


class Broker:
    def __init__(self, lifeline: socket.socket, groups: Groups | None) -> None:
        self._lifeline = lifeline
        self._buffer = bytearray()
        self._descriptors: list[int] = []
        self._keepers: dict[int, str | None] = {}
        """By keeper: the path of its command's control group."""
        self._groups = groups
        self._pids_groups: PidsGroups | None = None
        self._looked_for_pids_groups = False
        self._bounds: dict[int, str] = {}
        """By keeper: the path of its command's group in `_pids_groups`."""
        self._owner = os.geteuid(), os.getegid()

    def run(self, *, stays: bool = False) -> None:
        wake, signalled = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(signalled, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runtime handles Ctrl-C
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._lifeline, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if wake in ready:
                os.read(wake, 4096)
                self._reap()
            if self._lifeline.fileno() in ready and not self._receive():
                break
        poll.unregister(self._lifeline)
        while stays and self._reap():
            poll.poll()
            os.read(wake, 4096)
        for groups in self._groups, self._pids_groups:
            if groups is not None:
                groups.close()

    def _receive(self) -> bool:
        """Read the lifeline, and start complete orders. Returns False at its end."""
        room = DESCRIPTORS * _NUMBER.size * 8
        data, ancillary, _, _ = self._lifeline.recvmsg(65536, socket.CMSG_LEN(room))
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                complete = len(content) - len(content) % _NUMBER.size
                self._descriptors += [n for (n,) in _NUMBER.iter_unpack(content[:complete])]
        self._buffer += data
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if length > LARGEST_ORDER:
                return False
            if len(self._buffer) < LENGTH.size + length:
                break
            order = marshal.loads(bytes(self._buffer[LENGTH.size : LENGTH.size + length]))  # noqa: S302
            del self._buffer[: LENGTH.size + length]
            self._start(order)
        return bool(data)

    def _start(self, order: Order) -> None:
        descriptors, self._descriptors = (
            self._descriptors[:DESCRIPTORS],
            self._descriptors[DESCRIPTORS:],
        )
        with socket.socket(fileno=descriptors[0]) as control:
            streams = (descriptors[1], descriptors[2], descriptors[3])
            group = self._group(order)
            bound = self._bound(order, group)
            storing = None
            try:
                storing = self._store(order)
                pid = _fork(order, group)
                if pid == 0:
                    self._keep(order, control, streams, descriptors[4], group, bound, storing)
                self._keepers[pid] = None if group is None else group.path
                if bound is not None:
                    self._bounds[pid] = bound[0]
            except OSError as error:
                if bound is not None and self._pids_groups is not None:
                    self._pids_groups.remove(bound[0])
                if group is not None and self._groups is not None:
                    self._groups.remove(group.path)
                step = "fork" if order["layout"] is None else "namespaces"
                tell(control, REFUSED, STEPS.index(step), error.errno or 0)
            finally:
                for descriptor in descriptors[1:]:
                    os.close(descriptor)
                if group is not None:
                    group.close()
                if bound is not None:
                    os.close(bound[1])
                if storing is not None:
                    storing[0].close()
                    os.close(storing[1])

    def _store(self, order: Order) -> tuple[socket.socket, int] | None:
        """Fork the process that stores pre-images. Returns the keeper's end, and the log.

        The log is opened here: a keeper with a file open for writing could make no mount of it
        read-only."""
        if "preimages" not in order:
            return None
        preimages.prepare(order["preimages"])
        log = preimages.open_log(order["preimages"])
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            try:
                pid = os.fork()
            except BaseException:
                theirs.close()
                os.close(log)
                raise
            if pid:
                self._keepers[pid] = None
                return theirs, log
            try:
                theirs.close()
                self._lifeline.close()
                kernel.drop_capabilities()
                preimages.serve(order["preimages"], ours)
            finally:
                os._exit(0)

    def _group(self, order: Order) -> Group | None:
        """Create a control group for a command."""
        if self._groups is None:
            return None
        # A namespace can already be killed as a whole.
        return self._groups.make(order["group"], only_to_limit=order["layout"] is not None)

    def _bound(self, order: Order, group: Group | None) -> tuple[str, int] | None:
        """Create a control group of version 1, if the command's processes have no better limit."""
        _, processes = order["watched"]
        if not processes or (group is not None and group.bounds_processes):
            return None
        if order["layout"] is not None and (meters.has_own_pid_max() or self._owner[0] != 0):
            return None
        if not self._looked_for_pids_groups:
            self._looked_for_pids_groups = True
            self._pids_groups = cgroups.find_pids_groups()
        if self._pids_groups is None:
            return None
        try:
            return self._pids_groups.make(meters.slack(processes))
        except OSError:
            return None

    def _keep(
        self,
        order: Order,
        control: socket.socket,
        streams: tuple[int, int, int],
        lease: int,
        group: Group | None,
        bound: tuple[str, int] | None,
        storing: tuple[socket.socket, int] | None,
    ) -> None:
        """Run the keeper in the child, and exit."""
        code = 1
        try:
            self._lifeline.close()
            for other in self._descriptors:
                os.close(other)
            moves_to = None if bound is None else bound[1]
            left = keeper.keep(
                order, control, streams, self._owner, lease, group, moves_to, storing
            )
            code = 1 if left else 0
        finally:
            os._exit(code)

    def _reap(self) -> bool:
        """Reap dead children. One that was not a keeper was a stray, and may have left children.

        Returns False if there are no more children."""
        strays = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                break
            strays = strays or status != 0 or pid not in self._keepers
            group = self._keepers.pop(pid, None)
            if group is not None and self._groups is not None:
                self._groups.remove(group)
            bound = self._bounds.pop(pid, None)
            if bound is not None and self._pids_groups is not None:
                self._pids_groups.remove(bound)
        for groups in self._groups, self._pids_groups:
            if groups is not None:
                groups.bury()
        if strays:
            self._end_strays()
        return True

    def _end_strays(self) -> None:
        """Kill children that are not keepers: the keeper that would have ended them is gone.

        Each death leads back here, until there are no strays left.
        """
        for child in meters.children(os.getpid()):
            if child not in self._keepers:
                for pid in (*meters.descendants(child), child):
                    meters.signal_to(pid, signal.SIGKILL)


def _fork(order: Order, group: Group | None) -> int:
    if order["layout"] is None:
        return os.fork()
    return namespaces.begin(order["layout"]["own_network"], group)
