"""What the routes work with: the runtime, the sessions, and the instance's description."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from callgate.runtime import Runtime
from callgate.surfaces.draining import Draining
from callgate.surfaces.http.access import Access
from callgate.surfaces.http.addresses import Names
from callgate.surfaces.http.dependencies import Hosting, Served
from callgate.surfaces.http.readiness import Readiness
from callgate.surfaces.http.servers.carrying import Carrier
from callgate.surfaces.http.servers.directory import Servers
from callgate.surfaces.http.stream.delta_streams import DeltaStream
from callgate.surfaces.http.stream.fanout import Fanout
from callgate.surfaces.http.stream.remote_deltas import RemoteDeltas
from callgate.surfaces.live_sessions import LiveSessions
from callgate.workspace.undo.history import History

if TYPE_CHECKING:  # loaded where skills are used
    from callgate.agent.skills import Skills
    from callgate.sources.workers.placing import PooledCalls
    from callgate.telemetry.prometheus import CallMetrics


class Context(NamedTuple):
    runtime: Runtime
    sessions: LiveSessions
    access: Access
    names: Names
    served: Served
    fanout: Fanout
    hosts: Hosting | None
    history: History
    draining: Draining
    readiness: Readiness
    skills: Callable[[], Skills] | None = None
    servers: Servers | None = None
    """This server among those that share the store; None: it is not announced."""
    carrier: Carrier | None = None
    deltas: RemoteDeltas | None = None
    """What is not kept, of sessions that other servers own."""
    delta_streams: dict[str, DeltaStream] = {}
    """What other servers read of that here, by id."""
    workers: Callable[[], PooledCalls] | None = None
    """Remote workers; None: none are taken here."""
    metrics: CallMetrics | None = None
