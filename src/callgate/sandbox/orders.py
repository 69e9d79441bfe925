"""The broker's orders, as plain values: dictionaries, lists, numbers and bytes.

These types are for the type checker and for readers. The broker does not import them, because
`typing` alone would take a quarter of its start time.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict


class Layout(TypedDict):
    """The file system and network of a command. See `namespaces`."""

    writable: list[str]
    readable: list[str]
    """The paths that a fresh /tmp, an opaque or a replaced directory would cover; no others."""
    protected: list[str]
    hidden: list[str]
    revealed: list[str]
    """Readable or writable paths below hidden ones."""
    opaque: list[str]
    links: list[tuple[str, str]]
    """Links in opaque directories, each with its target."""
    fresh_tmp: bool
    own_network: bool
    replacements: NotRequired[dict[str, str]]
    """Readable or writable paths, each with the path that replaces it."""
    proxy: NotRequired[int]
    """The port of its loopback on which our proxy listens."""
    stand_in: NotRequired[tuple[str, str, str]]
    """The target, another directory, and a work directory. An overlay of the target, which stores
    its changes in the other directory, replaces the target. Work directory "": the other directory
    itself replaces it."""


class Rules(TypedDict):
    """The input of `restrict.apply`."""

    rules: list[tuple[str, int]]
    version: int
    tcp: bool
    scopes: int
    own_tmp: NotRequired[str]
    """A directory in which the command gets a private directory, the value of its TMPDIR."""


class ProtectedNames(TypedDict):
    """Names that a command may not create. See `creations`."""

    roots: list[bytes]
    """The directories in which the names count."""
    private: list[bytes]
    """Directories of one program, perhaps in a root, in which the names do not count."""
    names: list[bytes]
    """Lower case, at any depth."""
    pairs: list[bytes]
    """Two names, one in the other."""
    suffixes: list[bytes]
    exempt: list[bytes]
    """Directories in which no name counts."""
    allowed: list[bytes]
    """Exceptions: a directory and a file in it, at any depth."""


class Performed(TypedDict):
    """The paths that calls may change. See `performing`."""

    confines: bool
    """Whether nothing else confines these calls; otherwise they only leave pre-images."""
    writable: list[bytes]
    protected: list[bytes]
    """Read-only paths in writable directories. They may be missing."""
    file_bytes: int
    """The maximum size of a file that is extended by path; 0: any."""
    signals: bool
    """Whether signals are checked, too, because Landlock does not confine them here."""
    shared_memory: NotRequired[bytes]
    """The directory that replaces /dev/shm for files that the command names there."""


class Preimages(TypedDict):
    """The directory that stores a command's changes. See `preimages`."""

    directory: str
    roots: list[bytes]
    """The directories whose changes are stored."""
    max_file: int
    """The maximum size of a copy in bytes."""
    max_total: int
    key: bytes | None
    """Encrypts copies. It belongs to this command only."""
    modules: str
    """The directory of the module that encrypts; empty without a key."""
    excluded: list[bytes]
    strict: bool
    tolerant: bool


class Listener(TypedDict):
    """A filter that reports calls to the keeper before they continue. See `write_attempts`."""

    program: bytes
    without: bytes
    """The replacement filter, if the kernel provides no listener."""
    watched: list[bytes]
    """Paths below which write attempts are reported."""
    names: ProtectedNames | None
    writable: list[bytes]
    performed: NotRequired[Performed]
    """For a keeper that performs calls which write or name files, instead of only checking them."""
    connects: NotRequired[bool]
    """Whether callgate connects outside, on behalf of the command. See `connects`."""
    services: NotRequired[list[tuple[bytes, int]]]
    """Services on this machine's loopback that a command in its network reaches: address (IPv4 as
    mapped; empty: any) and port. See `local_services`."""
    isolated: NotRequired[bool]
    """Whether the command has its own network, in which it may connect."""


GroupLimit = tuple[str, int]
"""A file of a control group, and its value."""


class Order(TypedDict):
    """One command and its sandbox."""

    argv: list[bytes]
    env: dict[bytes, bytes]
    cwd: bytes
    limits: list[tuple[int, int]]
    """Resource and value, for both the soft and the hard limit."""
    group: list[GroupLimit]
    """Limits for the command as a whole, if there are control groups. See `cgroups`."""
    watched: tuple[int, int]
    """Limits that the keeper enforces: bytes of memory, and processes; 0: none. See `meters`."""
    bounded: bool
    """Whether a limit of processes must be enforced by the kernel; otherwise the start fails."""
    mark: int
    """Value of the soft RLIMIT_LOCKS that marks our processes. See `command_marks`."""
    layout: Layout | None
    landlock: Rules | None
    filter: bytes
    """A program for the kernel; empty: no filter."""
    placeholders: list[tuple[str, bool]]
    """Missing paths to create for the duration of the command, and whether as directories. For a
    program that builds its own jail; a `layout` creates them automatically."""
    inherited: list[bytes]
    """Contents of files that are open in the program, at descriptor 10 and up."""
    keep_capabilities: bool
    """For a program that needs capabilities to build its own jail, and drops them then."""
    bare: bool
    """Whether the command retains all privileges, as an explicit setting of the user."""
    listener: NotRequired[Listener]
    preimages: NotRequired[Preimages]
    warm: NotRequired[tuple[list[bytes], list[bytes]]]
    """Arguments and import path of a host. A broker that was forked from a zygote runs it without
    an `exec`; any other broker runs `argv`."""
