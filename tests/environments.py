"""Machines on which less is possible: `python -m tests.environments NAME PROGRAM ARGUMENT...`

    docker      calls that container engines deny to a container without capabilities
    restricted  no unshare, setns, mount, pivot_root, and no clone with a new namespace
    unprivileged  no new privileges, and no capability
    bounded     no capability at all to set up namespaces as root: root without CAP_SYS_ADMIN
    full        `user.max_user_namespaces` is 0, in a user namespace of its own

Each is a filter or a limit that the kernel keeps for this process and its children. The list of
denied calls is our own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

_X86 = platform.machine() == "x86_64"
_ARCHITECTURE = 0xC000003E if _X86 else 0xC00000B7
_ALLOW, _ERRNO, _LOAD, _EQUAL, _ANY, _RETURN = 0x7FFF0000, 0x00050000, 0x20, 0x15, 0x45, 0x06
_NEW_NAMESPACES = 0x7E020000
_NAMESPACES = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
}
_SINCE_2019 = {"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433}
_CONTAINER = {
    **_NAMESPACES,
    "acct": (163, 89),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "ptrace_kcmp": (312, 272),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "move_pages": (279, 239),
    "mbind": (237, 235),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "chroot": (161, 51),
}
_CONTAINER_SINCE_2019 = {
    **_SINCE_2019,
    "io_uring_setup": 425,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
}
_CLONE, _CLONE3 = (56 if _X86 else 220), 435
_libc = ctypes.CDLL(None, use_errno=True)
_CAP_SYS_ADMIN = 21


def _filter(denied: list[int]) -> bytes:
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _ARCHITECTURE), (_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, 0)]
    for number in denied:
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    steps += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    steps += [(_EQUAL, 0, 3, _CLONE), (_LOAD, 0, 0, 16), (_ANY, 0, 1, _NEW_NAMESPACES)]
    steps += [(_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _install(denied: list[int]) -> None:
    _no_new_privileges()
    code = _filter(denied)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    _checked(_libc.prctl(22, 2, header, 0, 0))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _no_new_privileges() -> None:
    _checked(_libc.prctl(38, 1, 0, 0, 0))


def _drop(capabilities: range) -> None:
    """From the bounding set, and then from all others."""
    for capability in capabilities:
        _libc.prctl(24, capability, 0, 0, 0)
    header = struct.pack("=Ii", 0x20080522, 0)
    sets = bytearray(24)
    current = ctypes.create_string_buffer(24)
    _checked(_libc.syscall(125 if _X86 else 90, header, current))
    for index, value in enumerate(struct.unpack("=6I", current.raw)):
        first = 32 * (index // 3)
        kept = sum(1 << bit for bit in range(32) if first + bit not in capabilities)
        struct.pack_into("=I", sets, 4 * index, value & kept)
    _checked(_libc.syscall(126 if _X86 else 91, header, bytes(sets)))


def _numbers(calls: dict[str, tuple[int, int]], newer: dict[str, int]) -> list[int]:
    return [pair[0 if _X86 else 1] for pair in calls.values()] + list(newer.values())


def docker() -> None:
    _drop(range(64))
    _install(_numbers(_CONTAINER, _CONTAINER_SINCE_2019))


def restricted() -> None:
    _install(_numbers(_NAMESPACES, _SINCE_2019))


def unprivileged() -> None:
    _no_new_privileges()
    _drop(range(64))


def bounded() -> None:
    """Root that may do all but administer; and namespaces are for administrators here."""
    _drop(range(_CAP_SYS_ADMIN, _CAP_SYS_ADMIN + 1))
    _install(_numbers(_NAMESPACES, _SINCE_2019))


def full() -> None:
    user, group = os.geteuid(), os.getegid()
    _checked(_libc.unshare(0x10000000))
    for name, text in ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1"):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")
    _drop(range(64))


ENVIRONMENTS = {each.__name__: each for each in (docker, restricted, unprivileged, bounded, full)}

if __name__ == "__main__":
    ENVIRONMENTS[sys.argv[1]]()
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606
