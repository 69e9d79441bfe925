"""The hosts of the settings, and the tools that they bring.

settings -> `factories()`  what is pinned, without starting anything
         -> `learn(name)`  start it once, and pin what it says
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from callgate.core.commands import Launcher
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolError, ToolRegistrationError
from callgate.core.json_schema.schemas import ForeignSchema
from callgate.core.json_schema.validators import TooMuch
from callgate.core.tools import ToolDefinition, ToolFactory
from callgate.protocol.host_v1 import frames
from callgate.protocol.host_v1.schemas import read_schemas
from callgate.sources.hosts.hosts import Host, HostSettings
from callgate.sources.hosts.optional import PATIENCE_S, OptionalMethods
from callgate.sources.hosts.tools import HostedTool, definition_of
from callgate.sources.lifecycle import Health
from callgate.sources.logs import LifeLog, Trouble, trouble
from callgate.sources.pins import LARGEST, PinDoubt, Pinned, Pins, fingerprint


class HostSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One host, and what is believed of its tools."""

    settings: HostSettings
    effect: SideEffects = SideEffects.EXECUTE
    effects: dict[str, SideEffects] = {}
    trusted: bool = False
    """Whether what it claims of its tools' effects counts."""
    timeout_s: float | None = None
    launcher: Callable[[], Launcher]
    read_only: Callable[[], Launcher] | None = None
    """For what may change nothing: calls in mode read, tools without effects, previews."""


class Hosts:
    noun = "host"
    accept = "callgate hosts reload"
    """With which a person accepts what a host says now."""

    def __init__(self, specs: Iterable[HostSpec], pins: Pins) -> None:
        self._pins = pins
        self._specs = {spec.settings.name: spec for spec in specs}
        self.hosts = {name: self._make(name) for name in self._specs}

    def _make(self, name: str) -> Host:
        spec, log = self._specs[name], LifeLog(self._pins.log_path(name))
        optional = OptionalMethods(os.path.splitext(self._pins.log_path(name))[0] + ".unanswered")
        return Host(spec.settings, spec.launcher, log, check_config, spec.read_only, optional)

    def pinned(self, name: str) -> Pinned | None:
        """None where it was never seen. Raises `PinDoubt`."""
        return self._pins.read(name, self._specs[name].settings.command)

    def doubt(self, name: str) -> PinDoubt | None:
        """Why what is pinned cannot be gone by; None where it can, or nothing is."""
        try:
            self.pinned(name)
        except PinDoubt as doubt:
            return doubt
        return None

    def unknown(self) -> list[str]:
        """The hosts that nobody has started yet."""
        return [name for name in self._specs if not self.doubt(name) and not self.pinned(name)]

    def in_order(self) -> list[str]:
        """The hosts, those first that were seen first: a name belongs to who had it first."""
        known = {name: position for position, name in enumerate(self._pins.known())}
        return sorted(self._specs, key=lambda name: known.get(name, len(known)))

    def pin(self, name: str, pinned: Pinned) -> None:
        self._pins.write(name, pinned)

    def pin_first(self, name: str, pinned: Pinned) -> None:
        """Pin a host that is new; what another process pinned since stays."""
        self._pins.write_first(name, pinned)

    async def ask(self, name: str) -> Pinned:
        """Start a host and return what it says of itself. Raises a `ToolError`."""
        return await self._ask(self.hosts[name].reading)

    async def ask_another(self, name: str) -> Pinned:
        """The same from a second process, beside the one that serves."""
        host = self._make(name)
        try:
            return await self._ask(host.reading)
        finally:
            await host.close()

    async def _ask(self, host: Host) -> Pinned:
        host.ask_again()
        await host.link()
        assert host.started is not None
        schemas = host.started.schemas
        required_tags, tags, ui_elements = await asyncio.gather(
            self._optional(host, frames.RequiredTags()),
            self._optional(host, _get_tags(host.settings)),
            self._optional(host, frames.GetUiElements()),
        )
        pinned = Pinned(
            command=host.settings.command,
            schemas=schemas,
            required_tags=required_tags,
            tags=tags,
            ui_elements=ui_elements,
        )
        if len(msgspec.json.encode(pinned)) > LARGEST:
            raise ToolError(f"It says more than {LARGEST} bytes of itself.", reason="host_schema")
        try:
            self._definitions(host.settings.name, pinned)
        except ToolRegistrationError as error:
            raise ToolError(str(error), reason="host_schema") from None
        return pinned

    async def _optional(self, host: Host, params: frames.OfHost) -> list[Any]:
        value = await host.try_ask("", params, PATIENCE_S)
        return value if isinstance(value, list) else []

    def factories(self, name: str) -> list[ToolFactory]:
        """The tools of a host, as it is pinned; none if it is not."""
        pinned = self.pinned(name)
        return [] if pinned is None else self.factories_of(name, pinned)

    def factories_of(self, name: str, pinned: Pinned) -> list[ToolFactory]:
        known, host = _fingerprints(pinned.schemas, name), self.hosts[name]

        seen: dict[Host, tuple[Any, dict[str, str]]] = {}

        def changed(process: Host, tool: str) -> bool:
            if process not in seen or seen[process][0] is not process.started:
                seen[process] = process.started, _running_fingerprints(process)
            return seen[process][1].get(tool) != known[tool]

        return [
            _factory(host, definition, changed) for definition in self._definitions(name, pinned)
        ]

    def definitions(self, name: str) -> list[ToolDefinition]:
        """As it is pinned; none if it is not."""
        pinned = self.pinned(name)
        return [] if pinned is None else self._definitions(name, pinned)

    def changed(self, name: str) -> set[str]:
        """The tools that the process of a host describes differently than they are pinned."""
        pinned, host = self.pinned(name), self.hosts[name]
        running = [
            _running_fingerprints(each)
            for each in host.processes
            if each.is_running and each.started
        ]
        if pinned is None or host.health is not Health.RUNNING:
            return set()
        known = _fingerprints(pinned.schemas, name)
        return {
            tool
            for tool in known
            if any(fingerprints.get(tool) != known[tool] for fingerprints in running)
        }

    def trouble(self, name: str) -> Trouble | None:
        """What went wrong with a host last, in whichever process, by its log."""
        return trouble(self._pins.log_path(name))

    def command(self, name: str) -> tuple[str, ...]:
        return self._specs[name].settings.command

    def log_path(self, name: str) -> str:
        return self._pins.log_path(name)

    def _definitions(self, name: str, pinned: Pinned) -> list[ToolDefinition]:
        spec = self._specs[name]
        return [
            definition_of(
                schema,
                effect=spec.effect,
                effects=spec.effects,
                trusted=spec.trusted,
                required_tags=pinned.required_tags,
                timeout_s=spec.timeout_s,
            )
            for schema in read_schemas(pinned.schemas, name)
        ]

    async def close(self) -> None:
        await asyncio.gather(*(host.close() for host in self.hosts.values()))


def _get_tags(settings: HostSettings) -> frames.GetTags:
    return frames.GetTags(config=settings.config, models=list(settings.models))


def _factory(
    host: Host, definition: ToolDefinition, changed: Callable[[Host, str], bool]
) -> ToolFactory:
    return lambda: HostedTool(host, definition, changed)


def _fingerprints(schemas: list[dict[str, Any]], host: str) -> dict[str, str]:
    """By the names of the tools."""
    read = read_schemas(schemas, host)
    return {tool.name: fingerprint(entry) for tool, entry in zip(read, schemas, strict=True)}


def _running_fingerprints(host: Host) -> dict[str, str]:
    """What the process of a host says of its tools; nothing, if that cannot be read."""
    assert host.started is not None
    try:
        return _fingerprints(host.started.schemas, host.settings.name)
    except ToolRegistrationError:
        return {}


def check_config(schema: dict[str, Any], config: dict[str, Any]) -> None:
    """A config against the schema of its host.

    The host is not to have us fetch what its schema refers to, nor to put secrets into logs.
    """
    try:
        validator = ForeignSchema(schema, formats=True)
    except ValueError as error:
        problem = str(error).split("\n", 1)[0]
        raise ToolError(f"its config schema is none: {problem}", reason="host_config") from None
    problems = ["there is too much in it to be checked"]
    with suppress(TooMuch):
        problems = [
            f"{'.'.join(map(str, each.instance_path)) or 'config'}: {each.message}"
            for each in validator.iter_errors(config)
        ]
        if not problems and not validator.is_valid(config):
            problems = ["it does not fit the schema"]
    if problems:
        raise ToolError(f"its config is wrong: {'; '.join(problems[:5])}", reason="host_config")
