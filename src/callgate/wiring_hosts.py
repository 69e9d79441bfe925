"""From settings to hosts: what each may see and touch, and learning about new ones.

    settings -> `make_hosts` -> `HostedTools`  their tools in a registry, and how each host is
             -> `ask`, `learn`                 start them once, to hear (and pin) what they say

A host that cannot be believed, and a tool that cannot be registered, are left out and told
of; nothing else is harmed by them.

Loaded only where the settings name hosts.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

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
from callgate.sources.changes import Changes, compare
from callgate.sources.hosts.hosts import HostSettings
from callgate.sources.hosts.source import Hosts, HostSpec
from callgate.sources.hosts.warm import warm
from callgate.sources.lives import Health
from callgate.sources.logs import QUARANTINED, LifeLog, Trouble
from callgate.sources.pins import PinDoubt, Pinned

_MOST_TOLD = 10
_PATIENCE_S = 2.0
"""A new host that takes longer to fail does not hold up every command that follows."""


def make_hosts(home: Home, settings: Settings, sandbox: Sandbox, workspace: str) -> Hosts:
    specs = [
        _spec(name, table, sandbox, workspace) for name, table in settings.hosts.items()
    ]
    return Hosts(specs, PinFiles(home.path))


def learn(
    home: Home, settings: Settings, surroundings: Surroundings, workspace: str,
) -> Mapping[str, Pinned | ToolError]:  # fmt: skip
    """Start hosts that nobody knows yet, and pin what they say of themselves.

    What each said, or why it said nothing. To be called where no event loop runs.
    """
    hosts = make_hosts(home, settings, Sandbox(surroundings), workspace)
    given_up = {name: error for name in hosts.unknown() if (error := _given_up(hosts, name))}
    new = [name for name in hosts.unknown() if name not in given_up]
    met = ask(home, settings, surroundings, workspace, new)
    for name, said in met.items():
        if isinstance(said, Pinned):
            hosts.pin_first(name, said)
    return {**met, **given_up}


def _given_up(hosts: Hosts, name: str) -> ToolError | None:
    """Why no command is to wait for a host again. Its log may lie, but only against itself."""
    trouble = hosts.trouble(name)
    if trouble is None or not trouble.given_up:
        return None
    return ToolError(f"{trouble.problem}; callgate hosts reload {name} tries again")


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
                began = time.monotonic()
                try:
                    said[name] = await hosts.ask(name)
                except ToolError as error:
                    said[name] = error
                    if time.monotonic() - began > _PATIENCE_S:
                        hosts.hosts[name].log.note(QUARANTINED)
        finally:
            await hosts.close()
            sandbox.close()
        return said

    return asyncio.run(ask_all())


class Bringer(Protocol):
    """A host, or an MCP server."""

    log: LifeLog

    @property
    def health(self) -> Health: ...
    @property
    def problem(self) -> str | None: ...
    def renew(self) -> None: ...
    async def restart(self) -> None: ...


class Bringers(Protocol):
    """The hosts, or the MCP servers, of the settings."""

    noun: str
    accept: str

    @property
    def hosts(self) -> Mapping[str, Bringer]: ...
    def in_order(self) -> list[str]: ...
    def pinned(self, name: str) -> Pinned | None: ...
    def doubt(self, name: str) -> PinDoubt | None: ...
    def factories(self, name: str) -> list[ToolFactory]: ...
    def definitions(self, name: str) -> list[ToolDefinition]: ...
    def changed(self, name: str) -> set[str]: ...
    def trouble(self, name: str) -> Trouble | None: ...
    def command(self, name: str) -> tuple[str, ...]: ...
    async def close(self) -> None: ...


class BroughtTools:
    """Which tools of a registry others bring, and how each of those is."""

    def __init__(self, hosts: Bringers, registry: Registry) -> None:
        self._hosts = hosts
        self._registry = registry
        self._names: dict[str, list[str]] = {}
        """Of the tools that are registered, by host."""
        self._left_out: dict[str, dict[str, str]] = {}

    def register_all(self) -> None:
        """Register what is pinned. A host in doubt brings nothing; the others are not harmed."""
        for name in self._hosts.in_order():
            try:
                self.register(name)
            except ToolRegistrationError:
                pass  # `entries` and `news` tell of it

    def register(self, host: str) -> None:
        """Register what is pinned, in place of what was. `PinDoubt`: all is as it was."""
        self.offer(host, self._hosts.factories(host))

    def offer(self, host: str, factories: Iterable[ToolFactory]) -> None:
        """Register these in place of what was, but for those that cannot be."""
        registry = self._registry
        for name in self._names.get(host, ()):
            registry.unregister(name)
        names: list[str] = []
        left_out: dict[str, str] = {}
        self._names[host], self._left_out[host] = names, left_out
        for factory in factories:
            try:
                names.append(registry.register(factory).name)
            except ToolRegistrationError as error:
                left_out[factory().definition.name] = str(error)

    def ensure_free(self, host: str, names: Iterable[str]) -> None:
        """`ToolRegistrationError` where tools of others have these names."""
        own = self._names.get(host, ())
        taken = [name for name in names if name not in own and self._registry.find(name)]
        if taken:
            raise ToolRegistrationError(f"others have tools of these names: {_few(taken, ', ')}")

    def entries(self) -> list[HostEntry]:
        return [self.entry(name) for name in self._hosts.hosts]

    def entry(self, name: str) -> HostEntry:
        """How a host is, as far as this process knows."""
        found = entry(self._hosts, name)
        left_out = self._about_left_out(name)
        if left_out is None:
            return found
        problem = left_out if found.problem is None else f"{found.problem}; {left_out}"
        return msgspec.structs.replace(found, problem=problem)

    def left_out(self, host: str) -> Mapping[str, str]:
        """The tools that cannot be registered, and why."""
        return self._left_out.get(host, {})

    def _about_left_out(self, host: str) -> str | None:
        left_out = self.left_out(host)
        if not left_out:
            return None
        told = [f"tool {name!r} is not offered: {why}" for name, why in left_out.items()]
        noun, accept = self._hosts.noun, self._hosts.accept
        return f"{_few(told, '; ')}; change that in the {noun}, then {accept} {host}"

    async def renew(self, name: str, *, forget: bool) -> HostEntry:
        """Take over what is pinned by now, and let the next call have a new process.

        Calls that run finish in the old one, unless all is to be forgotten. Raises `KeyError`,
        `ToolError` or `ToolRegistrationError`, and then changes nothing.
        """
        host = self._hosts.hosts[name]
        if self._hosts.pinned(name) is not None:
            self.register(name)
        elif not forget:
            raise ToolError("Nothing is pinned for it.")
        if forget or host.health in (Health.WAITING, Health.QUARANTINED):
            await host.restart()
        else:
            host.renew()
        return self.entry(name)

    async def close(self) -> None:
        await self._hosts.close()


class HostedTools(BroughtTools):
    """The hosts of a runtime."""

    _hosts: Hosts

    def __init__(self, hosts: Hosts, registry: Registry) -> None:
        super().__init__(hosts, registry)

    def warm_environments(self) -> list[dict[str, str]]:
        """Of those hosts that a warm process can become."""
        said = [host.settings for host in self._hosts.hosts.values()]
        return [each.env for each in said if warm(each.command, each.cwd, each.env) is not None]

    def news(self, met: Mapping[str, Pinned | ToolError]) -> list[str]:
        """What whoever started us should know: hosts that were met, or cannot be believed."""
        told: list[str] = []
        for name in self._hosts.hosts:
            said, doubt = met.get(name), self._hosts.doubt(name)
            if doubt is not None:
                told.append(f"host {name} brings no tools: {doubt}")
            elif isinstance(said, ToolError):
                told.append(f"host {name} brings no tools: {said.message}")
            elif said is not None:
                offered = _few(self._names[name], ", ") or "no tools"
                told.append(f"host {name} is new; pinned as it is now: {offered}")
                left_out = self._about_left_out(name)
                told += [] if left_out is None else [f"host {name}: {left_out}"]
        return told

    async def relearn(self, name: str) -> Changes:
        """Pin what a host says now, without asking anybody, and take it over: only where its
        author is at work (`callgate serve --dev`).

        Raises `ToolError` or `ToolRegistrationError`; the old process goes on serving then.
        """
        before = self._hosts.pinned(name)
        said = await self._hosts.ask_another(name)
        changes = compare(name, before, said)
        self.ensure_free(name, changes.added)
        self._hosts.pin(name, said)
        self._hosts.hosts[name].log.note("its new version was accepted unasked")
        await self.renew(name, forget=False)
        return changes

    @property
    def settings(self) -> list[HostSettings]:
        return [host.settings for host in self._hosts.hosts.values()]


def entry(hosts: Bringers, name: str) -> HostEntry:
    host, trouble = hosts.hosts[name], hosts.trouble(name)
    health, problem = str(host.health), None if host.health is Health.RUNNING else host.problem
    definitions, changed = list[ToolDefinition](), set[str]()
    try:
        if hosts.pinned(name) is not None:
            definitions, changed = hosts.definitions(name), hosts.changed(name)
        elif host.health is Health.RESTING:
            health = "new"
    except ToolRegistrationError as doubt:
        problem = str(doubt)
        if host.health is Health.RESTING:
            health = "quarantined"
    return HostEntry(
        name=name,
        health=health,
        command=list(hosts.command(name)),
        tools=[
            HostTool(name=each.name, effect=_effect(each), changed=each.name in changed)
            for each in definitions
        ],
        problem=problem or (None if trouble is None else trouble.problem),
    )


def _few(told: Sequence[str], between: str) -> str:
    """All of them, if they fit into a message."""
    if len(told) <= _MOST_TOLD:
        return between.join(told)
    return between.join([*told[:_MOST_TOLD], f"and {len(told) - _MOST_TOLD} more"])


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
