"""Changes of sessions that the store makes itself: endings, cut sessions and forks.

    Reap, Acquire ---> CutSession ---(the owner's audit lines are read)---> CloseCutCalls

The store writes events and records for owners that are gone and for data that is lost. A session
whose owner died is cut: its calls without effects end after its audit lines were read. Such a call
has no row. Its start is an event; its end may be in the audit log only, because the line is written
before the caller gets its answer, and the events follow. A fork copies a session up to a turn.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.audit.records import CallRecord
from callgate.core.errors import DENIALS, ToolErrorClass
from callgate.core.events import CALLED, EVENTS_LOST, FAILED, TERMINAL, Event
from callgate.core.ids import ulid
from callgate.core.ops import AppendMessages, CloseCutCalls, Fork
from callgate.core.stored import (
    CallState,
    CutSession,
    OutboxRecord,
    StoredCall,
    StoredMessage,
    StoredSession,
)
from callgate.storage.encoding import decode, decode_event, encode
from callgate.storage.views import MessageRow, View

INTERRUPTED = "interrupted"

_log = logging.getLogger("callgate.store")


def interruption(call: StoredCall, at: float) -> Event:
    """The failure of a call that had started when its process died."""
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
    """Build the record of a call that ended with a `failure` and has no line in an audit log. The
    writer of the line replaces the hash of the arguments by a keyed hash."""
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
    """Return the facts about a call in its start event."""
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
    """Decode an event; if its text is damaged, return an event that reports that."""
    try:
        return decode_event(text)
    except msgspec.DecodeError:
        _log.error("event %d of session %s is damaged", seq, session)
        return lost_event(session, f"{session}.{seq}", 1)


def lost_event(session: str, id: str, missed: int) -> Event:
    """Event in place of unreadable ones."""
    return Event(
        id=id,
        timestamp=0.0,
        session_id=session,
        type=EVENTS_LOST,
        actor="system",
        payload={"missed": missed},
    )


def mark_cut(view: View, session: StoredSession, owner: str) -> None:
    """Mark a session as cut, because its owner is dead."""
    if session.last_seq == session.acquired_seq:
        return
    known = view.get(CutSession, session.id)
    cut = CutSession(
        session_id=session.id,
        owners=(owner,) if known is None else (*known.owners, owner),
        after=session.acquired_seq if known is None else known.after,
        upto=session.last_seq,
    )
    view.put(cut)


def close_cut_calls(op: CloseCutCalls, view: View) -> tuple[str, ...]:
    cut = view.get(CutSession, op.session)
    if cut is None:
        return ()
    if op.owners is not None:
        unread = tuple(owner for owner in cut.owners if owner not in op.owners)
        if unread:
            if unread != cut.owners:
                view.put(replace(cut, owners=unread))
            return ()
    closed = []
    for call in _open_calls(view, cut).values():
        event = interruption(call, op.at)
        view.append(op.session, (event,))
        view.put(record_of(call, event, view))
        closed.append(call.id)
    view.remove(cut)
    view.touch(op.session)
    return tuple(closed)


def _open_calls(view: View, cut: CutSession) -> dict[str, StoredCall]:
    """Return the calls without a row that dead owners started and that have no end."""
    found: dict[str, StoredCall] = {}
    ended: set[str] = set()
    """Calls with an end event, which may precede the start event after a disk failure."""
    for seq, text in view.events(cut.session_id, cut.after):
        if '"type":"tool.' not in text:
            continue
        event = event_of(text, cut.session_id, seq)
        if event.type == CALLED and seq <= cut.upto:
            call = started_call(event, cut.owners[-1])
            found[call.id] = call
        elif event.type in TERMINAL:
            ended.add(str(event.payload.get("call_id") or event.payload.get("tool_use_id")))
    return {
        id: call
        for id, call in found.items()
        if id not in ended and view.get(StoredCall, id) is None
    }


def append_messages(op: AppendMessages, view: View) -> tuple[int, ...]:
    session = view.session(op.session)
    last, seqs = session.messages, []
    for message in op.messages:
        known = view.get(MessageRow, message.id)
        if known is None:
            last += 1
            known = MessageRow(message.id, op.session, last, encode(message))
            view.put(known)
        elif known.session_id != op.session:
            raise ValueError(f"message {message.id} is in another session")
        seqs.append(known.seq)
    if last != session.messages:
        at = max(session.updated_at, op.at)
        view.put(replace(session, messages=last, updated_at=at))
    return tuple(seqs)


def fork(op: Fork, view: View) -> StoredSession:
    source = view.session(op.session)
    known = view.get(StoredSession, op.new)
    if known is not None:
        if known.forked_from != op.session:
            raise ValueError(f"session {op.new} is no fork of {op.session}")
        return known
    upto = _end_of_turn(op, view)
    first = next((seq for seq, _ in view.events(op.session)), source.last_seq + 1)
    fork = replace(
        source,
        id=op.new,
        parent=None,
        parent_call=None,
        forked_from=op.session,
        turn_id=None,
        created_at=op.at,
        updated_at=op.at,
        last_seq=first - 1,  # what is pruned of the source is not copied; numbers stay
        messages=0,
        owner=None,
        fence=0,
        acquired_seq=0,
    )
    view.describe(fork)
    _copy_events(op, view, upto)
    _copy_messages(op, view)
    return view.session(op.new)


def _end_of_turn(op: Fork, view: View) -> int | None:
    if op.turn is None:
        return None
    found = None
    for seq, text in view.events(op.session):
        if event_of(text, op.session, seq).turn_id == op.turn:
            found = seq
    if found is None:
        raise ValueError(f"session {op.session} has no turn {op.turn}")
    return found


def _copy_events(op: Fork, view: View, upto: int | None) -> None:
    ids: dict[str, str] = {}
    unfinished: dict[str, Event] = {}
    copies: list[Event] = []
    for seq, text in view.events(op.session):
        if upto is not None and seq > upto:
            break
        event = event_of(text, op.session, seq)
        ids[event.id] = ulid()
        parent = event.parent_event_id
        copy = replace(
            event,
            id=ids[event.id],
            session_id=op.new,
            parent_event_id=ids.get(parent, parent) if parent is not None else None,
        )
        copies.append(copy)
        call = str(event.payload.get("call_id") or event.payload.get("tool_use_id"))
        if event.type == CALLED:
            unfinished[call] = copy
        elif event.type in TERMINAL:
            unfinished.pop(call, None)
    for called in unfinished.values():
        copies.append(interruption(started_call(called), op.at))
    view.append(op.new, copies)


def _copy_messages(op: Fork, view: View) -> None:
    messages = [decode(text, StoredMessage) for text in view.messages(op.session)]
    if op.turn is not None:
        last = max((n for n, m in enumerate(messages, 1) if m.turn_id == op.turn), default=0)
        messages = messages[:last]
    copies = tuple(replace(message, id=ulid()) for message in messages)
    append_messages(AppendMessages(session=op.new, messages=copies, at=op.at), view)
