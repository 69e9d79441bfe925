"""Who belongs to one command: its first process, and whatever that one left in the system.

A descendant can leave its process group and session (`setsid`), its parents (a double fork)
and its pipes. Four traces find it again, and any one of them is enough:

    parents       it hangs below a process that belongs, or did when we last looked
    session       it never left the session that the command started in
    environment   CALLGATE_CALL carries the number drawn for this command
    limit         its soft RLIMIT_LOCKS is that number. No kernel since 2.6 looks at this
                  limit, every process hands it on, and anyone may read it; so it is still
                  there where the environment was cleared, overwritten or made unreadable.

Nothing is ever taken for a member because of its name, its user or its age.

What can evade this: a process that leaves its session and its parents before anyone looks,
and clears its environment, and either changes that limit on purpose or left in the first
moments, before it was set; and one that starts a new session at every fork, and forks faster
than we can look. A PID namespace is the cure, and belongs to the sandbox. Another user's
processes are found but may not be ended. Without /proc, only the group is reached.
"""

from __future__ import annotations

import functools
import os
import resource
import secrets
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import msgspec

MARK = "CALLGATE_CALL"

_BITS = 60
_LEAST_NUMBER = 1 << (_BITS - 1)
_RLIMIT_LOCKS = 10
_LOOKS, _CHASE = 3, 20
_LARGEST_FILE = 4 * 1024 * 1024


class Member(msgspec.Struct, frozen=True, gc=False):
    """One process as /proc/PID/stat shows it."""

    pid: int
    alive: bool
    """False for a zombie: it runs no more and only waits for its parent."""
    parent: int
    group: int
    session: int
    born: int
    """Clock ticks since boot. With the pid it names one process for good."""


Children = Callable[[int], Iterable[int]]


class Tree:
    """The processes of one command. Made before its start, so that the mark is there first."""

    def __init__(self) -> None:
        self._number = secrets.randbits(_BITS) | _LEAST_NUMBER
        self._leader: Member | None = None
        self._known: dict[int, Member] = {}
        self._missed: set[int] = set()
        self._missing: set[int] = set()
        self._striking = False
        self.calm = True
        """Nobody ended during the last look. Otherwise someone may have slipped by, who forked
        and ended, and whose child came where we had looked already."""

    @property
    def environment(self) -> dict[str, str]:
        """The mark for the command's environment, behind the marks that we carry ourselves."""
        outer = os.environ.get(MARK)
        return {MARK: f"{outer}.{self._number}" if outer else str(self._number)}

    def plant(self, leader: int) -> None:
        """Mark the command's first process, which leads its own session, and remember it."""
        self._mark(leader)
        self._leader = _look_at(leader) if _proc_is_ours() else None
        if self._leader is not None:
            self._known[leader] = self._leader
            # Whoever was faster than us is marked too; parents first, so that nobody slips by.
            waiting = _children(leader)
            while waiting:
                child = waiting.pop()
                self._mark(child)
                waiting += _children(child)

    def members(self) -> list[Member]:
        """Everyone who runs now. Our own zombies among them are reaped on the way."""
        if self._leader is None:
            return []
        for _ in range(_CHASE if self._striking else _LOOKS):
            self.calm = True
            self._missed, self._missing = self._missing, set()
            if _has_children_files():
                self._known = self._walk(_children, _first_thread_children)
            else:
                everyone = _scan()
                self._known = self._walk(everyone, everyone)
            alive = [member for member in self._known.values() if member.alive]
            if alive or self.calm:
                return alive
        return []

    def strike(self) -> list[Member]:
        """The same, and SIGKILL for the group of each one at first sight.

        A process may have forked and ended before we get to it; its group is what remains,
        and no fork outruns a signal to a group. No group of theirs reaches beyond them.
        """
        self._striking = True
        try:
            return self.members()
        finally:
            self._striking = False

    def _walk(self, children: Children, orphans: Children) -> dict[int, Member]:
        waiting = list(self._strays(orphans))  # first, since these may be on the run
        waiting += [member for known in self._known.values() if (member := _same(known))]
        found: dict[int, Member] = {}
        while waiting:
            member = waiting.pop()
            if member.pid not in found:
                found[member.pid] = member
                self._meet(member)
                waiting += self._look(children(member.pid))
        return {pid: member for pid, member in found.items() if not self._reap(member)}

    def _strays(self, orphans: Children) -> Iterator[Member]:
        """Members whose parents are gone: the system gave them to one of our ancestors."""
        for reaper in _reapers(os.getpid()):
            pids = [pid for pid in orphans(reaper) if pid not in self._known]
            for member in self._look(reversed(pids)):  # the youngest first
                if self._is_ours(member):
                    self._meet(member)
                    yield member

    def _look(self, pids: Iterable[int]) -> Iterator[Member]:
        for pid in pids:
            if (member := _look_at(pid)) is not None:
                yield member
            else:
                self._miss(pid)

    def _miss(self, pid: int) -> None:
        """It was in a list, and is gone. One that is missing always is only hidden from us."""
        self.calm = self.calm and pid in self._missed
        self._missing.add(pid)

    def _meet(self, member: Member) -> None:
        if self._striking:
            signal_group(member.group, signal.SIGKILL)
        if not member.alive and member.pid not in self._known:
            self.calm = False

    def _is_ours(self, member: Member) -> bool:
        assert self._leader is not None
        if member.born < self._leader.born:
            return False
        if member.session == self._leader.pid:
            return True
        return self._is_marked(member.pid)

    def _mark(self, pid: int) -> None:
        if sys.platform == "linux":
            _, hard = resource.getrlimit(_RLIMIT_LOCKS)
            try:
                resource.prlimit(pid, _RLIMIT_LOCKS, (self._number, hard))
            except (OSError, ValueError):
                pass  # it ended already, or the system forbids it: the other traces remain

    def _is_marked(self, pid: int) -> bool:
        number = b"%d" % self._number
        limits = _read(f"/proc/{pid}/limits")
        if not limits:
            self._miss(pid)
        return b" %s " % number in limits or number in _read(f"/proc/{pid}/environ")

    def _reap(self, member: Member) -> bool:
        """Bury an orphan that the system gave to us, as it does where we are process 1."""
        assert self._leader is not None
        if member.alive or member.parent != os.getpid() or member.pid == self._leader.pid:
            return False
        try:
            os.waitpid(member.pid, os.WNOHANG)
        except ChildProcessError:
            pass
        return True


def inherited_mark(pid: int = 0) -> bool:
    """Whether a process, or we ourselves, belongs to a command of some runtime, at whatever
    distance. One that cannot be looked at might."""
    if sys.platform != "linux":
        return False
    try:
        soft, _ = resource.prlimit(pid, _RLIMIT_LOCKS)
    except OSError:
        return True
    return _LEAST_NUMBER <= soft < 1 << _BITS


def signal_group(group: int, *signals: signal.Signals) -> None:
    """Signal a group of a command, and never our own, nor what 0 and 1 mean to the system."""
    if group <= 1 or group == os.getpgrp():
        return
    for each in signals:
        try:
            os.killpg(group, each)
        except (ProcessLookupError, PermissionError):
            pass


def _proc_is_ours() -> bool:
    """Whether /proc is there and counts processes as we do (a container may show another's)."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _has_children_files() -> bool:
    return os.access("/proc/1/task/1/children", os.R_OK)


@functools.lru_cache(maxsize=1)
def _reapers(pid: int) -> tuple[int, ...]:
    """Every process that may inherit our orphans: ourselves, our ancestors, and process 1.

    Asked once: an ancestor that dies leaves us to another one of the same list.
    """
    chain = [pid]
    while (member := _look_at(chain[-1])) is not None and member.parent > 0:
        chain.append(member.parent)
    return tuple(dict.fromkeys([*chain, 1]))


def _same(known: Member) -> Member | None:
    """What became of a process; None if it is gone, even if another took its number."""
    member = _look_at(known.pid)
    return member if member is not None and member.born == known.born else None


def _look_at(pid: int) -> Member | None:
    # The name in parentheses may hold anything, a closing one too: read from the last one.
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) < 20:
        return None
    threads = int(fields[17])
    alive = fields[0] not in (b"Z", b"X") or threads > 1  # the first thread may end before others
    return Member(pid, alive, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def _children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    files = (_read(f"/proc/{pid}/task/{thread}/children") for thread in threads)
    return [int(child) for file in files for child in file.split()]


def _first_thread_children(pid: int) -> list[int]:
    """Enough to find orphans: the kernel hands them to the first thread of their reaper."""
    return [int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()]


def _scan() -> Children:
    """The same where the kernel has no `children` files: one look at every process there is."""
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit() and (member := _look_at(int(name))) is not None:
            children[member.parent].append(member.pid)
    return lambda pid: children.get(pid, ())


def _read(path: str) -> bytes:
    """A file of /proc, or nothing if its process is gone or keeps it to itself."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        content = b""
        while len(content) < _LARGEST_FILE and (piece := os.read(file, 16384)):
            content += piece
        return content
    except OSError:
        return b""
    finally:
        os.close(file)
