"""What the store itself makes: events and records for those who are gone, and for what is lost."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from callgate.audit.records import CallRecord
from callgate.core.errors import DENIALS, ToolErrorClass
from callgate.core.events import EVENTS_LOST, FAILED, Event
from callgate.core.ids import ulid
from callgate.core.stored import CallState, OutboxRecord, StoredCall
from callgate.storage.encoding import decode_event, encode
from callgate.storage.views import View

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


def record_of(call: StoredCall, event: Event, view: View) -> OutboxRecord:
    """Make the record of a call that ended with a `failure`. No log has a line of it; whoever
    writes the line replaces the hash of the arguments by a keyed one."""
    error_class = event.payload["error_class"]
    refused = call.called is None and error_class in DENIALS
    record = CallRecord(
        id=f"audit_{event.id}",
        ts=int(event.timestamp * 1000),
        caller=call.caller,
        principal=call.principal,
        tool=call.tool,
        decision="deny" if refused else "allow",
        call_id=call.id,
        session=call.session_id,
        cwd=view.session(call.session_id).workspace,
        args=call.summary,
        args_hash=call.arguments_sha256 or None,
        result=event.payload["message"],
        error_class=error_class,
        reason=event.payload.get("reason"),
        side_effects=call.side_effects,
        confirmation_id=call.confirmation,
        turn_id=call.turn_id,
        called=call.called,
        tool_use_id=call.tool_use_id if call.tool_use_id != call.id else None,
    )
    return OutboxRecord(call_id=call.id, owner="", record=encode(record))


def started_call(called: Event, owner: str = "") -> StoredCall:
    """What the event with which a call started says of it."""
    payload = called.payload
    return StoredCall(
        id=str(payload.get("call_id") or payload.get("tool_use_id")),
        session_id=called.session_id,
        state=CallState.RUNNING,
        owner=owner,
        tool=str(payload.get("tool_name", "")),
        tool_use_id=str(payload.get("tool_use_id", "")),
        turn_id=called.turn_id,
        side_effects=payload.get("side_effects"),
        arguments_sha256=str(payload.get("input_hash", "")),
        called=called.id,
    )


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
