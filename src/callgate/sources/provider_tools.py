"""The tools that hosts, or MCP servers, provide: one source for all of them, and their states.

A provider whose pin does not match, and a tool that cannot be registered, are left out and
reported; the others are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from callgate.core.errors import ToolError, ToolRegistrationError
from callgate.core.tools import ToolDefinition, ToolFactory
from callgate.dispatch.tools.registry import Registry
from callgate.dispatch.tools.sources import FixedTools, Source, SourceTool, ToolSource
from callgate.protocol.socket_v1.frames import HostEntry, HostTool
from callgate.sources.lifecycle import Health
from callgate.sources.proposals import Proposal
from callgate.sources.providers import P, Providers

if TYPE_CHECKING:  # most homes have no MCP server
    from callgate.sources.message_log import LoggedMessage

PREFIX = "mcp."
_MOST_LISTED = 10


class ProvidedTools(Source, Generic[P]):
    """The tools of all hosts, or of all MCP servers, and the state of each."""

    def __init__(self, providers: Providers[P], registry: Registry) -> None:
        """`registry`: where others have tools, too. Whoever makes this adds it there."""
        super().__init__()
        self.providers = providers
        self._registry = registry
        self._tools: dict[str, Sequence[SourceTool]] | None = None
        """By provider, once they were read."""
        self._left_out: dict[str, dict[SourceTool, str]] = {}

    def tools(self) -> list[SourceTool]:
        """What is pinned. A provider in doubt has none; the others are not harmed."""
        return [tool for tools in self._read().values() for tool in tools]

    def _read(self) -> dict[str, Sequence[SourceTool]]:
        if self._tools is None:
            self._tools = dict.fromkeys(self.providers.in_order(), ())
            for name in self._tools:
                try:
                    self._set(name, self._pinned_factories(name))
                except ToolRegistrationError:
                    pass  # `entries` and `notices` report it
        return self._tools

    def _pinned_factories(self, name: str) -> Iterable[ToolFactory]:
        """Raises `ToolRegistrationError`."""
        return self.providers.factories(name)

    def _set(self, name: str, factories: Iterable[ToolFactory]) -> None:
        self._left_out[name] = {}
        self._read()[name] = self._source(name, FixedTools(factories)).tools()

    def _source(self, name: str, source: ToolSource) -> ToolSource:
        """The tools of one provider, with what limits their use."""
        return source

    def offer(self, name: str, factories: Iterable[ToolFactory]) -> None:
        """These in place of what a provider had, but for those that cannot be registered."""
        self._set(name, factories)
        self.changed()

    def refused(self, tool: SourceTool, error: ToolRegistrationError) -> None:
        host = next(name for name, tools in self._read().items() if tool in tools)
        self._left_out[host][tool] = str(error)

    def names_of(self, host: str) -> list[str]:
        """Of the tools that are registered."""
        left_out = self._left_out.get(host, {})
        return [_name(tool) for tool in self._read()[host] if tool not in left_out]

    def ensure_free(self, host: str, names: Iterable[str]) -> None:
        """`ToolRegistrationError` where tools of others have these names."""
        registered = self.names_of(host)
        taken = [name for name in names if name not in registered and self._registry.find(name)]
        if taken:
            raise ToolRegistrationError(f"others have tools of these names: {few(taken, ', ')}")

    def entries(self) -> list[HostEntry]:
        return [self.entry(name) for name in self.providers.hosts]

    def entry(self, name: str) -> HostEntry:
        """How a host is, as far as this process knows."""
        found = entry(self.providers, name)
        left_out = self.about_left_out(name)
        if left_out is None:
            return found
        problem = left_out if found.problem is None else f"{found.problem}; {left_out}"
        return msgspec.structs.replace(found, problem=problem)

    def left_out(self, host: str) -> Mapping[str, str]:
        """The tools that cannot be registered, and why."""
        return {_name(tool): why for tool, why in self._left_out.get(host, {}).items()}

    def about_left_out(self, host: str) -> str | None:
        left_out = self.left_out(host)
        if not left_out:
            return None
        problems = [f"tool {name!r} is not offered: {why}" for name, why in left_out.items()]
        noun, accept = self.providers.kind
        return f"{few(problems, '; ')}; change that in the {noun}, then {accept} {host}"

    async def renew(self, name: str, *, forget: bool) -> HostEntry:
        """Take over what is pinned by now, and let the next call have a new process.

        Calls that run finish in the old one, unless all is to be forgotten. Raises `KeyError`,
        `ToolError` or `ToolRegistrationError`, and then changes nothing.
        """
        host = self.providers.hosts[name]
        if self.providers.pinned(name) is not None:
            self.offer(name, self._pinned_factories(name))
        elif not forget:
            raise ToolError("Nothing is pinned for it.")
        if forget or host.health in (Health.WAITING, Health.QUARANTINED):
            await host.restart()
        else:
            host.renew()
        return self.entry(name)

    def log_path(self, name: str) -> str:
        """Raises `KeyError`."""
        return self.providers.log_path(self._known(name))

    def messages(self, name: str) -> Callable[[], list[LoggedMessage]]:
        """Reads the last messages of an MCP server. Raises `KeyError`, also for a host."""
        raise KeyError(name)

    async def look(self, name: str, workspace: str) -> Proposal:
        """Start a server, and what it says now beside what was approved. Raises `KeyError` or a
        `ToolError`."""
        raise ToolError(f"{self.providers.kind.accept} {self._known(name)} does that for a host.")

    async def approve(self, name: str, sha256: str) -> HostEntry:
        """Pin what was looked at last. Raises `KeyError`, `ToolError` or
        `ToolRegistrationError`."""
        raise ToolError(f"{self.providers.kind.accept} {self._known(name)} does that for a host.")

    def _known(self, name: str) -> str:
        if name not in self.providers.hosts:
            raise KeyError(name)
        return name

    async def close(self) -> None:
        await self.providers.close()


def entry(hosts: Providers[Any], name: str) -> HostEntry:
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


class AllProvidedTools:
    """Hosts and MCP servers in one list: a server is called `mcp.NAME` there."""

    def __init__(self, hosts: ProvidedTools[Any] | None, mcp: ProvidedTools[Any]) -> None:
        self._hosts = hosts
        self._mcp = mcp

    def entries(self) -> list[HostEntry]:
        hosts = [] if self._hosts is None else self._hosts.entries()
        return [*hosts, *map(_named, self._mcp.entries())]

    async def renew(self, name: str, *, forget: bool) -> HostEntry:
        """Raises `KeyError`, `ToolError` or `ToolRegistrationError`."""
        if name.startswith(PREFIX):
            return _named(await self._mcp.renew(name.removeprefix(PREFIX), forget=forget))
        if self._hosts is None:
            raise KeyError(name)
        return await self._hosts.renew(name, forget=forget)

    def log_path(self, name: str) -> str:
        """Raises `KeyError`."""
        return self._of(name).log_path(name.removeprefix(PREFIX))

    def messages(self, name: str) -> Callable[[], list[LoggedMessage]]:
        return self._of(name).messages(name.removeprefix(PREFIX))

    async def look(self, name: str, workspace: str) -> Proposal:
        return await self._of(name).look(name.removeprefix(PREFIX), workspace)

    async def approve(self, name: str, sha256: str) -> HostEntry:
        return _named(await self._of(name).approve(name.removeprefix(PREFIX), sha256))

    def _of(self, name: str) -> ProvidedTools[Any]:
        if name.startswith(PREFIX):
            return self._mcp
        if self._hosts is None:
            raise KeyError(name)
        return self._hosts


def _named(entry: HostEntry) -> HostEntry:
    return msgspec.structs.replace(entry, name=PREFIX + entry.name)


def few(items: Sequence[str], between: str) -> str:
    """All of them, if they fit into a message."""
    if len(items) <= _MOST_LISTED:
        return between.join(items)
    return between.join([*items[:_MOST_LISTED], f"and {len(items) - _MOST_LISTED} more"])


def _name(tool: SourceTool) -> str:
    return tool.factory().definition.name


def _effect(definition: ToolDefinition) -> str:
    return definition.effect
