"""MCP servers outside of a runtime: started once to be approved, and their packages updated.

Both functions are to be called where no event loop runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from callgate.core.errors import ToolError
from callgate.core.mcp_servers import McpTable
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.sources.logs import LifeLog
from callgate.sources.mcp.programs import argv_of, server_environment
from callgate.sources.mcp.provider import Servers
from callgate.sources.mcp.servers import ServerLocation
from callgate.sources.packages.server_packages import ServerPackages
from callgate.sources.pins import Pinned


def ask_servers(
    servers: Servers, sandbox: Sandbox, workspace: str, names: Collection[str]
) -> Mapping[str, Pinned | ToolError]:
    """Start these servers, side by side: what each says of itself, or why it says nothing. Pins
    nothing. Closes both."""
    if not names:
        return {}

    async def ask_one(name: str) -> Pinned | ToolError:
        try:
            return await servers.ask(name, ServerLocation(workspace))
        except ToolError as error:
            return error

    async def ask_all() -> Mapping[str, Pinned | ToolError]:
        await sandbox.ready()
        try:
            answers = await asyncio.gather(*map(ask_one, names))
        finally:
            await servers.close()
            sandbox.close()
        return dict(zip(names, answers, strict=True))

    return asyncio.run(ask_all())


def update_server_packages(
    table: McpTable, packages: ServerPackages, sandbox: Sandbox, log: LifeLog, workspace: str
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Fetch the newest packages of a server: the versions before, and now. Closes `sandbox` and
    `log`. Raises a `ToolError` or OSError."""

    async def update() -> tuple[Mapping[str, str], Mapping[str, str]]:
        await sandbox.ready()
        try:
            env = server_environment(table)
            found = await packages.update(argv_of(table), env, log, [workspace])
        finally:
            sandbox.close()
            log.close()
        if found is None:
            raise ToolError("its packages are not fetched by us")
        return found

    return asyncio.run(update())
