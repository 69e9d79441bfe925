"""Control groups of version 1 that bound a command's processes, where version 2 has no such bound.

A process cannot be born in one. It has to move there, and that stops whoever forks on the machine
for about ten milliseconds. So this is for commands that nothing else bounds.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import os

from callgate.sandbox.backends.cgroup_files import (
    ClaimedDirectory,
    Unavailable,
    read,
    shown_at,
    write,
)

_CONTROLLER = "pids"


class PidsGroups(ClaimedDirectory):
    def make(self, processes: int) -> tuple[str, int]:
        """A group for so many, and the descriptor by which who writes 0 to it moves there."""
        path = self.new_path()
        try:
            write(f"{path}/pids.max", str(processes))
            return path, os.open(f"{path}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            self.remove(path)
            raise


def find() -> PidsGroups | None:
    """Groups for this process, which is a broker; None where there cannot be any."""
    try:
        return PidsGroups(shown_at(_own_path(), "cgroup", _CONTROLLER))
    except OSError:
        return None


def _own_path() -> str:
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if _CONTROLLER in controllers.split(","):
            return path
    raise Unavailable(2, "no cgroup v1 counts processes here")
