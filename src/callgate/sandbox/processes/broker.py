"""The process that starts all others: small, single-threaded, and gone when the runtime is.

    runtime ==lifeline==> broker --fork--> keeper --fork--> command
       ^                                     |
       +---------- a socket for each command +

Forking is dear in a large process and dangerous in one with threads, so the runtime does not
fork: it asks here. An order comes over the lifeline together with the command's descriptors,
the broker forks a `keeper` for it and forgets it. When the lifeline closes the broker ends,
and so does everything else: each keeper has a socket to the same runtime, which closes too.

If a command manages to end its own keeper, or to outlast it, what it left becomes the broker's
child, and is ended until nothing is left of it. Where the system has control groups for us, each
command is in one of its own (`cgroups`), and they are removed here.

Started as `python -I -S -E -c BOOT`: it sees no site packages, no environment, and of this
package only modules that need neither.
"""

from __future__ import annotations

import gc
import marshal
import os
import select
import signal
import socket
import struct

from callgate.sandbox import kernel, meters, proc_tree
from callgate.sandbox.backends import cgroups, namespaces, pids_groups
from callgate.sandbox.backends.restrict import STEPS
from callgate.sandbox.processes import keeper
from callgate.sandbox.processes.keeper_messages import REFUSED, tell

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from callgate.sandbox.backends.cgroups import Group, Groups
    from callgate.sandbox.backends.pids_groups import PidsGroups
    from callgate.sandbox.orders import Order

LENGTH = struct.Struct("<I")
LARGEST_ORDER = 8 * 1024 * 1024
_NUMBER = struct.Struct("=i")
DESCRIPTORS = 5
"""With each order: the keeper's socket, then standard input, output and error, and one that the
keeper holds open until nothing of the command is left."""

BOOT = (
    "import sys; package = type(sys)('callgate'); package.__path__ = [sys.argv[1]]; "
    "sys.modules['callgate'] = package; "
    "from callgate.sandbox.processes import broker; broker.main(int(sys.argv[2]))"
)
"""The package without its `__init__`, which is for programs that have our dependencies."""


def encode(order: Order) -> bytes:
    """marshal and not JSON: it is there without an import, and both ends are one program."""
    data = marshal.dumps(dict(order))
    if len(data) > LARGEST_ORDER:
        raise OSError(7, os.strerror(7))  # E2BIG
    return LENGTH.pack(len(data)) + data


def main(lifeline: int, *, grouped: bool = True, stays: bool = False) -> None:
    """`grouped`: commands are in control groups, where there are any for us. `stays`: until
    nothing of them is left, for a broker whose end nobody waits for."""
    with socket.socket(fileno=lifeline) as peer:
        gc.disable()  # it would touch, and so copy, memory that all forks share
        kernel.become_subreaper()
        Broker(peer, cgroups.find() if grouped else None).run(stays=stays)


class Broker:
    def __init__(self, lifeline: socket.socket, groups: Groups | None) -> None:
        self._lifeline = lifeline
        self._buffer = bytearray()
        self._descriptors: list[int] = []
        self._keepers: dict[int, str | None] = {}
        """Each with the path of its command's control group."""
        self._groups = groups
        self._pids_groups: PidsGroups | None = None
        self._looked_for_pids_groups = False
        self._bounds: dict[int, str] = {}
        """For keepers whose command has one, the path of its group in them."""
        self._owner = os.geteuid(), os.getegid()

    def run(self, *, stays: bool = False) -> None:
        wake, signalled = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(signalled, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the runtime to answer
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
        """Take what came, and start what is complete. False at the end of the lifeline."""
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
            try:
                pid = _fork(order, group)
                if pid == 0:
                    self._keep(order, control, streams, descriptors[4], group, bound)
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

    def _group(self, order: Order) -> Group | None:
        """A control group for a command."""
        if self._groups is None:
            return None
        # Everything in a namespace ends at once as it is.
        return self._groups.make(order["group"], only_to_limit=order["layout"] is not None)

    def _bound(self, order: Order, group: Group | None) -> tuple[str, int] | None:
        """A control group of version 1, where nothing better bounds a command's processes."""
        _, processes = order["watched"]
        if not processes or (group is not None and group.bounds_processes):
            return None
        if order["layout"] is not None and (meters.has_own_pid_max() or self._owner[0] != 0):
            return None
        if not self._looked_for_pids_groups:
            self._looked_for_pids_groups = True
            self._pids_groups = pids_groups.find()
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
    ) -> None:
        """In the child: be the keeper, and never come back."""
        code = 1
        try:
            self._lifeline.close()
            for other in self._descriptors:
                os.close(other)
            moves_to = None if bound is None else bound[1]
            left = keeper.keep(order, control, streams, self._owner, lease, group, moves_to)
            code = 1 if left else 0
        finally:
            os._exit(code)

    def _reap(self) -> bool:
        """Bury the dead. Who dies without having been a keeper was a stray, and may have heirs.

        False if nobody is left."""
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
        """Whoever is our child and no keeper has lost the one that would have ended it.

        Each of them that dies brings us back here, until nobody does.
        """
        for child in proc_tree.children(os.getpid()):
            if child not in self._keepers:
                for pid in (*proc_tree.descendants(child), child):
                    proc_tree.signal_to(pid, signal.SIGKILL)


def _fork(order: Order, group: Group | None) -> int:
    if order["layout"] is None:
        return os.fork()
    return namespaces.begin(order["layout"]["own_network"], group)
