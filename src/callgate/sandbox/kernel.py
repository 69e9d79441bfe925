"""Linux system calls without a Python function, by number, on two architectures.

The broker imports this module, and it must start quickly: the only imports are `os`, `sys` and
`ctypes`. Every call raises `OSError` with the kernel's error.
"""

from __future__ import annotations

import ctypes
import os
import sys

X86_64 = "x86_64"
AARCH64 = "aarch64"

_X86_64 = {
    "read": 0,
    "shmget": 29,
    "shmat": 30,
    "shmctl": 31,
    "semget": 64,
    "semop": 65,
    "semctl": 66,
    "msgget": 68,
    "msgsnd": 69,
    "msgrcv": 70,
    "msgctl": 71,
    "semtimedop": 220,
    "mq_open": 240,
    "mq_unlink": 241,
    "socket": 41,
    "socketpair": 53,
    "clone": 56,
    "chmod": 90,
    "fchmod": 91,
    "chown": 92,
    "fchown": 93,
    "lchown": 94,
    "ptrace": 101,
    "syslog": 103,
    "capset": 126,
    "utime": 132,
    "uselib": 134,
    "vhangup": 153,
    "modify_ldt": 154,
    "pivot_root": 155,
    "_sysctl": 156,
    "adjtimex": 159,
    "chroot": 161,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "create_module": 174,
    "init_module": 175,
    "delete_module": 176,
    "query_module": 178,
    "quotactl": 179,
    "nfsservctl": 180,
    "setxattr": 188,
    "lsetxattr": 189,
    "fsetxattr": 190,
    "removexattr": 197,
    "lremovexattr": 198,
    "fremovexattr": 199,
    "lookup_dcookie": 212,
    "clock_settime": 227,
    "utimes": 235,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "migrate_pages": 256,
    "fchownat": 260,
    "futimesat": 261,
    "fchmodat": 268,
    "unshare": 272,
    "move_pages": 279,
    "utimensat": 280,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "prlimit64": 302,
    "open_by_handle_at": 304,
    "clock_adjtime": 305,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "seccomp": 317,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
    "ioctl": 16,
    "open": 2,
    "truncate": 76,
    "rename": 82,
    "mkdir": 83,
    "rmdir": 84,
    "creat": 85,
    "link": 86,
    "unlink": 87,
    "symlink": 88,
    "mknod": 133,
    "umask": 95,
    "setpriority": 141,
    "sched_setparam": 142,
    "sched_setscheduler": 144,
    "sched_setaffinity": 203,
    "ioprio_set": 251,
    "sched_setattr": 314,
    "kill": 62,
    "tkill": 200,
    "tgkill": 234,
    "rt_sigqueueinfo": 129,
    "rt_tgsigqueueinfo": 297,
    "fcntl": 72,
    "connect": 42,
    "bind": 49,
    "listen": 50,
    "sendto": 44,
    "sendmsg": 46,
    "sendmmsg": 307,
    "setsockopt": 54,
    "openat": 257,
    "mkdirat": 258,
    "mknodat": 259,
    "unlinkat": 263,
    "renameat": 264,
    "linkat": 265,
    "symlinkat": 266,
    "renameat2": 316,
}
_AARCH64 = {
    "read": 63,
    "mq_open": 180,
    "mq_unlink": 181,
    "msgget": 186,
    "msgctl": 187,
    "msgrcv": 188,
    "msgsnd": 189,
    "semget": 190,
    "semctl": 191,
    "semtimedop": 192,
    "semop": 193,
    "shmget": 194,
    "shmctl": 195,
    "shmat": 196,
    "setxattr": 5,
    "lsetxattr": 6,
    "fsetxattr": 7,
    "removexattr": 14,
    "lremovexattr": 15,
    "fremovexattr": 16,
    "lookup_dcookie": 18,
    "ioctl": 29,
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "nfsservctl": 42,
    "chroot": 51,
    "fchmod": 52,
    "fchmodat": 53,
    "fchownat": 54,
    "fchown": 55,
    "vhangup": 58,
    "quotactl": 60,
    "utimensat": 88,
    "acct": 89,
    "capset": 91,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "clock_settime": 112,
    "syslog": 116,
    "ptrace": 117,
    "reboot": 142,
    "sethostname": 161,
    "setdomainname": 162,
    "settimeofday": 170,
    "adjtimex": 171,
    "socket": 198,
    "connect": 203,
    "bind": 200,
    "listen": 201,
    "socketpair": 199,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "clone": 220,
    "swapon": 224,
    "swapoff": 225,
    "migrate_pages": 238,
    "move_pages": 239,
    "perf_event_open": 241,
    "prlimit64": 261,
    "fanotify_init": 262,
    "open_by_handle_at": 265,
    "clock_adjtime": 266,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273,
    "seccomp": 277,
    "bpf": 280,
    "userfaultfd": 282,
    "kexec_file_load": 294,
    "mknodat": 33,
    "mkdirat": 34,
    "unlinkat": 35,
    "symlinkat": 36,
    "linkat": 37,
    "renameat": 38,
    "truncate": 45,
    "openat": 56,
    "renameat2": 276,
    "umask": 166,
    "setpriority": 140,
    "sched_setparam": 118,
    "sched_setscheduler": 119,
    "sched_setaffinity": 122,
    "ioprio_set": 30,
    "sched_setattr": 274,
    "kill": 129,
    "tkill": 130,
    "tgkill": 131,
    "rt_sigqueueinfo": 138,
    "rt_tgsigqueueinfo": 240,
    "fcntl": 25,
    "sendto": 206,
    "sendmsg": 211,
    "sendmmsg": 269,
    "setsockopt": 208,
}
_BOTH = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "close_range": 436,
    "openat2": 437,
    "pidfd_getfd": 438,
    "pidfd_send_signal": 424,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    "fchmodat2": 452,
    "setxattrat": 463,
    "removexattrat": 466,
    "open_tree_attr": 467,
    "file_setattr": 469,
}
"""Since 2019 a new call has the same number on all architectures."""
NUMBERS: dict[str, dict[str, int]] = {
    X86_64: {**_X86_64, **_BOTH},
    AARCH64: {**_AARCH64, **_BOTH},
}
"""If a name is missing for an architecture, the call does not exist there."""

_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
# Typed once, because root needs forty calls for each command. Only Linux has it.
_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, *[ctypes.c_ulong] * 4, use_errno=True)
_prctl = _PROTOTYPE(("prctl", _libc)) if hasattr(_libc, "prctl") else None
_UNUSED = (0,) * 6
# Typed once as well: a conversion of each argument takes longer than most calls.
_syscall = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, *[ctypes.c_void_p] * 6, use_errno=True)(
    ("syscall", _libc)
)
Argument = int | bytes | ctypes.Array[ctypes.c_char] | None


_MACHINE = os.uname().machine if sys.platform == "linux" else ""


def machine() -> str:
    return _MACHINE


def supported() -> bool:
    return machine() in NUMBERS and sys.maxsize > 2**32


def call(name: str, *arguments: Argument) -> int:
    """Make one system call. Its name must be in the table of this machine."""
    numbers = NUMBERS.get(machine())
    if numbers is None:
        raise OSError(38, os.strerror(38))  # ENOSYS
    result: int = _syscall(numbers[name], *arguments, *_UNUSED[len(arguments) :])
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def copies_descriptors() -> bool:
    """Whether we may copy descriptors of other processes; some containers forbid it."""
    try:
        call("pidfd_getfd", 2**31 - 1, 0, 0)
    except OSError as error:
        return error.errno == 9  # EBADF: it looked for the process
    return False


def _change(option: int, first: int, second: int = 0) -> None:
    if _prctl is None or _prctl(option, first, second, 0, 0) < 0:
        number = ctypes.get_errno() if _prctl else 38  # ENOSYS
        raise OSError(number, os.strerror(number))


def no_new_privileges() -> None:
    _change(_PR_SET_NO_NEW_PRIVS, 1)


def become_subreaper() -> None:
    """Become the parent of all orphaned descendants."""
    _change(_PR_SET_CHILD_SUBREAPER, 1)


SYS_PTRACE = 19
"""The capability to inspect other processes."""


def drop_capabilities(*except_for: int) -> None:
    """Drop all other capabilities, and the bounding set, so that none can be regained."""
    for capability in range(64):
        if capability in except_for:
            continue
        try:
            _change(_PR_CAPBSET_DROP, capability)
        except OSError as error:
            # EINVAL: the kernel has no more capabilities. EPERM: we have none to drop.
            if error.errno in (22, 1):
                break
            raise
    try:
        _change(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError as error:
        if error.errno != 22:
            raise
    header = ctypes.create_string_buffer(_CAPABILITY_VERSION_3.to_bytes(4, sys.byteorder), 8)
    low = sum(1 << each for each in except_for).to_bytes(4, sys.byteorder)
    # Effective, permitted and inheritable ones, the low half before the high half.
    call("capset", header, ctypes.create_string_buffer(low + low + bytes(16), 24))
