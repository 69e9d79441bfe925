"""The MCP servers that editors name for their sessions: which of them are started, and how.

    session/new -> `EditorServers.open` -> `SessionServers`

What an editor names is what its user has set up there, so it may start: in the sandbox, as far as
`[acp.mcp]` lets it reach. Nobody has approved its tools: each can do the worst that there is,
whatever it says of itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from callgate.core.errors import ToolError
from callgate.core.mcp_servers import EnclosureTable, McpTable, name_for
from callgate.core.sessions import Session
from callgate.dispatch.tools.registry import Registry
from callgate.protocol.acp.requests import McpServer
from callgate.sources.mcp.asks import Asks
from callgate.sources.mcp.server_settings import ServerBuilder
from callgate.sources.mcp.servers import ServerSettings
from callgate.sources.mcp.session_servers import SessionServers, Tell

MOST_SERVERS = 32


class EditorServers:
    """Those of all sessions of one runtime."""

    def __init__(
        self,
        build: ServerBuilder,
        around: EnclosureTable,
        configured: Callable[[str], Collection[str]],
        registry: Registry,
        asks: Asks,
    ) -> None:
        """`configured`: the names of the servers that the settings have in a workspace."""
        self._build = build
        self._around = around
        self._configured = configured
        self._registry = registry
        self._asks = asks
        self._open: set[SessionServers] = set()
        self._closed = False

    def open(self, session: Session, wanted: Sequence[McpServer], tell: Tell) -> SessionServers:
        """Begin to start servers for a session; `tell` hears what its user should know."""
        if self._closed:
            raise ToolError("The agent is being closed.")
        chosen: dict[str, ServerSettings] = {}
        taken = self._configured(session.workspace)
        for each in wanted[:MOST_SERVERS]:
            name = name_for(each.name)
            problem = "another one is called the same" if name in chosen else None
            if name in taken:
                problem = "your settings have one of this name, which is used instead"
            try:
                if problem is None:
                    chosen[name] = self._server(name, each)
            except ValueError as error:
                problem = str(error)
            if problem is not None:
                tell(f"MCP server {name} of the editor is left out: {problem}.")
        if len(wanted) > MOST_SERVERS:
            tell(f"Of the editor's MCP servers only {MOST_SERVERS} are used.")
        servers = SessionServers(session, chosen.values(), self._registry, self._asks, tell)
        self._open.add(servers)
        servers.when_closed = lambda: self._open.discard(servers)
        return servers

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(each.close() for each in list(self._open)))

    def _server(self, name: str, wanted: McpServer) -> ServerSettings:
        """Raises `ValueError` with what is wrong."""
        table = self._table(wanted)
        if (problem := table.problem()) is not None:
            raise ValueError(f"its {problem[0]} {problem[1]}")
        return self._build.session_settings(name, table)

    def _table(self, wanted: McpServer) -> McpTable:
        if wanted.type == "sse":
            raise ValueError("it speaks the old SSE transport, which we do not")
        if wanted.type not in ("stdio", "http") and wanted.command is None:
            raise ValueError("it is reached in a way that we do not know")
        if wanted.type == "http":
            headers = {each.name: each.value for each in wanted.headers or ()}
            return McpTable(url=wanted.url, headers=headers, oauth=False)
        env = {each.name: each.value for each in wanted.env or ()}
        if any(not name or "=" in name or "\0" in name + value for name, value in env.items()):
            raise ValueError("one of its variables cannot be set")
        return McpTable(
            command=wanted.command,
            args=wanted.args or [],
            set_env=env,
            network=self._around.network,
            profile=self._around.profile,
            writable=self._around.writable,
        )
