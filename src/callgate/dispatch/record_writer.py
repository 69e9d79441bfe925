"""Records on their way into the audit log: the line of a call with effects follows the store.

    FinishCall(event, record) --committed--> append the line --> sync --> the caller is answered
      one transaction, with the                                    |
      record in the outbox                                         +--> ClearOutbox, some time later

Where the store says that another process has ended the call, or owns its session, that process
owes the line, and the caller is told that the outcome is unknown. The same holds where nothing can
be committed and the lease on the session is over.

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
from callgate.core.errors import ToolErrorClass
from callgate.core.events import FAILED
from callgate.core.ops import CallReceipt, ClearOutbox, FinishCall
from callgate.core.sessions import Session
from callgate.core.stores import is_lost
from callgate.dispatch.failures import OUTCOME_UNKNOWN, UNKNOWN
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


_Written = tuple[tuple[str, ...], "asyncio.Future[bool]"]
"""The calls whose lines were written together, and whom to tell when they are synced."""


class RecordWriter:
    """One per dispatcher, for the event loop of its log."""

    def __init__(self, log: SessionLog, audit: Recorder) -> None:
        self.audit = audit
        """Takes the lines of calls that the store does not know."""
        self._log = log
        self._pending = 0
        """Calls that wait for their commit or for their line."""
        self._idle: asyncio.Future[None] | None = None
        """For whoever waits until there are none."""
        self._syncing: dict[Future[None], list[_Written]] = {}
        """By the sync that covers their lines: one wake-up of the event loop for all of them."""
        self._unwritten: list[CallRecord] = []

    def finish(
        self, session: Session, end: FinishCall, record: CallRecord, *, has_effects: bool = True
    ) -> asyncio.Future[bool]:
        """Commit the end of a call, then write its line. Done when both are, or cannot be.

        False if this process lost the session: the outcome is unknown to it. Whoever waits for it
        may be cancelled: both are done all the same. `has_effects`: else nobody else knows of the
        call, and its line is written in any case.
        """
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pending += 1
        op = replace(end, record=encode(record).decode())
        commit = self._log.commit(session, op, insist=True)
        commit.add_done_callback(partial(self._committed, record, done, has_effects))
        return done

    async def close(self) -> None:
        """Wait for the lines of calls that have ended."""
        if self._pending:
            await self._log.flush()
        if self._pending:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def _committed(
        self,
        record: CallRecord,
        done: asyncio.Future[bool],
        has_effects: bool,
        commit: asyncio.Future[CallReceipt],
    ) -> None:
        error = commit.exception()
        if error is not None:
            _log.error("the end of call %s is not on the disk: %s", record.call_id, error)
        is_ours = self._is_ours(commit, has_effects=has_effects)
        if not is_ours and not has_effects:
            record.error_class = ToolErrorClass.EXECUTION_ERROR
            record.end, record.reason, record.result = FAILED, OUTCOME_UNKNOWN, UNKNOWN
        # If another process has ended the call, it owes the record too.
        written = self._append(record) if is_ours or not has_effects else ()
        if not written or not is_ours:  # nobody waits for the disk to learn that it is unknown
            self._settle(done, is_ours=is_ours)
            return
        sync = self.audit.request_sync()
        waiting = self._syncing.get(sync)
        if waiting is None:
            waiting = self._syncing[sync] = []
            sync.add_done_callback(partial(self._wake, asyncio.get_running_loop()))
        waiting.append((written, done))

    def _is_ours(self, commit: asyncio.Future[CallReceipt], *, has_effects: bool) -> bool:
        """Whether the call has ended as this process says, as far as it can know."""
        error = commit.exception()
        if error is None:
            return commit.result().applied
        if is_lost(error):
            return False
        # An end that could not be committed: until the lease is over, nobody else writes another.
        return not has_effects or self._log.doubtful_owner is None

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

    def _wake(self, loop: asyncio.AbstractEventLoop, sync: Future[None]) -> None:
        """In the thread of the sync."""
        try:
            loop.call_soon_threadsafe(self._synced, sync)
        except RuntimeError:
            pass  # the loop was closed: nobody waits

    def _synced(self, sync: Future[None]) -> None:
        error = sync.exception()
        for calls, done in self._syncing.pop(sync):
            if error is None:
                self._log.commit_later(ClearOutbox(calls=calls), CLEAR_S)
            else:  # the records stay in the outbox
                names = ", ".join(calls)
                _log.critical("the audit lines of %s are not on the disk: %s", names, error)
            self._settle(done)

    def _settle(self, done: asyncio.Future[bool], *, is_ours: bool = True) -> None:
        self._pending -= 1
        if not done.done():  # else whoever waited was cancelled
            done.set_result(is_ours)
        if self._idle is not None and not self._pending:
            self._idle.set_result(None)
            self._idle = None


def log_unwritten(record: CallRecord, failure: Exception) -> None:
    """The result is not lost for it, but somebody must hear of it."""
    _log.critical(
        "call %s of tool %s is not in the audit log: %s", record.call_id, record.tool, failure
    )
