"""Tools that hosts and MCP servers provide: those in a registry, and the state of each provider.

A provider whose pin does not match, and a tool that cannot be registered, are left out and
reported; the others are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from callgate.core.errors import ToolError, ToolRegistrationError
from callgate.core.tools import ToolDefinition, ToolFactory
from callgate.dispatch.registry import Registry
from callgate.protocol.socket_v1.frames import HostEntry, HostTool
from callgate.sources.lifecycle import Health
from callgate.sources.logs import LifeLog, Trouble
from callgate.sources.pins import PinDoubt, Pinned
from callgate.sources.proposals import Proposal

if TYPE_CHECKING:  # most homes have no MCP server
    from callgate.sources.mcp.message_log import LoggedMessage

_MOST_LISTED = 10


class ToolProvider(Protocol):
    """A host, or an MCP server."""

    log: LifeLog

    @property
    def health(self) -> Health: ...
    @property
    def problem(self) -> str | None: ...
    def renew(self) -> None: ...
    async def restart(self) -> None: ...


class ToolProviders(Protocol):
    """The hosts, or the MCP servers, of the settings."""

    noun: str
    accept: str

    @property
    def hosts(self) -> Mapping[str, ToolProvider]: ...
    def in_order(self) -> list[str]: ...
    def pinned(self, name: str) -> Pinned | None: ...
    def doubt(self, name: str) -> PinDoubt | None: ...
    def factories(self, name: str) -> list[ToolFactory]: ...
    def definitions(self, name: str) -> list[ToolDefinition]: ...
    def changed(self, name: str) -> set[str]: ...
    def trouble(self, name: str) -> Trouble | None: ...
    def command(self, name: str) -> tuple[str, ...]: ...
    def log_path(self, name: str) -> str: ...
    async def close(self) -> None: ...


class ProvidedTools:
    """The tools of a registry that providers registered, and the state of each provider."""

    def __init__(self, hosts: ToolProviders, registry: Registry) -> None:
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
                pass  # `entries` and `notices` report it

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
        registered = self._names.get(host, ())
        taken = [name for name in names if name not in registered and self._registry.find(name)]
        if taken:
            raise ToolRegistrationError(f"others have tools of these names: {few(taken, ', ')}")

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
        problems = [f"tool {name!r} is not offered: {why}" for name, why in left_out.items()]
        noun, accept = self._hosts.noun, self._hosts.accept
        return f"{few(problems, '; ')}; change that in the {noun}, then {accept} {host}"

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

    def log_path(self, name: str) -> str:
        """Raises `KeyError`."""
        return self._hosts.log_path(self._known(name))

    def messages(self, name: str) -> Callable[[], list[LoggedMessage]]:
        """Reads the last messages of an MCP server. Raises `KeyError`, also for a host."""
        raise KeyError(name)

    async def look(self, name: str, workspace: str) -> Proposal:
        """Start a server, and what it says now beside what was approved. Raises `KeyError` or a
        `ToolError`."""
        raise ToolError(f"{self._hosts.accept} {self._known(name)} does that for a host.")

    async def approve(self, name: str, sha256: str) -> HostEntry:
        """Pin what was looked at last. Raises `KeyError`, `ToolError` or
        `ToolRegistrationError`."""
        raise ToolError(f"{self._hosts.accept} {self._known(name)} does that for a host.")

    def _known(self, name: str) -> str:
        if name not in self._hosts.hosts:
            raise KeyError(name)
        return name

    async def close(self) -> None:
        await self._hosts.close()


def entry(hosts: ToolProviders, name: str) -> HostEntry:
    host, trouble = hosts.hosts[name], hosts.trouble(name)
    health, problem = str(host.health), None if host.health is Health.RUNNING else host.problem
    definitions, changed = list[ToolDefinition](), set[str]()
    elements: list[dict[str, Any]] = []
    try:
        if (pinned := hosts.pinned(name)) is not None:
            elements = pinned.ui_elements
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
        ui_elements=elements,
    )


def few(items: Sequence[str], between: str) -> str:
    """All of them, if they fit into a message."""
    if len(items) <= _MOST_LISTED:
        return between.join(items)
    return between.join([*items[:_MOST_LISTED], f"and {len(items) - _MOST_LISTED} more"])


def _effect(definition: ToolDefinition) -> str:
    return definition.effect
