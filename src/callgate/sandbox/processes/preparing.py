"""The keeper's work before the start of a command, in order, and its removal if that fails.

    process limit -> namespaces, placeholders -> private /tmp -> second thread -> domain -> fork

The broker imports this: no msgspec.
"""

from __future__ import annotations

import errno
import os
import socket

from callgate.core.local.preimages import Recorder
from callgate.sandbox import kernel, meters
from callgate.sandbox.backends import namespaces, placeholders, restrict
from callgate.sandbox.processes.beside import Beside
from callgate.sandbox.processes.own_tmp import OwnTmp
from callgate.sandbox.processes.preimages import RemoteStore

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from callgate.sandbox.backends.cgroups import Group
    from callgate.sandbox.orders import Order


class Preparation:
    """The state of one command before its start. See `keeper.keep` for the parameters."""

    def __init__(
        self,
        order: Order,
        owner: tuple[int, int],
        group: Group | None,
        moves_to: int | None,
        storing: tuple[socket.socket, int] | None,
    ) -> None:
        self.step = "fork"
        """The step under way, one of `restrict.STEPS`."""
        self.mounted = order["layout"] is not None
        self.outside = None if self.mounted else group
        """The group of the command, without the keeper."""
        self.listener: socket.socket | None = None
        """The listener of the proxy, in the command's network."""
        self.beside: Beside | None = None
        self.tmp: OwnTmp | None = None
        self.recorder = _recorder(order, storing)
        self._order = order
        self._owner = owner
        self._group = group
        self._moves_to = moves_to
        self._door: int | None = None
        """Through it a command enters its group later, which takes milliseconds."""
        self._nproc = 0
        self._placeholders: dict[str, int] = {}

    def prepare(self) -> None:
        order = self._order
        self.step = "process limit"
        by_group = self._moves_to is not None or _is_bounded(self._group)
        self._nproc = _bound_processes(order, root=self._owner[0] == 0, by_group=by_group)
        self.step = "namespaces"
        if order["layout"] is not None:
            self._placeholders = namespaces.enter(order["layout"], *self._owner)
            self.listener = namespaces.listen(order["layout"])
        for path, as_directory in order["placeholders"]:
            descriptor = placeholders.hold(path, as_directory=as_directory)
            if descriptor is not None:
                self._placeholders[path] = descriptor
        if "listener" in order and "performed" in order["listener"]:
            self.step = "landlock"
            self._confine()

    def _confine(self) -> None:
        """Start the second thread, and enter a Landlock domain with the command's rules, which will
        contain the command's domain.

        A process may inspect processes in domains below its own. For that it may also read /proc.
        """
        self.tmp = _own_tmp(self._order)
        self.beside = Beside()
        if self.mounted:
            return
        if self.outside is not None:
            self._door = os.open("cgroup.procs", os.O_WRONLY, dir_fd=self.outside.directory)
        rules = self._order["landlock"]
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

    def fork(self, streams: tuple[int, int, int]) -> tuple[int, socket.socket]:
        """Fork the command. Returns it, and the socket that reports failures before its start."""
        self.step = "fork"
        group, moves_to = self.outside, self._moves_to
        if group is not None and self.beside is not None and not self.beside.is_parked():
            group, moves_to = None, self._door
        failures, telling = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        leader = os.fork() if group is None else group.fork()
        if leader == 0:
            channel = telling.detach()
            restrict.become(self._order, streams, channel, group=moves_to, nproc=self._nproc)
        telling.close()
        return leader, failures

    def undo(self) -> None:
        """Remove the files of a command that did not start, outside the domain of this thread."""
        if self.tmp is not None and self.beside is not None:
            self.beside.begin(self.tmp.remove)
            self.beside.result()
        elif self.tmp is not None:
            self.tmp.remove()
        self.release_placeholders()

    def release_placeholders(self) -> None:
        namespaces.release_placeholders(self._placeholders, mounted=self.mounted)


def _recorder(order: Order, storing: tuple[socket.socket, int] | None) -> Recorder:
    """Return the recorder of the command's changes, which records nothing without an order."""
    if storing is None or "preimages" not in order:
        return Recorder([], -1, None)
    channel, log = storing
    wanted = order["preimages"]
    return Recorder(wanted["roots"], log, RemoteStore(channel), frozenset(wanted["excluded"]))


def _own_tmp(order: Order) -> OwnTmp | None:
    """Create a private directory for the command's temporary files, if its rules have one."""
    rules = order["landlock"]
    if rules is None or "own_tmp" not in rules:
        return None
    directory = OwnTmp(rules["own_tmp"])
    performed = order["listener"]["performed"]
    for each in (directory.path, directory.shared_memory):
        rules["rules"].append((each, restrict.READ | restrict.WRITE))
        performed["writable"].append(os.fsencode(each))
    performed["shared_memory"] = os.fsencode(directory.shared_memory)
    path = os.fsencode(directory.path)
    order["env"] |= dict.fromkeys((b"TMPDIR", b"TMP", b"TEMP"), path)
    return directory


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
