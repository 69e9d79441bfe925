"""Calls on record, from the audit logs of all servers of a store: each has its own on its disk.

    this home's log ---------+
    one server of each ------+--merged by time--> a page, and a cursor: how far each was read
    other home that lives

A server that does not answer soon is left out. Where there is one home, its log is read alone.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from urllib.parse import urlencode

import msgspec

from callgate.audit.reading import Filter, page, search
from callgate.audit.records import CallRecord
from callgate.core.ids import home_of
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.problems import bad_request
from callgate.surfaces.http.servers.directory import Server

TARGET = "/v1/server/records"
_LIMIT_S = 2.0
_MERGED = "merged."
_HERE = ""
_PLAIN = ("text", "tool", "session", "call", "decision", "since_ms")
"""Fields of a filter that a query has as they are."""


class RecordPage(msgspec.Struct, frozen=True):
    """Newest first."""

    records: list[CallRecord]
    before: str | None
    """Where the next page begins; None: there is none."""


async def find_record(context: Context, call: str) -> CallRecord | None:
    """The record of a call, in whichever log it is."""
    wanted = Filter(call=call)
    found = await asyncio.to_thread(search, context.served.audit, wanted, 1)
    if found:
        return found[0][0]
    pages = await asyncio.gather(
        *(_ask(context, each, wanted, 1, None) for each in (await other_homes(context)).values())
    )
    return next((line for each in pages for line in each.records), None)


async def find_page(context: Context, wanted: Filter, limit: int, before: str | None) -> RecordPage:
    """The newest records that match, of all servers. Raises a `Problem` for a bad `before`."""
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
    """Of this server's own log."""
    return RecordPage(
        *await asyncio.to_thread(page, context.served.audit, wanted, limit, before=before)
    )


def _merge(
    pages: Mapping[str, RecordPage], read: Mapping[str, str | None], limit: int
) -> RecordPage:
    """`read`: by home, the last record that was given out; None: all of them were."""
    lines = [(line, home) for home, each in pages.items() for line in each.records]
    lines.sort(key=lambda each: (each[0].ts, each[0].id), reverse=True)
    given = lines[:limit]
    cursor = dict(read)
    for home, each in pages.items():
        own = [line for line, of in given if of == home]
        if own:
            cursor[home] = own[-1].id
        if len(own) == len(each.records) and each.before is None:
            cursor[home] = None
    is_over = all(cursor.get(home, "") is None for home in pages)
    return RecordPage([line for line, _ in given], None if is_over else _write_cursor(cursor))


async def other_homes(context: Context) -> dict[str, Server]:
    """A living server of each other home: servers of one home have one log."""
    if context.servers is None or context.carrier is None:
        return {}
    own = home_of((await context.runtime.store()).owner)
    found: dict[str, Server] = {}
    for each in await context.servers.others():
        home = home_of(each.owner)
        if home is not None and home != own:
            found.setdefault(home, each)
    return found


async def _ask(
    context: Context, server: Server, wanted: Filter, limit: int, before: str | None
) -> RecordPage:
    assert context.carrier is not None
    fields = {
        **{name: getattr(wanted, name) for name in _PLAIN},
        "errors": None if wanted.error_classes is None else ",".join(wanted.error_classes),
        "without_error": "true" if wanted.without_error else None,
        "limit": limit,
        "before": before,
    }
    query = {name: value for name, value in fields.items() if value is not None}
    answer = await context.carrier.ask(server, f"{TARGET}?{urlencode(query)}", _LIMIT_S)
    if answer is None:
        return RecordPage([], before)  # it may answer the next time
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
        raise bad_request("This is no place in the record that we gave out.") from None
