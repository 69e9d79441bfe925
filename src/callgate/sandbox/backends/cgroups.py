"""A control group for each command, where the system lets us make some: jailed, nobody leaves it.

    <place>/callgate-<random>/    one for each broker, locked as long as it or a keeper lives
        1/ 2/ 3/ ...              one for each command, in which its first process is born

Writing to `cgroup.kill` ends all that is in a group at once, however fast it forks. Where the
controllers are ours too, `memory.max` and `pids.max` count for a command as a whole, which no
limit of a process can do. Without groups commands end as surely, by their namespace or by a
sweep of their descendants, only with more work.

A place is our own group of version 2, if we may write there, or the one above it, which alone can
have controllers: a group that holds processes itself passes none on. That one must be delegated
to us (systemd: `Delegate=yes` with `DelegateSubgroup=`), or ours to write and limit processes
already, as the slice that root or a user's own systemd is in.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import os

from callgate.sandbox import kernel, meters
from callgate.sandbox.backends.cgroup_files import PREFIX as PREFIX
from callgate.sandbox.backends.cgroup_files import (
    ClaimedDirectory,
    Unavailable,
    read,
    shown_at,
    write,
)
from callgate.sandbox.backends.cgroup_files import remove_leftovers as remove_leftovers

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from callgate.sandbox.orders import GroupLimit

CONTROLLERS = ("memory", "pids")

_INTO_GROUP = 0x200000000
_SIGCHLD = 17


class Group:
    """One command's, as the broker and its keeper hold it."""

    def __init__(self, path: str, *, bounds_processes: bool = False) -> None:
        self.path = path
        self.bounds_processes = bounds_processes
        self.directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._killer = os.open(f"{path}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self.directory)
            raise

    def fork(self, flags: int = 0) -> int:
        """Like `os.fork`, and the child is in the group from its first moment on.

        Moving a process would stop all others for some milliseconds. `flags` are of `clone`.
        """
        numbers = (flags | _INTO_GROUP, 0, 0, 0, _SIGCHLD, 0, 0, 0, 0, 0, self.directory)
        arguments = b"".join(number.to_bytes(8, "little") for number in numbers)
        return kernel.call("clone3", arguments, len(arguments))

    def kill(self) -> None:
        try:
            os.write(self._killer, b"1")
        except OSError:
            pass  # the group is gone, and so is everyone who was in it

    def limit_reached(self) -> int:
        """Which limit the kernel has held someone to in here (`meters`)."""
        if self._count("memory.events", b"oom_kill"):
            return meters.MEMORY
        return meters.PROCESSES if self._count("pids.events", b"max") else meters.NONE

    def _count(self, name: str, event: bytes) -> int:
        try:
            file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.directory)
        except OSError:
            return 0
        try:
            words = os.read(file, 4096).split()
        finally:
            os.close(file)
        return int(words[words.index(event) + 1]) if event in words else 0

    def close(self) -> None:
        os.close(self.directory)
        os.close(self._killer)


class Groups(ClaimedDirectory):
    """The control groups of one broker. Raises OSError where the system grants none."""

    def __init__(self, parent: str, *, delegated: bool = False) -> None:
        super().__init__(parent)
        try:
            if delegated:
                _enable(parent)
            self.controllers = _enable(self.path)
            self._try_out()
        except OSError:
            self.close()
            raise

    def make(self, limits: list[GroupLimit], *, only_to_limit: bool = False) -> Group | None:
        """A group with these limits, as far as its controllers are here.

        None if it cannot be made, or if it is wanted only for limits and would have none.
        """
        usable = [each for each in limits if each[0].partition(".")[0] in self.controllers]
        if only_to_limit and not usable:
            return None
        try:
            path = self.new_path()
        except OSError:
            return None
        try:
            for name, value in usable:
                write(f"{path}/{name}", str(value))
                if name == "memory.max" and os.path.exists(f"{path}/memory.swap.max"):
                    write(f"{path}/memory.swap.max", "0")  # or it would only become slow
            return Group(path, bounds_processes="pids.max" in dict(usable))
        except OSError:
            self.remove(path)
            return None

    def _try_out(self) -> None:
        group = self.make([])
        if group is None:
            raise Unavailable(95, "the kernel has no cgroup.kill")
        try:
            child = group.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
        finally:
            group.close()
            self.remove(group.path)


def find() -> Groups | None:
    """Groups for this process, which is a broker; None where there cannot be any."""
    try:
        candidates = usable_parents()
    except OSError:
        return None
    for parent, delegated in candidates:
        try:
            return Groups(parent, delegated=delegated)
        except OSError:
            continue
    return None


def usable_parents() -> list[tuple[str, bool]]:
    """Directories in which we may make groups, and whether each was delegated. The best first.

    Raises `Unavailable` where there are none.
    """
    open_to_us = around(directory(own_path(read("/proc/self/cgroup"))))
    if not open_to_us:
        raise Unavailable(13, "our own cgroup is not ours to divide")
    return open_to_us


def around(group: str) -> list[tuple[str, bool]]:
    """`usable_parents` for a process in `group`."""
    above = os.path.dirname(group)
    delegated = _delegated(above)
    candidates = [(above, delegated)] if delegated or _limits_processes(above) else []
    candidates.append((group, False))
    return [each for each in candidates if _is_ours(each[0])]


def directory(path: str) -> str:
    """Where a group of version 2 is found in the file system."""
    return shown_at(path, "cgroup2")


def enabled(path: str) -> frozenset[str]:
    """Which limits of ours the groups in a group can have."""
    return frozenset(read(f"{path}/cgroup.subtree_control").split()).intersection(CONTROLLERS)


def own_path(text: str) -> str:
    """The group of version 2 in what /proc says of a process."""
    for line in text.splitlines():
        if line.startswith("0::"):
            return line[3:]
    raise Unavailable(2, "no cgroup v2 here")


# --- single steps ---------------------------------------------------------------------------


def _enable(path: str) -> frozenset[str]:
    """Pass on to the groups in a group what limits we use. Which of them it now does."""
    for name in CONTROLLERS:
        try:
            write(f"{path}/cgroup.subtree_control", f"+{name}")
        except OSError:
            pass  # not here, not ours, or processes are in it
    return enabled(path)


def _delegated(path: str) -> bool:
    try:
        return os.getxattr(path, "user.delegate") == b"1"
    except OSError:
        return False


def _limits_processes(path: str) -> bool:
    """Whether the groups in a group can have such a limit already."""
    try:
        return "pids" in enabled(path)
    except OSError:
        return False


def _is_ours(path: str) -> bool:
    return os.access(path, os.W_OK | os.X_OK) and os.access(f"{path}/cgroup.procs", os.W_OK)
