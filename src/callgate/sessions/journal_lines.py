"""Audit lines of dead processes: lines missing from the store, and lines missing from the log.

A call without effects is answered when its line is in the audit log. If its process is killed
before its events reach the store, they are rebuilt from the line, with their original ids; facts
that the line lacks, such as the size of the arguments, are lost. Idempotent: an existing event
stays unchanged, and each owed line is written once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from callgate.audit.journals import DeadJournal, dead_journals, living_journals
from callgate.audit.keys import is_keyed, keyed_hash
from callgate.audit.log import AuditLog
from callgate.audit.reading import newest_first
from callgate.audit.records import CallRecord, implied_end
from callgate.core.errors import ToolErrorClass
from callgate.core.events import CALLED, COMPLETED, FAILED, SESSION_CREATED, TERMINAL, Event
from callgate.core.ids import ulid
from callgate.core.ops import (
    Append,
    ClaimOutbox,
    ClearOutbox,
    CloseCutCalls,
    FinishCall,
    NewSession,
    Op,
)
from callgate.core.stored import CallState, OutboxRecord
from callgate.core.stores import CallMismatch, SessionNotFound, Store, StoreError
from callgate.sessions.homes import (
    MOVED,
    SUPERSEDED,
    HomeIdentity,
    claim_reading,
    lost_owners,
    note_line,
)

_BATCH = 500
_OF_LINES = (CallMismatch, SessionNotFound)
"""Errors of the store for lines that are not ours, or belong to a deleted session."""

_log = logging.getLogger("callgate.sessions")


async def store_lines(
    store: Store,
    log: str,
    directory: str,
    dead: Iterable[str] = (),
    home: HomeIdentity | None = None,
) -> frozenset[str]:
    """Put the lines of dead processes into the store. Returns owners in `dead` that seem to be
    alive, so that their lines were not read.

    `home`: one of several that share the store. Others may have ended calls of its dead owners.
    """
    known = frozenset(dead)
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

    `home`: one of several that share the store. Open calls of another home's owners are ended after
    that home has read their lines, or is lost.
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
    """Return the lines of calls without an end in the store. The other lines get a note."""
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
    """Return the line id at the end of each call, by call."""
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
    """Note lines of calls with effects that another home ended before the lines were read."""
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
    """Store lines. `is_new`: a missing session has not reached the store; else it was deleted."""
    if not lines:
        return
    ops: list[Op[Any]] = await _creation(store, session, lines[0])
    if ops and not is_new:
        return
    for line in lines:
        try:
            *before, end = events_of(line)
        except (ValueError, OverflowError) as error:  # not a line of callgate
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
    """Return the operations that create a session which had not reached the store."""
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
    """Return the events of a call, as far as its line has their data."""
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


_EARLIER_MS = 24 * 3_600_000
"""Maximum correction of a clock between a record and its line."""


async def write_owed(store: Store, audit: AuditLog, home: HomeIdentity | None = None) -> None:
    """Write the missing audit lines of dead owners, and clear their records from the outbox.

    The caller holds the recovery lock. `OSError` if the log cannot be written: the remaining
    records stay in the outbox. `home`: one of several that share the store. A record is then
    claimed first, and left to the home of its owner, whose log may have the line.
    """
    owed = await store.outbox(of_dead=True)
    if home is not None:
        owed = await _claim(store, home, owed)
    if not owed:
        return
    records = [record for each in owed if (record := _read(each)) is not None]
    known = await asyncio.to_thread(_calls_with_line, audit.path, records)
    written = [each.call_id for each in owed]
    for number, record in enumerate(records):
        if record.call_id in known:
            continue
        if record.args_hash is not None and not is_keyed(record.args_hash):
            record.args_hash = keyed_hash(audit.key, record.args_hash)
        try:
            audit.append(record)
        except OSError:
            unwritten = {each.call_id for each in records[number:]} - known
            await store.commit(ClearOutbox(calls=tuple(c for c in written if c not in unwritten)))
            if home is not None:  # another server may be able to write them
                calls = tuple(sorted(unwritten))
                await store.commit(ClaimOutbox(calls=calls, owner="", expected=store.owner))
            raise
    await asyncio.wrap_future(audit.request_sync())
    await store.commit(ClearOutbox(calls=tuple(written)))


async def _claim(
    store: Store, home: HomeIdentity, owed: Sequence[OutboxRecord]
) -> Sequence[OutboxRecord]:
    """Claim records, so that no other server writes them."""
    lost = await lost_owners(store, home, (each.owner for each in owed), time.time())
    wanted = [each for each in owed if home.has(each.owner) or each.owner in lost]
    if not wanted:
        return ()
    notes = [
        note_line(record.id, MOVED)
        for each in wanted
        if each.owner in lost and (record := _read(each)) is not None
    ]
    claim = ClaimOutbox(calls=tuple(each.call_id for each in wanted), owner=store.owner)
    *_, claimed = await store.commit(*notes, claim)
    return [each for each in wanted if each.call_id in claimed]


def _read(owed: OutboxRecord) -> CallRecord | None:
    try:
        return msgspec.json.decode(owed.record, type=CallRecord)
    except (ValueError, RecursionError) as error:
        _log.critical("the record of call %s cannot be read: %s", owed.call_id, error)
        return None


def _calls_with_line(path: str, records: list[CallRecord]) -> set[str]:
    """Return the calls of these records that have a line in the log."""
    wanted = {record.call_id for record in records}
    now = time.time_ns() // 1_000_000  # corrected clocks may have given lines later times
    oldest = min((record.ts for record in records), default=0)
    oldest = min(oldest, now) - _EARLIER_MS
    found: set[str] = set()
    for line, _ in newest_first(path):
        if line.ts < oldest or len(found) == len(wanted):
            break
        if line.call_id in wanted:
            found.add(line.call_id)
    return found
