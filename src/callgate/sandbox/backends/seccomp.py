"""The system call filter: the calls that a jailed process is refused, as a program for the kernel.

    architecture? -> x32? -> one call after another: refused, or by its arguments -> allowed

`program` is pure and supports both architectures; `install` loads its bytes into the kernel,
irrevocably. A foreign architecture is killed, because its numbers mean other calls. A refused call
fails with EPERM, or with ENOSYS if programs then use an older call: `clone3` and `openat2` hide
their flags and modes behind a pointer, and io_uring performs other calls unseen.

No call can set the set-uid or set-gid bit of a file, because other users who run such a file
get our rights. On a directory, set-gid only passes its group on to its files, and shared
repositories need it: a listener that can distinguish the two decides (`write_attempts`).

The filter checks only the low half of an argument if the kernel uses no more.
The broker imports this: no msgspec.
"""

from __future__ import annotations

import ctypes
import struct

from callgate.sandbox import kernel

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from collections.abc import Iterable

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16

_EPERM, _ENOSYS, _EOPNOTSUPP = 1, 38, 95
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_NOTIFY = 0x7FC00000
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT = 0x20, 0x15, 0x35, 0x45
_AND, _RETURN = 0x54, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_GROUP = 8
_X32_BIT = 0x40000000
_AUDIT = {kernel.X86_64: 0xC000003E, kernel.AARCH64: 0xC00000B7}
_SET_MODE_FILTER = 1
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5

_NEW_NAMESPACE = 0x7E020000
_NEW_TIME_NAMESPACE = 0x80  # for unshare only; clone has the signal number there
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPES = 1, 5, 0xF
_IPPROTO_IP, _IPPROTO_TCP = 0, 6
_FAST_OPEN = 0x20000000  # MSG_FASTOPEN
_SENDS = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
"""Position of the flags among the arguments."""
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: input for readers of the terminal
_SIGNAL_OWNERS = (8, 15)
"""F_SETOWN, F_SETOWN_EX: they send signals to another process through a descriptor."""
_SIGNAL_OWNERS_OF_SOCKETS = (0x8901, 0x8902)
"""FIOSETOWN, SIOCSPGRP: the same for a socket."""
_SCHEDULING = ("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")
_FILE_FLAGS = (0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40047602)
"""FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_SETVERSION and their 32-bit variants."""
_FREEZES = (0x40806685, 0x800C6613)
"""FS_IOC_ENABLE_VERITY, FS_IOC_SET_ENCRYPTION_POLICY: they work through a read-only descriptor."""
_SUBVOLUMES = (
    *(0x50009401, 0x5000940E, 0x5000940F, 0x50009417, 0x50009418, 0x5000943F),
    *(0x4008941A, 0xC0C89425),
)
"""Btrfs: create, copy and delete a subvolume, and set its flags. A copy in the workspace would
show hidden files of the original."""

_NEVER_NAMES = """
    ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd
    mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount
    fspick mount_setattr setns open_by_handle_at
    keyctl add_key request_key bpf perf_event_open userfaultfd fanotify_init
    kexec_load kexec_file_load init_module finit_module delete_module create_module query_module
    acct quotactl quotactl_fd swapon swapoff reboot syslog vhangup iopl ioperm uselib nfsservctl
    _sysctl lookup_dcookie migrate_pages move_pages
    settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname
"""
_AS_IF_UNKNOWN = ("io_uring_setup", "io_uring_enter", "io_uring_register", "clone3", "openat2")
_SET_ID, _SET_UID, SET_GID = 0o6000, 0o4000, 0o2000
_CREATES = 0o20000100  # O_CREAT, __O_TMPFILE: other opens ignore their mode
CHMODS = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}
_MODES = {**CHMODS, "creat": 1, "mknod": 1, "mknodat": 2}
"""Position of the mode among the arguments. The kernel itself ignores these bits in a mkdir."""
_MODES_OF_OPENS = {"open": (1, 2), "openat": (2, 3)}
"""Positions of the flags and of the mode."""
_METADATA_NAMES = """
    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat
    utime utimes utimensat futimesat file_setattr
    setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat
"""
_OWN_RULES = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")
"""Rules of a command about itself, which performed calls would not obey: the performing thread is
outside its domain. The error means a kernel without Landlock."""
_SHARED_NAMES = """
    shmget shmat shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl
    mq_open mq_unlink
"""

Instruction = tuple[int, int, int, int]
"""Code, steps to skip if true, if false, and a constant."""


def program(
    machine: str,
    *,
    families: Iterable[int] | None,
    freeze_metadata: bool,
    refuse_ipc: bool,
    refuse_set_gid: bool = True,
    refuse_fast_open: bool = False,
    only_connects: bool = False,
    performed: bool = False,
    alone: bool = True,
    signals_scoped: bool = True,
) -> bytes:
    """Return the filter for an architecture.

    `refuse_set_gid`: refuse this bit in a chmod; otherwise a listener has to decide.
    `refuse_fast_open`: refuse to send data together with a connection attempt (TCP).
    `only_connects`: permit internet sockets for outgoing TCP alone, which a listener connects.
    `performed`: a listener performs changes of files; calls that it cannot read are refused.
    `alone`: the command sees only its own processes. `signals_scoped`: it cannot signal others.

    `families` are the permitted kinds of sockets; None: any. `refuse_ipc` refuses memory, queues
    and semaphores by number or name, which have neither a path nor an owner's consent.
    """
    numbers = kernel.NUMBERS[machine]
    refused = dict.fromkeys(_NEVER_NAMES.split(), _EPERM) | dict.fromkeys(_AS_IF_UNKNOWN, _ENOSYS)
    ioctls: tuple[int, ...] = (*_TERMINAL_INPUT, *_FREEZES, *_SUBVOLUMES)
    if freeze_metadata:
        refused |= dict.fromkeys(_METADATA_NAMES.split(), _EPERM)
        ioctls += _FILE_FLAGS
    if performed:
        refused |= dict.fromkeys(("file_setattr", "setxattrat", "removexattrat"), _ENOSYS)
        refused |= dict.fromkeys(_OWN_RULES, _EOPNOTSUPP)
        ioctls += _FILE_FLAGS
    if refuse_ipc:
        refused |= dict.fromkeys(_SHARED_NAMES.split(), _EPERM)
    looked_at = {
        "clone": _unless_any_bit(0, _NEW_NAMESPACE),
        "unshare": _unless_any_bit(0, _NEW_NAMESPACE | _NEW_TIME_NAMESPACE),
        "ioctl": _unless_one_of(1, ioctls),
        # A limit of another process could end it: RLIMIT_CPU sends SIGKILL.
        "prlimit64": _only_if_one_of(0, (0,)),
    }
    if not alone:
        looked_at |= dict.fromkeys(_SCHEDULING, _only_if_one_of(0, (0,)))
        looked_at |= {"setpriority": _only_own(0), "ioprio_set": _only_own(1)}
    if not signals_scoped:
        refused["pidfd_send_signal"] = _ENOSYS
        looked_at["fcntl"] = _unless_one_of(1, _SIGNAL_OWNERS)
        looked_at["ioctl"] = _unless_one_of(1, (*ioctls, *_SIGNAL_OWNERS_OF_SOCKETS))
    if refuse_fast_open:
        looked_at |= {
            name: _unless_any_bit(at, _FAST_OPEN, _EOPNOTSUPP) for name, at in _SENDS.items()
        }
    looked_at |= {name: _unless_any_bit(at, _SET_ID) for name, at in _MODES.items()}
    if not refuse_set_gid:
        looked_at |= {name: _unless_any_bit(at, _SET_UID) for name, at in CHMODS.items()}
    looked_at |= {name: _unless_created(*at, _SET_ID) for name, at in _MODES_OF_OPENS.items()}
    if families is not None:
        allowed = tuple(sorted(families))
        looked_at["socket"] = _only_tcp(allowed) if only_connects else _only_if_one_of(0, allowed)
        looked_at["socketpair"] = _socket_pairs(AF_UNIX in allowed)
    if only_connects:
        refused |= dict.fromkeys(("bind", "listen"), _EPERM)
    bodies = {numbers[name]: body for name, body in looked_at.items() if name in numbers}
    bodies |= {
        numbers[name]: [(_RETURN, 0, 0, _REFUSE | error)]
        for name, error in refused.items()
        if name in numbers
    }
    return _assemble(machine, bodies)


def without_set_gid(machine: str) -> bytes:
    """Return a filter that only refuses to set this bit in a chmod."""
    numbers = kernel.NUMBERS[machine]
    return _assemble(
        machine,
        {
            numbers[name]: _unless_any_bit(at, SET_GID)
            for name, at in CHMODS.items()
            if name in numbers
        },
    )


Traps = dict[str, tuple[int, int] | None]
"""Calls that a listener sees; a condition is the position of an argument, and flags in it."""


def notifying(machine: str, traps: Traps) -> bytes:
    """Return a filter that lets a listener see calls before they continue. It refuses only foreign
    architectures."""
    numbers = kernel.NUMBERS[machine]
    bodies: dict[int, list[Instruction]] = {}
    for name, condition in traps.items():
        if name not in numbers:
            continue
        body = [(_RETURN, 0, 0, _NOTIFY)]
        if condition is not None:
            argument, flags = condition
            only = (_JUMP_ANY_BIT, 0, 1, flags)
            body = [_load(argument), only, *body, (_RETURN, 0, 0, _ALLOW)]
        bodies[numbers[name]] = body
    return _assemble(machine, bodies)


def _assemble(machine: str, bodies: dict[int, list[Instruction]]) -> bytes:
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == kernel.X86_64:
        steps += [(_JUMP_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL)]
    steps += _dispatch(sorted(bodies.items()))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def install(code: bytes) -> None:
    """Filter the calls of this process and its children. Needs no_new_privileges."""
    _install(code, 0)


def install_listener(code: bytes) -> int | None:
    """Install a notifying filter. Returns the descriptor to listen at, which closes on exec; None
    if the kernel is too old, or another listener exists."""
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
        try:
            return _install(code, flags)
        except OSError as error:
            if error.errno not in (16, 22):  # EBUSY, EINVAL
                raise
    return None


def _install(code: bytes, flags: int) -> int:
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    return kernel.call("seccomp", _SET_MODE_FILTER, flags, header)


def works() -> bool:
    """Whether the kernel supports filters: a null pointer must be the reported error."""
    try:
        kernel.call("seccomp", _SET_MODE_FILTER, 0, None)
    except OSError as error:
        return error.errno == 14  # EFAULT
    return False


def _dispatch(bodies: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Return the jumps to the body of a number, in groups, so that few comparisons are needed.

    The kernel runs a new filter once for each number, which is most of its cost.
    """
    steps = []
    for start in range(0, len(bodies), _GROUP):
        group: list[Instruction] = []
        for number, body in bodies[start : start + _GROUP]:
            group += [(_JUMP_EQUAL, 0, len(body), number), *body]  # a body always returns
        group.append((_RETURN, 0, 0, _ALLOW))
        highest = bodies[start : start + _GROUP][-1][0]
        steps += [(_JUMP_AT_LEAST, len(group), 0, highest + 1), *group]
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


def _load(argument: int) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * argument)  # both machines have the low half first


def _unless_any_bit(argument: int, bits: int, error: int = _EPERM) -> list[Instruction]:
    return [
        _load(argument),
        (_JUMP_ANY_BIT, 0, 1, bits),
        (_RETURN, 0, 0, _REFUSE | error),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _unless_created(flags: int, mode: int, bits: int) -> list[Instruction]:
    return [
        _load(flags),
        (_JUMP_ANY_BIT, 1, 0, _CREATES),
        (_RETURN, 0, 0, _ALLOW),
        *_unless_any_bit(mode, bits),
    ]


def _unless_one_of(argument: int, values: Iterable[int]) -> list[Instruction]:
    return _sorted_out(argument, values, _REFUSE | _EPERM, _ALLOW)


def _only_if_one_of(argument: int, values: Iterable[int]) -> list[Instruction]:
    return _sorted_out(argument, values, _ALLOW, _REFUSE | _EPERM)


def _only_own(kind: int) -> list[Instruction]:
    """Return a check that the call targets the caller itself: `kind` means a process, 0 itself."""
    return [
        _load(0),
        (_JUMP_EQUAL, 1, 0, kind),
        (_RETURN, 0, 0, _REFUSE | _EPERM),
        *_only_if_one_of(1, (0,)),
    ]


def _sorted_out(argument: int, values: Iterable[int], among: int, else_: int) -> list[Instruction]:
    steps = [_load(argument)]
    for value in values:
        steps += [(_JUMP_EQUAL, 0, 1, value), (_RETURN, 0, 0, among)]
    return [*steps, (_RETURN, 0, 0, else_)]


def _only_tcp(families: Iterable[int]) -> list[Instruction]:
    """Return a check of socket: streams of these families by the usual protocol. Others, such as
    MPTCP, connect too."""
    return [
        _load(1),
        (_AND, 0, 0, _SOCK_TYPES),  # without the flags in the type
        (_JUMP_EQUAL, 1, 0, _SOCK_STREAM),
        (_RETURN, 0, 0, _REFUSE | _EPERM),
        _load(2),
        (_JUMP_EQUAL, 2, 0, _IPPROTO_IP),
        (_JUMP_EQUAL, 1, 0, _IPPROTO_TCP),
        (_RETURN, 0, 0, _REFUSE | _EPERM),
        *_only_if_one_of(0, families),
    ]


def _socket_pairs(any_type: bool) -> list[Instruction]:
    """Return a check of socketpair: unix only. A datagram end could be sent to any address."""
    if any_type:
        return _only_if_one_of(0, (AF_UNIX,))
    return [
        _load(0),
        (_JUMP_EQUAL, 1, 0, AF_UNIX),
        (_RETURN, 0, 0, _REFUSE | _EPERM),
        _load(1),
        (_AND, 0, 0, _SOCK_TYPES),  # without the flags in the type
        (_JUMP_EQUAL, 1, 0, _SOCK_STREAM),
        (_JUMP_EQUAL, 0, 1, _SOCK_SEQPACKET),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE | _EPERM),
    ]
