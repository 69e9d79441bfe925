"""Measure a whole command, memory and processes with threads, and find its descendants.

    prepare()          before a command's namespaces are filled: bounds that the kernel enforces
    Meter.exceeded()   the limit that the command exceeds now

The kernel can count some of this: a control group for memory and processes, `pid_max` of a PID
namespace, RLIMIT_NPROC, which does not bind root. None of them exists on every machine, and none
reports that it was reached. So the keeper measures in any case. The kernel's bound is a little
above the limit and covers the time between two measurements.

Memory is the amount that would be free again if the command ended: its anonymous pages, each
counted once for all processes that share it, and its writes to memory without a page owner:
`memfd`s, /dev/shm, a private /tmp. Caches of files are not counted.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import os
import resource
import signal
import time

from callgate.sandbox import kernel


def descendants(ancestor: int) -> set[int]:
    """Return the running descendants of a process."""
    return {pid for pid in _walk(ancestor) if _runs(pid)}


def descendants_and_dead(ancestor: int) -> set[int]:
    """Return all descendants, including zombies, which still use a process id.

    A process that loses its parent during the walk may move to a visited place, so the walk is
    repeated until it finds no new process.
    """
    found = _walk(ancestor)
    while new := _walk(ancestor) - found:
        found |= new
    return found


def everyone_else() -> set[int]:
    """Return the running processes of a PID namespace whose first process we are."""
    return {pid for pid in everyone_else_and_dead() if _runs(pid)}


def everyone_else_and_dead() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    files = (read(f"/proc/{pid}/task/{thread}/children") for thread in threads)
    return [int(child) for file in files for child in file.split()]


def fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the arbitrary name: state, parent, group, ..."""
    return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def process_group(pid: int) -> int:
    values = fields(pid)
    return int(values[2]) if len(values) > 2 else 0


def signal_to(target: int, number: signal.Signals) -> None:
    try:
        os.kill(target, number)
    except (ProcessLookupError, PermissionError):
        pass


def read(path: str) -> bytes:
    """Return a file of /proc; empty if it is gone or unreadable for us."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        content = b""
        while piece := os.read(file, 16384):
            content += piece
        return content
    except OSError:
        return b""
    finally:
        os.close(file)


def _walk(ancestor: int) -> set[int]:
    found: set[int] = set()
    waiting = children(ancestor)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children(pid)
    return found


def _runs(pid: int) -> bool:
    values = fields(pid)
    # The first thread may end, and look like a zombie, before the others.
    return len(values) > 17 and (values[0] not in (b"Z", b"X") or int(values[17]) > 1)


NONE, MEMORY, PROCESSES = 0, 1, 2

_LEAST_PAUSE_S = 0.1
_SHARE = 20
"""Measuring uses at most 1/20 of a processor's time."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_RESERVED = 300
"""Process ids that the kernel does not reuse after the first round."""
_OTHERS = 512
_OWN_PID_MAX_SINCE = (6, 14)
_OOM_SCORE = b"500"


def slack(processes: int) -> int:
    """Return the kernel's limit of processes, for a keeper that ends a command at a lower one."""
    return processes + processes // 8 + 16


def most_numbers(processes: int) -> int:
    """Return `pid_max` for a PID namespace in which the keeper limits the processes."""
    return _RESERVED + slack(processes)


def prepare(processes: int, *, alone: bool) -> bool:
    """Set the kernel's limits for a keeper that is not confined yet. `alone`: it is the first
    process of a PID namespace.

    Returns whether the kernel limits the processes of that namespace from now on. If the machine
    runs out of memory, the kernel ends a command before callgate.
    """
    _write("/proc/self/oom_score_adj", _OOM_SCORE)
    if not alone or not processes or not has_own_pid_max():
        return False
    return _write("/proc/sys/kernel/pid_max", str(most_numbers(processes)).encode())


def nproc_binds() -> bool:
    """Whether RLIMIT_NPROC applies to our processes without capabilities. The function tries it,
    because root of a container may be any user outside."""
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
    """Return an RLIMIT_NPROC for so many processes in addition to all other processes of the user,
    with a reserve for processes that start elsewhere."""
    user, threads = os.getuid(), 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                threads += int((fields(int(name))[17:18] or [b"0"])[0])
        except OSError:
            continue  # the process is gone
    return threads + _OTHERS + slack(processes)


def has_own_pid_max() -> bool:
    """Whether each PID namespace has a separate `pid_max`; otherwise it is global."""
    numbers = os.uname().release.replace("-", ".").split(".")[:2]
    return all(map(str.isdigit, numbers)) and tuple(map(int, numbers)) >= _OWN_PID_MAX_SINCE


class Meter:
    """Measures one command. A limit of 0 means no limit."""

    def __init__(
        self, memory: int, processes: int, *, alone: bool, own_tmp: tuple[str, ...] = ()
    ) -> None:
        """`own_tmp`: file systems in memory that only the command writes to."""
        self._memory = memory
        self._processes = processes
        self._alone = alone
        self._own_tmp = own_tmp
        self._due = 0.0

    @property
    def pause(self) -> float:
        """Seconds until the next measurement."""
        return max(0.0, self._due - time.monotonic())

    def exceeded(self) -> int:
        start = time.monotonic()
        try:
            return self._look()
        finally:
            now = time.monotonic()
            self._due = now + max(_LEAST_PAUSE_S, _SHARE * (now - start))

    def _look(self) -> int:
        members = everyone_else_and_dead() if self._alone else descendants_and_dead(os.getpid())
        threads = pages = 0
        for pid in members:
            values = fields(pid)
            if len(values) > 21:
                threads += int(values[17])
                pages += int(values[21])
        if self._processes and threads > self._processes:
            return PROCESSES
        if self._memory and self._is_above(pages * _PAGE, members):
            return MEMORY
        return NONE

    def _is_above(self, resident: int, members: set[int]) -> bool:
        """Whether memory is above the limit. Measures exactly only if a cheap bound exceeds it."""
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
    """Return the machine's memory in files without a disk, of all programs."""
    for line in read("/proc/meminfo").splitlines():
        if line.startswith(b"Shmem:"):
            return int(line.split()[1]) * 1024
    return 0


def _proportional(pid: int) -> tuple[int, int]:
    """Return anonymous and shared memory of a process, shared pages in proportion."""
    found = {b"Pss_Anon:": 0, b"Pss_Shmem:": 0, b"SwapPss:": 0}
    text = read(f"/proc/{pid}/smaps_rollup")
    for line in text.splitlines():
        words = line.split()
        if words[0] in found:
            found[words[0]] = int(words[1]) * 1024
    if not text:  # unreadable for us: count all its resident pages
        values = fields(pid)
        return (int(values[21]) * _PAGE if len(values) > 21 else 0), 0
    return found[b"Pss_Anon:"] + found[b"SwapPss:"], found[b"Pss_Shmem:"]


def _unmapped(members: set[int]) -> int:
    """Return the memory in `memfd`s, each counted once."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in members:
        directory = f"/proc/{pid}/fd"
        try:
            for number in os.listdir(directory):
                if os.readlink(f"{directory}/{number}").startswith("/memfd:"):
                    facts = os.stat(f"{directory}/{number}")
                    sizes[facts.st_dev, facts.st_ino] = facts.st_blocks * 512
        except OSError:
            continue  # gone, or unreadable for us
    return sum(sizes.values())


def _used(file_system: str) -> int:
    try:
        facts = os.statvfs(file_system)
    except OSError:
        return 0
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


def _write(path: str, text: bytes) -> bool:
    """Write a file. Returns whether it worked; the keeper measures in any case."""
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
