"""How a jail is kept on this machine: the cheapest backends that make all its promises together.

    Jail.needs  <=  union of backend.guarantees(jail)      else CannotGuarantee

A backend says exactly what it promises for a jail, and what keeps it from working here. Where
promises are missing, the refusal names them, and what would be needed for them. Nothing is
ever run with fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Protocol

import msgspec

from callgate.core.errors import ToolPermissionDenied
from callgate.sandbox.jails import Guarantee, Jail, Network, below_any, is_below

G = Guarantee
_TMP = "/tmp"  # noqa: S108 compared with, not written to
_OURS = frozenset({G.NO_NEW_PRIVILEGES, G.LIMITS})
"""What the broker gives with each Linux backend: it costs nothing and needs nothing."""


class CannotGuarantee(ToolPermissionDenied):
    """A jail that this machine cannot keep. The command was not started."""

    def __init__(self, missing: Iterable[Guarantee], problems: Iterable[str]) -> None:
        self.missing = frozenset(missing)
        self.problems = tuple(problems)
        names = ", ".join(sorted(self.missing))
        because = f" ({'; '.join(self.problems)})" if self.problems else ""
        super().__init__(
            f"The sandbox cannot guarantee here: {names}{because}.",
            reason="sandbox_unavailable",
            details={"missing": sorted(self.missing), "problems": list(self.problems)},
        )


class Backend(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def problem(self) -> str | None:
        """What keeps it from working here; None: it works."""
        ...

    @property
    def excludes(self) -> frozenset[str]:
        """Backends that it cannot be combined with."""
        ...

    def guarantees(self, jail: Jail) -> frozenset[Guarantee]:
        """What it promises where it works."""
        ...

    def cost(self, jail: Jail) -> float:
        """Milliseconds for each command, roughly; more where it is a burden otherwise."""
        ...


class Plan(msgspec.Struct, frozen=True):
    jail: Jail
    backends: tuple[str, ...]
    """Names, in the order in which they were offered."""


class Landlock(msgspec.Struct, frozen=True):
    abi: int
    """0: the kernel has none."""

    name = "landlock"
    excludes = frozenset({"bubblewrap", "seatbelt"})

    @property
    def problem(self) -> str | None:
        return None if self.abi else "no Landlock in the kernel"

    def guarantees(self, jail: Jail) -> frozenset[Guarantee]:
        abi = self.abi or 7  # what it would be where it is
        offered = {
            G.READS_CONFINED: True,
            G.WRITES_CONFINED: abi >= 3,  # before, a file could be truncated
            G.PROTECTED_CARVED_OUT: not any(below_any(p, jail.writable) for p in jail.protected),
            G.HIDDEN_MASKED: not any(below_any(path, jail.writable) for path in jail.hidden),
            G.NO_NETWORK_TCP: abi >= 4 and jail.network is Network.NONE,
            G.ABSTRACT_SOCKETS_BLOCKED: abi >= 6,
            G.NO_SIGNALS_OUT: abi >= 6,
            G.NO_PTRACE: True,
            G.NO_PROCESS_DETAILS: True,
        }
        return _OURS.union(promise for promise, enforced in offered.items() if enforced)

    def cost(self, jail: Jail) -> float:
        # Around what is hidden, directories can no longer be listed, and a process finds nothing
        # about itself in /proc: only if nothing else does.
        return 20.0 if jail.hidden or jail.opaque else 0.2


class Seccomp(msgspec.Struct, frozen=True):
    works: bool

    name = "seccomp"
    excludes = frozenset({"seatbelt"})

    @property
    def problem(self) -> str | None:
        return None if self.works else "no system call filter for this kernel and processor"

    def guarantees(self, jail: Jail) -> frozenset[Guarantee]:
        offered = {
            G.NO_NETWORK_TCP: jail.network is Network.NONE,
            G.NO_NETWORK_UDP: jail.network is Network.NONE,
            G.NO_NETWORK_OTHER: jail.network is not Network.ALL,
            G.NO_UNIX_SOCKETS: not jail.unix_sockets,
            G.ABSTRACT_SOCKETS_BLOCKED: not jail.unix_sockets,
            G.METADATA_FROZEN: not jail.writable,  # it cannot tell one file from another
            G.NO_SHARED_MEMORY: True,
            G.NO_IO_URING: True,
            G.NO_KERNEL_DOORS: True,
        }
        return _OURS.union(promise for promise, enforced in offered.items() if enforced)

    def cost(self, jail: Jail) -> float:
        return 0.1


def _of_namespaces(jail: Jail) -> frozenset[Guarantee]:
    alone = jail.network is not Network.ALL
    offered = {
        G.WRITES_CONFINED: True,
        G.PROTECTED_CARVED_OUT: True,
        G.HIDDEN_MASKED: True,
        G.METADATA_FROZEN: True,
        G.REPLACEMENTS: True,
        G.FRESH_TMP: not any(is_below(_TMP, root) for root in jail.writable),
        G.NO_NETWORK_TCP: alone,
        G.NO_NETWORK_UDP: alone,
        G.NO_NETWORK_OTHER: alone,
        G.OWN_LOOPBACK: alone,
        G.NAMED_HOSTS: alone,
        G.ABSTRACT_SOCKETS_BLOCKED: alone,
        G.NO_SIGNALS_OUT: True,
        G.NO_PTRACE: True,
        G.NO_PROCESS_DETAILS: True,
        G.NO_SHARED_MEMORY: True,
        G.PID_NAMESPACE: True,
    }
    return _OURS.union(promise for promise, enforced in offered.items() if enforced)


class Namespaces(msgspec.Struct, frozen=True):
    problem: str | None = None

    name = "namespaces"
    excludes = frozenset({"bubblewrap", "seatbelt"})

    def guarantees(self, jail: Jail) -> frozenset[Guarantee]:
        return _of_namespaces(jail)

    def cost(self, jail: Jail) -> float:
        return 3.0


class Bubblewrap(msgspec.Struct, frozen=True):
    path: str | None = None
    problem: str | None = None

    name = "bubblewrap"
    excludes = frozenset({"landlock", "namespaces", "seatbelt"})

    def guarantees(self, jail: Jail) -> frozenset[Guarantee]:
        """Its network is made where we have no process to listen in it."""
        return (_of_namespaces(jail) | {G.READS_CONFINED}) - {G.NAMED_HOSTS}

    def cost(self, jail: Jail) -> float:
        return 6.0


class Seatbelt(msgspec.Struct, frozen=True):
    problem: str | None = "this is not macOS"

    name = "seatbelt"
    excludes = frozenset({"landlock", "seccomp", "namespaces", "bubblewrap"})

    def guarantees(self, jail: Jail) -> frozenset[Guarantee]:
        """There are no namespaces, and no way to tell whose loopback it is."""
        offered = {
            G.NO_NETWORK_TCP: jail.network is Network.NONE,
            G.NO_NETWORK_UDP: jail.network is Network.NONE,
            G.NO_NETWORK_OTHER: jail.network is Network.NONE,
        }
        always = {
            G.READS_CONFINED,
            G.WRITES_CONFINED,
            G.PROTECTED_CARVED_OUT,
            G.HIDDEN_MASKED,
            G.METADATA_FROZEN,
            G.NO_UNIX_SOCKETS,
            G.ABSTRACT_SOCKETS_BLOCKED,
            G.NO_PTRACE,
            G.NO_PROCESS_DETAILS,
            G.NO_SIGNALS_OUT,
            G.NO_SHARED_MEMORY,
            G.NO_IO_URING,
            G.NO_KERNEL_DOORS,
            G.NO_NEW_PRIVILEGES,
        }
        return frozenset(always).union(promise for promise, enforced in offered.items() if enforced)

    def cost(self, jail: Jail) -> float:
        return 5.0


def choose(jail: Jail, backends: Sequence[Backend]) -> Plan:
    """The cheapest combination that promises all that the jail needs, or `CannotGuarantee`."""
    working = [backend for backend in backends if backend.problem is None]
    best: tuple[float, Plan] | None = None
    least = jail.needs
    for combination in _combinations(working):
        enforced = frozenset[Guarantee]().union(*(each.guarantees(jail) for each in combination))
        missing = jail.needs - enforced
        cost = sum(each.cost(jail) for each in combination)
        if not missing and (best is None or cost < best[0]):
            best = cost, Plan(jail, tuple(each.name for each in combination))
        if len(missing) < len(least):
            least = missing
    if best is None:
        raise CannotGuarantee(least, _problems(jail, least, backends))
    return best[1]


def _combinations(backends: Sequence[Backend]) -> Iterable[tuple[Backend, ...]]:
    for count in range(1, len(backends) + 1):
        for combination in combinations(backends, count):
            names = {each.name for each in combination}
            if all(names.isdisjoint(each.excludes) for each in combination):
                yield combination


def _problems(
    jail: Jail, missing: frozenset[Guarantee], backends: Sequence[Backend]
) -> Iterable[str]:
    """Why the backends that would help do not work here."""
    for backend in backends:
        if backend.problem is not None and backend.guarantees(jail) & missing:
            yield backend.problem
