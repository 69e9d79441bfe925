"""What a hostile command tries, run inside a jail: prints a JSON object of name and outcome.

Runs alone (`python -I -S -c`), so it imports nothing of ours. An outcome is "ESCAPED", the
name of an error number, or the number of the signal that ended the attempt. `WORLD` is where
things are; the tests put it in place of the line below.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import pty
import signal
import socket
import struct

WORLD: dict = {}

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
ARM = platform.machine() == "aarch64"
ATTEMPTS = {}
ESCAPED = "ESCAPED"


def attempt(function):
    ATTEMPTS[function.__name__] = function
    return function


def syscall(x86, arm, *arguments):
    fixed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(arm if ARM else x86), *fixed)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def write(path, flags=0):
    os.write(os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600), b"hostile")


def outside(name="file"):
    return os.path.join(WORLD["outside"], name)


def inside(*names):
    return os.path.join(WORLD["workspace"], *names)


# --- files outside --------------------------------------------------------------------------


@attempt
def create_outside():
    write(outside("new"), os.O_EXCL)


@attempt
def overwrite_outside():
    write(outside())


@attempt
def append_outside():
    os.write(os.open(outside(), os.O_WRONLY | os.O_APPEND), b"x")


@attempt
def truncate_outside():
    os.truncate(outside(), 0)


@attempt
def truncate_by_opening():
    os.open(outside(), os.O_RDONLY | os.O_TRUNC)


@attempt
def delete_outside():
    os.unlink(outside())


@attempt
def delete_directory_outside():
    os.rmdir(outside("directory"))


@attempt
def make_directory_outside():
    os.mkdir(outside("new"))


@attempt
def make_fifo_outside():
    os.mkfifo(outside("new"))


@attempt
def make_link_outside():
    os.symlink("x", outside("new"))


@attempt
def rename_outside():
    os.rename(outside(), outside("new"))


@attempt
def rename_into_the_workspace():
    os.rename(outside(), inside("stolen"))


@attempt
def rename_out_of_the_workspace():
    os.rename(inside("plain"), outside("new"))


@attempt
def hard_link_into_the_workspace():
    os.link(outside(), inside("hard"))
    write(inside("hard"))


@attempt
def hard_link_out_of_the_workspace():
    os.link(inside("plain"), outside("new"))


@attempt
def write_through_a_file_link():
    write(inside("link"))


@attempt
def write_through_a_directory_link():
    write(inside("links", "new"))


@attempt
def write_through_the_root_of_proc():
    write("/proc/self/root" + outside())


@attempt
def write_through_process_one():
    write("/proc/1/root" + outside())


@attempt
def write_through_a_grandchild():
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            write(outside())
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, "")


@attempt
def write_through_a_mapping():
    mmap.mmap(os.open(outside(), os.O_RDWR), 1)[:] = b"x"


# --- metadata -------------------------------------------------------------------------------


@attempt
def change_mode():
    os.chmod(outside(), 0o777)


@attempt
def change_mode_of_an_open_file():
    os.fchmod(os.open(outside(), os.O_RDONLY), 0o777)


@attempt
def change_mode_by_a_new_call():
    syscall(452, 452, -100, outside().encode(), 0o777, 0)  # fchmodat2


def set_uid(create):
    """Try to leave a program in the workspace that others run as us."""
    path = inside("set-uid")
    for bits in (0o4755, 0o2755):
        try:
            create(path, bits)
        except OSError:
            if not os.path.lexists(path) or not os.stat(path).st_mode & 0o6000:
                raise
        if not os.stat(path).st_mode & 0o6000:
            raise PermissionError(errno.EPERM, "the bits are not set")


def opened(path, bits=0o755):
    return os.open(path, os.O_WRONLY | os.O_CREAT, bits)


@attempt
def set_uid_by_mode():
    set_uid(lambda path, bits: (opened(path), os.chmod(path, bits)))


@attempt
def set_uid_of_an_open_file():
    set_uid(lambda path, bits: os.fchmod(opened(path), bits))


@attempt
def set_uid_below_a_directory():
    set_uid(lambda path, bits: (opened(path), os.chmod("set-uid", bits, dir_fd=os.open(inside(), os.O_RDONLY))))


@attempt
def set_uid_by_a_new_call():
    set_uid(lambda path, bits: (opened(path), syscall(452, 452, -100, path.encode(), bits, 0)))


@attempt
def set_uid_when_created():
    set_uid(lambda path, bits: os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, bits))


@attempt
def set_uid_by_a_node():
    set_uid(lambda path, bits: os.mknod(path, 0o100000 | bits))


@attempt
def set_uid_of_a_file_without_a_name():
    def create(path, bits):
        file = os.open(inside(), os.O_WRONLY | os.O_TMPFILE, bits)
        os.link(f"/proc/self/fd/{file}", path, follow_symlinks=True)

    set_uid(create)


@attempt
def set_uid_by_a_structure():
    def create(path, bits):
        how = struct.pack("=3Q", os.O_WRONLY | os.O_CREAT, bits, 0)
        syscall(437, 437, -100, path.encode(), how, len(how))  # openat2

    set_uid(create)


@attempt
def change_owner():
    os.chown(outside(), os.getuid(), os.getgid())


@attempt
def change_times():
    os.utime(outside(), (1, 1))


@attempt
def change_times_of_an_open_file():
    os.utime(os.open(outside(), os.O_RDONLY), (1, 1))


@attempt
def set_an_attribute():
    os.setxattr(outside(), "user.hostile", b"x")


@attempt
def remove_an_attribute():
    os.removexattr(outside(), "user.hers")


@attempt
def set_file_flags():
    fcntl.ioctl(os.open(outside(), os.O_RDONLY), 0x40086602, struct.pack("l", 0x40))


# --- secrets --------------------------------------------------------------------------------


@attempt
def read_a_key():
    open(WORLD["key"]).read()


@attempt
def list_a_hidden_directory():
    if os.listdir(os.path.dirname(WORLD["key"])):
        return
    raise OSError(errno.ENOENT, "")


@attempt
def read_the_token():
    open(WORLD["token"]).read()


@attempt
def read_a_key_through_a_link():
    open(inside("key")).read()


@attempt
def read_a_key_through_proc():
    open("/proc/self/root" + WORLD["key"]).read()


@attempt
def read_a_key_through_process_one():
    open("/proc/1/root" + WORLD["key"]).read()


@attempt
def read_a_hidden_file():
    if open(WORLD["netrc"]).read():
        return
    raise OSError(errno.ENODATA, "")


@attempt
def move_a_secret_into_sight():
    os.rename(os.path.dirname(WORLD["key"]), inside("sight"))


@attempt
def link_a_secret_into_sight():
    os.link(WORLD["key"], inside("sight"))


@attempt
def read_the_disk():
    for name in sorted(os.listdir("/sys/block")):
        os.open("/dev/" + name, os.O_RDONLY)
        return
    raise OSError(errno.ENOENT, "")


@attempt
def open_by_handle():
    handle = struct.pack("Ii128s", 128, 0, b"")
    syscall(304, 265, os.open("/", os.O_RDONLY), handle, 0)


# --- network --------------------------------------------------------------------------------


@attempt
def connect_tcp():
    socket.create_connection(("127.0.0.1", WORLD["tcp"]), 5)


@attempt
def connect_tcp6():
    socket.socket(socket.AF_INET6).connect(("::1", 9))


@attempt
def listen_tcp():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))


@attempt
def send_udp():
    socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", WORLD["udp"]))


@attempt
def connect_to_a_path():
    socket.socket(socket.AF_UNIX).connect(WORLD["socket"])


@attempt
def connect_to_an_abstract_name():
    socket.socket(socket.AF_UNIX).connect("\0" + WORLD["abstract"])


@attempt
def send_from_one_end_of_a_pair():
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"x", WORLD["datagrams"])


@attempt
def reconnect_one_end_of_a_pair():
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    one.connect(WORLD["socket"])


@attempt
def ask_netlink():
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)


@attempt
def send_raw_packets():
    socket.socket(17, socket.SOCK_RAW)


@attempt
def reach_the_hypervisor():
    socket.socket(40, socket.SOCK_STREAM)


@attempt
def use_kernel_cryptography():
    socket.socket(38, socket.SOCK_SEQPACKET)


@attempt
def use_a_high_half_to_hide_the_family():
    syscall(41, 198, (1 << 32) | 2, 1, 0)


# --- other processes ------------------------------------------------------------------------


@attempt
def end_another_process():
    os.kill(WORLD["victim"], signal.SIGTERM)


@attempt
def suspend_another_process():
    os.kill(WORLD["victim"], signal.SIGSTOP)


@attempt
def signal_through_a_descriptor():
    signal.pidfd_send_signal(os.pidfd_open(WORLD["victim"]), signal.SIGTERM)


def signal_by_owning(set_owner):
    """Have the kernel send a signal when something arrives. The tests see whether it killed."""
    ours, theirs = socket.socketpair()
    set_owner(ours.fileno(), WORLD["victim"])
    fcntl.fcntl(ours, 10, signal.SIGKILL)  # F_SETSIG
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    theirs.send(b"x")
    raise OSError(errno.EAGAIN, "nothing to see from here")


@attempt
def signal_by_the_owner_of_a_descriptor():
    signal_by_owning(lambda number, pid: fcntl.fcntl(number, fcntl.F_SETOWN, pid))


@attempt
def signal_by_the_owner_of_a_socket():
    signal_by_owning(lambda number, pid: fcntl.ioctl(number, 0x8901, struct.pack("i", pid)))  # FIOSETOWN


@attempt
def signal_by_the_group_of_a_socket():
    signal_by_owning(lambda number, pid: fcntl.ioctl(number, 0x8902, struct.pack("i", pid)))  # SIOCSPGRP


@attempt
def freeze_a_file():
    fcntl.ioctl(os.open(outside(), os.O_RDONLY), 0x40806685, bytes(128))  # FS_IOC_ENABLE_VERITY


@attempt
def copy_a_subvolume():
    with_name = bytearray(struct.pack("q4088s", os.open(inside("plain"), os.O_RDONLY), b"copy"))
    fcntl.ioctl(os.open(inside(), os.O_RDONLY), 0x50009401, with_name)  # BTRFS_IOC_SNAP_CREATE


@attempt
def make_another_process_nicer():
    os.setpriority(os.PRIO_PROCESS, WORLD["victim"], 19)


@attempt
def bind_another_process_to_a_processor():
    os.sched_setaffinity(WORLD["victim"], {0})


@attempt
def schedule_another_process():
    os.sched_setscheduler(WORLD["victim"], os.SCHED_IDLE, os.sched_param(0))


@attempt
def take_disk_time_from_another_process():
    syscall(251, 30, 1, WORLD["victim"], 3 << 13)


@attempt
def limit_another_process():
    syscall(302, 261, WORLD["victim"], 0, struct.pack("QQ", 0, 0), None)


@attempt
def trace_another_process():
    syscall(101, 117, 0x4206, WORLD["victim"], 0, 0)  # PTRACE_SEIZE


@attempt
def read_its_memory():
    syscall(310, 270, WORLD["victim"], None, 0, None, 0, 0)


@attempt
def read_its_command_line():
    if b"sleep" in open(f"/proc/{WORLD['victim']}/cmdline", "rb").read():
        return
    raise OSError(errno.ENOENT, "")


@attempt
def read_its_state():
    open(f"/proc/{WORLD['victim']}/status", "rb").read()


@attempt
def read_its_environment():
    if b"CANARY" in open(f"/proc/{WORLD['victim']}/environ", "rb").read():
        return
    raise OSError(errno.ENOENT, "")


@attempt
def read_its_memory_file():
    os.open(f"/proc/{WORLD['victim']}/mem", os.O_RDONLY)


@attempt
def list_its_descriptors():
    os.readlink(f"/proc/{WORLD['victim']}/fd/0")


@attempt
def enter_its_directory():
    os.listdir(f"/proc/{WORLD['victim']}/cwd/")


@attempt
def share_memory():
    syscall(30, 196, WORLD["segment"], 0, 0)


@attempt
def open_a_queue():
    syscall(240, 180, WORLD["queue"].encode(), os.O_RDWR, 0, None)


@attempt
def take_its_descriptor():
    syscall(438, 438, os.pidfd_open(WORLD["victim"]), 0, 0)


@attempt
def read_the_keepers_environment():
    if open(f"/proc/{os.getppid() if os.getppid() > 1 else 1}/environ", "rb").read():
        pass
    os.open("/proc/1/mem", os.O_RDWR)


# --- doors of the kernel --------------------------------------------------------------------


@attempt
def mount():
    syscall(165, 40, b"x", b"/mnt", b"tmpfs", 0, None)


@attempt
def remount_the_root_writable():
    syscall(165, 40, None, b"/", None, 0x1020, None)


@attempt
def unmount():
    syscall(166, 39, inside(".git", "config").encode(), 2)


@attempt
def mount_by_the_new_calls():
    syscall(430, 430, b"tmpfs", 0)


@attempt
def clone_a_mount():
    syscall(428, 428, -100, b"/", 1)


@attempt
def change_mount_attributes():
    syscall(442, 442, -100, b"/", 0x8000, struct.pack("4Q", 0, 1, 0, 0), 32)


@attempt
def change_the_root():
    os.chroot("/")


@attempt
def pivot_the_root():
    syscall(155, 41, b"/", b"/")


@attempt
def make_a_user_namespace():
    syscall(272, 97, 0x10000000)


@attempt
def clone_into_a_user_namespace():
    if syscall(56, 220, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)


@attempt
def clone_by_the_new_call():
    if syscall(435, 435, struct.pack("8Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0), 64) == 0:
        os._exit(0)


@attempt
def enter_a_namespace():
    syscall(308, 268, os.open("/proc/self/ns/mnt", os.O_RDONLY), 0)


@attempt
def use_io_uring():
    syscall(425, 425, 8, ctypes.create_string_buffer(120))


@attempt
def load_a_program_into_the_kernel():
    syscall(321, 280, 5, ctypes.create_string_buffer(72), 72)


@attempt
def watch_the_processor():
    syscall(298, 241, ctypes.create_string_buffer(struct.pack("II", 1, 112), 112), 0, -1, -1, 0)


@attempt
def handle_page_faults():
    syscall(323, 282, 1)


@attempt
def read_keys():
    syscall(250, 219, 0, -3, 0)


@attempt
def load_a_module():
    syscall(313, 273, 0, b"", 0)


@attempt
def read_the_kernel_log():
    syscall(103, 116, 10, None, 0)


@attempt
def set_the_host_name():
    socket.sethostname("hostile")


@attempt
def change_a_kernel_setting():
    os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)


@attempt
def press_the_magic_key():
    os.open("/proc/sysrq-trigger", os.O_WRONLY)


@attempt
def write_to_sysfs():
    places = ("/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/profiling")
    os.open(next(filter(os.path.exists, places), places[0]), os.O_WRONLY)


@attempt
def open_the_memory():
    os.open("/dev/mem", os.O_RDONLY)


@attempt
def make_a_device():
    os.mknod(inside("device"), 0o060600, os.makedev(254, 0))


@attempt
def type_into_a_terminal():
    _, terminal = pty.openpty()
    fcntl.ioctl(terminal, 0x5412, b"x")


@attempt
def type_with_a_high_half():
    _, terminal = pty.openpty()
    syscall(16, 29, terminal, (1 << 32) | 0x5412, b"x")


@attempt
def keep_a_capability():
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets) or any(sets) or libc.prctl(39, 0, 0, 0, 0) != 1:
        return
    raise OSError(errno.EPERM, "")


@attempt
def become_another_user():
    os.setuid(1 if os.getuid() == 0 else 0)


@attempt
def speak_x32():
    if ARM:
        os.kill(os.getpid(), signal.SIGSYS)
    libc.syscall(ctypes.c_long(0x40000000 + 39))


@attempt
def speak_i386():
    if ARM:
        os.kill(os.getpid(), signal.SIGSYS)
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20 (getpid); int 0x80; ret
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()


# --- protected places in the workspace --------------------------------------------------------


@attempt
def write_a_protected_file():
    write(inside(".git", "config"))


@attempt
def append_to_a_protected_file_through_proc():
    write("/proc/self/cwd/.git/config", os.O_APPEND)


@attempt
def replace_a_protected_file():
    write(inside(".git", "config.lock"))
    os.rename(inside(".git", "config.lock"), inside(".git", "config"))


@attempt
def delete_a_protected_file():
    os.unlink(inside(".git", "config"))


@attempt
def write_in_a_protected_directory():
    write(inside(".git", "hooks", "pre-commit"))


@attempt
def move_a_protected_directory_away():
    os.rename(inside(".git", "hooks"), inside("away"))


@attempt
def move_what_a_protected_place_is_in():
    os.rename(inside(".git"), inside("away"))
    os.makedirs(inside(".git", "hooks"))


@attempt
def move_the_workspace_itself():
    os.rename(WORLD["workspace"], WORLD["workspace"] + "2")


@attempt
def link_a_protected_file():
    os.link(inside(".git", "config"), inside("hard"))
    write(inside("hard"))


@attempt
def exchange_a_protected_directory():
    os.mkdir(inside("mine"))
    at = -100
    syscall(316, 276, at, inside("mine").encode(), at, inside(".git", "hooks").encode(), 2)


@attempt
def create_a_missing_protected_file():
    write(inside(".envrc"))


@attempt
def create_below_a_missing_protected_directory():
    os.makedirs(inside(".callgate"), exist_ok=True)
    write(inside(".callgate", "settings.toml"))


@attempt
def replace_a_missing_protected_file():
    write(inside("mine.sh"))
    os.rename(inside("mine.sh"), inside(".envrc"))


@attempt
def change_mode_of_a_protected_file():
    os.chmod(inside(".git", "config"), 0o777)


def outcome(function):
    """Each in a process of its own, so that none spoils the next."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir(WORLD["workspace"])
        try:
            function()
            said = ESCAPED
        except OSError as error:
            said = errno.errorcode.get(error.errno, "refused")
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    said = os.read(reading, 100).decode()
    os.close(reading)
    status = os.waitpid(child, 0)[1]
    return said or f"signal {os.waitstatus_to_exitcode(status) * -1}"


if __name__ == "__main__":
    chosen = WORLD.get("only") or list(ATTEMPTS)
    print(json.dumps({name: outcome(ATTEMPTS[name]) for name in chosen}))
