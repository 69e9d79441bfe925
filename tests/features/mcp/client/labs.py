"""A runtime with MCP servers that were approved, for tests of what goes on between them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from callgate.config.home import Home
from callgate.config.load import load_user
from callgate.core.calls import CallerKind, ToolCall, ToolResult
from callgate.core.events import Event
from callgate.core.sessions import Mode, Session
from callgate.features.mcp.client.server_tools import Servers
from callgate.features.mcp.client.servers import Server, ServerLocation
from callgate.features.mcp.wiring import make_servers
from callgate.instance.wiring.builder import register_known
from callgate.instance.wiring.runtime import Wired
from callgate.sources.pins import Pinned

ODD = Path(__file__).with_name("odd_server.py")
_said: dict[tuple[str, ...], Pinned] = {}
"""What servers say who say the same each time: they are asked once in a run."""


def stdio(*arguments: str) -> str:
    """The keys of a table that starts the odd server."""
    args = json.dumps(["-I", str(ODD), *arguments])
    return f'command = "{sys.executable}"\nargs = {args}\n'


class Lab:
    """Without a sandbox: what is around a process is tested elsewhere."""

    def __init__(self, base: Path, *arguments: str, more: str = "", settings: str | None = None) -> None:
        self.home, self.ws = base / "h", base / "ws"
        self.home.mkdir(mode=0o700)
        self.ws.mkdir()
        said = settings or f'[mcp.odd]\n{stdio(*arguments)}effect = "read"\n{more}'
        (self.home / "settings.toml").write_text(f'sandbox = "off"\n{said}')
        self.events: list[Event] = []
        self._heard = asyncio.Event()

    async def __aenter__(self) -> Lab:
        self.wired = Wired(Home(str(self.home)))
        await self.approve()
        register_known(self.wired, str(self.ws))
        self.wired.runtime.sessions.listen(self._hear)
        self.session = self.wired.session(str(self.ws))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.wired.close()

    async def approve(self) -> None:
        """Pin what every server says now."""
        servers = self.servers()
        try:
            for name in servers.hosts:
                command = servers.command(name)
                if command not in _said:
                    said = await servers.ask(name, ServerLocation(str(self.ws)))
                    if "--file" in command:
                        servers.pin(name, said)
                        continue
                    _said[command] = said
                servers.pin(name, _said[command])
        finally:
            await servers.close()

    def servers(self) -> Servers:
        """Those of the settings as they are written now, beside those of the runtime."""
        home = Home(str(self.home))
        return make_servers(home, load_user(home)[0], self.wired.sandbox, str(self.ws))

    @property
    def server(self) -> Server:
        assert self.wired.mcp is not None
        return self.wired.mcp.servers.hosts["odd"]

    def call(self, tool: str, session: Session | None = None, timeout_s: float = 20.0, **arguments: Any) -> Any:
        return self.wired.runtime.calls.run(
            ToolCall(
                tool=f"mcp.odd/{tool}",
                arguments=arguments,
                session=session or self.session,
                caller=CallerKind.CLI,
                timeout_s=timeout_s,
            )
        )

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._heard.set()

    async def seen(self, kind: str) -> None:
        """Wait for an event."""
        async with asyncio.timeout(60):
            while not self.of(kind):
                self._heard.clear()
                await self._heard.wait()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [dict(event.payload) for event in self.events if event.type == kind]

    def other_session(self, workspace: Path | None = None, mode: Mode | None = None) -> Session:
        return self.wired.session(str(workspace or self.ws), mode)


def refusal(result: ToolResult) -> tuple[str, str | None]:
    assert result.error is not None
    return result.error.error_class, result.error.reason
