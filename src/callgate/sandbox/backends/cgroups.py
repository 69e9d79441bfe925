"""A control group for each command, if the system permits; a jailed process cannot leave it.

    <parent>/callgate-<random>/    one for each broker, locked while it or a keeper lives
        1/ 2/ 3/ ...               one for each command, whose first process is created in it

Writing to `cgroup.kill` kills all processes of a group together, even while they fork. If the
controllers are delegated too, `memory.max` and `pids.max` limit a command as a whole, which no
limit of a process can do. On systems without groups, commands end as reliably but with more work,
by their namespace or by a sweep of their descendants.

The parent is our own group of version 2, if it is writable, or the group above it, which alone can
have controllers: a group that contains processes passes none on. That one must be delegated to us
(systemd: `Delegate=yes` with `DelegateSubgroup=`), or be writable and limit processes already, as
the slice of root's or a user's systemd does.

Groups of version 1 (`PidsGroups`) limit processes where version 2 does not. A process cannot be
created in one. It has to move there, which blocks all forks of the machine for about ten
milliseconds, so they are only for commands without any other limit.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import fcntl
import os

from callgate.sandbox import kernel, meters

TYPE_CHECKING = False

if TYPE_CHECKING:
    from callgate.sandbox.orders import GroupLimit


PREFIX = "callgate-"


class Unavailable(OSError):
    """The reason for which we have no groups."""


class ClaimedDirectory:
    """The groups of one broker. Raises `OSError` if the system permits none."""

    def __init__(self, parent: str) -> None:
        remove_leftovers(parent)
        self.path, self._lock = _claim(parent)
        self._count = 0
        self._ended: set[str] = set()

    def new_path(self) -> str:
        """Create a group, and return its path."""
        self._count += 1
        path = f"{self.path}/{self._count}"
        os.mkdir(path)
        return path

    def remove(self, path: str) -> None:
        """Kill the processes in a group, and remove it as soon as they are dead."""
        self._ended.add(path)
        self.bury()

    def bury(self) -> None:
        self._ended = {path for path in self._ended if not remove(path)}

    def close(self) -> None:
        """Remove the groups. The next broker removes groups that are still in use."""
        self.bury()
        remove(self.path, kill=False)
        os.close(self._lock)


def remove_leftovers(parent: str) -> None:
    """Remove the groups of dead brokers, whose locks are free."""
    for name in os.listdir(parent):
        if name.startswith(PREFIX):
            path = f"{parent}/{name}"
            try:
                lock = _locked(path)
            except OSError:
                continue
            _kill(path)
            for inside in os.listdir(path):
                if os.path.isdir(f"{path}/{inside}"):
                    remove(f"{path}/{inside}")
            remove(path)
            os.close(lock)


def remove(path: str, *, kill: bool = True) -> bool:
    """Remove a group, and return whether it is gone."""
    for attempt in (0, 1):
        try:
            os.rmdir(path)
            return True
        except FileNotFoundError:
            return True
        except OSError:
            if attempt or not kill:
                return False
            _kill(path)
    return False


def _kill(path: str) -> None:
    try:
        write(f"{path}/cgroup.kill", "1")
    except OSError:
        pass


def _claim(parent: str) -> tuple[str, int]:
    """Create and lock a directory. Another broker may remove it as a leftover before the lock."""
    for _ in range(10):
        path = f"{parent}/{PREFIX}{os.urandom(6).hex()}"
        os.mkdir(path)
        try:
            return path, _locked(path)
        except OSError:
            continue
    raise Unavailable(11, "no cgroup can be claimed")


def _locked(path: str) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.stat(path), os.fstat(descriptor)):
            raise FileNotFoundError(path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def shown_at(path: str, kind: str, controller: str = "") -> str:
    """Return the path of a group in the file system. `kind` is a file system type; version 1 has
    one mount for each controller."""
    for line in read("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        file_system, _, options = after.split(" ", 2)
        if file_system == kind and (not controller or controller in options.split(",")):
            root, mount = (_unescaped(field) for field in before.split(" ")[3:5])
            inside = os.path.relpath(path, root)
            if inside.split("/")[0] != "..":
                return os.path.normpath(os.path.join(mount, inside))
    raise Unavailable(2, f"no {kind} is mounted for us")


def _unescaped(field: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return field


def read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while piece := os.read(descriptor, 16384):
            content += piece
        return os.fsdecode(content)
    finally:
        os.close(descriptor)


def write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


CONTROLLERS = ("memory", "pids")

_INTO_GROUP = 0x200000000
_SIGCHLD = 17


class Group:
    """The group of one command, for the broker and its keeper."""

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
        """Fork like `os.fork`, with the child in the group from its start.

        Moving a process would block all others for milliseconds. `flags` are `clone` flags.
        """
        numbers = (flags | _INTO_GROUP, 0, 0, 0, _SIGCHLD, 0, 0, 0, 0, 0, self.directory)
        arguments = b"".join(number.to_bytes(8, "little") for number in numbers)
        return kernel.call("clone3", arguments, len(arguments))

    def kill(self) -> None:
        try:
            os.write(self._killer, b"1")
        except OSError:
            pass  # the group is gone, and with it all its processes

    def limit_reached(self) -> int:
        """Return the limit that a process in the group has reached (`meters`)."""
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
    """The control groups of one broker. Raises `OSError` if the system permits none."""

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
        """Create a group with these limits, as far as its controllers are available.

        Returns None if that fails, or if `only_to_limit` is set and no limit is available.
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
                    write(f"{path}/memory.swap.max", "0")  # swapping would only slow it down
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
    """Return groups for this process, which is a broker; None if there cannot be any."""
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
    """Return directories in which we may create groups, and whether each was delegated; the best
    first.

    Raises `Unavailable` if there are none.
    """
    open_to_us = around(directory(own_path(read("/proc/self/cgroup"))))
    if not open_to_us:
        raise Unavailable(13, "our own cgroup is not delegated to us")
    return open_to_us


def around(group: str) -> list[tuple[str, bool]]:
    """Return `usable_parents` for a process in `group`."""
    above = os.path.dirname(group)
    delegated = _delegated(above)
    candidates = [(above, delegated)] if delegated or _limits_processes(above) else []
    candidates.append((group, False))
    return [each for each in candidates if _is_ours(each[0])]


def directory(path: str) -> str:
    """Return the path of a group of version 2 in the file system."""
    return shown_at(path, "cgroup2")


def enabled(path: str) -> frozenset[str]:
    """Return the limits of callgate that subgroups of a group can have."""
    return frozenset(read(f"{path}/cgroup.subtree_control").split()).intersection(CONTROLLERS)


def own_path(text: str) -> str:
    """Return the group of version 2 in a /proc/PID/cgroup file."""
    for line in text.splitlines():
        if line.startswith("0::"):
            return line[3:]
    raise Unavailable(2, "no cgroup v2 here")


# --- single steps ---------------------------------------------------------------------------


def _enable(path: str) -> frozenset[str]:
    """Enable our limits for subgroups of a group. Returns the enabled ones."""
    for name in CONTROLLERS:
        try:
            write(f"{path}/cgroup.subtree_control", f"+{name}")
        except OSError:
            pass  # not available, not ours, or the group contains processes
    return enabled(path)


def _delegated(path: str) -> bool:
    try:
        return os.getxattr(path, "user.delegate") == b"1"
    except OSError:
        return False


def _limits_processes(path: str) -> bool:
    """Whether subgroups of a group can already limit processes."""
    try:
        return "pids" in enabled(path)
    except OSError:
        return False


def _is_ours(path: str) -> bool:
    return os.access(path, os.W_OK | os.X_OK) and os.access(f"{path}/cgroup.procs", os.W_OK)


_CONTROLLER = "pids"


class PidsGroups(ClaimedDirectory):
    def make(self, processes: int) -> tuple[str, int]:
        """Create a group with a limit. Writing 0 to the returned descriptor moves the writer."""
        path = self.new_path()
        try:
            write(f"{path}/pids.max", str(processes))
            return path, os.open(f"{path}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            self.remove(path)
            raise


def find_pids_groups() -> PidsGroups | None:
    """Return groups for this process, which is a broker; None if there cannot be any."""
    try:
        return PidsGroups(shown_at(_own_path(), "cgroup", _CONTROLLER))
    except OSError:
        return None


def _own_path() -> str:
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if _CONTROLLER in controllers.split(","):
            return path
    raise Unavailable(2, "no cgroup v1 counts processes here")
