"""A host as a provider of tools: what it says of itself, and the tools that this makes."""

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
from callgate.sources.changes import Changes, compare
from callgate.sources.hosts.hosts import Host, HostSettings
from callgate.sources.hosts.optional import PATIENCE_S, OptionalMethods
from callgate.sources.hosts.tools import HostedTool, definition_of
from callgate.sources.lifecycle import Health
from callgate.sources.logs import LifeLog
from callgate.sources.pins import LARGEST, Pinned, Pins, fingerprint
from callgate.sources.providers import ProviderKind, Providers


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


class HostProvider:
    """One host of the settings, with its process."""

    def __init__(self, spec: HostSpec, pins: Pins) -> None:
        self._spec = spec
        self._log_path = pins.log_path(spec.settings.name)
        self.name = self.pin = spec.settings.name
        self.command = spec.settings.command
        self.process = self._make()

    def _make(self) -> Host:
        spec, log = self._spec, LifeLog(self._log_path)
        optional = OptionalMethods(os.path.splitext(self._log_path)[0] + ".unanswered")
        return Host(spec.settings, spec.launcher, log, check_config, spec.read_only, optional)

    async def ask(self) -> Pinned:
        """Start it and return what it says of itself. Raises a `ToolError`."""
        return await self._ask(self.process.reading)

    async def ask_another(self) -> Pinned:
        """The same from a second process, beside the one that serves."""
        host = self._make()
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
            _optional(host, frames.RequiredTags()),
            _optional(host, _get_tags(host.settings)),
            _optional(host, frames.GetUiElements()),
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
            self.definitions(pinned)
        except ToolRegistrationError as error:
            raise ToolError(str(error), reason="host_schema") from None
        return pinned

    def factories(self, pinned: Pinned) -> list[ToolFactory]:
        known = _fingerprints(pinned.schemas, self.name)
        seen: dict[Host, tuple[Any, dict[str, str]]] = {}

        def changed(process: Host, tool: str) -> bool:
            if process not in seen or seen[process][0] is not process.started:
                seen[process] = process.started, _running_fingerprints(process)
            return seen[process][1].get(tool) != known[tool]

        return [_factory(self.process, each, changed) for each in self.definitions(pinned)]

    def definitions(self, pinned: Pinned) -> list[ToolDefinition]:
        spec = self._spec
        return [
            definition_of(
                schema,
                effect=spec.effect,
                effects=spec.effects,
                trusted=spec.trusted,
                required_tags=pinned.required_tags,
                timeout_s=spec.timeout_s,
            )
            for schema in read_schemas(pinned.schemas, self.name)
        ]

    def changed(self, pinned: Pinned) -> set[str]:
        """The tools that the process of a host describes differently than they are pinned."""
        if self.process.health is not Health.RUNNING:
            return set()
        running = [
            _running_fingerprints(each)
            for each in self.process.processes
            if each.is_running and each.started
        ]
        known = _fingerprints(pinned.schemas, self.name)
        return {
            tool
            for tool in known
            if any(fingerprints.get(tool) != known[tool] for fingerprints in running)
        }

    def compare(self, before: Pinned | None, after: Pinned) -> Changes:
        return compare(self.name, before, after)


class Hosts(Providers[Host]):
    def __init__(self, specs: Iterable[HostSpec], pins: Pins) -> None:
        providers = [HostProvider(spec, pins) for spec in specs]
        super().__init__(ProviderKind("host", "callgate hosts reload"), providers, pins)
        self._others = {each.name: each.ask_another for each in providers}

    async def ask_another(self, name: str) -> Pinned:
        """What a second process says of itself, beside the one that serves."""
        return await self._others[name]()


async def _optional(host: Host, params: frames.OfHost) -> list[Any]:
    value = await host.try_ask("", params, PATIENCE_S)
    return value if isinstance(value, list) else []


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
