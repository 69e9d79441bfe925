"""Copying a session up to a turn, and the messages of a conversation."""

from __future__ import annotations

from msgspec.structs import replace

from callgate.core.events import CALLED, TERMINAL, Event
from callgate.core.ids import ulid
from callgate.core.ops import AppendMessages, Fork
from callgate.core.stored import StoredMessage, StoredSession
from callgate.storage.encoding import decode, encode
from callgate.storage.endings import event_of, interruption, started_call
from callgate.storage.views import MessageRow, View


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
