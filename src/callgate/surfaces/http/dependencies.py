"""What an instance hands to its HTTP surface. Light to import: most is loaded when it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from callgate.audit.forward import Place
from callgate.core.sessions import Mode, Session
from callgate.protocol.socket_v1.frames import HostEntry
from callgate.runtime import Runtime
from callgate.surfaces.draining import Draining
from callgate.surfaces.http.access import Access
from callgate.surfaces.http.addresses import Names
from callgate.surfaces.http.servers.directory import Servers
from callgate.surfaces.unfinished import Unfinished

if TYPE_CHECKING:  # heavy
    from callgate.agent.agent import Agent
    from callgate.agent.skills import Skills
    from callgate.sources.message_log import LoggedMessage
    from callgate.sources.proposals import Proposal
    from callgate.sources.workers.placing import PooledCalls


class Hosting(Protocol):
    """The hosts of a runtime; `sources.hosts.host_tools.HostedTools` is one."""

    def entries(self) -> list[HostEntry]: ...

    async def renew(self, name: str, *, forget: bool) -> HostEntry:
        """Raises `KeyError`, `ToolError` or `ToolRegistrationError`."""
        ...

    def log_path(self, name: str) -> str:
        """Raises `KeyError`."""
        ...

    def messages(self, name: str) -> Callable[[], list[LoggedMessage]]:
        """Reads the last messages of an MCP server; to be called in a thread. Raises `KeyError`,
        also for what is no MCP server."""
        ...

    async def look(self, name: str, workspace: str) -> Proposal:
        """What a server says now, beside what was approved. Raises `KeyError` or `ToolError`."""
        ...

    async def approve(self, name: str, sha256: str) -> HostEntry:
        """Of what was looked at. Raises `KeyError`, `ToolError` or `ToolRegistrationError`."""
        ...


class Served(NamedTuple):
    """The instance, as it was started."""

    pid: int
    version: str
    started_at: float
    workspaces: list[str]
    mode: Mode
    ceiling: Mode | None
    """Sessions may not have a wider mode than this."""
    model: str | None
    models: list[str]
    home: str
    audit: str
    """Where the records are."""


class Dependencies(NamedTuple):
    runtime: Runtime
    open_session: Callable[[str | None, str], Session]
    open_agent: Callable[[str | None], Agent]
    hosts: Hosting | None
    served: Served
    access: Access
    names: Names
    options: dict[str, Any] = {}
    """For `make_application`."""
    skills: Callable[[], Skills] | None = None
    refresh: Callable[[], None] | None = None
    """Look at the settings and the saved rules at once."""
    unfinished: Unfinished | None = None
    """The bound that other surfaces share."""
    servers: Servers | None = None
    """This server among those that share the store."""
    draining: Draining | None = None
    """Shared with other surfaces, too."""
    workers: Callable[[], PooledCalls] | None = None
    """Remote workers; None: none are taken here."""
    chain: Callable[[], str | None] = lambda: None
    """That of this process in the audit log, whose calls are counted."""
    counted_from: Place | None = None
    """Where in the log they begin; None: where it ends when the first visitor comes."""
