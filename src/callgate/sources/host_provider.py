"""Hosts as providers of tools: definitions, pins, and the first start of an unknown host."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from callgate.core.commands import Launcher
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolError, ToolRegistrationError
from callgate.core.schema_validators import TooMuch
from callgate.core.schemas import ForeignSchema
from callgate.core.tools import ToolDefinition, ToolFactory
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.dispatch.tools.registry import Registry
from callgate.protocol.host_v1 import frames
from callgate.protocol.host_v1.values import read_schemas
from callgate.sources.host_handshake import PATIENCE_S, OptionalMethods, warm
from callgate.sources.host_tools import HostedTool, definition_of
from callgate.sources.hosts import Host, HostSettings
from callgate.sources.lifecycle import Health
from callgate.sources.logs import QUARANTINED, LifeLog
from callgate.sources.pins import LARGEST, PinChanges, Pinned, Pins, compare, fingerprint
from callgate.sources.providers import ProvidedTools, ProviderKind, Providers, few


class HostSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One host, and the trusted view of its tools."""

    settings: HostSettings
    effect: SideEffects = SideEffects.EXECUTE
    effects: dict[str, SideEffects] = {}
    trusted: bool = False
    """Whether the host's claims about the effects of its tools count."""
    timeout_s: float | None = None
    launcher: Callable[[], Launcher]
    read_only: Callable[[], Launcher] | None = None
    """For work without writes: calls in mode read, tools without effects, previews."""


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
        """Start it and return its description. Raises a `ToolError`."""
        return await self._ask(self.process.reading)

    async def ask_another(self) -> Pinned:
        """Return the description from a second process, next to the one that serves."""
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
            raise ToolError(f"Its definitions exceed {LARGEST} bytes.", reason="host_schema")
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
        """Return the tools whose definition in a running process differs from the pin."""
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

    def compare(self, before: Pinned | None, after: Pinned) -> PinChanges:
        return compare(self.name, before, after)


class Hosts(Providers[Host]):
    def __init__(self, specs: Iterable[HostSpec], pins: Pins) -> None:
        providers = [HostProvider(spec, pins) for spec in specs]
        super().__init__(ProviderKind("host", "callgate hosts reload"), providers, pins)
        self._others = {each.name: each.ask_another for each in providers}

    async def ask_another(self, name: str) -> Pinned:
        """Return the description from a second process, next to the one that serves."""
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
    """Return the fingerprints of the tools, by name."""
    read = read_schemas(schemas, host)
    return {tool.name: fingerprint(entry) for tool, entry in zip(read, schemas, strict=True)}


def _running_fingerprints(host: Host) -> dict[str, str]:
    """Return the fingerprints in a running process; none if they are unreadable."""
    assert host.started is not None
    try:
        return _fingerprints(host.started.schemas, host.settings.name)
    except ToolRegistrationError:
        return {}


def check_config(schema: dict[str, Any], config: dict[str, Any]) -> None:
    """Check a config against the schema of its host.

    The schema cannot make callgate fetch references, or write secrets to logs.
    """
    try:
        validator = ForeignSchema(schema, formats=True)
    except ValueError as error:
        problem = str(error).split("\n", 1)[0]
        raise ToolError(f"its config schema is invalid: {problem}", reason="host_config") from None
    problems = ["it is too large to be checked"]
    with suppress(TooMuch):
        problems = [
            f"{'.'.join(map(str, each.instance_path)) or 'config'}: {each.message}"
            for each in validator.iter_errors(config)
        ]
        if not problems and not validator.is_valid(config):
            problems = ["it does not match the schema"]
    if problems:
        raise ToolError(f"its config is wrong: {'; '.join(problems[:5])}", reason="host_config")


Answers = Mapping[str, Pinned | ToolError]
"""The description of each host, or the reason why there is none."""
_PATIENCE_S = 2.0
"""A new host that takes longer to fail is quarantined, so that later commands do not wait."""


def learn_hosts(hosts: Hosts, sandbox: Sandbox) -> Answers:
    """Start new hosts, and pin their descriptions. Closes both arguments."""
    given_up = {name: error for name in hosts.unknown() if (error := _given_up(hosts, name))}
    new = [name for name in hosts.unknown() if name not in given_up]
    answers = ask_hosts(hosts, sandbox, new)
    for name, answer in answers.items():
        if isinstance(answer, Pinned):
            hosts.pin_first(name, answer)
    return {**answers, **given_up}


def _given_up(hosts: Hosts, name: str) -> ToolError | None:
    """Return the reason not to start a host again, from its log. A false log harms only the host
    itself."""
    trouble = hosts.trouble(name)
    if trouble is None or not trouble.given_up:
        return None
    return ToolError(f"{trouble.problem}; callgate hosts reload {name} tries again")


def ask_hosts(hosts: Hosts, sandbox: Sandbox, names: Collection[str]) -> Answers:
    """Start these hosts, one after the other, without pinning. Closes both arguments."""
    if not names:
        return {}

    async def ask_all() -> Answers:
        await sandbox.ready()
        answers: dict[str, Pinned | ToolError] = {}
        try:
            for name in names:
                began = time.monotonic()
                try:
                    answers[name] = await hosts.ask(name)
                except ToolError as error:
                    answers[name] = error
                    if time.monotonic() - began > _PATIENCE_S:
                        hosts.hosts[name].log.note(QUARANTINED)
        finally:
            await hosts.close()
            sandbox.close()
        return answers

    return asyncio.run(ask_all())


class HostedTools(ProvidedTools[Host]):
    """The hosts of a runtime."""

    def __init__(self, hosts: Hosts, registry: Registry) -> None:
        super().__init__(hosts, registry)
        self._hosts = hosts

    def _pinned_factories(self, name: str) -> list[ToolFactory]:
        pinned = self._hosts.pinned(name)
        factories = [] if pinned is None else self._hosts.factories_of(name, pinned)
        self._registry.tags.give(f"host {name}", () if pinned is None else pinned.tags)
        return factories

    def warm_environments(self) -> list[dict[str, str]]:
        """Return the environments of the hosts that can be forked from a warm process."""
        settings = [host.settings for host in self._hosts.hosts.values()]
        return [each.env for each in settings if warm(each.command, each.cwd, each.env) is not None]

    def notices(self, answers: Mapping[str, Pinned | ToolError]) -> list[str]:
        """Return messages for the user: new hosts, and hosts without usable tools."""
        notices: list[str] = []
        for name in self._hosts.hosts:
            answer, doubt = answers.get(name), self._hosts.doubt(name)
            if doubt is not None:
                notices.append(f"host {name} provides no tools: {doubt}")
            elif isinstance(answer, ToolError):
                notices.append(f"host {name} provides no tools: {answer.message}")
            elif answer is not None:
                offered = few(self.names_of(name), ", ") or "no tools"
                notices.append(f"host {name} is new; its definitions are pinned: {offered}")
                left_out = self.about_left_out(name)
                notices += [] if left_out is None else [f"host {name}: {left_out}"]
        return notices

    async def relearn(self, name: str) -> PinChanges:
        """Pin the present description of a host without approval, and offer it. Only for the
        author of the host (`callgate serve --dev`).

        Raises `ToolError` or `ToolRegistrationError`; then the old process continues to serve.
        """
        before = self._hosts.pinned(name)
        pinned = await self._hosts.ask_another(name)
        changes = compare(name, before, pinned)
        self.ensure_free(name, changes.added)
        self._hosts.pin(name, pinned)
        self._hosts.hosts[name].log.note("its new version was accepted without approval")
        await self.renew(name, forget=False)
        return changes

    @property
    def settings(self) -> list[HostSettings]:
        return [host.settings for host in self._hosts.hosts.values()]
