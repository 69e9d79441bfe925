"""What a command takes as a whole, measured by its keeper: memory, and processes with threads.

    prepare()          before a command's namespaces are filled: bounds that the kernel keeps
    Meter.exceeded()   which limit the command is above now

The kernel counts some of this by itself, where we may tell it to: a control group for memory and
processes, `pid_max` of a PID namespace, RLIMIT_NPROC, which does not bind root. None of them is
there on every machine, and none says that it was reached. So the keeper measures in any case. What
the kernel keeps is a little above the limit, to bound what happens between two looks.

Memory is what would be free again if the command ended: its anonymous pages, each counted once
however many processes share it, and what it has written to memory that is nobody's page:
`memfd`s, /dev/shm, a /tmp of its own. Caches of files are not counted.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import os
import resource
import time

from callgate.sandbox import kernel, proc_tree

NONE, MEMORY, PROCESSES = 0, 1, 2

_LEAST_PAUSE_S = 0.1
_SHARE = 20
"""Measuring takes at most one part in so many of a processor's time."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_RESERVED = 300
"""Numbers that the kernel gives to no process after the first round."""
_OTHERS = 512
_OWN_PID_MAX_SINCE = (6, 14)
_OOM_SCORE = b"500"


def slack(processes: int) -> int:
    """How many processes the kernel is to refuse, where the keeper ends a command at so many."""
    return processes + processes // 8 + 16


def most_numbers(processes: int) -> int:
    """`pid_max` for a PID namespace in which the keeper ends a command at so many processes."""
    return _RESERVED + slack(processes)


def prepare(processes: int, *, alone: bool) -> bool:
    """In a keeper that is not confined yet. `alone`: it is the first of a PID namespace.

    Whether the kernel bounds the processes of that namespace from now on. If the machine runs out
    of memory all the same, the kernel ends a command before us.
    """
    _write("/proc/self/oom_score_adj", _OOM_SCORE)
    if not alone or not processes or not has_own_pid_max():
        return False
    return _write("/proc/sys/kernel/pid_max", str(most_numbers(processes)).encode())


def nproc_binds() -> bool:
    """Whether RLIMIT_NPROC holds for a process of ours without capabilities. Tried out: root of a
    container may be anybody outside of it."""
    child = os.fork()
    if child == 0:
        try:
            kernel.drop_capabilities()
            resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
            if os.fork() > 0:
                os.wait()
        except BlockingIOError:
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def nproc_for(processes: int) -> int:
    """A RLIMIT_NPROC with which a command can have so many beside all that its user runs now, and
    some that it starts elsewhere meanwhile."""
    user, threads = os.getuid(), 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                threads += int((proc_tree.fields(int(name))[17:18] or [b"0"])[0])
        except OSError:
            continue  # it is gone
    return threads + _OTHERS + slack(processes)


def has_own_pid_max() -> bool:
    """Whether a PID namespace has a `pid_max` of its own. Elsewhere it is the whole machine's."""
    numbers = os.uname().release.replace("-", ".").split(".")[:2]
    return all(map(str.isdigit, numbers)) and tuple(map(int, numbers)) >= _OWN_PID_MAX_SINCE


class Meter:
    """0 for a limit: there is none."""

    def __init__(
        self, memory: int, processes: int, *, alone: bool, own_tmp: tuple[str, ...] = ()
    ) -> None:
        """`own_tmp` are file systems in memory that only the command writes to."""
        self._memory = memory
        self._processes = processes
        self._alone = alone
        self._own_tmp = own_tmp
        self._due = 0.0

    @property
    def pause(self) -> float:
        """Seconds until the next look is due."""
        return max(0.0, self._due - time.monotonic())

    def exceeded(self) -> int:
        start = time.monotonic()
        try:
            return self._look()
        finally:
            now = time.monotonic()
            self._due = now + max(_LEAST_PAUSE_S, _SHARE * (now - start))

    def _look(self) -> int:
        if self._alone:
            members = proc_tree.everyone_else_and_dead()
        else:
            members = proc_tree.descendants_and_dead(os.getpid())
        threads = pages = 0
        for pid in members:
            values = proc_tree.fields(pid)
            if len(values) > 21:
                threads += int(values[17])
                pages += int(values[21])
        if self._processes and threads > self._processes:
            return PROCESSES
        if self._memory and self._is_above(pages * _PAGE, members):
            return MEMORY
        return NONE

    def _is_above(self, resident: int, members: set[int]) -> bool:
        """Look closely only if what is quickly seen could be too much."""
        if resident + _shared_by_all() <= self._memory:
            return False
        anonymous = mapped = 0
        for pid in members:
            unshared, shared = _proportional(pid)
            anonymous += unshared
            mapped += shared
        written = sum(map(_used, self._own_tmp)) + _unmapped(members)
        return anonymous + max(mapped, written) > self._memory


def _shared_by_all() -> int:
    """All memory of the machine that is a file without a disk, ours or not."""
    for line in proc_tree.read("/proc/meminfo").splitlines():
        if line.startswith(b"Shmem:"):
            return int(line.split()[1]) * 1024
    return 0


def _proportional(pid: int) -> tuple[int, int]:
    """Anonymous and shared memory of a process, its part of what it has in common with others."""
    found = {b"Pss_Anon:": 0, b"Pss_Shmem:": 0, b"SwapPss:": 0}
    text = proc_tree.read(f"/proc/{pid}/smaps_rollup")
    for line in text.splitlines():
        words = line.split()
        if words[0] in found:
            found[words[0]] = int(words[1]) * 1024
    if not text:  # it keeps this from us: then all counts that it has
        values = proc_tree.fields(pid)
        return (int(values[21]) * _PAGE if len(values) > 21 else 0), 0
    return found[b"Pss_Anon:"] + found[b"SwapPss:"], found[b"Pss_Shmem:"]


def _unmapped(members: set[int]) -> int:
    """What is in `memfd`s, each counted once."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in members:
        directory = f"/proc/{pid}/fd"
        try:
            for number in os.listdir(directory):
                if os.readlink(f"{directory}/{number}").startswith("/memfd:"):
                    facts = os.stat(f"{directory}/{number}")
                    sizes[facts.st_dev, facts.st_ino] = facts.st_blocks * 512
        except OSError:
            continue  # it is gone, or not ours to look at
    return sum(sizes.values())


def _used(file_system: str) -> int:
    try:
        facts = os.statvfs(file_system)
    except OSError:
        return 0
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


def _write(path: str, text: bytes) -> bool:
    """Best effort: whether it worked. The keeper measures in any case."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(descriptor, text) == len(text)
    except OSError:
        return False
    finally:
        os.close(descriptor)
