"""The sandbox of a call's commands: its profile, its network, and the backends that enforce it.

    contain   enclosure(session, arguments)    the sandbox to decide about and to show
    decide    ensure(enclosure, session)       refuses before any question
    execute   launcher(enclosure, session)     the only way to start a command

If the session's client offers terminals, commands may run there (`EDITORS_TERMINAL`). They run
outside any sandbox, so they are decided as with the sandbox off, and never in mode read. If the
guard objects to such a command, it runs in the sandbox instead (`moved`).

The backends are probed once, at the first command (`ready`). If this machine cannot provide a
guarantee of a profile, the refusal names it. No command runs with fewer guarantees, except if
the user's settings say `sandbox = "off"`.
"""

from __future__ import annotations

import asyncio
import functools
import os
import site
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.core.commands import Command, Launcher, OnOutput, Running
from callgate.core.errors import ToolExecutionError
from callgate.core.sessions import Mode, ResolvedPath, Root, Session
from callgate.core.version import PACKAGE_DIRECTORY
from callgate.dispatch.foreign_code import our_own
from callgate.feature import CATALOGUE
from callgate.policy.decide import PathRule
from callgate.sandbox import allowed_hosts
from callgate.sandbox.allowed_hosts import AllowedHost
from callgate.sandbox.jails import (
    NO_LIMITS,
    Guarantee,
    Jail,
    Limits,
    Names,
    Network,
    Profile,
    Replacement,
)
from callgate.sandbox.leases import Leases
from callgate.sandbox.plans import Backend, CannotGuarantee, choose

if TYPE_CHECKING:  # loaded with the first command
    from callgate.dispatch.commands.launchers import Launchers
    from callgate.sandbox.profiles import SandboxPaths

_FRESH_S = 60.0
"""Seconds for which the paths of protected names and links in a workspace are cached."""
_MOST_LAUNCHERS = 256


class Enclosure(msgspec.Struct, frozen=True):
    """The sandbox of one call's commands."""

    profile: Profile | None
    """None: no sandbox, by the settings."""
    network: Network = Network.NONE
    widened: bool = False
    """Whether the network was requested by the call."""
    read_only: bool = False
    """Whether this machine guarantees that commands inside can change nothing."""
    reading: bool = False
    """Whether the command only reads, and so runs read-only and without network."""
    hosts: tuple[AllowedHost, ...] = ()
    """The allowed hosts of network HOSTS; for ASK, the hosts that need no approval."""
    services: tuple[AllowedHost, ...] = ()
    """Additional local services for network ALL."""
    writes: bool = True
    """For a host or server: whether its calls may change the workspace and the extra roots."""
    program_roots: tuple[str, ...] = ()
    """For a host or server: directories it may write even if its calls may change nothing."""
    revealed: tuple[Root, ...] = ()
    """For an MCP server: directories that it sees despite being private, such as its packages."""
    private: tuple[str, ...] = ()
    """Directories that are hidden from it, unless it sees them for another reason."""
    replacements: tuple[Replacement, ...] = ()
    """For an agent: content that replaces the user's files in its directories."""
    unix_sockets: bool = False
    """For an agent: whether it may connect to the Unix sockets that it sees."""
    own_sockets: bool = False
    """For an MCP server: whether its processes may use Unix sockets among themselves."""
    place: str | None = None
    """Label of the place outside callgate's sandbox in which they run; None: they run here."""
    moved: bool = False
    """Whether the guard objected to the client's terminal, so that they run in the sandbox."""
    grades: tuple[str, ...] = ()
    """Guarantees that this machine enforces in another way than usual, or not at all."""

    @property
    def is_online(self) -> bool:
        """Whether it reaches hosts, in the profile for which a policy can list them."""
        online = self.network in (Network.HOSTS, Network.ASK, Network.ALL)
        return online and self.profile is Profile.WORKSPACE

    def __str__(self) -> str:
        name = f"{self._name()}, {INSTEAD}" if self.moved else self._name()
        return f"{name} ({'; '.join(self.grades)})" if self.grades else name

    def _name(self) -> str:
        if self.place is not None:
            return self.place
        if self.profile is None:
            return "off"
        if self.profile is Profile.WORKSPACE and self.network is Network.HOSTS:
            return f"workspace, with network: {', '.join(map(str, self.hosts))}"
        if self.profile is Profile.WORKSPACE and self.network is Network.ASK:
            listed = ", ".join(map(str, self.hosts))
            others = "other hosts" if listed else "hosts"
            return f"workspace, with network: {listed}{', ' if listed else ''}{others} on approval"
        if self.profile is Profile.WORKSPACE and self.network is not Network.NONE:
            return f"workspace, with {_NETWORKS[self.network]}"
        return self.profile.value


INSTEAD = "instead of the editor's terminal"
MOVED = (
    "This command runs in callgate's sandbox, not in the editor's terminal: the guard objected to"
    " running it outside the sandbox."
)
_NETWORKS = {Network.LOOPBACK: "a loopback of its own", Network.ALL: "network"}


def outside(place: str) -> Enclosure:
    """Return the enclosure of commands that run outside callgate's sandbox, in the named place."""
    return Enclosure(None, Network.ALL, place=place)


EDITORS_TERMINAL = outside("the editor's terminal, outside the sandbox")


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the sandbox. All paths are absolute."""

    profile: Profile | None = Profile.WORKSPACE
    """Profile of modes ask, guarded and write; mode read has its own. None: no sandbox at all."""
    network: Network = Network.NONE
    asks_in_guarded: bool = False
    """Whether commands in mode guarded have network ASK, if this machine can enforce it."""
    hosts: tuple[AllowedHost, ...] = ()
    """Hosts that every command reaches with network HOSTS or ASK."""
    local_services: tuple[AllowedHost, ...] = ()
    """Services on this machine's loopback that processes with network ALL reach."""
    home: str
    """The user's home directory."""
    callgate_home: str
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    """Relative to the workspace."""
    limits: Limits = NO_LIMITS
    require: tuple[Guarantee, ...] = ()
    """Guarantees that every command needs, in addition to the built-in ones."""
    path_rules: Callable[..., tuple[PathRule, ...]] | None = None
    """Returns the rules for processes that serve many calls, by workspace and the names of the
    tools that run in them."""


OFF = Surroundings(profile=None, home="/", callgate_home="/")


class Sandbox:
    """The sandbox of a runtime: its broker, its backends, and a launcher for each jail."""

    def __init__(
        self, surroundings: Surroundings, backends: tuple[Backend, ...] | None = None
    ) -> None:
        """`backends`: the backends of this machine, if they were probed before."""
        self.surroundings = surroundings
        self.leases = _leases(surroundings)
        self._hidden: tuple[str, ...] = ()
        self._created_launchers: Launchers | None = None
        self._backends = backends
        self._looking = asyncio.Lock()
        self._launchers: dict[
            tuple[object, ...], tuple[Launcher | CannotGuarantee, tuple[str, ...]]
        ] = {}
        """Each launcher, or the reason why there is none, with the grades of its plan."""
        self.approving: Callable[[Launcher, Session, str], Launcher] | None = None
        """Wraps a launcher, so that its processes request approval for hosts under a name. None:
        no approval is requested."""

    @property
    def launchers(self) -> Launchers:
        """The broker and the launchers, which are created with the first command."""
        if self._created_launchers is None:
            from callgate.dispatch.commands.launchers import (  # lazy: many calls start no command  # noqa: PLC0415
                Launchers,
            )

            self._created_launchers = Launchers(self.leases)
        return self._created_launchers

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The backends of this machine. Blocks for the probe if `ready` was not called."""
        if self._backends is None:
            self._backends = self.launchers.look_now()
        return self._backends

    async def ready(self) -> None:
        """Probe the backends of this machine, if the settings need them."""
        if self._backends is None and self.surroundings.profile is not None:
            async with self._looking:
                if self._backends is None:
                    self._backends = await self.launchers.look()

    def enclosure(
        self,
        session: Session,
        arguments: Mapping[str, Any],
        *,
        has_effects: bool = True,
        terminals: Launcher | None = None,
    ) -> Enclosure:
        """Return the sandbox of a call, by the mode of its session, its request for the network,
        and the effects that its tool declares: a tool without effects gets the read profile.
        `terminals`: the client's, if the call may use them."""
        surroundings = self.surroundings
        if terminals is not None and has_effects and session.mode in (Mode.ASK, Mode.WRITE):
            return EDITORS_TERMINAL
        if surroundings.profile is None:
            return Enclosure(None, Network.ALL)
        asks = arguments.get("network") is True
        if session.mode == Mode.READ or not has_effects:
            enclosure = Enclosure(Profile.READ, widened=asks)
            confined = not isinstance(self._find(enclosure, session), CannotGuarantee)
            return msgspec.structs.replace(enclosure, read_only=confined)
        if surroundings.profile is Profile.OPEN:
            return Enclosure(Profile.OPEN, Network.ALL)
        if session.mode == Mode.GUARDED and surroundings.asks_in_guarded:
            asking = Enclosure(Profile.WORKSPACE, Network.ASK)
            if not isinstance(self._find(asking, session), CannotGuarantee):
                return asking
        if asks and surroundings.network not in (Network.ASK, Network.ALL):
            return Enclosure(Profile.WORKSPACE, Network.ALL, widened=True)
        return Enclosure(Profile.WORKSPACE, surroundings.network, hosts=surroundings.hosts)

    def for_reading(self, session: Session, arguments: Mapping[str, Any]) -> Enclosure | None:
        """Return the read-only sandbox without network, for a command that only reads. None if the
        command requests the network, or this machine cannot enforce that sandbox."""
        if self.surroundings.profile is None or arguments.get("network") is True:
            return None
        enclosure = Enclosure(Profile.READ, read_only=True, reading=True)
        found = self._find(enclosure, session)
        return None if isinstance(found, CannotGuarantee) else enclosure

    def confined(
        self,
        enclosure: Enclosure,
        named: Sequence[Iterable[str]],
        most: Iterable[str] | None = None,
    ) -> Enclosure:
        """Return the enclosure with its network narrowed to the policy's hosts.

        `named`: lists of hosts. A call that requested the network reaches the hosts that are in
        all of them, and the hosts of every command. `most`: the upper limit of hosts.
        """
        if not enclosure.is_online:
            return enclosure
        hosts = None if enclosure.network is Network.ALL else enclosure.hosts
        asks = enclosure.network is Network.ASK
        if (hosts is None or asks) and named:
            lists = [tuple(map(allowed_hosts.parse, each)) for each in named]
            given = functools.reduce(allowed_hosts.common, lists)
            hosts = tuple(dict.fromkeys((*given, *self.surroundings.hosts)))
        if asks and most is None:
            return msgspec.structs.replace(enclosure, hosts=hosts)
        if most is not None:
            limit = tuple(map(allowed_hosts.parse, most))
            hosts = limit if hosts is None else allowed_hosts.common(hosts, limit)
        if hosts is None:
            return enclosure
        network = Network.HOSTS if hosts else Network.NONE
        return msgspec.structs.replace(enclosure, network=network, hosts=hosts)

    def graded(self, enclosure: Enclosure, session: Session) -> Enclosure:
        """Return the enclosure with the grades of its guarantees on this machine."""
        if enclosure.profile is None or enclosure.place is not None:
            return enclosure
        _, grades = self._entry(enclosure, session)
        return msgspec.structs.replace(enclosure, grades=grades)

    def ensure(self, enclosure: Enclosure, session: Session) -> None:
        """Raise `CannotGuarantee` if this machine cannot enforce the enclosure."""
        if enclosure.place is None:
            self.launcher(enclosure, session)

    def delegating(
        self, session: Session, terminals: Callable[[Session], Launcher | None]
    ) -> Launcher:
        """Return a launcher for the client's terminal; in mode read it uses the sandbox."""
        return _Delegating(self, session, terminals)

    def launcher(self, enclosure: Enclosure, session: Session) -> Launcher:
        """Return a launcher for a call's commands. A session now in mode read narrows it."""
        if session.mode == Mode.READ and enclosure.profile is not Profile.READ:
            enclosure = Enclosure(Profile.READ)
        if enclosure.place is not None:
            raise ValueError("a command for the client's terminal is not started here")
        found = self._find(enclosure, session)
        if isinstance(found, CannotGuarantee):
            raise CannotGuarantee(found.missing, found.problems)
        return found

    def rule_launcher(
        self,
        enclosure: Enclosure,
        session: Session,
        rules: Sequence[PathRule],
        allowed: Sequence[ResolvedPath] = (),
        *,
        report: bool = True,
    ) -> Launcher:
        """Return a launcher that withholds the paths of rules from commands at their start.
        `allowed`: paths that the decision about the call covers. The rules are not
        enforced with the sandbox off."""
        launcher = self.launcher(enclosure, session)
        is_off = enclosure.profile is None and session.mode != Mode.READ
        if is_off or not rules:
            return launcher
        from callgate.dispatch.commands.path_search import (  # lazy: few are bound by rules  # noqa: PLC0415
            find,
        )

        roots = (session.workspace, *(root.path for root in session.extra_roots))
        search = functools.partial(find, rules, roots, allowed)
        home = self.surroundings.callgate_home
        require = self.surroundings.require
        return self.launchers.with_rules(launcher, self.backends, home, search, report, require)

    def process_launcher(
        self, enclosure: Enclosure, session: Session, name: str = "process"
    ) -> Launcher:
        """Return a launcher for a host or a server, a long-lived process that serves many calls.
        `name`: the prefix of its tools' names."""
        given = self.surroundings.path_rules
        rules = () if given is None else given(session.workspace)
        launcher = self.rule_launcher(enclosure, session, rules, report=False)
        if enclosure.network is not Network.ASK or self.approving is None:
            return launcher
        return self.approving(launcher, session, name)

    def hide(self, path: str) -> None:
        """Hide a directory from all later commands."""
        self._hidden += (path,)
        self.renew(self.surroundings)

    def renew(self, surroundings: Surroundings) -> None:
        """Set the surroundings of later commands. Running commands retain theirs."""
        hidden = tuple(dict.fromkeys((*surroundings.hidden, *self._hidden)))
        self.surroundings = msgspec.structs.replace(surroundings, hidden=hidden)
        self._launchers.clear()

    def warm(self, environ: Mapping[str, str]) -> None:
        """Fork later Python hosts with this environment from a warm process, which starts in the
        background."""
        self.launchers.zygotes.prepare(environ)

    def close(self) -> None:
        """End every running command, and the broker."""
        if self._created_launchers is not None:
            self._created_launchers.close()

    def _find(self, enclosure: Enclosure, session: Session) -> Launcher | CannotGuarantee:
        found, _ = self._entry(enclosure, session)
        return found

    def _entry(
        self, enclosure: Enclosure, session: Session
    ) -> tuple[Launcher | CannotGuarantee, tuple[str, ...]]:
        moment = int(time.monotonic() / _FRESH_S)
        key = (
            enclosure.profile,
            enclosure.network,
            enclosure.hosts,
            enclosure.revealed,
            enclosure.private,
            enclosure.replacements,
            enclosure.writes,
            enclosure.program_roots,
            enclosure.unix_sockets,
            enclosure.own_sockets,
            session.workspace,
            session.extra_roots,
            moment,
        )
        found = self._launchers.get(key)
        if found is None:
            if len(self._launchers) >= _MOST_LAUNCHERS:
                self._launchers.clear()
            found = self._launchers[key] = self._make(enclosure, session)
        return found

    def _make(
        self, enclosure: Enclosure, session: Session
    ) -> tuple[Launcher | CannotGuarantee, tuple[str, ...]]:
        if enclosure.profile is None:
            return self.launchers.bare(), ()
        try:
            jail = self.jail(enclosure, session)
            plan = choose(jail, self.backends, self.surroundings.require)
        except CannotGuarantee as error:
            return error, ()
        home = self.surroundings.callgate_home
        return self.launchers.jailed(plan, self.backends, home), plan.grades

    def jail(self, enclosure: Enclosure, session: Session) -> Jail:
        from callgate.sandbox import profiles  # lazy: many calls start no command  # noqa: PLC0415

        paths = self._sandbox_paths(session, enclosure.program_roots)
        paths = msgspec.structs.replace(
            paths, revealed=enclosure.revealed, private=(*paths.private, *enclosure.private)
        )
        if enclosure.own_sockets:
            paths = profiles.without_service_sockets(paths)
        limits = self.surroundings.limits
        if enclosure.profile is Profile.READ:
            return profiles.read(paths, limits=limits)
        if enclosure.profile is Profile.OPEN:
            jail = profiles.open(paths, limits=limits)
        else:
            # The proxy requests approvals; for the jail it is a network of named hosts.
            asks = enclosure.network is Network.ASK
            network = Network.HOSTS if asks else enclosure.network
            jail = profiles.workspace(paths, network=network, hosts=enclosure.hosts, limits=limits)
        if jail.network is Network.ALL:
            services = (*self.surroundings.local_services, *enclosure.services)
            jail = msgspec.structs.replace(jail, services=services)
        if enclosure.unix_sockets:
            jail = msgspec.structs.replace(jail, unix_sockets=True)
        if enclosure.own_sockets:
            jail = msgspec.structs.replace(jail, own_sockets=True)
        if not enclosure.writes:
            jail = profiles.without_writes(jail, paths)
        return profiles.with_replacements(jail, enclosure.replacements)

    def _sandbox_paths(self, session: Session, program_roots: tuple[str, ...]) -> SandboxPaths:
        from callgate.sandbox import sight  # lazy: as above  # noqa: PLC0415
        from callgate.sandbox.profiles import SandboxPaths  # lazy: as above  # noqa: PLC0415
        from callgate.workspace import protected as names  # lazy: as above  # noqa: PLC0415
        from callgate.workspace.protected_places import (  # lazy: as above  # noqa: PLC0415
            protected_places,
        )

        surroundings = self.surroundings
        roots = session.extra_roots
        write_roots = (*(root.path for root in roots if root.writable), *surroundings.writable)
        protected = [os.path.join(session.workspace, path) for path in surroundings.protected]
        private = os.path.join(surroundings.callgate_home, "mcp")
        for root in (session.workspace, *write_roots, *program_roots):
            protected += protected_places(root, private)
        directories, files = sight.private_paths()
        return SandboxPaths(
            workspace=session.workspace,
            home=surroundings.home,
            callgate_home=surroundings.callgate_home,
            read_roots=(
                *(root.path for root in roots if not root.writable),
                *surroundings.readable,
                *_code_to_show(),
            ),
            write_roots=write_roots,
            program_roots=program_roots,
            protected=tuple(protected),
            hidden=(*surroundings.hidden, *files),
            tools=sight.shown(surroundings.home, os.environ),
            private=(*sight.DATA, *directories),
            shown=surroundings.readable,
            names=Names(
                names=names.NAMES,
                pairs=names.PAIRS,
                suffixes=names.SUFFIXES,
                exempt=names.EXEMPT,
                allowed=names.ALLOWED,
            ),
            code=_our_code(),
        )


def _leases(surroundings: Surroundings) -> Leases | None:
    """Return the leases; None without a sandbox, because opens by path need no protection then."""
    return None if surroundings.profile is None else Leases(surroundings.callgate_home)


@functools.cache
def _our_code() -> tuple[str, ...]:
    """Return the paths of all code that the next start of callgate would run."""
    import sysconfig  # lazy: as above  # noqa: PLC0415

    package = PACKAGE_DIRECTORY
    checkout = os.path.dirname(os.path.dirname(package))
    paths = {package, os.path.join(checkout, "packages"), site.getusersitepackages()}
    paths.add(os.path.join(os.path.dirname(package), CATALOGUE))
    paths |= {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "scripts")}
    if sys.prefix != sys.base_prefix:  # all of a virtual environment
        paths.add(sys.prefix)
    return tuple(sorted(paths))


@functools.cache
def _code_to_show() -> tuple[str, ...]:
    """Return the directories of our code and interpreter, from which Python hosts run."""
    paths = (*_our_code(), sys.base_prefix)
    return tuple(path for path in paths if os.path.isdir(path) and path != "/")


class _Delegating:
    """Checks the mode when a command starts, because the client's terminal cannot be narrowed."""

    def __init__(
        self,
        sandbox: Sandbox,
        session: Session,
        terminals: Callable[[Session], Launcher | None],
    ) -> None:
        self._sandbox = sandbox
        self._session = session
        self._terminals = terminals

    async def start(self, command: Command, on_output: OnOutput) -> Running:
        if self._session.mode not in (Mode.ASK, Mode.WRITE):
            launcher = self._sandbox.launcher(Enclosure(Profile.READ), self._session)
            return await launcher.start(command, on_output)
        terminals = self._terminals(self._session)
        if terminals is None:  # the decision and the approval were for that terminal only
            raise ToolExecutionError(
                "The editor's terminal for this command is closed.",
                reason="terminal_gone",
            )
        with self._leased(command.cwd):
            return await terminals.start(command, on_output)

    @contextmanager
    def _leased(self, cwd: str) -> Iterator[None]:
        """Take a lease on the working directory. The terminal opens it by path, and it must be the
        checked directory, which has no links in its path."""
        leases = self._sandbox.leases
        if leases is None:
            yield
            return
        with our_own():
            lease = leases.reserve(cwd)
        try:
            if lease is None or os.path.realpath(cwd) != cwd:
                raise ToolExecutionError(
                    "A running sandboxed process could redirect the editor's terminal to another"
                    " directory. Run the command in the workspace root.",
                    reason="terminal_cwd",
                )
            yield
        finally:
            if lease is not None:
                os.close(lease)
