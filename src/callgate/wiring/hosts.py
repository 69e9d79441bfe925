"""From settings to hosts: what each may see and touch, and learning about new ones.

    settings -> `make_hosts` -> `HostedTools`  their tools in a registry, and how each host is
             -> `ask`, `learn`                 start them once, to hear (and pin) what they say

Loaded only where the settings name hosts.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from callgate.config.home import Home
from callgate.config.pins import PinFiles
from callgate.config.schema import HostTable, Settings
from callgate.core.commands import Launcher
from callgate.core.errors import ToolError
from callgate.core.sessions import Mode, Root, Session
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox, Surroundings
from callgate.dispatch.registry import Registry
from callgate.sandbox import allowed_hosts, tool_chains
from callgate.sandbox.jails import Network
from callgate.sandbox.launch import child_environment
from callgate.sandbox.profiles import Profile
from callgate.sources.changes import Changes, compare
from callgate.sources.hosts.hosts import HostSettings
from callgate.sources.hosts.source import Hosts, HostSpec
from callgate.sources.hosts.warm import warm
from callgate.sources.logs import QUARANTINED
from callgate.sources.pins import Pinned
from callgate.sources.provider import ProvidedTools, few

_PATIENCE_S = 2.0
"""A new host that takes longer to fail does not hold up every command that follows."""


def make_hosts(home: Home, settings: Settings, sandbox: Sandbox, workspace: str) -> Hosts:
    models = _models(settings)
    specs = [
        _spec(name, table, sandbox, workspace, models) for name, table in settings.hosts.items()
    ]
    return Hosts(specs, PinFiles(home.path))


def learn(
    home: Home,
    settings: Settings,
    surroundings: Surroundings,
    workspace: str,
) -> Mapping[str, Pinned | ToolError]:
    """Start hosts that nobody knows yet, and pin what they say of themselves.

    What each said, or why it said nothing. To be called where no event loop runs.
    """
    hosts = make_hosts(home, settings, Sandbox(surroundings), workspace)
    given_up = {name: error for name in hosts.unknown() if (error := _given_up(hosts, name))}
    new = [name for name in hosts.unknown() if name not in given_up]
    answers = ask(home, settings, surroundings, workspace, new)
    for name, answer in answers.items():
        if isinstance(answer, Pinned):
            hosts.pin_first(name, answer)
    return {**answers, **given_up}


def _given_up(hosts: Hosts, name: str) -> ToolError | None:
    """Why no command is to wait for a host again. Its log may lie, but only against itself."""
    trouble = hosts.trouble(name)
    if trouble is None or not trouble.given_up:
        return None
    return ToolError(f"{trouble.problem}; callgate hosts reload {name} tries again")


def ask(
    home: Home,
    settings: Settings,
    surroundings: Surroundings,
    workspace: str,
    names: Collection[str],
) -> Mapping[str, Pinned | ToolError]:
    """Start these hosts: what each says of itself, or why it says nothing. Pins nothing.

    To be called where no event loop runs.
    """
    if not names:
        return {}
    sandbox = Sandbox(surroundings)
    hosts = make_hosts(home, settings, sandbox, workspace)

    async def ask_all() -> Mapping[str, Pinned | ToolError]:
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


class HostedTools(ProvidedTools):
    """The hosts of a runtime."""

    _hosts: Hosts

    def __init__(self, hosts: Hosts, registry: Registry) -> None:
        super().__init__(hosts, registry)

    def register(self, host: str) -> None:
        super().register(host)
        pinned = self._hosts.pinned(host)
        tags = () if pinned is None else pinned.tags
        self._registry.tags.give(f"host {host}", tags)

    def warm_environments(self) -> list[dict[str, str]]:
        """Of those hosts that a warm process can become."""
        settings = [host.settings for host in self._hosts.hosts.values()]
        return [each.env for each in settings if warm(each.command, each.cwd, each.env) is not None]

    def notices(self, answers: Mapping[str, Pinned | ToolError]) -> list[str]:
        """What whoever started us should know: hosts that were met, or cannot be believed."""
        notices: list[str] = []
        for name in self._hosts.hosts:
            answer, doubt = answers.get(name), self._hosts.doubt(name)
            if doubt is not None:
                notices.append(f"host {name} brings no tools: {doubt}")
            elif isinstance(answer, ToolError):
                notices.append(f"host {name} brings no tools: {answer.message}")
            elif answer is not None:
                offered = few(self._names[name], ", ") or "no tools"
                notices.append(f"host {name} is new; pinned as it is now: {offered}")
                left_out = self._about_left_out(name)
                notices += [] if left_out is None else [f"host {name}: {left_out}"]
        return notices

    async def relearn(self, name: str) -> Changes:
        """Pin what a host says now, without asking anybody, and take it over: only where its
        author is at work (`callgate serve --dev`).

        Raises `ToolError` or `ToolRegistrationError`; the old process goes on serving then.
        """
        before = self._hosts.pinned(name)
        pinned = await self._hosts.ask_another(name)
        changes = compare(name, before, pinned)
        self.ensure_free(name, changes.added)
        self._hosts.pin(name, pinned)
        self._hosts.hosts[name].log.note("its new version was accepted unasked")
        await self.renew(name, forget=False)
        return changes

    @property
    def settings(self) -> list[HostSettings]:
        return [host.settings for host in self._hosts.hosts.values()]


def _models(settings: Settings) -> tuple[dict[str, Any], ...]:
    """The models of the settings as a host may know them, the usual one first."""
    usual = settings.model
    tables = sorted(settings.models.items(), key=lambda each: each[0] != usual)
    models = [
        {"name": name, "kind": table.kind, "model": table.model, "tags": table.tags}
        for name, table in tables
    ]
    if usual is not None and usual not in settings.models:
        kind, _, model = usual.partition("/")
        models.insert(0, {"name": usual, "kind": kind, "model": model, "tags": []})
    return tuple(models)


def _spec(
    name: str,
    table: HostTable,
    sandbox: Sandbox,
    workspace: str,
    models: tuple[dict[str, Any], ...],
) -> HostSpec:
    cwd = os.path.join(workspace, os.path.expanduser(table.cwd))
    passed = {key: os.environ[key] for key in table.env if key in os.environ}
    settings = HostSettings(
        name=name,
        command=tuple(map(os.path.expanduser, table.command)),
        cwd=os.path.realpath(cwd),
        env={**child_environment(os.environ), **passed, **table.set_env},
        config=table.config,
        models=models,
        start_timeout_s=table.start_timeout_s,
        max_in_flight=table.max_in_flight,
    )
    is_off = sandbox.surroundings.profile is None
    around = Enclosure(None, Network.ALL) if is_off else _enclosure(table)

    def launcher() -> Launcher:
        return start_in(around)

    def read_only() -> Launcher:
        return start_in(msgspec.structs.replace(around, writes=False))

    def start_in(enclosure: Enclosure) -> Launcher:
        home = sandbox.surroundings.home
        beside = tool_chains.of_program(settings.command, settings.cwd, settings.env, home)
        roots = tuple(map(Root, beside))
        session = Session(workspace=workspace, mode=Mode.WRITE, extra_roots=roots)
        return sandbox.process_launcher(enclosure, session)

    return HostSpec(
        settings=settings,
        effect=table.effect,
        effects=table.effects,
        trusted=table.trusted,
        timeout_s=table.timeout_s,
        launcher=launcher,
        read_only=None if is_off else read_only,  # nothing would keep it from writing
    )


def _enclosure(table: HostTable) -> Enclosure:
    if isinstance(table.network, list):
        named = tuple(map(allowed_hosts.parse, table.network))
        return Enclosure(Profile.WORKSPACE, Network.HOSTS, hosts=named)
    return Enclosure(Profile.WORKSPACE, Network(table.network))
