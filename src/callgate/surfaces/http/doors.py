"""What the routes work on: the one door to the runtime, and what the instance says of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from callgate.live_sessions import LiveSessions
from callgate.runtime import Runtime
from callgate.surfaces.http.access import Access
from callgate.surfaces.http.addresses import Names
from callgate.surfaces.http.fanout import Fanout
from callgate.surfaces.http.parts import Hosting, Served
from callgate.workspace.history import History

if TYPE_CHECKING:  # loaded where skills are used
    from callgate.agent.skills import Skills


class Door(NamedTuple):
    runtime: Runtime
    sessions: LiveSessions
    access: Access
    names: Names
    served: Served
    fanout: Fanout
    hosts: Hosting | None
    history: History
    skills: Callable[[], Skills] | None = None
