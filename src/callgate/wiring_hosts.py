"""From settings to hosts: what each may see and touch, and learning about new ones.

Loaded only where the settings name hosts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping

from callgate.config.pins import PinFiles
from callgate.config.places import Home
from callgate.config.schema import HostTable, Settings
from callgate.core.commands import Launcher
from callgate.core.errors import ToolError
from callgate.core.sessions import Mode, Session
from callgate.dispatch.sandboxes import Enclosure, Sandbox, Surroundings
from callgate.sandbox import allowed_hosts
from callgate.sandbox.jails import Network
from callgate.sandbox.launch import child_environment
from callgate.sandbox.profiles import Profile
from callgate.sources.hosts.hosts import HostSettings
from callgate.sources.hosts.source import Hosts, HostSpec


def make_hosts(home: Home, settings: Settings, sandbox: Sandbox, workspace: str) -> Hosts:
    specs = [
        _spec(name, table, sandbox, workspace) for name, table in settings.hosts.items()
    ]
    return Hosts(specs, PinFiles(home.path))


def learn(
    home: Home, settings: Settings, surroundings: Surroundings, workspace: str,
    names: Iterable[str] | None = None,
) -> Mapping[str, str]:  # fmt: skip
    """Start hosts that nobody knows yet (or these), and pin what they say of themselves.

    What went wrong, by host. To be called where no event loop runs.
    """
    sandbox = Sandbox(surroundings)
    hosts = make_hosts(home, settings, sandbox, workspace)
    wanted = hosts.unknown() if names is None else list(names)
    if not wanted:
        return {}

    async def learn_all() -> Mapping[str, str]:
        await sandbox.ready()
        problems: dict[str, str] = {}
        try:
            for name in wanted:
                try:
                    await hosts.learn(name)
                except ToolError as error:
                    problems[name] = error.message
        finally:
            await hosts.close()
            sandbox.close()
        return problems

    return asyncio.run(learn_all())


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
