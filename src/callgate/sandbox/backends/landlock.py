"""Landlock: what a process and its children may reach in the file system, from within itself.

    abi()      what this kernel knows, asked by system call (0: nothing)
    rules()    a jail as (path, rights) pairs; pure but for listing directories around secrets
    apply()    take these rules for ourselves, for good

A rule gives rights to all below a path, and none takes rights away. So nothing inside a
writable path can be protected. Something inside a readable path can be hidden, by granting
all its neighbours instead: the directories above it can then not be listed.

The broker imports this: no msgspec, and types only for the checker.
"""

from __future__ import annotations

import os
import struct

from callgate.sandbox import kernel

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from callgate.sandbox.jails import Jail

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
READ = EXECUTE | READ_FILE | READ_DIR

_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_ALL_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
WRITE = _ALL_BY_ABI[3] & ~READ & ~_MAKE_CHAR & ~_MAKE_BLOCK
_OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV

CONNECT_AND_BIND_TCP = 3
ABSTRACT_SOCKETS, SIGNALS = 1, 2
_TCP_SINCE, _SCOPES_SINCE = 4, 6

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")

_PROC, _SELF = "/proc", "/proc/self"
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1

Rule = tuple[str, int]


def abi() -> int:
    """The version of Landlock in this kernel; 0 where there is none, or it is switched off."""
    try:
        return kernel.call("landlock_create_ruleset", None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def handled(version: int) -> int:
    """Every right over files that a version can refuse."""
    return max(rights for since, rights in _ALL_BY_ABI.items() if since <= version)


def rules(jail: Jail) -> list[Rule]:
    """Read and write as the jail says, without what is hidden."""
    # What is hidden in a file system can be read from its disk, if root may. Of /proc no process
    # is granted but the first one of the command: a rule for it does not hold for its children.
    hidden = (*jail.hidden, "/dev", _PROC)
    granted: dict[str, int] = {}
    for roots, rights in (jail.readable, READ), (jail.writable, READ | WRITE):
        for root in roots:
            closed = [path for path in jail.opaque if not root.startswith(path + "/")]
            closed += [
                path
                for path in hidden
                if root not in jail.revealed or not root.startswith(path + "/")
            ]
            for path in _around(root, closed):
                granted[path] = granted.get(path, 0) | rights
            if root == "/":
                granted |= {**dict.fromkeys(_of_the_system(), rights), _SELF: READ}
    for device in DEVICES:
        granted[device] = granted.get(device, 0) | READ_FILE | WRITE_FILE | IOCTL_DEV
    return sorted(granted.items())


def _around(root: str, hidden: Iterable[str]) -> Iterator[str]:
    """The root, or in its place all that is in it except what is hidden.

    What does not exist yet is not granted: a secret that appears later stays unreadable.
    """
    prefix = root.rstrip("/") + "/"
    inside = [path for path in hidden if path.startswith(prefix)]
    if root in hidden or any(root.startswith(path + "/") for path in hidden):
        return
    if not inside:
        yield root
        return
    try:
        names = os.listdir(root)
    except OSError:
        return
    for name in names:
        path = prefix + name
        if not os.path.islink(path):  # the target has its own place in this list, or none
            yield from _around(path, inside)


def _of_the_system() -> Iterator[str]:
    """What /proc has that is no process, nor a link to one."""
    for name in os.listdir(_PROC):
        path = f"{_PROC}/{name}"
        if not name.isdigit() and not os.path.islink(path):
            yield path


def apply(rights: Iterable[Rule], *, version: int, tcp: bool, scopes: int) -> None:
    """Restrict ourselves. `tcp`: whether TCP is refused; `scopes`: what may not be reached out of.

    A path that does not exist grants nothing. Needs no_new_privileges, or a capability.
    """
    known = handled(version)
    refused_tcp = CONNECT_AND_BIND_TCP if tcp and version >= _TCP_SINCE else 0
    scoped = scopes if version >= _SCOPES_SINCE else 0
    words = 1 if version < _TCP_SINCE else 2 if version < _SCOPES_SINCE else 3
    attribute = struct.pack(f"={words}Q", *(known, refused_tcp, scoped)[:words])
    ruleset = kernel.call("landlock_create_ruleset", attribute, len(attribute), 0)
    try:
        for path, allowed in rights:
            _add(ruleset, path, allowed & known)
        kernel.call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _add(ruleset: int, path: str, allowed: int) -> None:
    links = 0 if path == _SELF else os.O_NOFOLLOW
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | links)
    except OSError:
        return
    try:
        if os.fstat(descriptor).st_mode & 0o170000 != 0o040000:
            allowed &= _OF_A_FILE
        if allowed:
            rule = struct.pack("=Qi", allowed, descriptor)
            kernel.call("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
