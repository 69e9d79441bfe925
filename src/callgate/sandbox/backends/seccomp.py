"""The system call filter: which calls a jailed process is refused, as a program for the kernel.

    architecture? -> x32? -> one call after another: refused, or by its arguments -> allowed

`program` is pure and works for either architecture; `install` gives its bytes to the kernel,
for good. A foreign architecture is killed, because its numbers mean other calls. What is
refused fails with EPERM, or with ENOSYS where programs then use an older way: `clone3` and
`openat2` hide their flags and modes behind a pointer, and io_uring does other calls' work unseen.

No call can set the set-uid or set-gid bit of a file: another user who runs such a file runs it
with the rights of ours. Of a directory set-gid means only that files in it keep its group, and
shared repositories need it: where a listener can tell them apart, it decides (`write_attempts`).

Only the low half of an argument is looked at where the kernel looks at no more itself.
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

_EPERM, _ENOSYS = 1, 38
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
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: type for whoever reads the terminal
_FILE_FLAGS = (0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40047602)
"""FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_SETVERSION and their 32-bit spellings."""

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
_CREATES = 0o20000100  # O_CREAT, __O_TMPFILE: without them an open ignores its mode
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
) -> bytes:
    """The filter for an architecture.

    `refuse_set_gid`: whether a chmod may not set this bit; otherwise a listener has to decide.

    `families` are the only sockets that may be made; None: any. `refuse_ipc` is about memory,
    queues and semaphores by number or name, which have neither a path nor an owner's consent.
    """
    numbers = kernel.NUMBERS[machine]
    refused = dict.fromkeys(_NEVER_NAMES.split(), _EPERM) | dict.fromkeys(_AS_IF_UNKNOWN, _ENOSYS)
    ioctls: tuple[int, ...] = _TERMINAL_INPUT
    if freeze_metadata:
        refused |= dict.fromkeys(_METADATA_NAMES.split(), _EPERM)
        ioctls += _FILE_FLAGS
    if refuse_ipc:
        refused |= dict.fromkeys(_SHARED_NAMES.split(), _EPERM)
    looked_at = {
        "clone": _unless_any_bit(0, _NEW_NAMESPACE),
        "unshare": _unless_any_bit(0, _NEW_NAMESPACE | _NEW_TIME_NAMESPACE),
        "ioctl": _unless_one_of(1, ioctls),
        # Another process's limit is a way to end it: RLIMIT_CPU brings SIGKILL.
        "prlimit64": _only_if_one_of(0, (0,)),
    }
    looked_at |= {name: _unless_any_bit(at, _SET_ID) for name, at in _MODES.items()}
    if not refuse_set_gid:
        looked_at |= {name: _unless_any_bit(at, _SET_UID) for name, at in CHMODS.items()}
    looked_at |= {name: _unless_created(*at, _SET_ID) for name, at in _MODES_OF_OPENS.items()}
    if families is not None:
        allowed = tuple(sorted(families))
        looked_at["socket"] = _only_if_one_of(0, allowed)
        looked_at["socketpair"] = _socket_pairs(AF_UNIX in allowed)
    bodies = {numbers[name]: body for name, body in looked_at.items() if name in numbers}
    bodies |= {
        numbers[name]: [(_RETURN, 0, 0, _REFUSE | error)]
        for name, error in refused.items()
        if name in numbers
    }
    return _assemble(machine, bodies)


def without_set_gid(machine: str) -> bytes:
    """A filter that refuses a chmod to set this bit, and nothing else."""
    numbers = kernel.NUMBERS[machine]
    return _assemble(
        machine,
        {
            numbers[name]: _unless_any_bit(at, SET_GID)
            for name, at in CHMODS.items()
            if name in numbers
        },
    )


def notifying(machine: str, *, always: Iterable[int], flagged: dict[int, tuple[int, int]]) -> bytes:
    """A filter that lets a listener see calls before they go on: some `always`, others if the
    argument at a place has one of some flags. It refuses nothing but foreign architectures."""
    bodies: dict[int, list[Instruction]] = {number: [(_RETURN, 0, 0, _NOTIFY)] for number in always}
    for number, (argument, flags) in flagged.items():
        bodies[number] = [
            _load(argument),
            (_JUMP_ANY_BIT, 0, 1, flags),
            (_RETURN, 0, 0, _NOTIFY),
            (_RETURN, 0, 0, _ALLOW),
        ]
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
    """Filter our own calls from now on, and our children's. Needs no_new_privileges."""
    _install(code, 0)


def install_listener(code: bytes) -> int | None:
    """The same with a filter that notifies: the descriptor to listen at, which closes on exec.
    None where the kernel has none to give: it is too old, or somebody else listens already."""
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
    """Whether the kernel takes filters: asked with a null pointer, which must be its complaint."""
    try:
        kernel.call("seccomp", _SET_MODE_FILTER, 0, None)
    except OSError as error:
        return error.errno == 14  # EFAULT
    return False


def _dispatch(bodies: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """To the body of a number, in groups, so that few comparisons are needed for any.

    The kernel runs a new filter once for every number there is, and that is most of its cost.
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


def _unless_any_bit(argument: int, bits: int) -> list[Instruction]:
    return [
        _load(argument),
        (_JUMP_ANY_BIT, 0, 1, bits),
        (_RETURN, 0, 0, _REFUSE | _EPERM),
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


def _sorted_out(argument: int, values: Iterable[int], among: int, else_: int) -> list[Instruction]:
    steps = [_load(argument)]
    for value in values:
        steps += [(_JUMP_EQUAL, 0, 1, value), (_RETURN, 0, 0, among)]
    return [*steps, (_RETURN, 0, 0, else_)]


def _socket_pairs(any_type: bool) -> list[Instruction]:
    """Two ends of one pipe: unix only. A datagram end could still be sent to any address."""
    if any_type:
        return _only_if_one_of(0, (AF_UNIX,))
    return [
        _load(0),
        (_JUMP_EQUAL, 1, 0, AF_UNIX),
        (_RETURN, 0, 0, _REFUSE | _EPERM),
        _load(1),
        (_AND, 0, 0, _SOCK_TYPES),  # without the flags beside the type
        (_JUMP_EQUAL, 1, 0, _SOCK_STREAM),
        (_JUMP_EQUAL, 0, 1, _SOCK_SEQPACKET),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE | _EPERM),
    ]
