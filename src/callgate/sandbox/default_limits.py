"""How much a command may take where the settings say nothing: a part of what this machine has.

Half of the memory and of the processes that we may have leave room for whoever must end it. What
the machine has is what the narrowest of its limits lets us have: a container's, or a user's.
"""

from __future__ import annotations

import functools
import os
import resource
import sys
from collections.abc import Iterable, Iterator

from callgate.sandbox.jails import NO_LIMITS, Limits

_MIB = 1024 * 1024
_MOST_PROCESSES, _LEAST_PROCESSES = 1024, 64
_LEAST_MEMORY = 256 * _MIB


@functools.cache
def default_limits() -> Limits:
    """For each command, host and server. None at all where nothing of ours would keep them."""
    if sys.platform != "linux":
        return NO_LIMITS
    memory = min((*_memory(), sys.maxsize)) // 2
    processes = min((*_processes(), 2 * _MOST_PROCESSES)) // 2
    return Limits(
        cpu_seconds=3600,
        memory_bytes=max(memory, _LEAST_MEMORY),
        processes=max(processes, _LEAST_PROCESSES),
        open_files=8192,
        file_bytes=16 * 1024 * _MIB,
        output_bytes=256 * _MIB,
    )


def _memory() -> Iterator[int]:
    yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield from _numbers(_group_files("memory", "memory.max", "memory.limit_in_bytes"))


def _processes() -> Iterator[int]:
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() != 0 and most != resource.RLIM_INFINITY:  # which does not bind root
        yield most
    yield from _numbers(("/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"))
    yield from _numbers(_group_files("pids", "pids.max", "pids.max"))


def _group_files(controller: str, name: str, old_name: str) -> Iterator[str]:
    """The limit of every control group that we are in, in both versions' usual places."""
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            roots, file = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), name
        elif controller in controllers.split(","):
            roots = (f"/sys/fs/cgroup/{controllers}", f"/sys/fs/cgroup/{controller}")
            file = old_name
        else:
            continue
        for root in roots:
            group = path
            while group not in ("", "/"):
                yield f"{root}{group}/{file}"
                group = os.path.dirname(group)
            yield f"{root}/{file}"  # in a container the group is mounted here


def _numbers(paths: Iterable[str]) -> Iterator[int]:
    for path in paths:
        for line in _lines(path):
            if line.isdigit():
                yield int(line)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().split("\n")
    except (OSError, UnicodeDecodeError):
        return []
