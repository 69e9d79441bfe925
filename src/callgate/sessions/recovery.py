"""What processes left open when they went: closed once, and on record.

A call that had started is ended as interrupted and is never run again by itself; a question of
a direct call closes with its caller; a question of a turn stays open.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from itertools import islice

from callgate.audit.log import AuditLog
from callgate.audit.records import CallRecord
from callgate.core.errors import ToolErrorClass
from callgate.core.ops import ExpireConfirmations
from callgate.core.stored import StoredCall
from callgate.core.stores import Store, StoreUnwritable, reap_dead

_INTERRUPTED = "interrupted"
_LOOKED_AT = 10_000
"""Records among which those of interrupted calls are looked for."""

_log = logging.getLogger("callgate.sessions")


async def recover_and_record(store: Store, audit: AuditLog | None) -> Store:
    """A store in which nothing of the dead is open. Closes it where that fails."""
    try:
        interrupted = await recover(store)
    except BaseException:
        await store.close()
        raise
    if audit is not None and interrupted:
        record(audit, interrupted)
    return store


async def recover(store: Store) -> list[CallRecord]:
    """Close what the dead left open and what nobody answered in time.

    The audit records of the calls that were interrupted: their own process wrote none. Writes
    only where there is something to close; where that is not possible now, a later process
    does it.
    """
    now = time.time()
    try:
        reaped = await reap_dead(store, now)
        if any(each.expires_at <= now for each in await store.open_confirmations()):
            await store.commit(ExpireConfirmations(at=now))
    except StoreUnwritable as error:
        _log.warning("calls of processes that are gone stay open: %s", error)
        return []
    return await _records(store, (call for each in reaped for call in each.interrupted))


def record(audit: AuditLog, interrupted: Iterable[CallRecord]) -> None:
    """Put these on record, but for what was recorded by its own process, which died between
    that and telling the store of the end."""
    from callgate.audit.reading import newest_first  # lazy: few processes die  # noqa: PLC0415

    try:
        known = {line.call_id for line, _ in islice(newest_first(audit.path), _LOOKED_AT)}
        for each in interrupted:
            if each.call_id not in known:
                audit.append(each)
    except OSError as error:
        _log.critical("interrupted calls are not in the audit log: %s", error)


async def _records(store: Store, calls: Iterable[StoredCall]) -> list[CallRecord]:
    records = []
    for call in calls:
        session = await store.get_session(call.session_id)
        records.append(
            CallRecord(
                id=f"audit_{call.ended}",
                ts=time.time_ns() // 1_000_000,
                caller=call.caller,
                tool=call.tool,
                decision="allow",
                call_id=call.id,
                session=call.session_id,
                cwd=session.workspace,
                args=call.summary,
                args_hash=call.arguments_sha256,
                error_class=ToolErrorClass.EXECUTION_ERROR,
                reason=_INTERRUPTED,
                side_effects=call.side_effects,
                confirmation_id=call.confirmation,
                turn_id=call.turn_id,
            )
        )
    return records
