"""What the ACP surface is given to work with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from callgate.agent.skills import Skills
from callgate.core.sessions import Mode, Root
from callgate.live_sessions import LiveSessions
from callgate.runtime import Runtime


class Parts(NamedTuple):
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
    unstable: bool
    close: Callable[[], Awaitable[None]]
    """Let go of the runtime."""
