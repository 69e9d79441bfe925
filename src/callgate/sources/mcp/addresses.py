"""An MCP server that is reached by an address: its headers, and how we log in there."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from callgate.core.mcp_servers import McpTable, OAuthTable
from callgate.sources.logs import LifeLog
from callgate.sources.mcp.programs import Fill, from_environment
from callgate.sources.mcp.servers import ServerLocation, TransportFactory

if TYPE_CHECKING:  # it loads the SDK
    from callgate.sources.mcp.logins import TokenStore

Login = Callable[[str], None]
"""Sends a person to an address in a browser."""


def reach_address(
    table: McpTable,
    name: str,
    tokens: TokenStore,
    login: Login | None = None,
    fill: Fill = from_environment,
) -> TransportFactory:
    """Without `login`, nobody is there to log in."""

    async def reach(location: ServerLocation, log: LifeLog) -> Callable[[], Any]:
        headers = fill("headers", table.headers)
        from callgate.sources.mcp.http import transport  # lazy: with the SDK, which is heavy  # noqa: PLC0415

        auth = None
        if table.oauth is not False and "authorization" not in map(str.lower, headers):
            from callgate.sources.mcp.logins import provider  # lazy: with the SDK, which is heavy  # noqa: PLC0415

            oauth = table.oauth if isinstance(table.oauth, OAuthTable) else OAuthTable()
            secret = oauth.client_secret_env
            auth = provider(
                name,
                str(table.url),
                tokens,
                show=login,
                scopes=tuple(oauth.scopes),
                client_id=oauth.client_id,
                client_secret=None if secret is None else os.environ.get(secret),
                client_metadata_url=oauth.client_metadata_url,
                port=oauth.port,
            )
        return lambda: transport(
            str(table.url), headers, auth, login_hosts=tuple(table.login_hosts)
        )

    return reach
