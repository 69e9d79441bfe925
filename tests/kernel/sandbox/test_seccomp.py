"""The system call filter, run step by step on both architectures without a kernel."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from callgate.sandbox import kernel
from callgate.sandbox.backends import seccomp
from callgate.sandbox.backends.seccomp import AF_INET, AF_INET6, AF_UNIX
from callgate.sandbox.processes import performing, signals, write_attempts

MACHINES = ("x86_64", "aarch64")
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003, "arm": 0x40000028}
ALLOW, EPERM, ENOSYS, KILL = "allow", "EPERM", "ENOSYS", "kill"
VERDICTS = {0x7FFF0000: ALLOW, 0x00050001: EPERM, 0x00050026: ENOSYS, 0x80000000: KILL}


def verdict(code: bytes, architecture: int, number: int, *arguments: int) -> str:
    """What the kernel would answer: an interpreter of the few instructions that we use."""
    filled = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, architecture, 0, *filled)
    steps = list(struct.iter_unpack("<HBBI", code))
    place, register = 0, 0
    while True:
        operation, if_true, if_false, constant = steps[place]
        place += 1
        if operation == 0x20:
            (register,) = struct.unpack_from("<I", data, constant)
        elif operation == 0x54:
            register &= constant
        elif operation == 0x06:
            return VERDICTS[constant]
        else:
            holds = {
                0x15: register == constant,
                0x35: register >= constant,
                0x45: bool(register & constant),
            }[operation]
            place += if_true if holds else if_false


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def make(machine: str, **more: object) -> bytes:
    settings: dict[str, object] = {
        "families": (),
        "freeze_metadata": False,
        "refuse_ipc": False,
        **more,
    }
    return seccomp.program(machine, **settings)  # type: ignore[arg-type]


def ask(machine: str, code: bytes, name: str, *arguments: int) -> str:
    return verdict(code, AUDIT[machine], kernel.NUMBERS[machine][name], *arguments)


DOORS = """
    ptrace process_vm_readv process_vm_writev pidfd_getfd mount umount2 pivot_root chroot
    move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr setns open_by_handle_at
    keyctl add_key request_key bpf perf_event_open userfaultfd kexec_load kexec_file_load
    init_module finit_module delete_module acct quotactl swapon swapoff reboot syslog
    settimeofday clock_settime sethostname setdomainname
""".split()


@pytest.mark.parametrize("name", DOORS)
def test_a_door_of_the_kernel_is_shut(machine: str, name: str) -> None:
    assert ask(machine, make(machine, families=None), name) == EPERM


@pytest.mark.parametrize("name", ["io_uring_setup", "io_uring_enter", "io_uring_register", "clone3", "openat2"])
def test_what_hides_its_work_looks_as_if_it_did_not_exist(machine: str, name: str) -> None:
    assert ask(machine, make(machine, families=None), name) == ENOSYS


def test_everything_else_is_allowed(machine: str) -> None:
    code = make(machine, families=None)
    named = set(kernel.NUMBERS[machine].values())
    answers = {verdict(code, AUDIT[machine], number) for number in set(range(470)) - named}
    assert answers == {ALLOW}


@pytest.mark.parametrize("foreign", ["x86_64", "aarch64", "i386", "arm"])
def test_a_foreign_architecture_is_killed(machine: str, foreign: str) -> None:
    answers = {verdict(make(machine), AUDIT[foreign], number) for number in range(0, 470, 7)}
    assert (answers == {KILL}) == (foreign != machine)


def test_x32_is_killed_where_there_is_one() -> None:
    code = make("x86_64")
    assert {verdict(code, AUDIT["x86_64"], 0x40000000 + n) for n in (0, 59, 520)} == {KILL}


SIGCHLD = 17
THREAD = 0x3D0F00
NEW = {
    "ns": 0x20000,
    "cgroup": 1 << 25,
    "uts": 1 << 26,
    "ipc": 1 << 27,
    "user": 1 << 28,
    "pid": 1 << 29,
    "net": 1 << 30,
}


def test_forks_and_threads_are_allowed_and_namespaces_are_not(machine: str) -> None:
    code = make(machine)
    assert {ask(machine, code, "clone", flags) for flags in (SIGCHLD, THREAD)} == {ALLOW}
    asked = {name: ask(machine, code, "clone", flag | SIGCHLD) for name, flag in NEW.items()}
    assert asked == dict.fromkeys(NEW, EPERM)
    asked = {name: ask(machine, code, "unshare", flag) for name, flag in NEW.items()}
    assert asked == dict.fromkeys(NEW, EPERM)
    assert ask(machine, code, "unshare", 0x80) == EPERM  # CLONE_NEWTIME
    assert ask(machine, code, "unshare", 0x200 | 0x400) == ALLOW  # files and directory


@pytest.mark.parametrize(
    ("families", "allowed"),
    [
        ((), set()),
        ((AF_INET, AF_INET6), {2, 10}),
        ((AF_UNIX,), {1}),
        (None, set(range(50))),
    ],
)
def test_only_sockets_of_the_named_families_are_made(
    machine: str, families: tuple[int, ...] | None, allowed: set[int]
) -> None:
    code = make(machine, families=families)
    made = {family for family in range(50) if ask(machine, code, "socket", family, 1) == ALLOW}
    assert made == allowed


def test_the_high_half_of_an_argument_hides_nothing(machine: str) -> None:
    code = make(machine)
    high = 0xDEADBEEF << 32
    assert ask(machine, code, "socket", high | AF_INET, 1) == EPERM
    assert ask(machine, code, "ioctl", 0, high | 0x5412) == EPERM
    assert ask(machine, code, "clone", high | NEW["user"]) == EPERM
    assert ask(machine, code, "prlimit64", high | 1) == EPERM


STREAM, DATAGRAM, RAW, SEQPACKET, CLOEXEC = 1, 2, 3, 5, 0o2000000


def test_a_pair_of_sockets_is_a_pipe_and_nothing_that_can_be_sent_from(machine: str) -> None:
    code = make(machine)
    types = (STREAM, DATAGRAM, RAW, SEQPACKET, STREAM | CLOEXEC, DATAGRAM | CLOEXEC)
    made = {kind for kind in types if ask(machine, code, "socketpair", AF_UNIX, kind) == ALLOW}
    assert made == {STREAM, SEQPACKET, STREAM | CLOEXEC}
    assert ask(machine, code, "socketpair", 30, STREAM) == EPERM
    with_unix = make(machine, families=(AF_UNIX,))
    assert ask(machine, with_unix, "socketpair", AF_UNIX, DATAGRAM) == ALLOW


def test_only_ones_own_limits_can_be_changed(machine: str) -> None:
    code = make(machine, families=None)
    asked = [ask(machine, code, "prlimit64", pid) for pid in (0, 1, 4321)]
    assert asked == [ALLOW, EPERM, EPERM]


METADATA = """
    fchmod fchmodat fchmodat2 fchown fchownat utimensat setxattr lsetxattr fsetxattr setxattrat
    removexattr lremovexattr fremovexattr removexattrat file_setattr
""".split()
OLD_METADATA = "chmod chown lchown utime utimes futimesat".split()


@pytest.mark.parametrize("frozen", [True, False])
def test_metadata_is_frozen_only_on_request(machine: str, frozen: bool) -> None:
    code = make(machine, freeze_metadata=frozen)
    names = METADATA + (OLD_METADATA if machine == "x86_64" else [])
    answer = EPERM if frozen else ALLOW
    assert {name: ask(machine, code, name) for name in names} == dict.fromkeys(names, answer)
    requests = (0x40086602, 0x40046602, 0x401C5820)
    assert {ask(machine, code, "ioctl", 3, request) for request in requests} == {answer}
    assert ask(machine, code, "ioctl", 3, 0x5401) == ALLOW  # TCGETS


MODES = {"fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "mknodat": 2}
OLD_MODES = {"chmod": 1, "creat": 1, "mknod": 1}
O_CREAT, O_TMPFILE = 0o100, 0o20200000


@pytest.mark.parametrize("bits", [0o4755, 0o2755, 0o6755, 0o104755])
def test_no_call_sets_the_bits_of_another_user(machine: str, bits: int) -> None:
    code = make(machine, families=None)
    modes = MODES | (OLD_MODES if machine == "x86_64" else {})
    asked = {name: ask(machine, code, name, *[0] * at, bits) for name, at in modes.items()}
    assert asked == dict.fromkeys(modes, EPERM)
    plain = {name: ask(machine, code, name, *[0] * at, 0o101777) for name, at in modes.items()}
    assert plain == dict.fromkeys(modes, ALLOW)
    for flags in (O_CREAT, O_TMPFILE):
        assert ask(machine, code, "openat", 0, 0, flags | 1, bits) == EPERM
        assert ask(machine, code, "openat", 0, 0, flags | 1, 0o755) == ALLOW
    assert ask(machine, code, "openat", 0, 0, 1, bits) == ALLOW  # creates nothing: no mode counts


@pytest.mark.parametrize("number", [0x40806685, 0x800C6613, 0x50009401, 0x50009417, 0x5000940E, 0x5000940F])
def test_no_file_system_is_changed_through_a_descriptor_that_reads(machine: str, number: int) -> None:
    code = make(machine, families=None)
    assert ask(machine, code, "ioctl", 3, number) == EPERM
    assert ask(machine, code, "ioctl", 3, 0x40049409) == ALLOW  # FICLONE, which needs a file to write to


@pytest.mark.parametrize("scoped", [True, False])
def test_no_signal_is_sent_for_a_descriptor_where_nothing_confines_signals(machine: str, scoped: bool) -> None:
    code = make(machine, signals_scoped=scoped)
    answer = ALLOW if scoped else EPERM
    owners = [("fcntl", 8), ("fcntl", 15), ("ioctl", 0x8901), ("ioctl", 0x8902)]
    assert {ask(machine, code, name, 3, value) for name, value in owners} == {answer}
    assert ask(machine, code, "ioctl", 3, 0x5412) == EPERM


@pytest.mark.parametrize("refused", [True, False])
def test_shared_memory_is_refused_only_on_request(machine: str, refused: bool) -> None:
    code = make(machine, refuse_ipc=refused)
    names = "shmget shmat shmctl msgget msgsnd msgrcv semget semop semctl mq_open".split()
    answer = EPERM if refused else ALLOW
    assert {name: ask(machine, code, name) for name in names} == dict.fromkeys(names, answer)


def test_of_the_network_only_outgoing_tcp_is_left_for_a_listener(machine: str) -> None:
    code = make(machine, families=(AF_INET, AF_INET6), only_connects=True)
    stream, datagram, raw, nonblocking = 1, 2, 3, 0o4000
    tried = {
        (family, kind, protocol): ask(machine, code, "socket", family, kind, protocol)
        for family in (AF_INET, AF_INET6, AF_UNIX, 16, 43)
        for kind in (stream, stream | nonblocking, datagram, raw)
        for protocol in (0, 6, 132, 262, 0x106)
    }
    allowed = {each for each, answer in tried.items() if answer == ALLOW}
    assert allowed == {
        (family, kind, protocol)
        for family in (AF_INET, AF_INET6)
        for kind in (stream, stream | nonblocking)
        for protocol in (0, 6)
    }
    assert [ask(machine, code, name) for name in ("bind", "listen", "connect")] == [EPERM, EPERM, ALLOW]


def test_each_call_of_a_filter_has_a_number() -> None:
    """A call without a number would not be filtered."""
    sets = (seccomp._NEVER_NAMES, seccomp._METADATA_NAMES, seccomp._SHARED_NAMES)
    names = {*" ".join(sets).split(), *seccomp._AS_IF_UNKNOWN, *seccomp._SCHEDULING, *seccomp._SENDS}
    names |= {*performing.traps(), *signals.traps(), *write_attempts.traps(watches=True, has_names=True)}
    names |= {"bind", "listen", "connect", "socket", "socketpair", "setpriority", "ioprio_set"}
    assert names <= kernel.NUMBERS["x86_64"].keys()
    gone = {name for name in names if name not in kernel.NUMBERS["aarch64"]}
    assert gone <= set(
        "_sysctl chmod chown creat create_module futimesat ioperm iopl lchown link mkdir mknod open"
        " query_module rename rmdir symlink uselib unlink utime utimes".split()
    )


def test_a_program_is_short_enough_for_the_kernel(machine: str) -> None:
    code = make(machine, freeze_metadata=True, refuse_ipc=True)
    assert len(code) % 8 == 0 and len(code) // 8 < 4096


HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+)\s+(\d+)"),
    "aarch64": ("/usr/include/asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
}


def test_the_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    place, pattern = HEADERS[machine]
    if not Path(place).exists():
        pytest.skip("needs the kernel's headers: not installed")
    known = dict(re.findall(pattern, Path(place).read_text()))
    ours = kernel.NUMBERS[machine]
    assert {name: int(known[name]) for name in ours if name in known} == {
        name: number for name, number in ours.items() if name in known
    }
