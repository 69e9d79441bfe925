"""What the routes work with: the runtime, the sessions, and the instance's description."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from callgate.runtime import Runtime
from callgate.surfaces.http.access import Access
from callgate.surfaces.http.addresses import Names
from callgate.surfaces.http.dependencies import Hosting, Served
from callgate.surfaces.http.stream.fanout import Fanout
from callgate.surfaces.live_sessions import LiveSessions
from callgate.workspace.undo.history import History

if TYPE_CHECKING:  # loaded where skills are used
    from callgate.agent.skills import Skills
    from callgate.sources.workers.placing import PooledCalls


class Context(NamedTuple):
    runtime: Runtime
    sessions: LiveSessions
    access: Access
    names: Names
    served: Served
    fanout: Fanout
    hosts: Hosting | None
    history: History
    skills: Callable[[], Skills] | None = None
    workers: Callable[[], PooledCalls] | None = None
    """Remote workers; None: none are taken here."""
