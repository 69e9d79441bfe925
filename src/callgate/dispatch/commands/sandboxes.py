"""What is around the commands of a call: which profile, for whom, kept by which backends.

    check     enclosure(session, arguments)    what the call will run in, to judge and to show
    authorize ensure(enclosure, session)       refused here, before anyone is asked
    execute   launcher(enclosure, session)     the one way to start a command

Where the session's client has terminals of its own, commands may run there (`DELEGATED`):
outside of any sandbox, so they are judged as with the sandbox off, and never in mode read. Where
the guard objects to such a command, it runs in the sandbox instead (`moved`).

The machine is tried out once, when the first command comes (`ready`). What a profile needs and
this machine cannot promise is refused by name; nothing runs with less around it, except where
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

from callgate import shipped
from callgate.core.commands import Command, Launcher, OnOutput, Running
from callgate.core.errors import ToolExecutionError
from callgate.core.resolved_paths import ResolvedPath
from callgate.core.sessions import Mode, Root, Session
from callgate.core.version import PACKAGE_DIRECTORY
from callgate.dispatch.raw_open import our_own
from callgate.policy.path_rules import PathRule
from callgate.sandbox import allowed_hosts
from callgate.sandbox.allowed_hosts import AllowedHost
from callgate.sandbox.jails import NO_LIMITS, Jail, Limits, Names, Network, Profile, Replacement
from callgate.sandbox.leases import Leases
from callgate.sandbox.plans import Backend, CannotGuarantee, choose

if TYPE_CHECKING:  # loaded with the first command
    from callgate.dispatch.commands.launchers import Launchers
    from callgate.sandbox.profiles import SandboxPaths

_FRESH_S = 60.0
"""How long we rely on where protected names and links are in a workspace."""
_MOST_LAUNCHERS = 256


class Enclosure(msgspec.Struct, frozen=True):
    """What one call's commands run in."""

    profile: Profile | None
    """None: nothing is around them, as the settings say."""
    network: Network = Network.NONE
    widened: bool = False
    """It has the network because the call asked for it."""
    read_only: bool = False
    """This machine promises that nothing can be changed from inside."""
    hosts: tuple[AllowedHost, ...] = ()
    """What it reaches where the network is HOSTS."""
    writes: bool = True
    """Of a host or server: whether its calls may change the workspace and the roots beside it."""
    program_roots: tuple[str, ...] = ()
    """Of a host or server: where it may write also if its calls may change nothing."""
    revealed: tuple[Root, ...] = ()
    """Of an MCP server: what it sees although it is in our home, or a secret: its packages."""
    private: tuple[str, ...] = ()
    """Directories of which it sees nothing, unless it is shown for another reason."""
    replacements: tuple[Replacement, ...] = ()
    """Of an agent: what is in its directories instead of the user's own files."""
    unix_sockets: bool = False
    """Of an agent: whether it may connect to the Unix sockets that it sees."""
    delegated: bool = False
    """They run in a terminal of the session's client: nothing of ours is around them."""
    moved: bool = False
    """The guard objected to that terminal, so that they run in the sandbox."""
    by_agent: bool = False
    """An agent of somebody else runs them itself, and has asked before: as in such a terminal."""
    place: str = "the agent's own process, outside the sandbox"
    """Where that is."""

    @property
    def is_online(self) -> bool:
        """Whether it reaches any host, in the profile where a policy may say which."""
        online = self.network in (Network.HOSTS, Network.ALL)
        return online and self.profile is Profile.WORKSPACE

    def __str__(self) -> str:
        return f"{self._name()}, {INSTEAD}" if self.moved else self._name()

    def _name(self) -> str:
        if self.by_agent:
            return self.place
        if self.delegated:
            return "the editor's terminal, outside the sandbox"
        if self.profile is None:
            return "off"
        if self.profile is Profile.WORKSPACE and self.network is Network.HOSTS:
            return f"workspace, with network: {', '.join(map(str, self.hosts))}"
        if self.profile is Profile.WORKSPACE and self.network is not Network.NONE:
            return f"workspace, with {_NETWORKS[self.network]}"
        return self.profile.value


INSTEAD = "instead of the editor's terminal"
MOVED = (
    "This command runs in callgate's sandbox, not in the editor's terminal: the guard objected to"
    " running it outside the sandbox."
)
_NETWORKS = {Network.LOOPBACK: "a loopback of its own", Network.ALL: "network"}


DELEGATED = Enclosure(None, Network.ALL, delegated=True)
BY_AGENT = Enclosure(None, Network.ALL, delegated=True, by_agent=True)


def by_agent_in(place: str) -> Enclosure:
    """The same where it is known what is around the agent."""
    return Enclosure(None, Network.ALL, delegated=True, by_agent=True, place=place)


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings say. All paths are absolute."""

    profile: Profile | None = Profile.WORKSPACE
    """For modes ask and write; mode read has its own. None: no sandbox at all."""
    network: Network = Network.NONE
    hosts: tuple[AllowedHost, ...] = ()
    """What every command reaches where the network is HOSTS."""
    home: str
    """The user's own."""
    callgate_home: str
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    """Relative to the workspace."""
    limits: Limits = NO_LIMITS
    path_rules: Callable[..., tuple[PathRule, ...]] | None = None
    """The rules that bind processes which serve many calls: by workspace, and the names of tools
    that run in them."""


OFF = Surroundings(profile=None, home="/", callgate_home="/")


class Sandbox:
    """One for each runtime: the broker, what the machine can do, and a launcher for each jail."""

    def __init__(
        self, surroundings: Surroundings, backends: tuple[Backend, ...] | None = None
    ) -> None:
        """`backends` are what this machine can do, if someone has tried already."""
        self.surroundings = surroundings
        self.leases = _leases(surroundings)
        self._hidden: tuple[str, ...] = ()
        self._made: Launchers | None = None
        self._backends = backends
        self._looking = asyncio.Lock()
        self._launchers: dict[tuple[object, ...], Launcher | CannotGuarantee] = {}

    @property
    def launchers(self) -> Launchers:
        """The broker and all that starts commands: only once there is one to start."""
        if self._made is None:
            from callgate.dispatch.commands.launchers import (  # lazy: many calls start no command  # noqa: PLC0415
                Launchers,
            )

            self._made = Launchers(self.leases)
        return self._made

    @property
    def backends(self) -> tuple[Backend, ...]:
        """What this machine can do. Waits for the answer if nobody was `ready` before."""
        if self._backends is None:
            self._backends = self.launchers.look_now()
        return self._backends

    async def ready(self) -> None:
        """Have tried the machine out, unless nothing depends on it."""
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
        """What a call is to run in, by the mode of its session, by what it asks for, and by
        whether its tool declares any effects: one that does not cannot have them. `terminals`
        are the client's own, where they may be used."""
        surroundings = self.surroundings
        if terminals is not None and has_effects and session.mode in (Mode.ASK, Mode.WRITE):
            return DELEGATED
        if surroundings.profile is None:
            return Enclosure(None, Network.ALL)
        asks = arguments.get("network") is True
        if session.mode == Mode.READ or not has_effects:
            enclosure = Enclosure(Profile.READ, widened=asks)
            confined = not isinstance(self._find(enclosure, session), CannotGuarantee)
            return msgspec.structs.replace(enclosure, read_only=confined)
        if surroundings.profile is Profile.OPEN:
            return Enclosure(Profile.OPEN, Network.ALL)
        if asks and surroundings.network is not Network.ALL:
            return Enclosure(Profile.WORKSPACE, Network.ALL, widened=True)
        return Enclosure(Profile.WORKSPACE, surroundings.network, hosts=surroundings.hosts)

    def confined(
        self,
        enclosure: Enclosure,
        named: Sequence[Iterable[str]],
        most: Iterable[str] | None = None,
    ) -> Enclosure:
        """The same with no more network than the policy gives.

        `named`: lists of hosts; what all of them name, and what every command has anyway, is all
        that a call reaches which asked for the network. `most`: nothing goes beyond these.
        """
        if not enclosure.is_online:
            return enclosure
        hosts = None if enclosure.network is Network.ALL else enclosure.hosts
        if hosts is None and named:
            lists = [tuple(map(allowed_hosts.parse, each)) for each in named]
            given = functools.reduce(allowed_hosts.common, lists)
            hosts = tuple(dict.fromkeys((*given, *self.surroundings.hosts)))
        if most is not None:
            limit = tuple(map(allowed_hosts.parse, most))
            hosts = limit if hosts is None else allowed_hosts.common(hosts, limit)
        if hosts is None:
            return enclosure
        network = Network.HOSTS if hosts else Network.NONE
        return msgspec.structs.replace(enclosure, network=network, hosts=hosts)

    def ensure(self, enclosure: Enclosure, session: Session) -> None:
        """Raise `CannotGuarantee` where this machine cannot keep it."""
        if not enclosure.delegated:
            self.launcher(enclosure, session)

    def delegating(
        self, session: Session, terminals: Callable[[Session], Launcher | None]
    ) -> Launcher:
        """What starts commands in the client's terminal, or where mode read wants them."""
        return _Delegating(self, session, terminals)

    def launcher(self, enclosure: Enclosure, session: Session) -> Launcher:
        """What starts a call's commands here. A session in mode read by now narrows it."""
        if session.mode == Mode.READ and enclosure.profile is not Profile.READ:
            enclosure = Enclosure(Profile.READ)
        if enclosure.delegated:
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
        """The same, for commands that do not see what rules keep from them at their start.
        `allowed`: what the call was judged to touch. With the sandbox off nothing binds."""
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
        return self.launchers.with_rules(launcher, self.backends, home, search, report)

    def process_launcher(self, enclosure: Enclosure, session: Session) -> Launcher:
        """What starts a host or a server, which lives on and serves many calls."""
        given = self.surroundings.path_rules
        rules = () if given is None else given(session.workspace)
        return self.rule_launcher(enclosure, session, rules, report=False)

    def hide(self, path: str) -> None:
        """From now on commands do not see a directory, whatever else they may."""
        self._hidden += (path,)
        self.renew(self.surroundings)

    def renew(self, surroundings: Surroundings) -> None:
        """From now on this is around commands. Those that run keep what they have."""
        hidden = tuple(dict.fromkeys((*surroundings.hidden, *self._hidden)))
        self.surroundings = msgspec.structs.replace(surroundings, hidden=hidden)
        self._launchers.clear()

    def warm(self, environ: Mapping[str, str]) -> None:
        """From now on hosts in Python that have such an environment are forked from a warm
        process. Nobody waits for it."""
        self.launchers.zygotes.prepare(environ)

    def close(self) -> None:
        """End every command that still runs, and the broker."""
        if self._made is not None:
            self._made.close()

    def _find(self, enclosure: Enclosure, session: Session) -> Launcher | CannotGuarantee:
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

    def _make(self, enclosure: Enclosure, session: Session) -> Launcher | CannotGuarantee:
        if enclosure.profile is None:
            return self.launchers.bare()
        try:
            plan = choose(self.jail(enclosure, session), self.backends)
        except CannotGuarantee as error:
            return error
        return self.launchers.jailed(plan, self.backends, self.surroundings.callgate_home)

    def jail(self, enclosure: Enclosure, session: Session) -> Jail:
        from callgate.sandbox import profiles  # lazy: many calls start no command  # noqa: PLC0415

        places = self._places(session, enclosure.program_roots)
        places = msgspec.structs.replace(
            places, revealed=enclosure.revealed, private=(*places.private, *enclosure.private)
        )
        limits = self.surroundings.limits
        if enclosure.profile is Profile.READ:
            return profiles.read(places, limits=limits)
        if enclosure.profile is Profile.OPEN:
            jail = profiles.open(places, limits=limits)
        else:
            jail = profiles.workspace(
                places, network=enclosure.network, hosts=enclosure.hosts, limits=limits
            )
        if enclosure.unix_sockets:
            jail = msgspec.structs.replace(jail, unix_sockets=True)
        if not enclosure.writes:
            jail = profiles.without_writes(jail, places)
        return profiles.with_replacements(jail, enclosure.replacements)

    def _places(self, session: Session, program_roots: tuple[str, ...]) -> SandboxPaths:
        from callgate.sandbox import sight, tool_chains  # lazy: as above  # noqa: PLC0415
        from callgate.sandbox.profiles import SandboxPaths  # lazy: as above  # noqa: PLC0415
        from callgate.workspace import protected as names  # lazy: as above  # noqa: PLC0415
        from callgate.workspace.protected_places import (  # lazy: as above  # noqa: PLC0415
            protected_places,
        )

        surroundings = self.surroundings
        roots = session.extra_roots
        write_roots = (*(root.path for root in roots if root.writable), *surroundings.writable)
        protected = [os.path.join(session.workspace, path) for path in surroundings.protected]
        for root in (session.workspace, *write_roots, *program_roots):
            protected += protected_places(root)
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
            tools=tool_chains.shown(surroundings.home, os.environ),
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
    """None where nothing is around any command, which then needs nobody to open files for it."""
    return None if surroundings.profile is None else Leases(surroundings.callgate_home)


@functools.cache
def _our_code() -> tuple[str, ...]:
    """Everything that the next start of callgate would run."""
    import sysconfig  # lazy: as above  # noqa: PLC0415

    package = PACKAGE_DIRECTORY
    checkout = os.path.dirname(os.path.dirname(package))
    paths = {package, os.path.join(checkout, "packages"), site.getusersitepackages()}
    paths.add(os.path.join(os.path.dirname(package), shipped.PACKAGE))
    paths |= {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "scripts")}
    if sys.prefix != sys.base_prefix:  # all of a virtual environment
        paths.add(sys.prefix)
    return tuple(sorted(paths))


@functools.cache
def _code_to_show() -> tuple[str, ...]:
    """Hosts in Python run from our code, with our interpreter, wherever that is."""
    paths = (*_our_code(), sys.base_prefix)
    return tuple(path for path in paths if os.path.isdir(path) and path != "/")


class _Delegating:
    """Looks at the mode when a command starts: the client's terminal cannot be narrowed."""

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
        if terminals is None:  # it was judged, and a person asked, for that terminal alone
            raise ToolExecutionError(
                "The editor's terminal, in which the command was to run, is gone.",
                reason="terminal_gone",
            )
        with self._leased(command.cwd):
            return await terminals.start(command, on_output)

    @contextmanager
    def _leased(self, cwd: str) -> Iterator[None]:
        """The terminal opens the directory by its name: it has to be the one that was judged, which
        has no links in its path."""
        leases = self._sandbox.leases
        if leases is None:
            yield
            return
        with our_own():
            lease = leases.reserve(cwd)
        try:
            if lease is None or os.path.realpath(cwd) != cwd:
                raise ToolExecutionError(
                    "A process in the sandbox is running that could lead the editor's terminal to"
                    " another directory: run the command in the workspace itself.",
                    reason="terminal_cwd",
                )
            yield
        finally:
            if lease is not None:
                os.close(lease)
