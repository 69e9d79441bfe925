"""What the lines of dead processes say and the store does not: it is put into the store.

A call without effects is answered when its line is in the audit log. If its process is killed
before its events reach the store, they are made from the line, with the ids that they had; what
they would have said beyond it, such as the size of the arguments, is lost. Idempotent: an event
that is there already stays as it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from callgate.audit.journals import DeadJournal, dead_journals, living_journals
from callgate.audit.records import CallRecord, implied_end
from callgate.core.errors import ToolErrorClass
from callgate.core.events import CALLED, COMPLETED, FAILED, SESSION_CREATED, TERMINAL, Event
from callgate.core.ids import ulid
from callgate.core.ops import Append, CloseCutCalls, FinishCall, NewSession, Op
from callgate.core.stored import CallState
from callgate.core.stores import CallMismatch, SessionNotFound, Store, StoreError
from callgate.sessions.homes import (
    SUPERSEDED,
    HomeIdentity,
    claim_reading,
    lost_owners,
    note_line,
)

_BATCH = 500
_OF_LINES = (CallMismatch, SessionNotFound)
"""What the store says to lines that no process of ours wrote, or of a session deleted since."""

_log = logging.getLogger("callgate.sessions")


async def store_lines(
    store: Store,
    log: str,
    directory: str,
    gone: Iterable[str] = (),
    home: HomeIdentity | None = None,
) -> frozenset[str]:
    """Put the lines of dead processes into the store. The owners in `gone` that still seem to
    live, and whose lines were therefore not read.

    `home`: one of several that share the store. Others may have ended calls of its dead.
    """
    known = frozenset(gone)
    journals = await asyncio.to_thread(dead_journals, directory, known)
    with ExitStack() as locked:
        for journal in journals:
            locked.enter_context(journal)
        for journal in journals:
            by_session = await asyncio.to_thread(_lines_by_session, journal, log)
            is_ours = home is None or (
                not journal.is_damaged and await claim_reading(store, journal.owner, time.time())
            )
            for session, lines in by_session.items():
                try:
                    if not is_ours:
                        lines = await _not_ended(store, session, lines)
                    await _store(store, session, lines, is_new=not journal.is_damaged)
                    if home is not None:
                        await _note_superseded(store, lines)
                except Exception as error:
                    if isinstance(error, StoreError) and not isinstance(error, _OF_LINES):
                        raise  # they are read again once the store can be used
                    _log.error("lines of session %s cannot be stored: %s", session, error)
            journal.remove()
    return known & {each.owner for each in living_journals(directory)}


async def close_cut(
    store: Store, log: str, directory: str, home: HomeIdentity | None = None
) -> None:
    """End the calls without effects that dead owners left open and that have no line.

    `home`: one of several that share the store. What the dead of another one left open is ended
    once that home has read their lines, or is lost.
    """
    cut = await store.cut_sessions()
    if not cut:
        return
    now = time.time()
    owners = {owner for each in cut for owner in each.owners}
    ours = owners if home is None else {owner for owner in owners if home.has(owner)}
    done = ours - await store_lines(store, log, directory, ours, home)
    if home is not None:
        done |= await lost_owners(store, home, owners, now)
    closing = [
        store.commit(CloseCutCalls(session=each.session_id, at=now, owners=closable))
        for each in cut
        if (closable := tuple(owner for owner in each.owners if owner in done))
    ]
    await asyncio.gather(*closing)


async def _not_ended(store: Store, session: str, lines: list[CallRecord]) -> list[CallRecord]:
    """The lines of calls without an end in the store. The others get a note."""
    ended = await _ends_of(store, session)
    notes = [
        note_line(line.id, SUPERSEDED)
        for line in lines
        if ended.get(line.call_id, line.id) != line.id
    ]
    if notes:
        await store.commit(*notes)
    return [line for line in lines if line.call_id not in ended]


async def _ends_of(store: Store, session: str) -> dict[str, str]:
    """By call: the id of the line that its end has."""
    ended: dict[str, str] = {}
    after = 0
    while True:
        try:
            page = await store.read_events(session, after)
        except SessionNotFound:
            return ended
        if not page:
            return ended
        after += len(page)
        for event in page:
            if event.type in TERMINAL:
                call = event.payload.get("call_id") or event.payload.get("tool_use_id")
                ended[str(call)] = f"audit_{event.id}"


async def _note_superseded(store: Store, lines: list[CallRecord]) -> None:
    """Another home may have ended calls with effects before their lines were read."""
    for line in lines:
        call = await store.get_call(line.call_id) if _may_have_row(line) else None
        if call is not None and call.ended not in (None, line.id.removeprefix("audit_")):
            await store.commit(note_line(line.id, SUPERSEDED))


def _lines_by_session(journal: DeadJournal, log: str) -> dict[str, list[CallRecord]]:
    found: dict[str, list[CallRecord]] = defaultdict(list)
    for line in journal.lines(log):
        found[line.session].append(line)
    return found


async def _store(store: Store, session: str, lines: list[CallRecord], *, is_new: bool) -> None:
    """`is_new`: a session that is not there has not reached the store; else it may be deleted."""
    if not lines:
        return
    ops: list[Op[Any]] = await _creation(store, session, lines[0])
    if ops and not is_new:
        return
    for line in lines:
        try:
            *before, end = events_of(line)
        except (ValueError, OverflowError) as error:  # no process of ours wrote it
            _log.error("the line of call %s cannot be stored: %s", line.call_id, error)
            continue
        call = await store.get_call(line.call_id) if _may_have_row(line) else None
        if call is None:
            ops.append(Append(session=session, events=(*before, end)))
        elif call.state is not CallState.ENDED:
            ops.append(
                FinishCall(
                    session=session,
                    event=end,
                    call=call.id,
                    owner=call.owner,
                    attempt=call.attempt,
                )
            )
        if len(ops) >= _BATCH:
            await store.commit(*ops)
            ops = []
    if ops:
        await store.commit(*ops)


def _may_have_row(line: CallRecord) -> bool:
    return line.confirmation_id is not None or line.side_effects not in ("none", "read")


async def _creation(store: Store, session: str, line: CallRecord) -> list[Op[Any]]:
    """What makes a session that had not reached the store."""
    try:
        await store.get_session(session)
    except SessionNotFound:
        at = line.ts / 1000
        created = Event(
            id=ulid(),
            timestamp=at,
            session_id=session,
            type=SESSION_CREATED,
            actor="system",
            payload={"workspace": line.cwd},
        )
        return [
            NewSession(session=session, workspace=line.cwd, at=at),
            Append(session=session, events=(created,)),
        ]
    return []


def events_of(line: CallRecord) -> list[Event]:
    """The events of a call, as far as its line tells them."""
    ended = line.ts / 1000
    ids = {"tool_use_id": line.tool_use_id or line.call_id, "call_id": line.call_id}
    events = []
    if line.called is not None:
        payload: dict[str, Any] = {
            "tool_name": line.tool,
            "input_hash": line.args_hash,
            "side_effects": line.side_effects,
            **ids,
        }
        if line.sandbox is not None:
            payload["sandbox"] = line.sandbox
        if line.provenance:
            payload["provenance"] = list(line.provenance)
        events.append(_event(line, line.called, None, CALLED, ended - line.ms / 1000, payload))
    type = line.end or implied_end(line.error_class)
    if type not in TERMINAL:
        raise ValueError(f"no call ends with {type}")
    id = line.id.removeprefix("audit_")
    events.append(_event(line, id, line.called, type, ended, {**_end_payload(line, type), **ids}))
    return events


def _event(
    line: CallRecord, id: str, parent: str | None, type: str, at: float, payload: dict[str, Any]
) -> Event:
    return Event(
        id=id,
        timestamp=at,
        session_id=line.session,
        turn_id=line.turn_id,
        parent_event_id=parent,
        type=type,
        actor="agent" if type == CALLED else "tool" if type in (COMPLETED, FAILED) else "system",
        payload=payload,
    )


def _end_payload(line: CallRecord, type: str) -> dict[str, Any]:
    if type == COMPLETED:
        return {"success": line.error_class is None, "latency_ms": line.ms}
    if type != FAILED:
        return {"tool_name": line.tool, "validation_errors": [line.result]}
    error_class = ToolErrorClass(line.error_class or ToolErrorClass.EXECUTION_ERROR)
    payload = {
        "tool_name": line.tool,
        "error_class": error_class.in_events,
        "message": line.result,
        "error_message": line.result,
        "latency_ms": line.ms,
    }
    if error_class is not error_class.in_events:
        payload["class"] = error_class
    if line.reason is not None:
        payload["reason"] = line.reason
    return payload
