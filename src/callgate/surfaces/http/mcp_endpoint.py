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
from callgate.surfaces.http.encoding import encode
from callgate.surfaces.http.problems import Problem

if TYPE_CHECKING:  # heavy
    from callgate.surfaces.mcp.http import Endpoint

MCP = "/mcp"
_log = logging.getLogger("callgate.http")


class McpEndpoint:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._opening: asyncio.Task[Endpoint] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._opening is None:
            self._opening = start_task(self._open())
        try:
            endpoint = await asyncio.shield(self._opening)
        except ImportError:
            await _refuse(send, "The package mcp is not installed here: pip install 'mcp>=2.3'.")
            return
        except Exception:  # the instance goes on without it
            _log.exception("MCP could not be started")
            await _refuse(send, "MCP could not be started; the log says why.")
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


async def _refuse(send: Send, message: str) -> None:
    problem = Problem(503, ToolErrorClass.EXECUTION_ERROR, message, "mcp_unavailable")
    body = encode(problem.body)
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": problem.status, "headers": head})
    await send({"type": "http.response.body", "body": body})


def _load() -> Callable[..., Awaitable[Endpoint]]:
    """In a thread: it takes long, and the event loop goes on meanwhile."""
    from callgate.surfaces.mcp.http import open_endpoint  # lazy: heavy  # noqa: PLC0415

    return open_endpoint
