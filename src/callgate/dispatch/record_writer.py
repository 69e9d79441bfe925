"""Records on their way into the audit log: the line of a call with effects follows the store.

    FinishCall(event, record) --committed--> append the line --> sync --> the caller is answered
      one transaction, with the                                    |
      record in the outbox                                         +--> ClearOutbox, some time later

A line is derived from what the store holds. A process that is killed in between leaves its
records in the outbox, and the next one that looks writes the lines that are missing
(`sessions.recovery`). Where the store cannot be written, the line is written all the same: it is
then the only record of the end, from which recovery ends the call in the store.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from callgate.audit.records import CallRecord, encode
from callgate.core.ops import CallReceipt, ClearOutbox, FinishCall
from callgate.core.sessions import Session
from callgate.core.stores import StaleOwner
from callgate.events.log import SessionLog

CLEAR_S = 0.5
"""How long a record whose line is written may stay in the outbox, for company."""
_MOST_UNWRITTEN = 1_000
"""Records that wait in memory for a disk in trouble; the others wait in the outbox only."""

_log = logging.getLogger("callgate.audit")


class Recorder(Protocol):
    """Where audit records go; `audit.log` implements it."""

    @property
    def key(self) -> bytes: ...
    def ensure_open(self) -> None: ...
    def append(self, record: CallRecord, *, is_stored: bool = False) -> None: ...
    def request_sync(self) -> Future[None]: ...


class RecordWriter:
    """One per dispatcher, for the event loop of its log."""

    def __init__(self, log: SessionLog, audit: Recorder) -> None:
        self.audit = audit
        """Takes the lines of calls that the store does not know."""
        self._log = log
        self._pending: set[asyncio.Future[None]] = set()
        self._unwritten: list[CallRecord] = []

    def finish(self, session: Session, end: FinishCall, record: CallRecord) -> asyncio.Future[None]:
        """Commit the end of a call, then write its line. Done when both are, or cannot be."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.add(done)
        done.add_done_callback(self._pending.discard)
        op = replace(end, record=encode(record).decode())
        commit = self._log.commit(session, op, insist=True)
        commit.add_done_callback(partial(self._committed, record, done))
        return done

    async def close(self) -> None:
        """Wait for the lines of calls that have ended."""
        await self._log.flush()
        if self._pending:
            await asyncio.wait(set(self._pending))

    def _committed(
        self, record: CallRecord, done: asyncio.Future[None], commit: asyncio.Future[CallReceipt]
    ) -> None:
        error = commit.exception()
        if error is not None:
            _log.error("the end of call %s is not on the disk: %s", record.call_id, error)
        # If another process has ended the call, it owes the record too.
        is_owed = (error is None and not commit.result().applied) or isinstance(error, StaleOwner)
        written = () if is_owed else self._append(record)
        if not written:
            done.set_result(None)
            return
        sync = asyncio.wrap_future(self.audit.request_sync())  # shared by many calls
        sync.add_done_callback(partial(self._synced, written, done))

    def _append(self, record: CallRecord) -> tuple[str, ...]:
        """Write what waits to be written; the calls whose lines are in the log now."""
        waiting, self._unwritten = [*self._unwritten, record], []
        for number, each in enumerate(waiting):
            try:
                self.audit.append(each, is_stored=True)
            except Exception as failure:
                log_unwritten(each, failure)
                self._unwritten = waiting[number:][:_MOST_UNWRITTEN]
                waiting = waiting[:number]
                break
        return tuple(each.call_id for each in waiting)

    def _synced(
        self, calls: tuple[str, ...], done: asyncio.Future[None], sync: asyncio.Future[None]
    ) -> None:
        error = sync.exception()
        if error is None:
            self._log.commit_later(ClearOutbox(calls=calls), CLEAR_S)
        else:  # the records stay in the outbox
            _log.critical("the audit lines of %s are not on the disk: %s", ", ".join(calls), error)
        done.set_result(None)


def log_unwritten(record: CallRecord, failure: Exception) -> None:
    """The result is not lost for it, but somebody must hear of it."""
    _log.critical(
        "call %s of tool %s is not in the audit log: %s", record.call_id, record.tool, failure
    )
