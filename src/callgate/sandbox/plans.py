"""Plan a jail on this machine: the cheapest backends that together make all its guarantees.

    Jail.needs  <=  union of backend.guarantees(jail)    else REQUIRED ones, or CannotGuarantee

A backend states exactly its guarantees for a jail, and the reason why it does not work here. Each
guarantee has a grade: enforced, enforced differently (`differently` describes it), or not enforced.
An optional guarantee may be missing, and the plan then names it. A refusal names the missing
guarantees and their requirements. No command runs with less.

All commands start through a `Launcher`, and a sandbox is a launcher with less access.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Protocol

import msgspec

from callgate.core.commands import Command as Command
from callgate.core.commands import Launcher as Launcher
from callgate.core.commands import Running as Running
from callgate.core.errors import ToolPermissionDenied
from callgate.sandbox import kernel
from callgate.sandbox.jails import Guarantee, Jail, Network, below_any, is_below

G = Guarantee
_TMP = "/tmp"  # noqa: S108 compared with, not written to
_OURS = frozenset({G.NO_NEW_PRIVILEGES, G.LIMITS, G.NO_SURVIVORS})
"""Guarantees of the broker with each Linux backend, at no cost."""


REQUIRED = frozenset(
    {
        G.READS_CONFINED,
        G.WRITES_CONFINED,
        G.PROTECTED_CARVED_OUT,
        G.HIDDEN_MASKED,
        G.METADATA_FROZEN,
        G.REPLACEMENTS,
        G.NO_NETWORK_TCP,
        G.NO_NETWORK_UDP,
        G.NO_NETWORK_OTHER,
        G.NAMED_HOSTS,
        G.NO_UNIX_SOCKETS,
        G.ABSTRACT_SOCKETS_BLOCKED,
        G.NO_PTRACE,
        G.NO_SIGNALS_OUT,
        G.NO_IO_URING,
        G.NO_KERNEL_DOORS,
        G.NO_NEW_PRIVILEGES,
        G.NO_SURVIVORS,
    }
)
"""Guarantees without which no command runs: files outside, secrets, network, no survivors.

`[sandbox] require` adds others."""


class CannotGuarantee(ToolPermissionDenied):
    """A jail that this machine cannot enforce. The command was not started."""

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
        """The reason why it does not work here; None: it works."""
        ...

    @property
    def excludes(self) -> frozenset[str]:
        """Backends with which it cannot be combined."""
        ...

    @property
    def requires(self) -> frozenset[str]:
        """Backends that it depends on."""
        ...

    def guarantees(self, jail: Jail) -> frozenset[Guarantee]:
        """Return its guarantees if it works."""
        ...

    def differently(self, jail: Jail) -> Mapping[Guarantee, str]:
        """Return the guarantees that it enforces in an unusual way, with a description."""
        ...

    def cost(self, jail: Jail) -> float:
        """Return the approximate milliseconds for each command, plus a penalty for side effects."""
        ...


class SandboxPlan(msgspec.Struct, frozen=True):
    jail: Jail
    backends: tuple[str, ...]
    """Names, in the order of the given backends."""
    differently: tuple[tuple[Guarantee, str], ...] = ()
    """Guarantees that are enforced in an unusual way, with a description."""
    missing: tuple[Guarantee, ...] = ()
    """Guarantees that the jail needs and that are not enforced here."""

    @property
    def records_changes(self) -> bool:
        """Whether the keeper performs the commands' changes of files, and can store pre-images."""
        writable = self.jail.writable
        is_bounded = bool(writable) and "/" not in writable
        return is_bounded and not {"namespaces", "supervisor"}.isdisjoint(self.backends)

    @property
    def checks_services(self) -> bool:
        """Whether the keeper checks each connection in this machine's network."""
        promise = G.NO_LOCAL_SERVICES
        return promise in self.jail.needs and promise not in self.missing

    @property
    def grades(self) -> tuple[str, ...]:
        """Texts about the guarantees that are not enforced in the usual way."""
        others = [f"{promise}: {how}" for promise, how in self.differently]
        return (*others, *(f"{promise}: not enforced on this machine" for promise in self.missing))


class _Alone(msgspec.Struct, frozen=True):
    """A backend that needs no other one, and enforces its guarantees in the usual way."""

    @property
    def requires(self) -> frozenset[str]:
        return frozenset()

    def differently(self, jail: Jail) -> Mapping[Guarantee, str]:
        return {}


class Landlock(_Alone, frozen=True):
    abi: int
    """0: the kernel has no Landlock."""

    name = "landlock"
    excludes = frozenset({"bubblewrap"})

    @property
    def problem(self) -> str | None:
        return None if self.abi else "no Landlock in the kernel, or a sandbox around us hides it"

    def guarantees(self, jail: Jail) -> frozenset[Guarantee]:
        abi = self.abi or 7  # assume a full version, to describe a missing one
        offered = {
            G.READS_CONFINED: True,
            G.WRITES_CONFINED: abi >= 3,  # older versions do not restrict truncation
            G.PROTECTED_CARVED_OUT: not any(below_any(p, jail.writable) for p in jail.protected),
            G.HIDDEN_MASKED: not any(below_any(path, jail.writable) for path in jail.hidden)
            and not (jail.unix_sockets or jail.own_sockets),  # it does not see who connects where
            G.ABSTRACT_SOCKETS_BLOCKED: abi >= 6,
            G.NO_SIGNALS_OUT: abi >= 6,
            G.NO_PTRACE: True,
            G.NO_PROCESS_DETAILS: True,
        }
        return _OURS.union(promise for promise, enforced in offered.items() if enforced)

    def cost(self, jail: Jail) -> float:
        # Directories around hidden paths cannot be listed, and a process finds nothing
        # about itself in /proc: a last resort.
        return 20.0 if jail.hidden or jail.opaque else 0.2


class Seccomp(_Alone, frozen=True):
    works: bool

    name = "seccomp"
    excludes = frozenset[str]()

    @property
    def problem(self) -> str | None:
        return None if self.works else "no system call filter for this kernel and processor"

    def guarantees(self, jail: Jail) -> frozenset[Guarantee]:
        offered = {
            G.NO_NETWORK_TCP: jail.network is Network.NONE,
            G.NO_NETWORK_UDP: jail.network is Network.NONE,
            G.NO_NETWORK_OTHER: jail.network is not Network.ALL,
            G.NO_UNIX_SOCKETS: not (jail.unix_sockets or jail.own_sockets),
            G.ABSTRACT_SOCKETS_BLOCKED: not (jail.unix_sockets or jail.own_sockets),
            G.METADATA_FROZEN: not jail.writable,  # it cannot distinguish files
            G.NO_SHARED_MEMORY: True,
            G.NO_IO_URING: True,
            G.NO_KERNEL_DOORS: True,
        }
        return _OURS.union(promise for promise, enforced in offered.items() if enforced)

    def cost(self, jail: Jail) -> float:
        return 0.1


def _checks_connections(jail: Jail) -> bool:
    """Whether the keeper can make the connections of a command in this machine's network."""
    has_network = jail.network is Network.ALL and "/" not in jail.writable
    return has_network and not jail.own_sockets and kernel.copies_descriptors()


_OF_CONNECTIONS = (G.NAMED_HOSTS, G.NO_NETWORK_TCP, G.NO_NETWORK_UDP, G.OWN_LOOPBACK)
"""Guarantees if callgate makes all connections, and the filter permits no other way."""


class Supervisor(msgspec.Struct, frozen=True):
    """The keeper performs calls that write or name files, in the command's Landlock domain."""

    problem: str | None = None

    name = "supervisor"
    excludes = frozenset({"namespaces", "bubblewrap"})
    requires = frozenset({"landlock", "seccomp"})

    def guarantees(self, jail: Jail) -> frozenset[Guarantee]:
        if "/" in jail.writable:
            return frozenset()  # it cannot enumerate the other files of the system
        connects = jail.network is Network.HOSTS and not (jail.unix_sockets or jail.own_sockets)
        return frozenset(
            {
                G.WRITES_CONFINED,
                G.PROTECTED_CARVED_OUT,
                G.METADATA_FROZEN,
                G.NO_SIGNALS_OUT,
                *((G.FRESH_TMP,) if jail.fresh_tmp else ()),
                *(_OF_CONNECTIONS if connects else ()),
                *((G.NO_LOCAL_SERVICES,) if _checks_connections(jail) else ()),
                G.PID_NAMESPACE,
            }
        )

    def differently(self, jail: Jail) -> Mapping[Guarantee, str]:
        return {
            G.FRESH_TMP: "TMPDIR names a private directory, and nothing else of /tmp is visible",
            G.PID_NAMESPACE: "other processes have numbers here, but nothing of them is readable",
            G.OWN_LOOPBACK: "it cannot listen, and connections to the loopback are refused",
        }

    def cost(self, jail: Jail) -> float:
        return 10.0


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


class Namespaces(_Alone, frozen=True):
    problem: str | None = None

    name = "namespaces"
    excludes = frozenset({"bubblewrap"})

    def guarantees(self, jail: Jail) -> frozenset[Guarantee]:
        checked = {G.NO_LOCAL_SERVICES} if _checks_connections(jail) else set()
        return _of_namespaces(jail) | checked

    def cost(self, jail: Jail) -> float:
        return 3.0


class Bubblewrap(_Alone, frozen=True):
    path: str | None = None
    problem: str | None = None

    name = "bubblewrap"
    excludes = frozenset({"landlock", "namespaces"})

    def guarantees(self, jail: Jail) -> frozenset[Guarantee]:
        """Return its guarantees: callgate cannot listen in the network that it creates."""
        return (_of_namespaces(jail) | {G.READS_CONFINED}) - {G.NAMED_HOSTS}

    def cost(self, jail: Jail) -> float:
        return 6.0


def choose(
    jail: Jail, backends: Sequence[Backend], require: Collection[Guarantee] = ()
) -> SandboxPlan:
    """Return the cheapest combination that enforces most of the jail's needs.

    Raises `CannotGuarantee` if none enforces all of `REQUIRED`, and all of `require` in the
    settings by their usual means.
    """
    working = [backend for backend in backends if backend.problem is None]
    by_usual_means = jail.needs & frozenset(require)
    required = jail.needs & REQUIRED | by_usual_means
    best: tuple[tuple[int, float], SandboxPlan] | None = None
    least = jail.needs
    for combination in _combinations(working):
        enforced = frozenset[Guarantee]().union(*(each.guarantees(jail) for each in combination))
        differently = frozenset[Guarantee]().union(
            *(each.differently(jail) for each in combination)
        )
        missing = (jail.needs - enforced) | (by_usual_means & differently)
        rank = len(missing), sum(each.cost(jail) for each in combination)
        if not missing & required and (best is None or rank < best[0]):
            best = rank, _plan(jail, combination, missing)
        if len(missing) < len(least):
            least = missing
    if best is None:
        raise CannotGuarantee(least, _problems(jail, least, backends))
    return best[1]


def _plan(jail: Jail, combination: Sequence[Backend], missing: Iterable[Guarantee]) -> SandboxPlan:
    differently = {
        promise: how
        for each in combination
        for promise, how in each.differently(jail).items()
        if promise in jail.needs
    }
    return SandboxPlan(
        jail,
        tuple(each.name for each in combination),
        tuple(sorted(differently.items())),
        tuple(sorted(missing)),
    )


def _combinations(backends: Sequence[Backend]) -> Iterable[tuple[Backend, ...]]:
    for count in range(1, len(backends) + 1):
        for combination in combinations(backends, count):
            names = {each.name for each in combination}
            if all(
                names.isdisjoint(each.excludes) and names.issuperset(each.requires)
                for each in combination
            ):
                yield combination


def _problems(
    jail: Jail, missing: frozenset[Guarantee], backends: Sequence[Backend]
) -> Iterable[str]:
    """Yield the problems of the backends that would make the missing guarantees."""
    for backend in backends:
        if backend.problem is not None and backend.guarantees(jail) & missing:
            yield backend.problem


_NAMES = """
    PATH HOME USER LOGNAME SHELL TMPDIR TMP TEMP TZ
    LANG LANGUAGE LC_ALL LC_ADDRESS LC_COLLATE LC_CTYPE LC_IDENTIFICATION LC_MEASUREMENT
    LC_MESSAGES LC_MONETARY LC_NAME LC_NUMERIC LC_PAPER LC_TELEPHONE LC_TIME
    TERM COLORTERM NO_COLOR FORCE_COLOR CLICOLOR CLICOLOR_FORCE
    XDG_CACHE_HOME XDG_CONFIG_DIRS XDG_CONFIG_HOME XDG_DATA_DIRS XDG_DATA_HOME XDG_STATE_HOME
    SSL_CERT_FILE SSL_CERT_DIR CURL_CA_BUNDLE REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS
    GIT_SSL_CAINFO PIP_CERT NIX_SSL_CERT_FILE
    VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PYENV_ROOT NVM_DIR JAVA_HOME GOPATH GOROOT
    CARGO_HOME RUSTUP_HOME ANDROID_HOME DOTNET_ROOT LD_LIBRARY_PATH
"""
_PASSED_ON = frozenset(_NAMES.split())
"""Variables about programs, files and languages: no credentials."""

_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY", "NO_PROXY"})
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


SECRETS_PREFIX = "CALLGATE_SECRETS_"
"""Prefix of variables with a key of `[secrets]`, which no process that we start receives."""


def without_secrets_keys(environ: Mapping[str, str]) -> dict[str, str]:
    """Return our environment without the keys of `[secrets]`, for a trusted program."""
    return {name: environ[name] for name in environ if not name.startswith(SECRETS_PREFIX)}


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command: listed variables only, and no secret.

    This is an allow list, because no list of secrets is ever complete. Keys, tokens, agents'
    sockets, `LD_PRELOAD`, `BASH_ENV`, exported functions and every CALLGATE_ variable are removed.
    A proxy passes unless its address contains a password.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in _PASSED_ON or (name.upper() in _PROXIES and "@" not in value)
    }


def with_proxy(environ: Mapping[str, str], port: int, served: Collection[str]) -> dict[str, str]:
    """Return the environment of a command that reaches the network by a proxy on its loopback.

    `served` are hosts behind the proxy; other names of the loopback are reached directly.
    """
    inherited = {name: value for name, value in environ.items() if name.upper() not in _PROXIES}
    address = f"http://127.0.0.1:{port}"
    direct = ",".join(name for name in _LOOPBACK if name not in served)
    proxies = {"HTTP_PROXY": address, "HTTPS_PROXY": address, "ALL_PROXY": address}
    if direct:
        proxies["NO_PROXY"] = direct
    both = proxies | {name.lower(): value for name, value in proxies.items()}
    return inherited | both | {"RES_OPTIONS": "use-vc"}  # names by our resolver, over TCP
