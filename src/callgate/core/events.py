"""Events: types, envelope and sink."""

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
"""A person cleared a label of the session."""
LLM_CALLED = "llm.call_started"
LLM_COMPLETED = "llm.call_completed"
LLM_FAILED = "llm.call_failed"
LLM_RETRYING = "llm.call_retrying"
CHAT = "output.chat"
"""A complete text of the model for the user. It arrives in pieces as `CHAT_DELTA`, which is not
stored.
"""
CHAT_DELTA = "output.chat_delta"
SPEECH = "output.say"
OPEN_URL = "output.open_url"
PLANNED = "plan.updated"
"""The plan of an agent: the whole list, after each change."""
NOTICE = "turn.notice"
"""A message for the user about a turn that did not run as expected."""
DIAGNOSED = "reply.diagnosed"
"""A problem with the form of a model's reply."""
COMPACTED = "context.compacted"
EVENTS_LOST = "store.events_lost"
"""Replaces events that could not be stored."""
EVENTS_PRUNED = "store.events_pruned"
"""Replaces an event that was pruned because of its age."""
SETTINGS_RELOADED = "settings.reloaded"
"""The settings files changed, and the new settings are active. Not part of a session."""
SETTINGS_REJECTED = "settings.rejected"
"""The changed settings cannot be used: calls with effects are refused. Not part of a session."""

UNKEPT = frozenset({CHAT_DELTA, SETTINGS_RELOADED, SETTINGS_REJECTED})
"""Event types that no store has: only current listeners receive them."""

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
    """Receiver of events. `emit` never waits and never raises."""

    def emit(self, event: Event) -> None: ...
