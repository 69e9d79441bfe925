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
LABELLED = "session.labelled"
"""A session has read private or untrusted content for the first time."""
LABEL_CLEARED = "session.label_cleared"
"""A person says that this no longer counts."""
LLM_CALLED = "llm.call_started"
LLM_COMPLETED = "llm.call_completed"
LLM_FAILED = "llm.call_failed"
LLM_RETRYING = "llm.call_retrying"
CHAT = "output.chat"
"""What the model said to the user, whole; as it comes, `CHAT_DELTA`, which is not kept."""
CHAT_DELTA = "output.chat_delta"
SPEECH = "output.say"
OPEN_URL = "output.open_url"
PLANNED = "plan.updated"
"""What an agent means to do: the whole list, whenever it changes."""
NOTICE = "turn.notice"
"""What the user must know of a turn that went otherwise than it should."""
DIAGNOSED = "reply.diagnosed"
"""What was wrong with the form of a model's reply."""
COMPACTED = "context.compacted"
EVENTS_LOST = "store.events_lost"
"""Stands for events that could not be kept."""
EVENTS_PRUNED = "store.events_pruned"
"""Stands where an event was that is too old to be kept."""
SETTINGS_RELOADED = "settings.reloaded"
"""The settings' files changed, and what they say now is in force. Of no session."""
SETTINGS_REJECTED = "settings.rejected"
"""They changed and cannot be used: calls with effects are refused. Of no session."""

UNKEPT = frozenset({CHAT_DELTA, SETTINGS_RELOADED, SETTINGS_REJECTED})
"""No store has these: they count for whoever listens."""

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
