"""What the ACP surface is given to work with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from callgate.agent.skills import Skills
from callgate.core.sessions import Mode, Root, Session
from callgate.protocol.acp.requests import McpServer
from callgate.runtime import Runtime
from callgate.surfaces.live_sessions import LiveSessions


class Servers(Protocol):
    """The MCP servers that an editor named for one session, from their start to their end."""

    async def settled(self) -> None:
        """Wait a little for those that are being started."""
        ...

    def hurry(self) -> None:
        """Nobody wants to wait any more."""
        ...

    async def close(self) -> None: ...


OpenServers = Callable[[Session, Sequence[McpServer], Callable[[str], None]], Servers]
"""Begins to start them, and hands on what the user should know of them."""


class Dependencies(NamedTuple):
    runtime: Runtime
    sessions: LiveSessions
    skills: Skills
    modes: tuple[Mode, ...]
    """Those that may be chosen, from the narrowest to the widest."""
    mode: Mode
    """In which sessions begin."""
    model: str | None
    """The usual one, or the one that was asked for."""
    models: list[str]
    """Those that the settings name."""
    roots: Callable[[], tuple[Root, ...]]
    """What the settings grant beside every workspace."""
    forget_key: Callable[[], None]
    """Delete the stored key of the usual model."""
    latch_s: float
    """How long a cancel that met no turn holds for the next one."""
    longest_arguments: int
    """Characters of arguments that a question may show."""
    unstable: bool
    mcp: Callable[[], Awaitable[OpenServers]]
    """Load what it takes to have MCP servers in a session."""
    close: Callable[[], Awaitable[None]]
    """Let go of the runtime."""
