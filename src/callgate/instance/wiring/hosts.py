"""Hosts from settings, with their sandboxes. Imported only if the settings name hosts."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

import msgspec

from callgate.config.home import Home
from callgate.config.pins import open_pins
from callgate.config.schema import HostTable, Settings
from callgate.core.commands import Launcher
from callgate.core.sessions import Mode, Root, Session
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox, Surroundings
from callgate.sandbox import allowed_hosts, sight
from callgate.sandbox.jails import Network
from callgate.sandbox.plans import child_environment, without_secrets_keys
from callgate.sandbox.profiles import Profile
from callgate.sources.host_provider import Answers, Hosts, HostSpec, ask_hosts, learn_hosts
from callgate.sources.hosts import HostSettings


def make_hosts(home: Home, settings: Settings, sandbox: Sandbox, workspace: str) -> Hosts:
    models = _models(settings)
    specs = [
        _spec(name, table, sandbox, workspace, models) for name, table in settings.hosts.items()
    ]
    return Hosts(specs, open_pins(home, "hosts", "callgate hosts reload"))


def learn(home: Home, settings: Settings, surroundings: Surroundings, workspace: str) -> Answers:
    """Start hosts that are not pinned yet, and pin their tool definitions.

    Call it where no event loop runs.
    """
    sandbox = Sandbox(surroundings)
    return learn_hosts(make_hosts(home, settings, sandbox, workspace), sandbox)


def ask(
    home: Home,
    settings: Settings,
    surroundings: Surroundings,
    workspace: str,
    names: Collection[str],
) -> Answers:
    """Start these hosts, and return the tool definitions or the error of each. Pins nothing.

    Call it where no event loop runs.
    """
    sandbox = Sandbox(surroundings)
    return ask_hosts(make_hosts(home, settings, sandbox, workspace), sandbox, names)


def _models(settings: Settings) -> tuple[dict[str, Any], ...]:
    """Return the configured models for hosts, the default one first."""
    usual = settings.table("model")
    known = settings.table("models") or {}
    tables = sorted(known.items(), key=lambda each: each[0] != usual)
    models = [
        {"name": name, "kind": table.kind, "model": table.model, "tags": table.tags}
        for name, table in tables
    ]
    if usual is not None and usual not in known:
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
        beside = sight.of_program(settings.command, settings.cwd, settings.env, home)
        roots = tuple(map(Root, beside))
        session = Session(workspace=workspace, mode=Mode.WRITE, extra_roots=roots)
        return sandbox.process_launcher(enclosure, session, f"host.{name}")

    return HostSpec(
        settings=settings,
        effect=table.effect,
        effects=table.effects,
        trusted=table.trusted,
        timeout_s=table.timeout_s,
        launcher=launcher,
        read_only=None if is_off else read_only,  # without a sandbox it could write
    )


def _enclosure(table: HostTable) -> Enclosure:
    if isinstance(table.network, list):
        named = tuple(map(allowed_hosts.parse, table.network))
        return Enclosure(Profile.WORKSPACE, Network.HOSTS, hosts=named)
    return Enclosure(Profile.WORKSPACE, Network(table.network))
