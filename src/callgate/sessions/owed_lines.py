"""The lines that dead processes owe the audit log: each is written once, whoever writes it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

import msgspec

from callgate.audit.keys import is_keyed, keyed_hash
from callgate.audit.log import AuditLog
from callgate.audit.reading import newest_first
from callgate.audit.records import CallRecord
from callgate.core.ops import ClaimOutbox, ClearOutbox
from callgate.core.stored import OutboxRecord
from callgate.core.stores import Store
from callgate.sessions.homes import MOVED, HomeIdentity, lost_owners, note_line

_EARLIER_MS = 24 * 3_600_000
"""By how much a clock may have been set back between a record and its line."""

_log = logging.getLogger("callgate.sessions")


async def write_owed(store: Store, audit: AuditLog, home: HomeIdentity | None = None) -> None:
    """Write the records of dead owners that have no line, and clear the outbox of them.

    Whoever calls this holds the lock of those who recover. `OSError` where the log cannot be
    written: what is left stays in the outbox. `home`: one of several that share the store. A record
    is then claimed first, and left to the home of its owner, whose log may have the line.
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
    """Those that no other server writes, from now on."""
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
    """Those among the calls of these records that are in the log."""
    wanted = {record.call_id for record in records}
    now = time.time_ns() // 1_000_000  # a clock that was set back gave lines such times since
    oldest = min((record.ts for record in records), default=0)
    oldest = min(oldest, now) - _EARLIER_MS
    found: set[str] = set()
    for line, _ in newest_first(path):
        if line.ts < oldest or len(found) == len(wanted):
            break
        if line.call_id in wanted:
            found.add(line.call_id)
    return found
