"""Hosts or MCP servers of the settings, and one source for the tools of all of them.

    settings -> `factories(name)`  pinned tools, without a start
             -> `ask(name)`        start once, and return the current definitions

A `Provider` implements the differences between a host and an MCP server. A provider whose pin does
not match, and a tool that cannot be registered, are omitted and reported; the others still work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from callgate.core.errors import ToolError, ToolRegistrationError
from callgate.core.tools import ToolDefinition, ToolFactory
from callgate.dispatch.tools.registry import Registry
from callgate.dispatch.tools.sources import FixedTools, Source, SourceTool, ToolSource
from callgate.protocol.socket_v1.frames import HostEntry, HostTool
from callgate.sources.lifecycle import Health
from callgate.sources.logs import LifeLog, Trouble, trouble
from callgate.sources.pins import PinChanges, PinDoubt, Pinned, Pins, Proposal

if TYPE_CHECKING:
    from callgate.sources.logs import LoggedMessage


class Process(Protocol):
    """The process of a host, or an MCP server."""

    log: LifeLog

    @property
    def health(self) -> Health: ...
    @property
    def problem(self) -> str | None: ...
    def renew(self) -> None: ...
    async def restart(self) -> None: ...
    async def close(self) -> None: ...


P = TypeVar("P", bound=Process, covariant=True)


class Provider(Protocol[P]):
    """One host or MCP server, and the trusted view of its tools."""

    @property
    def name(self) -> str: ...
    @property
    def pin(self) -> str:
        """The name of its pin."""
        ...

    @property
    def command(self) -> tuple[str, ...]:
        """The command or address; a pin is valid only for this one."""
        ...

    @property
    def process(self) -> P: ...
    @property
    def ask(self) -> Callable[..., Awaitable[Pinned]]:
        """Starts it, and returns its description. Raises a `ToolError`."""
        ...

    def factories(self, pinned: Pinned) -> list[ToolFactory]: ...
    def definitions(self, pinned: Pinned) -> list[ToolDefinition]: ...
    def changed(self, pinned: Pinned) -> set[str]:
        """Return the tools whose running definition differs from the pin."""
        ...

    def compare(self, before: Pinned | None, after: Pinned) -> PinChanges: ...


class ProviderKind(NamedTuple):
    noun: str
    accept: str
    """The command with which a user accepts a changed description."""


class Providers(Generic[P]):
    def __init__(self, kind: ProviderKind, providers: Iterable[Provider[P]], pins: Pins) -> None:
        self.kind = kind
        self._pins = pins
        self._providers = {each.name: each for each in providers}
        self.hosts: Mapping[str, P] = {name: each.process for name, each in self._providers.items()}
        self._replaced: list[P] = []
        """Processes of replaced or dropped providers: their running calls finish."""

    def put(self, provider: Provider[P]) -> None:
        """Add a provider, or replace the one of this name."""
        self._replace({**self._providers, provider.name: provider}, provider.name)

    def drop(self, name: str) -> None:
        self._replace({key: each for key, each in self._providers.items() if key != name}, name)

    def _replace(self, providers: dict[str, Provider[P]], name: str) -> None:
        if name in self.hosts:
            self.hosts[name].renew()
            self._replaced.append(self.hosts[name])
        self._providers = providers
        self.hosts = {key: each.process for key, each in providers.items()}

    # --- pins ---------------------------------------------------------------------------------

    def pinned(self, name: str) -> Pinned | None:
        """Return the pin; None if it was never seen, or approved. Raises `PinDoubt`."""
        provider = self._providers[name]
        return self._pins.read(provider.pin, provider.command)

    def doubt(self, name: str) -> PinDoubt | None:
        """Return the reason for which a pin is unusable; None if it is usable or missing."""
        try:
            self.pinned(name)
        except PinDoubt as doubt:
            return doubt
        return None

    def unknown(self) -> list[str]:
        """Return the providers without a pin."""
        return [name for name in self._providers if not self.doubt(name) and not self.pinned(name)]

    def in_order(self) -> list[str]:
        """Return the providers in the order of their first pins: the first to use a tool name
        owns it."""
        known = {pin: position for position, pin in enumerate(self._pins.known())}
        pins = {name: each.pin for name, each in self._providers.items()}
        return sorted(pins, key=lambda name: known.get(pins[name], len(known)))

    def pin(self, name: str, pinned: Pinned) -> None:
        self._pins.write(self._providers[name].pin, pinned)

    def pin_first(self, name: str, pinned: Pinned) -> None:
        """Pin a new provider, unless another process has pinned it since."""
        self._pins.write_first(self._providers[name].pin, pinned)

    # --- descriptions -------------------------------------------------------------------------

    async def ask(self, name: str, *location: Any) -> Pinned:
        """Start a provider and return its description. Raises a `ToolError`."""
        return await self._providers[name].ask(*location)

    def compare(self, name: str, before: Pinned | None, after: Pinned) -> PinChanges:
        return self._providers[name].compare(before, after)

    def changed(self, name: str) -> set[str]:
        """Return the tools whose running definition differs from the pin."""
        pinned = self.pinned(name)
        return set() if pinned is None else self._providers[name].changed(pinned)

    # --- tools --------------------------------------------------------------------------------

    def factories(self, name: str) -> list[ToolFactory]:
        """Return the tools in a provider's pin; none if it has no pin."""
        pinned = self.pinned(name)
        return [] if pinned is None else self.factories_of(name, pinned)

    def factories_of(self, name: str, pinned: Pinned) -> list[ToolFactory]:
        return self._providers[name].factories(pinned)

    def definitions(self, name: str) -> list[ToolDefinition]:
        """Return the definitions in a provider's pin; none if it has no pin."""
        pinned = self.pinned(name)
        return [] if pinned is None else self._providers[name].definitions(pinned)

    # --- processes ----------------------------------------------------------------------------

    def trouble(self, name: str) -> Trouble | None:
        """Return a provider's last problem in any process, from its log."""
        return trouble(self.log_path(name))

    def command(self, name: str) -> tuple[str, ...]:
        return self._providers[name].command

    def log_path(self, name: str) -> str:
        return self._pins.log_path(self._providers[name].pin)

    async def close(self) -> None:
        """Close all processes. Idempotent."""
        processes = (*self.hosts.values(), *self._replaced)
        await asyncio.gather(*(process.close() for process in processes))


PREFIX = "mcp."
_MOST_LISTED = 10


class ProvidedTools(Source, Generic[P]):
    """The tools of all hosts, or of all MCP servers, and the state of each."""

    def __init__(self, providers: Providers[P], registry: Registry) -> None:
        """`registry` has the tools of other sources; the caller adds this source to it."""
        super().__init__()
        self.providers = providers
        self._registry = registry
        self._tools: dict[str, Sequence[SourceTool]] | None = None
        """Tools by provider; None before the first read."""
        self._left_out: dict[str, dict[SourceTool, str]] = {}

    def tools(self) -> list[SourceTool]:
        """Return the pinned tools. A provider whose pin is unusable has none."""
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
        """Return the tools in a provider's pin. Raises `ToolRegistrationError`."""
        return self.providers.factories(name)

    def _set(self, name: str, factories: Iterable[ToolFactory]) -> None:
        self._left_out[name] = {}
        self._read()[name] = self._source(name, FixedTools(factories)).tools()

    def _source(self, name: str, source: ToolSource) -> ToolSource:
        """Return the tools of one provider, restricted as needed."""
        return source

    def offer(self, name: str, factories: Iterable[ToolFactory]) -> None:
        """Replace the tools of a provider, except those whose registration fails."""
        self._set(name, factories)
        self.changed()

    def drop(self, name: str) -> None:
        """Remove a provider and its tools."""
        self._read().pop(name, None)
        self._left_out.pop(name, None)
        self.providers.drop(name)
        self.changed()

    def refused(self, tool: SourceTool, error: ToolRegistrationError) -> None:
        host = next(name for name, tools in self._read().items() if tool in tools)
        self._left_out[host][tool] = str(error)

    def names_of(self, host: str) -> list[str]:
        """Return the names of a provider's registered tools."""
        left_out = self._left_out.get(host, {})
        return [_name(tool) for tool in self._read()[host] if tool not in left_out]

    def ensure_free(self, host: str, names: Iterable[str]) -> None:
        """Raise `ToolRegistrationError` if other sources have tools with these names."""
        registered = self.names_of(host)
        taken = [name for name in names if name not in registered and self._registry.find(name)]
        if taken:
            raise ToolRegistrationError(
                f"other sources have tools with these names: {few(taken, ', ')}"
            )

    def entries(self) -> list[HostEntry]:
        return [self.entry(name) for name in self.providers.hosts]

    def entry(self, name: str) -> HostEntry:
        """Return the state of a provider, as far as this process knows it."""
        found = entry(self.providers, name)
        left_out = self.about_left_out(name)
        if left_out is None:
            return found
        problem = left_out if found.problem is None else f"{found.problem}; {left_out}"
        return msgspec.structs.replace(found, problem=problem)

    def left_out(self, host: str) -> Mapping[str, str]:
        """Return the tools whose registration failed, with the reason."""
        return {_name(tool): why for tool, why in self._left_out.get(host, {}).items()}

    def about_left_out(self, host: str) -> str | None:
        left_out = self.left_out(host)
        if not left_out:
            return None
        problems = [f"tool {name!r} is not offered: {why}" for name, why in left_out.items()]
        noun, accept = self.providers.kind
        return f"{few(problems, '; ')}; change that in the {noun}, then {accept} {host}"

    async def renew(self, name: str, *, forget: bool) -> HostEntry:
        """Offer the present pin of a provider, and let the next call start a new process.

        Running calls finish in the old process, unless `forget` is set. Raises `KeyError`,
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
        """Return the path of a provider's log. Raises `KeyError`."""
        return self.providers.log_path(self._known(name))

    def messages(self, name: str) -> Callable[[], list[LoggedMessage]]:
        """Return a reader of an MCP server's last messages. Raises `KeyError`, also for a host."""
        raise KeyError(name)

    async def look(self, name: str, workspace: str) -> Proposal:
        """Start a server, and compare its description with the approved one. Raises `KeyError` or
        a `ToolError`."""
        raise ToolError(f"{self.providers.kind.accept} {self._known(name)} does that for a host.")

    async def approve(self, name: str, sha256: str) -> HostEntry:
        """Pin the description of the last `look`. Raises `KeyError`, `ToolError` or
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
    """Hosts and MCP servers in one list, in which a server has the name `mcp.NAME`."""

    def __init__(
        self,
        hosts: ProvidedTools[Any] | None,
        mcp: Callable[[], ProvidedTools[Any] | None],
        refresh: Callable[[], None],
    ) -> None:
        """`mcp` returns the servers, which may be created later. `refresh` applies changed
        settings."""
        self._hosts = hosts
        self._find_mcp = mcp
        self._refresh = refresh

    @property
    def _mcp(self) -> ProvidedTools[Any]:
        """The servers. Raises `KeyError` if there are none."""
        found = self._find_mcp()
        if found is None:
            raise KeyError(PREFIX)
        return found

    def entries(self) -> list[HostEntry]:
        hosts = [] if self._hosts is None else self._hosts.entries()
        mcp = self._find_mcp()
        return hosts if mcp is None else [*hosts, *map(_named, mcp.entries())]

    async def renew(self, name: str, *, forget: bool) -> HostEntry:
        """Renew a provider. Raises `KeyError`, `ToolError` or `ToolRegistrationError`."""
        if name.startswith(PREFIX):
            self._refresh()  # it may be new
            return _named(await self._mcp.renew(name.removeprefix(PREFIX), forget=forget))
        if self._hosts is None:
            raise KeyError(name)
        return await self._hosts.renew(name, forget=forget)

    def log_path(self, name: str) -> str:
        """Return the path of a provider's log. Raises `KeyError`."""
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
    """Join items for a message; a long list is cut."""
    if len(items) <= _MOST_LISTED:
        return between.join(items)
    return between.join([*items[:_MOST_LISTED], f"and {len(items) - _MOST_LISTED} more"])


def _name(tool: SourceTool) -> str:
    return tool.factory().definition.name


def _effect(definition: ToolDefinition) -> str:
    return definition.effect
