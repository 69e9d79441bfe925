"""An MCP server that is a program on this machine: what is started, and what is around it.

command -> its packages, if it is one (`sources.packages`) -> variables, directories -> sandbox
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from callgate.core.commands import Command
from callgate.core.directories import make_private_directory
from callgate.core.errors import ToolError
from callgate.core.mcp_servers import McpTable, MissingVariable, expanded, filled
from callgate.core.sessions import Mode, Root, Session
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox, Surroundings
from callgate.sandbox import allowed_hosts, tool_chains
from callgate.sandbox.jails import Network
from callgate.sandbox.launch import child_environment, without_secrets_keys
from callgate.sandbox.profiles import Profile
from callgate.sources.logs import LifeLog
from callgate.sources.mcp.servers import ServerLocation, TransportFactory
from callgate.sources.packages import environment, package_commands
from callgate.sources.packages.server_packages import FetchLimits, ServerPackages

Fill = Callable[[str, Mapping[str, str]], dict[str, str]]
"""What the values of a key stand for. Raises a `ToolError`."""


def start_timeout_s(table: McpTable) -> float:
    """One that fetches packages while it is started may take as long as fetching does."""
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
    """Raises a `ToolError`."""
    given = fill("set_env", table.set_env)
    ours = without_secrets_keys(os.environ)
    passed = {key: ours[key] for key in table.env if key in ours}
    return {**child_environment(os.environ), **passed, **given}


def reach_process(
    table: McpTable, sandbox: Sandbox, packages: ServerPackages, fill: Fill = from_environment
) -> TransportFactory:
    async def reach(place: ServerLocation, log: LifeLog) -> Callable[[], Any]:
        env = server_environment(table, fill)
        program = await packages.program(argv_of(table), env, log, place.paths)
        cwd = expanded(table.cwd, place.workspace)
        os.makedirs(cwd, exist_ok=True)
        command = Command(argv=program.argv, cwd=cwd, env=program.env)
        await sandbox.ready()
        home = sandbox.surroundings.home
        beside = map(Root, tool_chains.of_program(command.argv, cwd, command.env, home))
        session = Session(
            workspace=place.workspace, mode=Mode.WRITE, extra_roots=(*place.roots, *beside)
        )
        enclosure = msgspec.structs.replace(
            _enclosure(table, sandbox.surroundings),
            writes=not place.read_only,
            program_roots=tuple(_writable(table, home)),
            revealed=program.revealed,
        )
        launcher = sandbox.process_launcher(enclosure, session)
        from callgate.sources.mcp.links import Link  # lazy: with the SDK, which is heavy  # noqa: PLC0415

        return lambda: Link(launcher, command, log)

    return reach


def _writable(table: McpTable, home: str) -> list[str]:
    """The directories beside the workspace, made where they are missing. What package managers
    share is not among them, although settings may name it: programs run from there outside."""
    paths = [expanded(each, "/") for each in table.writable]
    if package_commands.is_runner(argv_of(table)):
        paths = [*environment.without_shared(paths, home)]
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
        return Enclosure(Profile.WORKSPACE, Network.HOSTS, hosts=named)
    return Enclosure(Profile.WORKSPACE, Network(table.network))
