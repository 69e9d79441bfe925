"""From settings to hosts: what each may see and touch, and learning about new ones.

    settings -> `make_hosts` -> `HostedTools`  their tools in a registry, and how each host is
             -> `ask`, `learn`                 start them once, to hear (and pin) what they say

Loaded only where the settings name hosts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Mapping

from callgate.config.pins import PinFiles
from callgate.config.places import Home
from callgate.config.schema import HostTable, Settings
from callgate.core.commands import Launcher
from callgate.core.effects import SideEffects, derive
from callgate.core.errors import ToolError, ToolRegistrationError
from callgate.core.sessions import Mode, Session
from callgate.core.tools import ToolDefinition, ToolFactory
from callgate.dispatch.registry import Registry
from callgate.dispatch.sandboxes import Enclosure, Sandbox, Surroundings
from callgate.protocol.socket_v1.frames import HostEntry, HostTool
from callgate.sandbox import allowed_hosts
from callgate.sandbox.jails import Network
from callgate.sandbox.launch import child_environment
from callgate.sandbox.profiles import Profile
from callgate.sources.hosts.hosts import Health, HostSettings
from callgate.sources.hosts.pins import Pinned
from callgate.sources.hosts.source import Hosts, HostSpec


def make_hosts(home: Home, settings: Settings, sandbox: Sandbox, workspace: str) -> Hosts:
    specs = [
        _spec(name, table, sandbox, workspace) for name, table in settings.hosts.items()
    ]
    return Hosts(specs, PinFiles(home.path))


def learn(
    home: Home, settings: Settings, surroundings: Surroundings, workspace: str,
) -> Mapping[str, str]:  # fmt: skip
    """Start hosts that nobody knows yet, and pin what they say of themselves.

    What went wrong, by host. To be called where no event loop runs.
    """
    hosts = make_hosts(home, settings, Sandbox(surroundings), workspace)
    problems: dict[str, str] = {}
    for name, said in ask(home, settings, surroundings, workspace, hosts.unknown()).items():
        if isinstance(said, Pinned):
            hosts.pin(name, said)
        else:
            problems[name] = said.message
    return problems


def ask(
    home: Home, settings: Settings, surroundings: Surroundings, workspace: str,
    names: Collection[str],
) -> Mapping[str, Pinned | ToolError]:  # fmt: skip
    """Start these hosts: what each says of itself, or why it says nothing. Pins nothing.

    To be called where no event loop runs.
    """
    if not names:
        return {}
    sandbox = Sandbox(surroundings)
    hosts = make_hosts(home, settings, sandbox, workspace)

    async def ask_all() -> Mapping[str, Pinned | ToolError]:
        await sandbox.ready()
        said: dict[str, Pinned | ToolError] = {}
        try:
            for name in names:
                try:
                    said[name] = await hosts.ask(name)
                except ToolError as error:
                    said[name] = error
        finally:
            await hosts.close()
            sandbox.close()
        return said

    return asyncio.run(ask_all())


class HostedTools:
    """The hosts of a runtime, and which tools of its registry are theirs."""

    def __init__(self, hosts: Hosts, registry: Registry) -> None:
        self._hosts = hosts
        self._registry = registry
        self._names: dict[str, list[str]] = {}
        """Of the tools that are registered, by host."""

    def register(self, host: str) -> None:
        """Register what is pinned, in place of what was. `ToolRegistrationError`: all is as it
        was."""
        self.exchange(host, self._hosts.factories(host))

    def exchange(self, host: str, factories: Iterable[ToolFactory]) -> None:
        registry, taken = self._registry, list[str]()
        found = [registry.find(name) for name in self._names.get(host, ())]
        before = [tool for tool in found if tool is not None]
        for tool in before:
            registry.unregister(tool.name)
        try:
            for factory in factories:
                taken.append(registry.register(factory).name)
        except ToolRegistrationError:
            for name in taken:
                registry.unregister(name)
            for tool in before:
                registry.register(tool.factory)
            raise
        self._names[host] = taken

    def entries(self) -> list[HostEntry]:
        return [entry(self._hosts, name) for name in self._hosts.hosts]

    async def renew(self, name: str, *, forget: bool) -> HostEntry:
        """Take over what is pinned by now, and let the next call have a new process.

        Calls that run finish in the old one, unless all is to be forgotten. Raises `KeyError`,
        `ToolError` or `ToolRegistrationError`, and then changes nothing.
        """
        host = self._hosts.hosts[name]
        if self._hosts.pinned(name) is not None:
            self.register(name)
        elif not forget:
            raise ToolError("Nothing is pinned for the command that it has here.")
        if forget or host.health in (Health.WAITING, Health.QUARANTINED):
            await host.restart()
        else:
            host.renew()
        return entry(self._hosts, name)

    async def close(self) -> None:
        await self._hosts.close()


def entry(hosts: Hosts, name: str) -> HostEntry:
    """How a host is, as far as this process knows."""
    host, trouble = hosts.hosts[name], hosts.trouble(name)
    is_new = host.health is Health.RESTING and hosts.pinned(name) is None
    problem = None if host.health is Health.RUNNING else host.problem
    try:
        definitions, changed = hosts.definitions(name), hosts.changed(name)
    except ToolRegistrationError as error:  # of a file that somebody edited
        definitions, changed, problem = [], set(), str(error)
    return HostEntry(
        name=name,
        health="new" if is_new else host.health,
        command=list(host.settings.command),
        tools=[
            HostTool(name=each.name, effect=_effect(each), changed=each.name in changed)
            for each in definitions
        ],
        problem=problem or (None if trouble is None else trouble.problem),
    )


def _effect(definition: ToolDefinition) -> str:
    return definition.side_effects or derive(definition.capabilities) or SideEffects.EXECUTE


def _spec(name: str, table: HostTable, sandbox: Sandbox, workspace: str) -> HostSpec:
    cwd = os.path.join(workspace, os.path.expanduser(table.cwd))
    passed = {key: os.environ[key] for key in table.env if key in os.environ}
    settings = HostSettings(
        name=name,
        command=tuple(map(os.path.expanduser, table.command)),
        cwd=os.path.realpath(cwd),
        env={**child_environment(os.environ), **passed, **table.set_env},
        config=table.config,
        start_timeout_s=table.start_timeout_s,
        max_in_flight=table.max_in_flight,
    )
    around = _enclosure(table)

    def launcher() -> Launcher:
        is_off = sandbox.surroundings.profile is None
        enclosure = Enclosure(None, Network.ALL) if is_off else around
        return sandbox.launcher(enclosure, Session(workspace=workspace, mode=Mode.WRITE))

    return HostSpec(
        settings=settings,
        effect=table.effect,
        effects=table.effects,
        trusted=table.trusted,
        timeout_s=table.timeout_s,
        launcher=launcher,
    )


def _enclosure(table: HostTable) -> Enclosure:
    if isinstance(table.network, list):
        named = tuple(map(allowed_hosts.parse, table.network))
        return Enclosure(Profile.WORKSPACE, Network.HOSTS, hosts=named)
    return Enclosure(Profile.WORKSPACE, Network(table.network))
