"""Recorded and running calls of all servers of a store, as pages and as rows of a list.

    this home's log ---------+
    one server of each ------+--merged by time--> a page, and a cursor: the position in each log
    other live home

Each home has its own log on its own disk. Pages omit servers that do not answer in time.

The store has calls with effects from their start. Only the process that runs a call without effects
knows it, so the list of running calls comes from all servers.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from callgate.audit.reading import Filter, page, search
from callgate.audit.records import CallRecord
from callgate.core.errors import DENIALS, ToolErrorClass
from callgate.core.ids import home_of
from callgate.core.stored import CallState as Stage
from callgate.core.stored import StoredCall
from callgate.features.web.contexts import Context, Peer
from callgate.features.web.responses import bad_request
from callgate.features.web.routes.values import CallRow, CallState
from callgate.redaction.data import summarize
from callgate.runtime import RunningCall

TARGET = "/v1/server/records"
_LIMIT_S = 2.0
_MERGED = "merged."
_HERE = ""
_PLAIN = ("text", "tool", "session", "call", "decision", "since_ms")
"""Fields of a filter that a query contains unchanged."""


class RecordPage(msgspec.Struct, frozen=True):
    """Page of records, newest first."""

    records: list[CallRecord]
    before: str | None
    """Cursor of the next page; None if there is none."""


async def find_record(context: Context, call: str) -> CallRecord | None:
    """Return the record of a call, from any log."""
    wanted = Filter(call=call)
    found = await asyncio.to_thread(search, context.served.audit, wanted, 1)
    if found:
        return found[0][0]
    pages = await asyncio.gather(
        *(_ask(context, each, wanted, 1, None) for each in (await other_homes(context)).values())
    )
    return next((line for each in pages for line in each.records), None)


async def find_page(context: Context, wanted: Filter, limit: int, before: str | None) -> RecordPage:
    """Return the newest matching records of all servers. Raises `Problem` for a bad `before`."""
    others = await other_homes(context)
    if not others and (before is None or not before.startswith(_MERGED)):
        return await read_page(context, wanted, limit, before)
    read = _read_cursor(before)
    sources = [home for home in (_HERE, *others) if read.get(home, "") is not None]
    pages = await asyncio.gather(
        *(
            read_page(context, wanted, limit, read.get(home) or None)
            if home == _HERE
            else _ask(context, others[home], wanted, limit, read.get(home) or None)
            for home in sources
        )
    )
    return _merge(dict(zip(sources, pages, strict=True)), read, limit)


async def read_page(context: Context, wanted: Filter, limit: int, before: str | None) -> RecordPage:
    """Return a page of this server's own log."""
    return RecordPage(
        *await asyncio.to_thread(page, context.served.audit, wanted, limit, before=before)
    )


def _merge(
    pages: Mapping[str, RecordPage], read: Mapping[str, str | None], limit: int
) -> RecordPage:
    """Merge pages of several homes.

    `read`: the last record returned of each home; None if all its records were returned.
    """
    lines = [(line, home) for home, each in pages.items() for line in each.records]
    lines.sort(key=lambda each: (each[0].ts, each[0].id), reverse=True)
    given = lines[:limit]
    cursor = dict(read)
    for home, each in pages.items():
        local = [line for line, of in given if of == home]
        if local:
            cursor[home] = local[-1].id
        if len(local) == len(each.records) and each.before is None:
            cursor[home] = None
    is_over = all(cursor.get(home, "") is None for home in pages)
    return RecordPage([line for line, _ in given], None if is_over else _write_cursor(cursor))


async def other_homes(context: Context) -> dict[str, Peer]:
    """Return one live server of each other home, because servers of one home share a log."""
    others = await context.peers.others()
    if not others:
        return {}
    local = home_of((await context.runtime.sessions.store()).owner)
    found: dict[str, Peer] = {}
    for each in others:
        home = home_of(each.owner)
        if home is not None and home != local:
            found.setdefault(home, each)
    return found


async def _ask(
    context: Context, peer: Peer, wanted: Filter, limit: int, before: str | None
) -> RecordPage:
    fields = {
        **{name: getattr(wanted, name) for name in _PLAIN},
        "errors": None if wanted.error_classes is None else ",".join(wanted.error_classes),
        "without_error": "true" if wanted.without_error else None,
        "limit": limit,
        "before": before,
    }
    query = {name: value for name, value in fields.items() if value is not None}
    answer = await context.peers.ask(peer, f"{TARGET}?{urlencode(query)}", _LIMIT_S)
    if answer is None:
        return RecordPage([], before)  # it may answer the next request
    return msgspec.json.decode(answer, type=RecordPage)


def _write_cursor(read: Mapping[str, str | None]) -> str:
    return _MERGED + base64.urlsafe_b64encode(msgspec.json.encode(read)).decode().rstrip("=")


def _read_cursor(before: str | None) -> dict[str, str | None]:
    if before is None:
        return {}
    text = before.removeprefix(_MERGED)
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.json.decode(data, type=dict[str, str | None])
    except (ValueError, RecursionError):
        raise bad_request("The value of before is invalid.") from None


_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LONGEST_MESSAGE = 200
_STATES: dict[str | None, CallState] = {
    None: "ok",
    ToolErrorClass.CANCELLED: "cancelled",
    ToolErrorClass.SHUTTING_DOWN: "cancelled",
    ToolErrorClass.VALIDATION_ERROR: "invalid",
    ToolErrorClass.PROTOCOL_ERROR: "invalid",
    ToolErrorClass.PARSE_ERROR: "invalid",
    **dict.fromkeys(DENIALS, "denied"),
}


def state_of(error_class: str | None) -> CallState:
    return _STATES.get(error_class, "failed")


def classes_of(state: CallState) -> frozenset[str] | None:
    """Return the error classes of a state; None for `ok`, which has no error."""
    if state == "ok":
        return None
    return frozenset(each for each in ToolErrorClass if state_of(each) == state)


def row_of_record(line: CallRecord) -> CallRow:
    return CallRow(
        id=line.call_id,
        session_id=line.session,
        turn_id=line.turn_id,
        tool=line.tool,
        caller=line.caller,
        state=state_of(line.error_class),
        side_effects=line.side_effects,
        summary=line.args,
        at=line.ts / 1000,
        client=line.client,
        duration_ms=line.ms,
        waited_ms=line.waited_ms,
        error_class=line.error_class or UNSET,
        reason=line.reason or UNSET,
        message=line.result[:_LONGEST_MESSAGE] if line.error_class else UNSET,
        policy=line.policy or UNSET,
    )


def open_rows(
    stored: Iterable[StoredCall],
    running: Iterable[RunningCall],
    session: str | None = None,
    elsewhere: Iterable[CallRow] = (),
) -> list[CallRow]:
    """Return the unfinished calls, newest first, with details of this process's own calls.

    `elsewhere`: running calls of other servers.
    """
    rows = {each.id: each for each in elsewhere} | {
        each.call.id: row_of_running(each)
        for each in running
        if session in (None, each.call.session.id)
    }
    for call in stored:
        ours = rows.get(call.id)
        row = row_of_stored(call)
        rows[call.id] = (
            row if ours is None else replace(row, summary=ours.summary, client=ours.client)
        )
    return sorted(rows.values(), key=lambda row: row.id, reverse=True)


def row_of_stored(call: StoredCall) -> CallRow:
    return CallRow(
        id=call.id,
        session_id=call.session_id,
        turn_id=call.turn_id,
        tool=call.tool,
        caller=call.caller,
        state="asked" if call.state is Stage.WAITING else "running",
        side_effects=call.side_effects,
        summary=call.summary,
        at=_made_at(call.id),
    )


def row_of_running(running: RunningCall) -> CallRow:
    call = running.call
    client = call.client or call.session.client
    return CallRow(
        id=call.id,
        session_id=call.session.id,
        turn_id=call.turn_id,
        tool=call.tool,
        caller=call.caller,
        state="running",
        side_effects=None,
        summary=summarize(call.arguments),
        at=_made_at(call.id),
        client=None if client is None else client.label,
    )


def _made_at(id: str) -> float:
    """Return the creation time of a call, from its id."""
    number = 0
    for letter in id.removeprefix("tu_")[:10]:
        number = number * 32 + max(0, _ALPHABET.find(letter))
    return number / 1000


_PEER_LIMIT_S = 1.0


async def open_calls(
    context: Context, stored: Sequence[StoredCall], session: str | None = None
) -> list[CallRow]:
    """Return the unfinished calls, newest first; `stored`: the unfinished calls of the store."""
    elsewhere = await _running_elsewhere(context, session)
    return open_rows(stored, context.runtime.calls.in_flight(), session, elsewhere)


async def _running_elsewhere(context: Context, session: str | None) -> list[CallRow]:
    peers = context.peers
    if session is None:
        servers = await peers.others()
    else:
        owner = await peers.owner_of(session)
        servers = [] if owner is None else [owner]
    target = "/v1/server/calls" + ("" if session is None else f"?session={quote(session)}")
    answers = await asyncio.gather(*(peers.ask(each, target, _PEER_LIMIT_S) for each in servers))
    found: list[CallRow] = []
    for answer in answers:
        if answer is not None:
            found += msgspec.json.decode(answer, type=_Calls).calls
    return found


class _Calls(msgspec.Struct):
    calls: list[CallRow]
