"""From settings to hosts: what each may see and touch. Loaded where the settings name hosts."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

import msgspec

from callgate.config.home import Home
from callgate.config.schema import HostTable, Settings
from callgate.config.shared_pins import open_pins
from callgate.core.commands import Launcher
from callgate.core.sessions import Mode, Root, Session
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox, Surroundings
from callgate.sandbox import allowed_hosts, tool_chains
from callgate.sandbox.jails import Network
from callgate.sandbox.launch import child_environment, without_secrets_keys
from callgate.sandbox.profiles import Profile
from callgate.sources.hosts.hosts import HostSettings
from callgate.sources.hosts.learning import Answers, ask_hosts, learn_hosts
from callgate.sources.hosts.provider import Hosts, HostSpec


def make_hosts(home: Home, settings: Settings, sandbox: Sandbox, workspace: str) -> Hosts:
    models = _models(settings)
    specs = [
        _spec(name, table, sandbox, workspace, models) for name, table in settings.hosts.items()
    ]
    return Hosts(specs, open_pins(home, "hosts", "callgate hosts reload"))


def learn(home: Home, settings: Settings, surroundings: Surroundings, workspace: str) -> Answers:
    """Start hosts that nobody knows yet, and pin what they say of themselves.

    To be called where no event loop runs."""
    sandbox = Sandbox(surroundings)
    return learn_hosts(make_hosts(home, settings, sandbox, workspace), sandbox)


def ask(
    home: Home,
    settings: Settings,
    surroundings: Surroundings,
    workspace: str,
    names: Collection[str],
) -> Answers:
    """Start these hosts: what each says of itself, or why it says nothing. Pins nothing.

    To be called where no event loop runs."""
    sandbox = Sandbox(surroundings)
    return ask_hosts(make_hosts(home, settings, sandbox, workspace), sandbox, names)


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
    given = without_secrets_keys(os.environ)
    passed = {key: given[key] for key in table.env if key in given}
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
