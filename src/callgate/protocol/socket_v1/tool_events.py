"""What a running call reports, in the four kinds of the socket protocol, and parts of hosts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from callgate.core import events
from callgate.core.events import Event
from callgate.protocol.socket_v1.frames import (
    Artifact,
    Happened,
    Happening,
    Log,
    Part,
    PartialText,
    Progress,
)

HAPPENINGS = frozenset(
    {events.PROGRESS, events.OUTPUT_DELTA, "tool.log", "tool.part", "tool.artifact"}
)
"""The types of events that say something to the caller."""
_LEVELS = {"debug": "debug", "info": "info", "warn": "warn", "warning": "warn", "error": "error"}


def happening(event: Event) -> Happening | None:
    """The event as its caller is told of it; None if it says nothing to that caller."""
    payload = event.payload
    match event.type:
        case events.PROGRESS:
            return Progress(
                message=_text(payload, "message"), fraction=_fraction(payload.get("fraction"))
            )
        case events.OUTPUT_DELTA:
            text = _text(payload, "text") or ""
            return PartialText(text=text, stream=_text(payload, "stream"))
        case "tool.log":
            level = _LEVELS.get(str(payload.get("level")), "info")
            return Log(level=level, message=_text(payload, "message") or "")
        case "tool.part":  # a piece of a host's result, of any shape
            return Part(part=payload.get("payload"))
        case "tool.artifact":
            return _artifact(payload)
    return None


def happened(event: Event) -> Happened:
    """The event as a subscriber sees it."""
    return Happened(
        id=event.id,
        timestamp=event.timestamp,
        session_id=event.session_id,
        turn_id=event.turn_id,
        parent_event_id=event.parent_event_id,
        type=event.type,
        actor=event.actor,
        payload=dict(event.payload),
        sensitivity=event.sensitivity,
    )


def _artifact(payload: Mapping[str, Any]) -> Artifact:
    return Artifact(
        mime_type=_text(payload, "mime_type") or "application/octet-stream",
        name=_text(payload, "name"),
        data_base64=_text(payload, "data_base64"),
        path=_text(payload, "path"),
    )


def _text(payload: Mapping[str, Any], key: str) -> str | None:
    value = payload.get(key)
    return value if value is None or isinstance(value, str) else str(value)


def _fraction(value: Any) -> float | None:
    """Tools count past the end and divide by zero; a reader relies on 0 to 1."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return min(max(float(value), 0.0), 1.0)
