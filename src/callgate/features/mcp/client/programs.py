"""MCP servers that are local programs: command line, packages, environment and sandbox.

command -> packages, if it fetches some (`ServerPackages`) -> variables, directories -> sandbox

Packages are fetched once in a separate sandbox, then run from read-only files.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from callgate.core.commands import Command, Launcher
from callgate.core.errors import ToolError
from callgate.core.local.disk import make_private_directory
from callgate.core.sessions import Mode, Root, Session
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox, Surroundings
from callgate.features.mcp.client import directories, package_commands
from callgate.features.mcp.client import package_commands as managers
from callgate.features.mcp.client.directories import Installation, InstallRecord
from callgate.features.mcp.client.fetches import FetchLimits, FetchOrder, PackageFetch
from callgate.features.mcp.client.package_commands import PackageCommand
from callgate.features.mcp.client.processes import Access, EarlyStart
from callgate.features.mcp.client.servers import ServerLocation, TransportFactory
from callgate.features.mcp.settings import McpTable, MissingVariable, expanded, filled
from callgate.sandbox import allowed_hosts, sight
from callgate.sandbox.jails import Guarantee, Network, is_below
from callgate.sandbox.plans import CannotGuarantee, child_environment, without_secrets_keys
from callgate.sandbox.profiles import Profile
from callgate.sources.logs import LifeLog

Tell = Callable[[str], None]
"""Receives progress messages for the user."""


class Program(NamedTuple):
    """A command line, its environment, and directories that are visible only to this server."""

    argv: tuple[str, ...]
    env: dict[str, str]
    revealed: tuple[Root, ...] = ()


class ServerPackages:
    """The packages of one server."""

    def __init__(
        self,
        home: str,
        name: str,
        limits: FetchLimits,
        sandbox: Sandbox,
        tell: Tell | None = None,
    ) -> None:
        self._name = name
        self._limits = limits
        self._sandbox = sandbox
        self._tell = tell
        self.installation = Installation(home, name)
        self._fetching = asyncio.Lock()

    async def program(
        self, argv: tuple[str, ...], env: Mapping[str, str], log: LifeLog, private: Sequence[str]
    ) -> Program:
        """Return the program of a command, and fetch its packages if they are missing.

        The `private` directories are hidden from the fetch. Raises `ToolError` or `OSError`.
        """
        if not package_commands.is_runner(argv):
            return Program(argv, dict(env))
        cache = self.installation.cache
        private_env = {**env, **directories.private_caches(cache)}
        command = package_commands.parse(argv)
        if command is None:
            return Program(argv, private_env, (Root(cache, writable=True),))
        async with self._fetching:
            directory = await self._ready(_order(command, env, log, private))
        programs = managers.program_directory(command, directory)
        private_env["PATH"] = os.pathsep.join(filter(None, (programs, env.get("PATH", ""))))
        program = (managers.program_of(command, directory), *command.arguments)
        return Program(program, private_env, (Root(directory), Root(cache, writable=True)))

    async def update(
        self, argv: tuple[str, ...], env: Mapping[str, str], log: LifeLog, private: Sequence[str]
    ) -> tuple[dict[str, str], dict[str, str]] | None:
        """Fetch the newest packages and return the versions before and after.

        None if callgate does not fetch the packages of this command.
        """
        command = package_commands.parse(argv)
        if command is None:
            return None
        before = self.installation.record
        async with self._fetching:
            after = await self._fetch(_order(command, env, log, private), {})
        return {} if before is None else before.versions, after.versions

    async def _ready(self, order: FetchOrder) -> str:
        record = self.installation.record
        locks: dict[str, str] = {}
        if record is not None and record.key == order.command.key:
            if await asyncio.to_thread(self._is_as_fetched, record):
                return self.installation.directory(record)
            locks = record.locks
            order.log.note("its packages are missing or changed: fetching them again")
        return self.installation.directory(await self._fetch(order, locks))

    def _is_as_fetched(self, record: InstallRecord) -> bool:
        directory = self.installation.directory(record)
        try:
            self.installation.hold(directory)
            return directories.fingerprint(directory) == record.fingerprint
        except (OSError, ToolError):
            return False

    async def _fetch(self, order: FetchOrder, locks: Mapping[str, str]) -> InstallRecord:
        """Fetch packages; with `locks`, the locked versions."""
        with self.installation.fetching() as directory:
            managers.prepare(order.command, directory, locks)
            fetch = PackageFetch(
                order,
                directory,
                self._limits,
                self._sandbox,
                lambda text: self._say(text, order.log),
            )
            record = await fetch.run(locked=bool(locks))
            self.installation.write(record)
            self._say(f"fetched {_listed(order.command, record)}", order.log)
            return record

    def _say(self, text: str, log: LifeLog) -> None:
        log.note(text)
        if self._tell is not None:
            self._tell(f"MCP server {self._name}: {text}")


def _order(
    command: PackageCommand, env: Mapping[str, str], log: LifeLog, private: Sequence[str]
) -> FetchOrder:
    # `manager_settings` passes on only the variables of the package manager: the packages' scripts
    # must not see the server's other variables.
    return FetchOrder(command, {**os.environ, **env}, log, tuple(private))


def _listed(command: PackageCommand, record: InstallRecord) -> str:
    found = record.versions
    named = [name for name in found if any(name in each for each in command.packages)]
    count = "1 package" if len(found) == 1 else f"{len(found)} packages"
    return ", ".join([count, *(f"{name} {found[name]}" for name in named)])


Fill = Callable[[str, Mapping[str, str]], dict[str, str]]
"""Expands variables in the values of a settings key. Raises `ToolError`."""


def start_timeout_s(table: McpTable) -> float:
    """Return the start timeout. A command that fetches packages itself gets the fetch timeout."""
    argv = argv_of(table)
    is_program = table.url is None
    if is_program and package_commands.is_runner(argv) and package_commands.parse(argv) is None:
        return max(table.start_timeout_s, table.fetch_timeout_s)
    return table.start_timeout_s


def argv_of(table: McpTable) -> tuple[str, ...]:
    return (os.path.expanduser(str(table.command)), *table.args)


def limits_of(table: McpTable) -> FetchLimits:
    return FetchLimits(table.fetch_timeout_s, table.fetch_max_bytes)


def from_environment(key: str, values: Mapping[str, str]) -> dict[str, str]:
    try:
        return filled(values, without_secrets_keys(os.environ))
    except MissingVariable as error:
        raise ToolError(f"{key}: {error}") from None


def server_environment(table: McpTable, fill: Fill = from_environment) -> dict[str, str]:
    """Return the environment of a server. Raises `ToolError`."""
    given = fill("set_env", table.set_env)
    ours = without_secrets_keys(os.environ)
    passed = {key: ours[key] for key in table.env if key in ours}
    return {**child_environment(os.environ), **passed, **given}


class Described(NamedTuple):
    """Name of a server and the settings table of its access, for messages."""

    name: str
    table: str
    approved: bool = True
    """Whether a changed table needs a new approval."""


def reach_process(
    table: McpTable,
    sandbox: Sandbox,
    packages: ServerPackages,
    described: Described,
    fill: Fill = from_environment,
) -> TransportFactory:
    async def reach(location: ServerLocation, log: LifeLog) -> Callable[[], Any]:
        env = server_environment(table, fill)
        program = await packages.program(argv_of(table), env, log, location.paths)
        await sandbox.ready()
        enclosure = _enclosure(table, sandbox.surroundings)
        if enclosure.profile is Profile.WORKSPACE:
            program = await asyncio.to_thread(
                _with_private_home, program, table, packages.installation, sandbox, location
            )
        cwd = expanded(table.cwd, location.workspace)
        os.makedirs(cwd, exist_ok=True)
        command = Command(argv=program.argv, cwd=cwd, env=program.env)
        home = sandbox.surroundings.home
        beside = map(Root, sight.of_program(command.argv, cwd, command.env, home))
        session = Session(
            workspace=location.workspace, mode=Mode.WRITE, extra_roots=(*location.roots, *beside)
        )
        enclosure = msgspec.structs.replace(
            enclosure,
            writes=not location.read_only,
            program_roots=tuple(_writable(table, home)),
            revealed=program.revealed,
        )
        process = EarlyStart(
            _launcher(table, sandbox, enclosure, session, f"mcp.{described.name}"), command
        )

        def access() -> Access:
            return Access(
                name=described.name,
                jail=sandbox.jail(enclosure, session),
                user_home=home,
                private_home=packages.installation.home_path,
                table=described.table,
                approved=described.approved,
            )

        explained = access if enclosure.profile is Profile.WORKSPACE else None
        await process.begin()
        return ProcessTransport(process, log, explained)

    return reach


class ProcessTransport:
    """Creates the transport of a started process, once the SDK is loaded."""

    def __init__(
        self, process: EarlyStart, log: LifeLog, access: Callable[[], Access] | None
    ) -> None:
        self._process = process
        self._log = log
        self._access = access

    def __call__(self) -> Any:
        from callgate.features.mcp.client.stdio import Link  # lazy: with the SDK, which is heavy  # noqa: PLC0415

        return Link(self._process, self._log, self._access)

    async def abandon(self) -> None:
        """Stop the process unless a transport owns it."""
        await self._process.abandon()


def _with_private_home(
    program: Program,
    table: McpTable,
    installation: Installation,
    sandbox: Sandbox,
    location: ServerLocation,
) -> Program:
    """Return the program with a private HOME and caches. The settings take precedence."""
    surroundings = sandbox.surroundings
    home, cache = installation.home, installation.cache
    granted = (*surroundings.readable, *surroundings.writable, *_writable(table, surroundings.home))
    shown = sight.shown(surroundings.home, os.environ)
    hidden = os.path.realpath(surroundings.callgate_home)
    visible = [
        path
        for path in (*shown, *granted, *location.paths)
        if not is_below(os.path.realpath(path), hidden)
    ]
    variables = directories.prepare(home, cache, surroundings.home, visible)
    variables |= directories.own_file_variables(argv_of(table), home)
    named = {*table.env, *table.set_env}
    given = {name: value for name, value in program.env.items() if name in named}
    private_roots = tuple(Root(path, writable=True) for path in (home, cache))
    revealed = tuple(dict.fromkeys((*program.revealed, *private_roots)))
    return Program(program.argv, {**program.env, **variables, **given}, revealed)


def _launcher(
    table: McpTable, sandbox: Sandbox, enclosure: Enclosure, session: Session, name: str
) -> Launcher:
    try:
        return sandbox.process_launcher(enclosure, session, name)
    except CannotGuarantee as error:
        if table.unix_sockets and error.missing == {Guarantee.ABSTRACT_SOCKETS_BLOCKED}:
            raise ToolError(
                'unix_sockets = true with network = "all" needs a kernel that can block the'
                " abstract sockets of other programs (Linux 6.12, with namespaces). Set"
                ' network = "loopback" or a list of hosts'
            ) from None
        raise


def _writable(table: McpTable, home: str) -> list[str]:
    """Return the writable directories outside the workspace; create them if they are missing.

    Shared directories of package managers are removed, even if the settings name them: programs in
    them also run outside the sandbox.
    """
    paths = [expanded(each, "/") for each in table.writable]
    if package_commands.is_runner(argv_of(table)):
        paths = [*directories.without_shared(paths, home)]
    for path in paths:
        if not os.path.lexists(path):
            make_private_directory(path)
    return paths


def _enclosure(table: McpTable, surroundings: Surroundings) -> Enclosure:
    if surroundings.profile is None:
        return Enclosure(None, Network.ALL)
    if table.profile == "open":
        return Enclosure(Profile.OPEN, Network.ALL)
    if isinstance(table.network, list):
        named = tuple(map(allowed_hosts.parse, table.network))
        return Enclosure(
            Profile.WORKSPACE, Network.HOSTS, hosts=named, own_sockets=table.unix_sockets
        )
    return Enclosure(Profile.WORKSPACE, Network(table.network), own_sockets=table.unix_sockets)
