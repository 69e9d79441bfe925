"""`/mcp` before anybody spoke MCP: nothing is loaded until somebody does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from callgate.core.errors import ToolErrorClass
from callgate.core.task_sets import start_task
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.problems import Problem, draining
from callgate.surfaces.http.responses import HttpResponse, problem_response, respond

if TYPE_CHECKING:  # heavy
    from callgate.surfaces.mcp.http import Endpoint

MCP = "/mcp"
_SESSION = b"mcp-session-id"
_log = logging.getLogger("callgate.http")


class McpEndpoint:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._opening: asyncio.Task[Endpoint] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._context.draining.has_begun and not _has_session(scope):
            await respond(problem_response(draining()), scope, receive, send)
            return
        if self._opening is None:
            self._opening = start_task(self._open())
        try:
            endpoint = await asyncio.shield(self._opening)
        except ImportError:
            missing = "The package mcp is not installed here: pip install 'mcp>=2.3'."
            await respond(_unavailable(missing), scope, receive, send)
            return
        except Exception:  # the instance goes on without it
            _log.exception("MCP could not be started")
            broken = "MCP could not be started; the log says why."
            await respond(_unavailable(broken), scope, receive, send)
            return
        await endpoint(scope, receive, send)

    async def _open(self) -> Endpoint:
        open_endpoint, context = await asyncio.to_thread(_load), self._context
        return await open_endpoint(
            context.runtime,
            context.sessions,
            home=context.served.home,
            widest=context.served.mode,
            skills=context.skills,
        )

    async def close(self) -> None:
        """Idempotent."""
        if self._opening is None:
            return
        if not self._opening.done():
            self._opening.cancel()
        await asyncio.wait([self._opening])
        if not self._opening.cancelled() and self._opening.exception() is None:
            await self._opening.result().close()


def _has_session(scope: Scope) -> bool:
    """Whether the request belongs to a session, whose calls may wait for what it brings."""
    return any(key == _SESSION for key, _ in scope["headers"])


def _unavailable(message: str) -> HttpResponse:
    problem = Problem(503, ToolErrorClass.EXECUTION_ERROR, message, "mcp_unavailable")
    return problem_response(problem)


def _load() -> Callable[..., Awaitable[Endpoint]]:
    """In a thread: it takes long, and the event loop goes on meanwhile."""
    from callgate.surfaces.mcp.http import open_endpoint  # lazy: heavy  # noqa: PLC0415

    return open_endpoint
