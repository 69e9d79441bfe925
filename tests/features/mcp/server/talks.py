"""A server in the loop of the test, and the official SDK's client of either generation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.client.client import Client

from callgate import ToolContext, tool
from callgate.config.home import Home
from callgate.core.sessions import Mode, Session
from callgate.features.mcp.server.local import local_server
from callgate.features.mcp.server.server import McpServer
from callgate.instance.wiring.builder import register_own
from callgate.instance.wiring.runtime import Wired

LIMIT_S = 60.0
GENERATIONS = ("legacy", "2026-07-28")


class World:
    def __init__(self, directory: Path, mode: Mode) -> None:
        self.home, self.workspace = directory / "home", directory / "workspace"
        self.home.mkdir(mode=0o700, exist_ok=True)
        self.workspace.mkdir(exist_ok=True)
        self.wired = Wired(Home(str(self.home)))
        register_own(self.wired)
        self.session: Session = self.wired.session(str(self.workspace), mode)
        self.did: list[str] = []
        self.started = asyncio.Event()
        self.stopped = asyncio.Event()
        self.server: McpServer
        for each in self._tools():
            self.wired.register(each)

    def _tools(self) -> Sequence[Callable[..., Any]]:
        @tool(side_effects="write", requires_workspace=False)
        async def put(what: str) -> str:
            """Put something down: asked about in mode ask."""
            self.did.append(what)
            return f"put {what}"

        @tool(side_effects="none")
        async def wait(context: ToolContext) -> str:
            """Wait until it is stopped."""
            self.started.set()
            try:
                await context.cancel_event.wait()
            finally:
                self.stopped.set()
            return "stopped"

        @tool(side_effects="none")
        async def count(context: ToolContext) -> dict[str, int]:
            """Count to three, and say so."""
            context.progress("one", 0.25)
            context.output("two\n")
            await asyncio.sleep(0)
            context.progress("three", 0.75)
            context.logger.debug("quietly")
            context.logger.warning("loudly")
            return {"counted": 3}

        return put, wait, count

    def client(self, generation: str, **more: Any) -> Client:
        return Client(self.server.sdk, mode=generation, cache=None, **more)


@asynccontextmanager
async def world(directory: Path, mode: Mode = Mode.WRITE, **options: Any) -> AsyncIterator[World]:
    made = World(directory, mode)
    made.server = local_server(
        made.wired.runtime,
        made.session,
        home=str(made.home),
        skills=lambda: made.wired.skills,
        **options,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            yield made
    finally:
        await made.server.close()
        await made.wired.close()


def texts(result: types.CallToolResult) -> list[str]:
    return [each.text for each in result.content if isinstance(each, types.TextContent)]


def answers(decision: str, seen: list[str] | None = None) -> Any:
    """A person at the client who decides like this."""

    async def fill(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        if seen is not None:
            seen.append(params.message)
        if decision in ("decline", "cancel"):
            return types.ElicitResult.model_validate({"action": decision})
        return types.ElicitResult(action="accept", content={"decision": decision})

    return fill
