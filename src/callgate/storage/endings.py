"""Events that the store itself makes: for those who are gone, and for what is lost."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from callgate.core.errors import ToolErrorClass
from callgate.core.events import EVENTS_LOST, FAILED, Event
from callgate.core.ids import ulid
from callgate.core.stored import StoredCall
from callgate.storage.encoding import decode_event

INTERRUPTED = "interrupted"

_log = logging.getLogger("callgate.store")


def interruption(call: StoredCall, at: float) -> Event:
    """The end of a call that had started when its process went away."""
    return failure(
        call,
        ToolErrorClass.EXECUTION_ERROR,
        "The process that ran the call ended before the call did; what it did is not known.",
        at,
        reason=INTERRUPTED,
    )


def failure(
    call: StoredCall,
    error_class: ToolErrorClass,
    message: str,
    at: float,
    reason: str | None = None,
) -> Event:
    payload: dict[str, Any] = {
        "tool_name": call.tool,
        "error_class": error_class,
        "message": message,
        "error_message": message,
        "latency_ms": 0.0,
        "tool_use_id": call.tool_use_id,
        "call_id": call.id,
    }
    if reason is not None:
        payload["reason"] = reason
    return system_event(call.session_id, call, FAILED, payload, at)


def system_event(
    session: str, call: StoredCall | None, type: str, payload: Mapping[str, Any], at: float
) -> Event:
    return Event(
        id=ulid(),
        timestamp=at,
        session_id=session,
        turn_id=call.turn_id if call is not None else None,
        parent_event_id=call.called if call is not None else None,
        type=type,
        actor="tool" if type == FAILED else "system",
        payload=payload,
    )


def event_of(text: str, session: str, seq: int) -> Event:
    """An event from its text; where that is damaged, one that says so, in its place."""
    try:
        return decode_event(text)
    except msgspec.DecodeError:
        _log.error("event %d of session %s is damaged", seq, session)
        return lost_event(session, f"{session}.{seq}", 1)


def lost_event(session: str, id: str, missed: int) -> Event:
    """Stands where events were that cannot be read any more."""
    return Event(
        id=id,
        timestamp=0.0,
        session_id=session,
        type=EVENTS_LOST,
        actor="system",
        payload={"missed": missed},
    )
