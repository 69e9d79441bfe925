"""The tools of MCP servers: as each was approved, and how a person approves what it says now.

Nothing is started before a call needs it: what is offered is what a person has approved.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from callgate.core.errors import ToolError
from callgate.core.tools import ToolFactory
from callgate.dispatch.tools.registry import Registry
from callgate.dispatch.tools.sources import OnlyIn, ToolSource
from callgate.protocol.socket_v1.frames import HostEntry
from callgate.redaction.texts import redact
from callgate.sources.mcp.provider import Servers
from callgate.sources.mcp.servers import Server, ServerLocation
from callgate.sources.message_log import LoggedMessage
from callgate.sources.pins import PinDoubt, Pinned
from callgate.sources.proposals import Proposal, hash_of, propose
from callgate.sources.provider_tools import ProvidedTools


class McpTools(ProvidedTools[Server]):
    """The MCP servers of a runtime."""

    def __init__(self, servers: Servers, registry: Registry) -> None:
        super().__init__(servers, registry)
        self.servers = servers
        self._notices: dict[str, str] = {}
        self._looked_at: dict[str, Pinned] = {}
        """What servers said when a person last looked."""

    def _pinned_factories(self, name: str) -> list[ToolFactory]:
        self._notices.pop(name, None)
        try:
            pinned = self.servers.pinned(name)
        except PinDoubt as doubt:
            self._notices[name] = f"brings no tools: {doubt}"
            raise
        if pinned is None:
            self._notices[name] = f"is new: callgate mcp approve {name} looks at its tools"
            return []
        return self.servers.factories_of(name, pinned)

    def _source(self, name: str, source: ToolSource) -> ToolSource:
        only_in = self.servers.only_in(name)
        return source if only_in is None else OnlyIn(source, only_in)

    def notices(self) -> list[str]:
        """What whoever started us should know: servers that brought no tools, and why."""
        self.tools()  # which is when they are read
        notices = self._notices
        return [
            f"MCP server {name} {notices[name]}" for name in self.servers.hosts if name in notices
        ]

    def entry(self, name: str) -> HostEntry:
        found = super().entry(name)
        return msgspec.structs.replace(found, command=[redact(each) for each in found.command])

    def messages(self, name: str) -> Callable[[], list[LoggedMessage]]:
        return self.servers.hosts[name].messages.reader()

    async def look(self, name: str, workspace: str) -> Proposal:
        servers = self.servers
        proposed = await servers.ask(self._known(name), ServerLocation(workspace))
        doubt = servers.doubt(name)
        before = servers.pinned(name) if doubt is None else doubt.pinned
        self._looked_at[name] = proposed
        return propose(
            proposed,
            servers.definitions_of(name, proposed),
            servers.compare(name, before, proposed),
            is_new=before is None and doubt is None,
            doubt=None if doubt is None else doubt.problem,
        )

    async def approve(self, name: str, sha256: str) -> HostEntry:
        proposed = self._looked_at.get(self._known(name))
        if proposed is None or hash_of(proposed) != sha256:
            raise ToolError("It says something else by now: look again.", reason="not_looked_at")
        self.servers.pin(name, proposed)
        self.servers.hosts[name].log.note("approved by a person at the dashboard")
        return await self.renew(name, forget=False)
