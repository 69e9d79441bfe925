"""Do the store and the audit log say the same? Each call that ended has one line, about that end.

    store: ends, then the outbox ---> audit log: lines ---> store: ends that came since

In this order, living processes are never taken for ones that lost something: a record leaves the
outbox once its line is written, and the events of a living process may follow its lines. What was
written before records were committed with the end of their calls is not judged.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from callgate.audit import keys
from callgate.audit.journals import living_journals
from callgate.audit.reading import records_in
from callgate.audit.records import CallRecord
from callgate.audit.segments import all_segments, number_of
from callgate.audit.verify import Problem
from callgate.core.events import EVENTS_PRUNED, TERMINAL
from callgate.core.stores import Store
from callgate.sessions.deleting import all_sessions

MOST = 100
"""Problems that are listed."""
_OUT_OF_ORDER_S = 60.0
"""By how much a line may be later in the log than one with a later time."""


class Comparison(msgspec.Struct, frozen=True):
    calls: int
    """In the store, with an end."""
    problems: tuple[Problem, ...]
    key: bytes | None = None
    """Of the log, as the store has it."""


class _End(NamedTuple):
    event: str
    session: str
    at: float


async def compare(store: Store, path: str, directory: str) -> Comparison:
    """Compare the log with the store. `directory` is that of the processes' files."""
    living = {each.chain for each in living_journals(directory)}
    ends: dict[str, _End] = {}
    cursor = await _read_ends(store, ends, await store.audited_from())
    owed = {record.call_id for record in await store.outbox()}
    lines: dict[str, str] = {}
    """The id of the line of each call."""
    unknown: list[tuple[Problem, CallRecord]] = []
    problems: list[Problem] = []
    for place, line in _lines(path):
        end = ends.get(line.call_id)
        if end is None:
            unknown.append((place, line))
        else:
            problems += _judge(place, line, end, lines.get(line.call_id))
        lines[line.call_id] = line.id
    oldest = _oldest_line(path)
    for call, end in ends.items():
        if call not in lines and call not in owed and end.at >= oldest:
            problems.append(Problem(path, 0, f"call {call} of {end.session} has no line"))
    living |= {each.chain for each in living_journals(directory)}
    await _read_ends(store, ends, cursor)
    sessions = {session.id for session in await all_sessions(store)}
    kept_from: dict[str, float] = {}
    """The time before which the events of a session may be pruned."""
    for place, line in unknown:
        known = line.call_id in ends or line.session not in sessions or line.chain in living
        if known or not line.principal:  # which older lines do not have
            continue
        if line.session not in kept_from:
            kept_from[line.session] = await _kept_from(store, line.session)
        if line.ts / 1000 > kept_from[line.session]:
            what = f"call {line.call_id} has no end in the store"
            problems.append(Problem(place.file, place.line, what))
    key = await store.get_secret(keys.NAME)
    return Comparison(
        len(ends), tuple(problems[:MOST]), bytes.fromhex(key) if key is not None else None
    )


def _judge(place: Problem, line: CallRecord, end: _End, before: str | None) -> Iterator[Problem]:
    if line.id != f"audit_{end.event}":
        what = f"call {line.call_id} ended otherwise in the store"
        yield Problem(place.file, place.line, what)
    elif before == line.id:
        yield Problem(place.file, place.line, f"call {line.call_id} has a line before this one")


async def _read_ends(store: Store, ends: dict[str, _End], after: str | None) -> str | None:
    """The calls that ended after a cursor, but for those that a fork copied; the new cursor."""
    forks = {each.id: each.created_at for each in await all_sessions(store) if each.forked_from}
    while True:
        page = await store.read_all(after)
        for event in page.events:
            copied = event.timestamp <= forks.get(event.session_id, -1.0)
            if event.type in TERMINAL and not copied:
                call = str(event.payload.get("call_id") or event.payload.get("tool_use_id"))
                ends[call] = _End(event.id, event.session_id, event.timestamp)
        if not page.events:
            return after
        after = page.cursor


def _lines(path: str) -> Iterator[tuple[Problem, CallRecord]]:
    for segment in all_segments(path):
        with open(segment, "rb") as file:
            for number, raw in enumerate(file, start=1):
                for line, _ in records_in(raw.rstrip(b"\n")):
                    yield Problem(segment, number, ""), line


async def _kept_from(store: Store, session: str) -> float:
    """The time of a session's first event that is not pruned; 0 where none are."""
    first = await store.read_events(session, limit=1)
    if not first or first[0].type != EVENTS_PRUNED:
        return 0.0
    following = await store.read_events(session, first[0].payload["upto"], limit=1)
    return following[0].timestamp if following else math.inf


def _oldest_line(path: str) -> float:
    """The time before which lines may have been dropped; 0 where none were."""
    first = next(iter(all_segments(path)), path)
    if first == path or (number_of(first) == 1 and os.path.getsize(first)):
        return 0.0
    return next((line.ts / 1000 + _OUT_OF_ORDER_S for _, line in _lines(path)), math.inf)
