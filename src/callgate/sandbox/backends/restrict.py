"""Restrict a forked child before exec, step by step, including its file access by Landlock.

    process limit -> session -> descriptors -> cwd -> landlock -> limits -> privileges
        -> seccomp -> exec

If a step fails, its name and the error number go through a pipe to the parent, and the child ends.
No failed step leads to `exec`: no command runs with fewer restrictions than ordered. `exec` closes
the pipe.

    abi()      the kernel's version of Landlock, by system call (0: none)
    rules()    a jail as (path, rights) pairs; pure except for listing directories around secrets
    apply()    bind this process to these rules, irrevocably

A Landlock rule grants rights to all files below a path, and none removes rights. So a file inside a
writable path cannot be protected. A file inside a readable path can be hidden by granting all its
neighbours instead; then the directories above it cannot be listed.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import errno
import functools
import os
import resource
import signal
import socket
import struct
import time

from callgate.sandbox import kernel
from callgate.sandbox.backends import seccomp

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import NoReturn

    from callgate.sandbox.jails import Jail
    from callgate.sandbox.orders import Listener, Order


EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
READ = EXECUTE | READ_FILE | READ_DIR

_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_ALL_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
WRITE = _ALL_BY_ABI[3] & ~READ & ~_MAKE_CHAR & ~_MAKE_BLOCK
_EVERYTHING = _ALL_BY_ABI[5]
_OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV

CONNECT_AND_BIND_TCP = 3
ABSTRACT_SOCKETS, SIGNALS = 1, 2
_TCP_SINCE, SCOPES_SINCE = 4, 6

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")

_PROC, _SELF = "/proc", "/proc/self"
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_SETTLED_S = 2.0
"""A directory that changed more recently may change again without a new time."""
_PATH_RULE = struct.Struct("=Qi")

Rule = tuple[str, int]


def abi() -> int:
    """Return the version of Landlock in this kernel; 0 if it is missing or disabled."""
    try:
        return kernel.call("landlock_create_ruleset", None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def handled(version: int) -> int:
    """Return all rights over files that a version can refuse."""
    return max(rights for since, rights in _ALL_BY_ABI.items() if since <= version)


def rules(jail: Jail) -> list[Rule]:
    """Return the rules for a jail's readable and writable paths, without its hidden ones."""
    # /dev is hidden, because root can read hidden files from a disk device. A rule for a process in
    # /proc applies only to the first one of the command, not to its children.
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
    """Yield the root, or its content without the hidden paths.

    Missing paths are not granted, so a secret that is created later stays unreadable.
    """
    if any(root == path or root.startswith(path + "/") for path in hidden):
        return
    prefix = root.rstrip("/") + "/"
    inside = [path for path in hidden if path.startswith(prefix)]
    if inside:
        yield from _neighbours(prefix, inside)
    else:
        yield root


def _neighbours(prefix: str, hidden: list[str]) -> Iterator[str]:
    """Yield the content of a directory without the hidden paths below it."""
    below: dict[str, list[str]] = {}
    for path in hidden:
        below.setdefault(path[len(prefix) :].partition("/")[0], []).append(path)
    try:
        facts = os.stat(prefix)
        is_settled = time.time() - facts.st_mtime > _SETTLED_S
        changed = facts.st_dev, facts.st_ino, facts.st_mtime_ns
        names = _listed(prefix, changed) if is_settled else _names(prefix)
    except OSError:
        return
    for name in names:  # the target of a link has a separate rule, or none
        path = prefix + name
        inside = below.get(name)
        if inside is None:
            yield path
        elif path not in inside:
            yield from _neighbours(path + "/", inside)


def _names(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return [each.name for each in entries if not each.is_symlink()]


@functools.lru_cache(maxsize=64)
def _listed(directory: str, changed: tuple[int, int, int]) -> list[str]:
    """Return the content of a directory, by its device, number and time of the last change."""
    return _names(directory)


def beneath(rights: list[Rule]) -> list[Rule]:
    """Return the rules of a domain in one with these rules: it grants the same, without /proc.

    Domains restrict together, so the inner one needs no second list of all paths."""
    every = [(f"/{name}", _EVERYTHING) for name in _names("/") if f"/{name}" != _PROC]
    return [*every, *(rule for rule in rights if rule[0].startswith(_PROC + "/"))]


@functools.cache
def _of_the_system() -> list[str]:
    """Return the entries of /proc that are neither a process nor a link to one."""
    paths = [f"{_PROC}/{name}" for name in os.listdir(_PROC) if not name.isdigit()]
    return [path for path in paths if not os.path.islink(path)]


def apply(rights: Iterable[Rule], *, version: int, tcp: bool, scopes: int) -> None:
    """Restrict this process. `tcp`: refuse TCP; `scopes`: the Landlock scopes to enforce.

    A missing path grants nothing. Needs no_new_privileges, or a capability.
    """
    known = handled(version)
    refused_tcp = CONNECT_AND_BIND_TCP if tcp and version >= _TCP_SINCE else 0
    scoped = scopes if version >= SCOPES_SINCE else 0
    words = 1 if version < _TCP_SINCE else 2 if version < SCOPES_SINCE else 3
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
        _grant(ruleset, descriptor, allowed)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        _grant(ruleset, descriptor, allowed & _OF_A_FILE)  # it is not a directory
    finally:
        os.close(descriptor)


def _grant(ruleset: int, descriptor: int, allowed: int) -> None:
    if allowed:
        rule = _PATH_RULE.pack(allowed, descriptor)
        kernel.call("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, rule, 0)


STEPS = (
    "namespaces",
    "fork",
    "process limit",
    "session",
    "descriptors",
    "cwd",
    "landlock",
    "limits",
    "privileges",
    "seccomp",
    "exec",
)
FAILURE = struct.Struct("<Bi")
"""Index of a step in STEPS, and an error number."""
LISTENER = b"l"
"""Message with a descriptor, from a command whose write attempts are watched."""
INHERITED = 10
"""The first descriptor of an order's `inherited` contents."""

enter: Callable[[Order], NoReturn] | None = None
"""Runs a warm order in this process; only a zygote sets it."""

_LOST = 5  # EIO, for an exception without a number


def become(
    order: Order,
    streams: tuple[int, int, int],
    failures: int,
    *,
    group: int | None = None,
    nproc: int = 0,
) -> NoReturn:
    """Turn this process into the command. `failures` closes on exec.

    `group` is a descriptor through which we move to a control group (`cgroups.PidsGroups`), `nproc`
    a limit that depends on the other processes of the user (`meters`).
    """
    step = "process limit"
    try:
        if group is not None:
            os.write(group, b"0")
        step = "session"
        os.setsid()
        for number in signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)  # Python or callgate changed them
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        step = "descriptors"
        failures = _arrange(streams, order["inherited"], failures)
        step = "cwd"
        os.chdir(order["cwd"])
        if not order["bare"]:
            kernel.no_new_privileges()
        step = "landlock"
        rules = order["landlock"]
        if rules is not None:
            apply(
                rules["rules"],
                version=rules["version"],
                tcp=rules["tcp"],
                scopes=rules["scopes"],
            )
        step = "limits"
        if nproc:
            _limit([(resource.RLIMIT_NPROC, nproc)], 0)
        _limit(order["limits"], order["mark"])
        step = "privileges"
        if not order["bare"] and not order["keep_capabilities"]:
            kernel.drop_capabilities()
        step = "seccomp"
        if order["filter"]:
            seccomp.install(order["filter"])
        if "listener" in order:
            _hand_over_listener(order["listener"], failures)
        step = "exec"
        if enter is not None and "warm" in order:
            os.close(failures)
            enter(order)
        _execute(order["argv"], order["env"])
    except BaseException as error:
        cause = error.errno if isinstance(error, OSError) and error.errno else _LOST
        os.write(failures, FAILURE.pack(STEPS.index(step), cause))
    os._exit(127)


def _hand_over_listener(order: Listener, channel: int) -> None:
    """Send the listener to the keeper, which must answer our calls from here on."""
    listener = seccomp.install_listener(order["program"])
    if listener is None:
        if "performed" in order and order["performed"]["confines"]:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        if order["without"]:
            seccomp.install(order["without"])
        return
    with socket.socket(fileno=os.dup(channel)) as keeper:
        socket.send_fds(keeper, [LISTENER], [listener])
    os.close(listener)


def _arrange(streams: tuple[int, int, int], inherited: list[bytes], failures: int) -> int:
    """Close all descriptors except the command's. Returns the new number of the pipe."""
    last = INHERITED + len(inherited)
    above = [os.dup(failures)]
    while above[-1] <= last:  # above the numbers with a meaning
        above.append(os.dup(failures))
    failures = above[-1]
    moved = [_above(stream, last) for stream in streams]
    for index, content in enumerate(inherited):
        memory = os.memfd_create("callgate")
        os.write(memory, content)
        os.lseek(memory, 0, os.SEEK_SET)
        os.dup2(_above(memory, last), INHERITED + index)
    for number, stream in enumerate(moved):
        os.dup2(stream, number)
    os.closerange(3, INHERITED)
    os.closerange(last, failures)
    os.closerange(failures + 1, _most_descriptors())
    os.set_inheritable(failures, False)
    return failures


def _above(descriptor: int, floor: int) -> int:
    while descriptor <= floor:
        descriptor = os.dup(descriptor)
    return descriptor


def _most_descriptors() -> int:
    """Return one more than the highest open descriptor."""
    return max(map(int, os.listdir("/proc/self/fd")), default=1023) + 1


def _limit(limits: list[tuple[int, int]], mark: int) -> None:
    for kind, value in limits:
        _, hard = resource.getrlimit(kind)
        unlimited = hard == resource.RLIM_INFINITY
        least = value if unlimited else min(value, hard)
        # The soft limit sends a signal that names the reason; the hard limit sends SIGKILL.
        later = kind == resource.RLIMIT_CPU and (unlimited or least < hard)
        most = least + 1 if later else least
        resource.setrlimit(kind, (least, most))
    if mark:
        locks = 10  # RLIMIT_LOCKS, which no kernel enforces
        _, hard = resource.getrlimit(locks)
        if hard == resource.RLIM_INFINITY or mark <= hard:
            resource.setrlimit(locks, (mark, hard))


def _execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """Replace this process. Raises `OSError` if that fails."""
    name = argv[0]
    if b"/" in name:
        os.execve(name, argv, env)  # noqa: S606
    failure = OSError(2, os.strerror(2))
    for directory in env.get(b"PATH", os.defpath.encode()).split(b":"):
        try:
            os.execve(os.path.join(directory or b".", name), argv, env)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failure = error
    raise failure
