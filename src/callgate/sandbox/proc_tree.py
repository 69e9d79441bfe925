"""Who is below a process, read from /proc. For the broker and its keepers.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import os
import signal


def descendants(ancestor: int) -> set[int]:
    """Everyone below a process who still runs."""
    return {pid for pid in _walk(ancestor) if _runs(pid)}


def descendants_and_dead(ancestor: int) -> set[int]:
    """Also those who only wait for their parents, since they have a number.

    Who loses a parent during the walk may go to where it has been: it is repeated until it finds
    nobody new.
    """
    found = _walk(ancestor)
    while new := _walk(ancestor) - found:
        found |= new
    return found


def everyone_else() -> set[int]:
    """All who run in a namespace whose first process we are."""
    return {pid for pid in everyone_else_and_dead() if _runs(pid)}


def everyone_else_and_dead() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}


def children(pid: int) -> list[int]:
    """The children of all threads of a process."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    files = (read(f"/proc/{pid}/task/{thread}/children") for thread in threads)
    return [int(child) for file in files for child in file.split()]


def fields(pid: int) -> list[bytes]:
    """What /proc says after the name, which may hold anything: state, parent, group, ..."""
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
    """A file of /proc; nothing where it is gone or not ours to read."""
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
    # The first thread may end, and look dead, before the others.
    return len(values) > 17 and (values[0] not in (b"Z", b"X") or int(values[17]) > 1)
