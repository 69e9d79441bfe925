"""A jail: the access and limits of a command as one value, and the guarantees about it.

A `Jail` is a requirement, independent of its implementation: `plans` chooses backends, and asks
each which of the jail's `needs` it can guarantee. An incomplete guarantee does not count.

The default limits are half of this machine's memory and of the processes that we may have, so that
there is room to end the command. The size of the machine is its narrowest limit: of the hardware, a
container, or a user. A mask removes paths from a jail, or makes them read-only, for one
command.
"""

from __future__ import annotations

import functools
import os
import os.path
import resource
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from callgate.sandbox.allowed_hosts import AllowedHost


class Profile(StrEnum):
    """The named jails; `profiles` creates them."""

    READ = "read"
    WORKSPACE = "workspace"
    OPEN = "open"


class Network(StrEnum):
    NONE = "none"
    LOOPBACK = "loopback"
    """A private loopback interface: a command reaches only its own processes."""
    HOSTS = "hosts"
    """Also our proxy on that loopback, which reaches only the named hosts."""
    ASK = "ask"
    """As HOSTS, and other hosts need approval on contact. The jail itself has HOSTS."""
    ALL = "all"


class Guarantee(StrEnum):
    """A guarantee about a jailed command and all its descendants."""

    READS_CONFINED = "reads_confined"
    """It reads and executes only paths below the readable and writable ones."""
    WRITES_CONFINED = "writes_confined"
    """It creates, changes and deletes only below the writable paths."""
    PROTECTED_CARVED_OUT = "protected_carved_out"
    """Protected paths below writable ones cannot be changed or created."""
    HIDDEN_MASKED = "hidden_masked"
    """Hidden paths, and the hidden parts of opaque ones, can neither be read nor listed."""
    METADATA_FROZEN = "metadata_frozen"
    """Mode, owner, times and attributes of paths that are not writable cannot be changed."""
    REPLACEMENTS = "replacements"
    """Some paths have the content of other files."""
    FRESH_TMP = "fresh_tmp"
    """Its /tmp is private, empty at the start and deleted at the end."""
    NO_NETWORK_TCP = "no_network_tcp"
    NO_NETWORK_UDP = "no_network_udp"
    NO_NETWORK_OTHER = "no_network_other"
    """No raw packets, netlink, vsock, Bluetooth, or unknown socket families."""
    OWN_LOOPBACK = "own_loopback"
    NAMED_HOSTS = "named_hosts"
    """It reaches the named hosts, through our proxy."""
    NO_LOCAL_SERVICES = "no_local_services"
    """It reaches no TCP service of other programs on this machine's loopback, except for listed
    services. Only a jail with the whole network needs this."""
    NO_UNIX_SOCKETS = "no_unix_sockets"
    """It cannot connect to services at a path: containers, agents, desktops, callgate."""
    ABSTRACT_SOCKETS_BLOCKED = "abstract_sockets_blocked"
    NO_PTRACE = "no_ptrace"
    """It cannot trace a process outside, or read its memory and environment."""
    NO_PROCESS_DETAILS = "no_process_details"
    """It cannot read the command line or the activity of a process outside."""
    NO_SIGNALS_OUT = "no_signals_out"
    NO_SHARED_MEMORY = "no_shared_memory"
    """Includes queues and semaphores with a number instead of a path."""
    NO_IO_URING = "no_io_uring"
    """`io_uring` could perform operations that a system call filter forbids."""
    NO_KERNEL_DOORS = "no_kernel_doors"
    """No mounts, namespaces, modules, keys, BPF or handles: no privileged kernel interface."""
    NO_NEW_PRIVILEGES = "no_new_privileges"
    """setuid programs have no effect, and no capability remains, even for root."""
    PID_NAMESPACE = "pid_namespace"
    """It sees only its own processes."""
    NO_SURVIVORS = "no_survivors"
    """All its processes end with it, and with callgate."""
    LIMITS = "limits"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a command. None: callgate sets no limit. Memory, processes and output count for the
    command as a whole, the others for each of its processes."""

    cpu_seconds: int | None = None
    memory_bytes: int | None = None
    """Memory that its end would free: no caches, no reserved addresses."""
    processes: int | None = None
    """Threads count as processes."""
    open_files: int | None = None
    file_bytes: int | None = None
    """Maximum size of a file that it writes."""
    output_bytes: int | None = None
    """For a command: both streams together. Hosts and servers have no such limit."""


NO_LIMITS = Limits()


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """Names of files that a program executes later without approval. The keeper prevents a command
    from creating them if it can supervise its system calls (`processes/creations`); elsewhere
    they are found after the run."""

    roots: tuple[str, ...] = ()
    """The directories in which the names count."""
    private: tuple[str, ...] = ()
    """Directories of one program, perhaps in a root, in which the names do not count."""
    names: frozenset[str]
    """Lower case, at any depth."""
    pairs: frozenset[str]
    """Two names, one in the other, such as `.config/nvim`."""
    suffixes: tuple[str, ...]
    exempt: frozenset[str]
    """Directories in which no name counts, such as package directories."""
    allowed: frozenset[str] = frozenset()
    """Exceptions: a directory and a file in it, at any depth."""


class Replacement(msgspec.Struct, frozen=True):
    """A file or directory that replaces another one. Both paths are free of symbolic links, the
    first one inside the jail."""

    path: str
    source: str
    writable: bool = False


class Jail(msgspec.Struct, frozen=True, kw_only=True):
    """The requirement. All paths are absolute and free of symbolic links, which `profiles`
    ensures."""

    readable: tuple[str, ...] = ("/",)
    writable: tuple[str, ...] = ()
    """Also readable."""
    protected: tuple[str, ...] = ()
    """Readable but not writable, although below a writable path. They may be missing."""
    hidden: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    """Directories that contain only their readable and writable paths."""
    links: tuple[tuple[str, str], ...] = ()
    """Symbolic links in opaque directories, each with its target."""
    revealed: tuple[str, ...] = ()
    """Readable or writable paths that are visible although they are below hidden ones."""
    replacements: tuple[tuple[str, str], ...] = ()
    """Readable or writable paths, each with the path of the file or directory that replaces it."""
    network: Network = Network.NONE
    hosts: tuple[AllowedHost, ...] = ()
    """Hosts that it reaches if the network is HOSTS."""
    services: tuple[AllowedHost, ...] = ()
    """Services on this machine's loopback that it reaches if the network is ALL."""
    unix_sockets: bool = False
    """Whether it may connect to services of this machine that listen at a path."""
    own_sockets: bool = False
    """Whether its processes may use Unix sockets among themselves. It sees no path of a service,
    except below the workspace; abstract names stay blocked."""
    fresh_tmp: bool = False
    pid_namespace: bool = False
    limits: Limits = NO_LIMITS
    write_watch: tuple[str, ...] = ()
    """Read-only paths for which write attempts are reported, if they can be detected."""
    names: Names | None = None
    """Names that it may not create in its writable paths."""
    bounded: bool = False
    """Whether the kernel must enforce its limit of processes; periodic measurement is too slow."""

    def __post_init__(self) -> None:
        paths = (*self.readable, *self.writable, *self.protected, *self.hidden, *self.opaque)
        for path in (*paths, *(source for _, source in self.replacements)):
            plain = path.startswith("/") and not path.startswith("//") and "\0" not in path
            if not plain or path != os.path.normpath(path):
                raise ValueError(f"not an absolute, plain path: {path!r}")
        if not {*self.readable, *self.writable}.issuperset(self.revealed):
            raise ValueError("revealed paths must be readable or writable")
        if not {*self.readable, *self.writable}.issuperset(dict(self.replacements)):
            raise ValueError("replaced paths must be readable or writable")
        if self.hosts and self.network is not Network.HOSTS:
            raise ValueError("hosts need the network HOSTS")

    @property
    def needs(self) -> frozenset[Guarantee]:
        """All guarantees that this jail needs before a command may run in it."""
        wanted = {
            Guarantee.READS_CONFINED: "/" not in self.readable and "/" not in self.writable,
            Guarantee.WRITES_CONFINED: "/" not in self.writable,
            Guarantee.METADATA_FROZEN: "/" not in self.writable,
            Guarantee.PROTECTED_CARVED_OUT: bool(self.protected),
            Guarantee.HIDDEN_MASKED: bool(self.hidden or self.opaque),
            Guarantee.REPLACEMENTS: bool(self.replacements),
            Guarantee.FRESH_TMP: self.fresh_tmp,
            Guarantee.PID_NAMESPACE: self.pid_namespace,
            Guarantee.NO_NETWORK_TCP: self.network is not Network.ALL,
            Guarantee.NO_NETWORK_UDP: self.network is not Network.ALL,
            Guarantee.NO_NETWORK_OTHER: self.network is not Network.ALL,
            Guarantee.OWN_LOOPBACK: self.network in (Network.LOOPBACK, Network.HOSTS),
            Guarantee.NAMED_HOSTS: self.network is Network.HOSTS,
            Guarantee.NO_LOCAL_SERVICES: self.network is Network.ALL and "/" not in self.writable,
            Guarantee.NO_UNIX_SOCKETS: not (self.unix_sockets or self.own_sockets),
            Guarantee.ABSTRACT_SOCKETS_BLOCKED: not self.unix_sockets,
            Guarantee.LIMITS: self.limits != NO_LIMITS,
        }
        return _ALWAYS.union(promise for promise, needed in wanted.items() if needed)


_ALWAYS = frozenset(
    {
        Guarantee.NO_PTRACE,
        Guarantee.NO_PROCESS_DETAILS,
        Guarantee.NO_SIGNALS_OUT,
        Guarantee.NO_SHARED_MEMORY,
        Guarantee.NO_IO_URING,
        Guarantee.NO_KERNEL_DOORS,
        Guarantee.NO_NEW_PRIVILEGES,
        Guarantee.NO_SURVIVORS,
    }
)


def is_below(path: str, root: str) -> bool:
    """Whether a plain path is `root` or below it."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def below_any(path: str, roots: Iterable[str]) -> bool:
    return any(is_below(path, root) for root in roots)


_MIB = 1024 * 1024
_MOST_PROCESSES, _LEAST_PROCESSES = 1024, 64
_LEAST_MEMORY = 256 * _MIB


@functools.cache
def default_limits() -> Limits:
    """Return the limits of each command, host and server; none on systems without a sandbox."""
    if sys.platform != "linux":
        return NO_LIMITS
    memory = min((*_memory(), sys.maxsize)) // 2
    processes = min((*_processes(), 2 * _MOST_PROCESSES)) // 2
    return Limits(
        cpu_seconds=3600,
        memory_bytes=max(memory, _LEAST_MEMORY),
        processes=max(processes, _LEAST_PROCESSES),
        open_files=8192,
        file_bytes=16 * 1024 * _MIB,
        output_bytes=256 * _MIB,
    )


def _memory() -> Iterator[int]:
    yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield from _numbers(_group_files("memory", "memory.max", "memory.limit_in_bytes"))


def _processes() -> Iterator[int]:
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() != 0 and most != resource.RLIM_INFINITY:  # it does not bind root
        yield most
    yield from _numbers(("/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"))
    yield from _numbers(_group_files("pids", "pids.max", "pids.max"))


def _group_files(controller: str, name: str, old_name: str) -> Iterator[str]:
    """Yield the limit files of all our control groups, in the usual places of both versions."""
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            roots, file = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), name
        elif controller in controllers.split(","):
            roots = (f"/sys/fs/cgroup/{controllers}", f"/sys/fs/cgroup/{controller}")
            file = old_name
        else:
            continue
        for root in roots:
            group = path
            while group not in ("", "/"):
                yield f"{root}{group}/{file}"
                group = os.path.dirname(group)
            yield f"{root}/{file}"  # a container mounts its group here


def _numbers(paths: Iterable[str]) -> Iterator[int]:
    for path in paths:
        for line in _lines(path):
            if line.isdigit():
                yield int(line)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().split("\n")
    except (OSError, UnicodeDecodeError):
        return []


def with_masks(jail: Jail, hidden: tuple[str, ...], read_only: tuple[str, ...]) -> Jail:
    """Return a jail with more hidden and read-only paths. All paths are real. No hidden path is a
    writable root of the jail, or contains one.

    A hidden path below a writable root is also protected. Otherwise a command could move it to a
    path at which the next command sees it. A root that becomes read-only is only readable.
    """
    roots = tuple(path for path in jail.writable if not below_any(path, read_only))
    lost = tuple(path for path in jail.writable if path not in roots)
    masked = (*(path for path in (*hidden, *read_only) if os.path.lexists(path)), *jail.protected)
    return msgspec.structs.replace(
        jail,
        readable=tuple(sorted({*jail.readable, *lost})),
        writable=roots,
        protected=tuple(sorted({p for p in masked if below_any(p, roots) and p not in roots})),
        hidden=tuple(sorted({*jail.hidden, *hidden})),
    )
