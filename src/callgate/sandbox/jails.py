"""What a command may touch, as one value; and every single promise that can be made about it.

A `Jail` says what is wanted. It knows nothing of how a system keeps it: `plans` chooses that,
and asks each backend which of the jail's `needs` it can promise. A promise that is only
nearly kept is not made.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from callgate.sandbox.allowed_hosts import AllowedHost


class Profile(StrEnum):
    """The jails that people speak of; `profiles` makes them."""

    READ = "read"
    WORKSPACE = "workspace"
    OPEN = "open"


class Network(StrEnum):
    NONE = "none"
    LOOPBACK = "loopback"
    """A loopback of its own: a command can talk to what it started itself, and to nobody else."""
    HOSTS = "hosts"
    """The same, and on it our proxy, which reaches the named hosts and nothing else."""
    ALL = "all"


class Guarantee(StrEnum):
    """One promise about a jailed command and everything that it starts."""

    READS_CONFINED = "reads_confined"
    """It reads and executes only what is below the readable and writable paths."""
    WRITES_CONFINED = "writes_confined"
    """It creates, changes and deletes only below the writable paths."""
    PROTECTED_CARVED_OUT = "protected_carved_out"
    """Protected paths below writable ones stay as they are, or stay missing."""
    HIDDEN_MASKED = "hidden_masked"
    """Hidden paths, and what is not shown of opaque ones, can neither be read nor listed."""
    METADATA_FROZEN = "metadata_frozen"
    """Mode, owner, times and attributes stay, of all that is not writable."""
    REPLACEMENTS = "replacements"
    """Other files are in the place of some paths."""
    FRESH_TMP = "fresh_tmp"
    """Its /tmp is its own, empty at the start and gone at the end."""
    NO_NETWORK_TCP = "no_network_tcp"
    NO_NETWORK_UDP = "no_network_udp"
    NO_NETWORK_OTHER = "no_network_other"
    """Neither raw packets, netlink, vsock, Bluetooth nor any family that we do not know."""
    OWN_LOOPBACK = "own_loopback"
    NAMED_HOSTS = "named_hosts"
    """It reaches the hosts that are named, through our proxy."""
    NO_UNIX_SOCKETS = "no_unix_sockets"
    """No service that listens at a path can be talked to: containers, agents, desktops, us."""
    ABSTRACT_SOCKETS_BLOCKED = "abstract_sockets_blocked"
    NO_PTRACE = "no_ptrace"
    """No process outside can be traced, or its memory and environment read."""
    NO_PROCESS_DETAILS = "no_process_details"
    """Of no process outside can be read what it was started with, or what it does."""
    NO_SIGNALS_OUT = "no_signals_out"
    NO_SHARED_MEMORY = "no_shared_memory"
    """Nor queues or semaphores that are found by a number instead of a path."""
    NO_IO_URING = "no_io_uring"
    """Which would do what a system call filter forbids."""
    NO_KERNEL_DOORS = "no_kernel_doors"
    """No mounts, namespaces, modules, keys, BPF, handles: what needs privilege stays shut."""
    NO_NEW_PRIVILEGES = "no_new_privileges"
    """setuid programs give nothing, and no capability is left, for root neither."""
    PID_NAMESPACE = "pid_namespace"
    """It sees no process but its own, and none of them outlives the first."""
    LIMITS = "limits"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """None: as it is for us. Memory, processes and output count for a command as a whole, the
    others for each of its processes."""

    cpu_seconds: int | None = None
    memory_bytes: int | None = None
    """What would be free again without it: no caches, no reserved addresses."""
    processes: int | None = None
    """Threads count."""
    open_files: int | None = None
    file_bytes: int | None = None
    """The size of a file that it writes."""
    output_bytes: int | None = None
    """Of a command, on both streams together; a host or server is listened to as it speaks."""


NO_LIMITS = Limits()


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """Names of files that some program executes later without a question. A command does not
    create them where the keeper can see its calls (`processes/creations`); elsewhere they are
    found after the run."""

    roots: tuple[str, ...] = ()
    """The directories in which they count."""
    names: frozenset[str]
    """In small letters, at any depth."""
    pairs: frozenset[str]
    """Two names, one in the other: `.config/nvim`."""
    suffixes: tuple[str, ...]
    exempt: frozenset[str]
    """Directories in which no name counts: those of packages."""
    allowed: frozenset[str] = frozenset()
    """A directory and a file in it, at any depth, that may be created all the same."""


class Replacement(msgspec.Struct, frozen=True):
    """A file or directory in the place of another one. Both paths are free of symbolic links, the
    first one in the jail."""

    path: str
    source: str
    writable: bool = False


class Jail(msgspec.Struct, frozen=True, kw_only=True):
    """All paths are absolute and free of symbolic links (`profiles` sees to it)."""

    readable: tuple[str, ...] = ("/",)
    writable: tuple[str, ...] = ()
    """Readable as well."""
    protected: tuple[str, ...] = ()
    """Readable and not writable, although below a writable path. They need not exist."""
    hidden: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    """Directories that hold nothing but the readable and writable paths in them."""
    links: tuple[tuple[str, str], ...] = ()
    """Symbolic links in opaque directories, and what each says."""
    revealed: tuple[str, ...] = ()
    """Readable or writable paths that are seen although they are below hidden ones."""
    replacements: tuple[tuple[str, str], ...] = ()
    """Readable or writable paths, each with the path of the file or directory that is there
    instead of its own."""
    network: Network = Network.NONE
    hosts: tuple[AllowedHost, ...] = ()
    """What it reaches where the network is HOSTS."""
    unix_sockets: bool = False
    """Whether it may talk to services of this machine that listen at a path."""
    fresh_tmp: bool = False
    pid_namespace: bool = False
    limits: Limits = NO_LIMITS
    write_watch: tuple[str, ...] = ()
    """Paths that are not writable, and where an attempt to write is reported if it can be seen."""
    names: Names | None = None
    """Names that it may not create in its writable paths."""
    bounded: bool = False
    """Its limit of processes has to be the kernel's: a look at them now and then is not enough."""

    def __post_init__(self) -> None:
        paths = (*self.readable, *self.writable, *self.protected, *self.hidden, *self.opaque)
        for path in (*paths, *(source for _, source in self.replacements)):
            plain = path.startswith("/") and not path.startswith("//") and "\0" not in path
            if not plain or path != os.path.normpath(path):
                raise ValueError(f"not an absolute, plain path: {path!r}")
        if not {*self.readable, *self.writable}.issuperset(self.revealed):
            raise ValueError("what is revealed must be readable or writable")
        if not {*self.readable, *self.writable}.issuperset(dict(self.replacements)):
            raise ValueError("what is replaced must be readable or writable")
        if self.hosts and self.network is not Network.HOSTS:
            raise ValueError("hosts are named for another network than HOSTS")

    @property
    def needs(self) -> frozenset[Guarantee]:
        """Every promise that this jail must be given before a command may run in it."""
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
            Guarantee.NO_UNIX_SOCKETS: not self.unix_sockets,
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
    }
)


def is_below(path: str, root: str) -> bool:
    """Whether a plain path is `root` or lies in it."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def below_any(path: str, roots: Iterable[str]) -> bool:
    return any(is_below(path, root) for root in roots)
