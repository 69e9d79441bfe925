"""What the broker is told to start, in plain values: dictionaries, lists, numbers and bytes.

These types are for the checker and for whoever reads. The broker does not import them, since
`typing` alone would take a quarter of the time in which it starts.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict


class Layout(TypedDict):
    """The file system and network that a command is to find. See `namespaces`."""

    writable: list[str]
    readable: list[str]
    """Only those that a fresh /tmp, an opaque or a replaced directory would cover."""
    protected: list[str]
    hidden: list[str]
    revealed: list[str]
    """Readable or writable all the same, below hidden paths."""
    opaque: list[str]
    links: list[tuple[str, str]]
    """In opaque directories, each with its target."""
    fresh_tmp: bool
    own_network: bool
    replacements: NotRequired[dict[str, str]]
    """Readable or writable paths, each with the path of what is put there."""
    proxy: NotRequired[int]
    """The port of its loopback on which we listen from outside."""
    stand_in: NotRequired[tuple[str, str, str]]
    """A directory, what takes its place, and a work directory: then an overlay of the first that
    keeps its changes in the second. "": the second itself."""


class Rules(TypedDict):
    """What `landlock.apply` takes."""

    rules: list[tuple[str, int]]
    version: int
    tcp: bool
    scopes: int


class ProtectedNames(TypedDict):
    """Names that a command may not create. See `creations`."""

    roots: list[bytes]
    """The directories in which they count."""
    names: list[bytes]
    """In small letters, at any depth."""
    pairs: list[bytes]
    """Two names, one in the other."""
    suffixes: list[bytes]
    exempt: list[bytes]
    """Directories in which no name counts."""
    allowed: list[bytes]
    """A directory and a file in it, at any depth, that may be created all the same."""


class Listener(TypedDict):
    """A filter that shows calls to the keeper before they go on. See `write_attempts`."""

    program: bytes
    without: bytes
    """The filter in its place where the kernel gives no listener."""
    watched: list[bytes]
    """Paths below which attempts to write are reported."""
    names: ProtectedNames | None
    writable: list[bytes]


GroupLimit = tuple[str, int]
"""A file of a control group, and its value."""


class Order(TypedDict):
    """One command and all that is put around it."""

    argv: list[bytes]
    env: dict[bytes, bytes]
    cwd: bytes
    limits: list[tuple[int, int]]
    """Resource and value, for both the soft and the hard limit."""
    group: list[GroupLimit]
    """Limits for the command as a whole, where there are control groups. See `cgroups`."""
    watched: tuple[int, int]
    """Bytes of memory and processes that the keeper lets the command have; 0: any. See `meters`."""
    bounded: bool
    """Not to be started where the kernel does not bound its processes, if they are limited."""
    mark: int
    """The number in the soft RLIMIT_LOCKS by which a process is known as ours. See `trees`."""
    layout: Layout | None
    landlock: Rules | None
    filter: bytes
    """A program for the kernel; empty: no filter."""
    placeholders: list[tuple[str, bool]]
    """Missing paths that are to exist as long as the command, and whether as directories. For a
    program that builds its own jail; a `layout` sees to it by itself."""
    inherited: list[bytes]
    """Contents that the program finds open, at descriptor 10 and up."""
    keep_capabilities: bool
    """For a program that needs them to build its own jail, and drops them then."""
    bare: bool
    """Nothing is given up at all. Only where a user said so in so many words."""
    listener: NotRequired[Listener]
    warm: NotRequired[tuple[list[bytes], list[bytes]]]
    """Arguments and path of a host, which a broker that came from a zygote runs without an
    `exec`. Any other takes `argv`."""
