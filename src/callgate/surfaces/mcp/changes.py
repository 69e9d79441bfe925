"""Telling clients that something changed: their tools, their prompts, a resource that they watch.

A client of the first generation hears it on its own stream, one of the second on the streams
that it opened for it (`subscriptions/listen`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import mcp_types as types
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.subscriptions import event_to_notification

from callgate.surfaces.mcp.client_sessions import ClientSessions

_S = 5.0
"""How long one client may take to hear of something."""


class Changes:
    def __init__(
        self,
        client_sessions: ClientSessions,
        start_task: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`own` sees work through to its end."""
        self._client_sessions = client_sessions
        self._start_task = start_task
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(self._bus)

    def tools(self) -> None:
        self._start_task(self._tell(ToolsListChanged()))

    def prompts(self) -> None:
        self._start_task(self._tell(PromptsListChanged()))

    def resources(self) -> None:
        self._start_task(self._tell(ResourcesListChanged()))

    def updated(self, uri: str) -> None:
        self._start_task(self._tell(ResourceUpdated(uri=uri)))

    def close(self) -> None:
        self.listen.close()

    async def _tell(self, event: ServerEvent) -> None:
        await self._bus.publish(event)
        for client_session in self._client_sessions:
            if client_session.channel is None:
                continue
            if isinstance(event, ResourceUpdated) and event.uri not in client_session.watched:
                continue
            try:
                async with asyncio.timeout(_S):
                    await client_session.channel.send_notification(_legacy(event))
            except TimeoutError:
                pass  # it does not read; it will list again when it wants to know


def _legacy(event: ServerEvent) -> types.ServerNotification:
    return event_to_notification(event, {})
