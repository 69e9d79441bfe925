"""The agent of an editor: its runtime, and what the ACP surface is given to work with."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.core.errors import ToolPermissionDenied
from callgate.core.models import ModelError
from callgate.core.sessions import Mode, Session
from callgate.instance.watchdog import watch_runtime
from callgate.models.make import find_table, key_name
from callgate.protocol.acp.initialize import Initialize
from callgate.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError
from callgate.surfaces.acp.agent import AcpAgent
from callgate.surfaces.acp.dependencies import Dependencies, OpenServers
from callgate.surfaces.acp.options import nearest
from callgate.surfaces.acp.peer import Peer
from callgate.surfaces.acp.stdio import AcpOptions
from callgate.surfaces.live_sessions import MODES, LiveSessions
from callgate.wiring.registration import register_configured
from callgate.wiring.runtime import Wired

if TYPE_CHECKING:  # most sessions have none
    from callgate.wiring.mcp_sessions import EditorServers


async def make_agent(
    options: AcpOptions, report: Callable[[Wired], None], peer: Peer, client: Initialize
) -> AcpAgent:
    """Who answers a client from now on. `RpcError` says why there is nobody."""
    wired = await asyncio.to_thread(_open, report)
    try:
        agent = AcpAgent(make_dependencies(wired, options), peer, client)
    except BaseException:  # it is asked for again with the next request
        await wired.close()
        raise
    watch_runtime(wired)
    return agent


def _open(report: Callable[[Wired], None]) -> Wired:
    """A runtime with every configured tool."""
    try:
        wired = Wired(Home.from_environment())
        register_configured(wired, os.getcwd())
        report(wired)
    except (SettingsError, OSError) as error:
        raise RpcError(INTERNAL_ERROR, f"callgate cannot start: {error}") from error
    return wired


def make_dependencies(wired: Wired, options: AcpOptions) -> Dependencies:
    """`RpcError` where the options fit no settings."""
    settings = wired.settings
    modes = tuple(mode for mode in MODES if mode in settings.editor_modes)
    model = options.model or settings.model

    def open_session(workspace: str | None, id: str) -> Session:
        return session_in(wired, workspace or os.getcwd(), id)

    def forget_key() -> None:
        from callgate.config.keys import delete_key  # lazy: few sign out  # noqa: PLC0415

        try:
            name, table = find_table(model, settings.models, os.environ)
        except ModelError:  # there is no model, so there is no key of it
            return
        delete_key(wired.home, key_name(name, table))

    servers = _Servers(wired)

    async def close() -> None:
        await servers.close()
        await wired.close()

    return Dependencies(
        runtime=wired.runtime,
        sessions=LiveSessions(
            wired.runtime, open_session, lambda name: wired.open_agent(name or model)
        ),
        skills=wired.skills,
        modes=modes,
        mode=_first(modes, options.mode, settings.mode),
        model=model,
        models=sorted(settings.models),
        roots=wired.roots,
        forget_key=forget_key,
        latch_s=settings.acp.cancel_latch_s,
        longest_arguments=settings.acp.longest_arguments,
        unstable=options.unstable,
        mcp=servers.load,
        close=close,
    )


class _Servers:
    """The MCP servers of the editor, once it has named any."""

    def __init__(self, wired: Wired) -> None:
        self._wired = wired
        self._opened: EditorServers | None = None

    async def load(self) -> OpenServers:
        make = await asyncio.to_thread(_editor_servers)
        if self._opened is None:
            wired = self._wired
            self._opened = make(wired.home, wired.settings, wired.sandbox, wired.runtime)
        servers: EditorServers = self._opened
        return servers.open

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()


def _editor_servers() -> type[EditorServers]:
    from callgate.wiring.mcp_sessions import EditorServers  # lazy: heavy, most editors name none  # noqa: PLC0415

    return EditorServers


def _first(modes: tuple[Mode, ...], requested: str | None, default: Mode) -> Mode:
    """The mode in which sessions begin: the one that was asked for, or what comes nearest to
    the usual one."""
    if requested is None:
        return nearest(modes, default)
    if requested not in modes:
        raise RpcError(
            INVALID_PARAMS, f"--mode {requested}: the settings allow {', '.join(modes)} in editors"
        )
    return Mode(requested)


def session_in(wired: Wired, workspace: str, id: str) -> Session:
    """A session for an editor. `RpcError` or a `ToolError` says why there is none."""
    try:
        session = wired.session(workspace)
    except SettingsError as error:
        raise RpcError(INTERNAL_ERROR, str(error), {"reason": "settings_invalid"}) from error
    except OSError as error:
        message = f"{workspace} cannot be used: {error.strerror or error}"
        raise ToolPermissionDenied(message, reason="workspace_gone") from error
    session.id = id
    return session
