"""Factory of an editor's agent: its runtime, and the dependencies of the ACP surface."""

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
from callgate.features.chat.live_sessions import MODES, LiveSessions
from callgate.features.chat.models.make import find_table, key_name
from callgate.features.chat.settings import ChatSettings
from callgate.features.editor.agent import AcpAgent
from callgate.features.editor.contents import nearest
from callgate.features.editor.editor_sessions import Dependencies, OpenServers
from callgate.features.editor.peer import EditorPeer
from callgate.features.editor.settings import EditorSettings
from callgate.features.editor.stdio import AcpOptions
from callgate.instance.watchdog import watch_runtime
from callgate.instance.wiring.builder import build, register_configured
from callgate.instance.wiring.runtime import Wired
from callgate.protocol.acp.initialize import Initialize
from callgate.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError

if TYPE_CHECKING:  # most sessions have none
    from callgate.features.mcp.session_servers import WiredEditorServers


async def make_agent(
    options: AcpOptions, report: Callable[[Wired], None], peer: EditorPeer, client: Initialize
) -> AcpAgent:
    """Return the agent for a client. Raises `RpcError` with the reason if it cannot start."""
    wired = await asyncio.to_thread(_open, report)
    try:
        agent = AcpAgent(make_dependencies(wired, options), peer, client)
    except BaseException:  # the next request tries again
        await wired.close()
        raise
    watch_runtime(wired)
    return agent


def _open(report: Callable[[Wired], None]) -> Wired:
    """Return a runtime with all configured tools."""
    try:
        wired = build(Home.from_environment(), os.getcwd(), register_configured)
        report(wired)
    except (SettingsError, OSError) as error:
        raise RpcError(INTERNAL_ERROR, f"callgate cannot start: {error}") from error
    return wired


def make_dependencies(wired: Wired, options: AcpOptions) -> Dependencies:
    """Return the dependencies of an agent. Raises `RpcError` if an option contradicts the
    settings.
    """
    settings = wired.settings
    modes = tuple(mode for mode in MODES if mode in settings.of(EditorSettings).modes)
    model = options.model or settings.of(ChatSettings).model

    def open_session(workspace: str | None, id: str) -> Session:
        return session_in(wired, workspace or os.getcwd(), id)

    def forget_key() -> None:
        from callgate.features.chat.models.make import delete_key  # lazy: few sign out  # noqa: PLC0415

        try:
            name, table = find_table(model, settings.of(ChatSettings).models, os.environ)
        except ModelError:  # without a model there is no key
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
        models=sorted(settings.of(ChatSettings).models),
        roots=wired.roots,
        forget_key=forget_key,
        latch_s=settings.of(EditorSettings).acp.cancel_latch_s,
        longest_arguments=settings.of(EditorSettings).acp.longest_arguments,
        unstable=options.unstable,
        mcp=servers.load,
        close=close,
    )


class _Servers:
    """The MCP servers of the editor, created on first use."""

    def __init__(self, wired: Wired) -> None:
        self._wired = wired
        self._opened: WiredEditorServers | None = None

    async def load(self) -> OpenServers:
        make = await asyncio.to_thread(_editor_servers)
        if self._opened is None:
            self._opened = make(self._wired, self._wired.settings.of(EditorSettings).acp.mcp)
        servers: WiredEditorServers = self._opened
        return servers.open

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()


def _editor_servers() -> type[WiredEditorServers]:
    from callgate.features.mcp.session_servers import (  # lazy: few sessions name servers  # noqa: PLC0415
        WiredEditorServers,
    )

    return WiredEditorServers


def _first(modes: tuple[Mode, ...], requested: str | None, default: Mode) -> Mode:
    """Return the initial mode of sessions: the requested mode, or the enabled mode nearest to the
    default.
    """
    if requested is None:
        return nearest(modes, default)
    if requested not in modes:
        raise RpcError(
            INVALID_PARAMS, f"--mode {requested}: the settings allow {', '.join(modes)} in editors"
        )
    return Mode(requested)


def session_in(wired: Wired, workspace: str, id: str) -> Session:
    """Return a session for an editor. Raises `RpcError` or `ToolError` with the reason if it
    fails.
    """
    try:
        session = wired.session(workspace)
    except SettingsError as error:
        raise RpcError(INTERNAL_ERROR, str(error), {"reason": "settings_invalid"}) from error
    except OSError as error:
        message = f"{workspace} cannot be used: {error.strerror or error}"
        raise ToolPermissionDenied(message, reason="workspace_gone") from error
    session.id = id
    return session
