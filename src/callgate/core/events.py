"""What happened, for whoever wants to know: one envelope for every event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

Actor = Literal["user", "agent", "system", "tool", "worker"]
Sensitivity = Literal["private", "user_controlled", "pseudonymous", "aggregatable"]

CALLED = "tool.called"
COMPLETED = "tool.completed"
FAILED = "tool.failed"
INPUT_INVALID = "tool.input_invalid"
CONFIRMATION_REQUESTED = "tool.confirmation_requested"
CONFIRMATION_RESOLVED = "tool.confirmation_resolved"
OUTPUT_DELTA = "tool.output_delta"
PROGRESS = "tool.progress"
EFFECT_MISMATCH = "tool.effect_mismatch"
"""A tool did, or tried to do, more than it declares."""

SESSION_CREATED = "session.created"
SESSION_RESUMED = "session.resumed"
TURN_STARTED = "turn.started"
TURN_COMPLETED = "turn.completed"
TURN_CANCELLED = "turn.cancelled"
MODE_CHANGED = "mode.changed"
EVENTS_LOST = "store.events_lost"
"""Stands for events that could not be kept."""

TERMINAL = frozenset({COMPLETED, FAILED, INPUT_INVALID})
"""Every call ends in exactly one of these."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """A ULID: sorts in the order of emission within a process."""
    timestamp: float
    """Seconds since 1970, UTC, to the microsecond."""
    session_id: str
    turn_id: str | None = None
    parent_event_id: str | None = None
    type: str
    actor: Actor
    payload: Mapping[str, Any]
    sensitivity: Sensitivity = "private"


class EventSink(Protocol):
    """Where events go. `emit` never waits and never raises."""

    def emit(self, event: Event) -> None: ...
