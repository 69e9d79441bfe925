"""Deletes what is older than its bound, in steps so small that nobody waits for one.

    artifacts -> files of the audit log -> rows left by a prune that was killed
      -> sessions by age -> sessions beyond the size -> events of sessions that stay -> empty pages

Files come first: on a full disk they make the room that the store needs to delete something. Each
step is one transaction, or a few files. Whoever runs the steps may stop after any of them: what is
half done is finished by the next prune, whichever process runs it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from callgate.audit.log import AuditLog
from callgate.audit.old_segments import old_segments
from callgate.core.pruning.ops import PruneEvents, PruneSessions, ReleasePages, SweepRows
from callgate.core.pruning.usage import StoreUsage
from callgate.core.stored import StoredSession
from callgate.core.stores import SessionNotFound, Store
from callgate.core.task_sets import start_task
from callgate.sessions.artifacts import directories, directory_of, drop_artifacts, old_files
from callgate.sessions.retention import Bounds, Tally
from callgate.sessions.shared_artifacts import drop_shared

ORPHAN_S = 86_400.0
"""A directory that no session has stays that long: its session may be about to be stored."""
_SESSIONS_AT_ONCE = 100
_ROWS_AT_ONCE = 1_000
_EVENTS_AT_ONCE = 500
_PAGES_AT_ONCE = 500
_LONGEST_REST_S = 0.1


async def paced(steps: AsyncIterator[None]) -> AsyncGenerator[None]:
    """Rest after each step for as long as it took: whoever else wants to write comes first.

    A step that has begun is done and counted, also when its caller is cancelled.
    """
    while True:
        began = time.monotonic()
        step = start_task(_has_next(steps))
        try:
            more = await asyncio.shield(step)
        except asyncio.CancelledError:
            await step
            raise
        if not more:
            return
        await asyncio.sleep(min(time.monotonic() - began, _LONGEST_REST_S))
        yield


async def _has_next(steps: AsyncIterator[None]) -> bool:
    async for _ in steps:
        return True
    return False


class Pruning:
    """One run. `tally` counts what is gone so far."""

    def __init__(self, store: Store, bounds: Bounds, artifacts: str, audit: AuditLog) -> None:
        self._store = store
        self._bounds = bounds
        self._artifacts = artifacts
        self._audit = audit
        self.tally = Tally()

    async def steps(self) -> AsyncIterator[None]:
        """Do it; comes back after each step."""
        bounds = self._bounds
        if bounds.artifacts is not None:
            async for _ in self._prune_artifacts(bounds.artifacts):
                yield
        if bounds.audit is not None:
            await self._prune_audit(int(bounds.audit * 1000))
            yield
        before = await self._store.usage()
        if before.bytes:  # else there is no file, and none is made
            async for _ in self._prune_store():
                yield
            after = await self._store.usage()
            self.tally.bytes += max(0, before.bytes - after.bytes)

    async def _prune_store(self) -> AsyncIterator[None]:
        bounds = self._bounds
        async for _ in self._sweep():
            yield
        if bounds.sessions is not None:
            async for _ in self._prune_sessions(bounds.sessions):
                yield
        if bounds.store_bytes:
            async for _ in self._shrink_to(bounds.store_bytes):
                yield
        if bounds.events is not None:
            async for _ in self._prune_events(bounds.events):
                yield
        async for _ in self._release_pages():
            yield

    async def _prune_sessions(self, before: float) -> AsyncIterator[None]:
        cursor = None
        while True:
            op = PruneSessions(before=before, most=_SESSIONS_AT_ONCE, cursor=cursor)
            (pruning,) = await self._store.commit(op)
            await self._count_removed(pruning.sessions)
            yield
            async for _ in self._sweep():
                yield
            cursor = pruning.cursor
            if cursor is None:
                return

    async def _shrink_to(self, most_bytes: int) -> AsyncIterator[None]:
        """The sessions go that were not used for the longest, until the rest fits."""
        cursor: str | None = None
        more = True
        while more and (usage := await self._store.usage()).bytes > most_bytes:
            excess = (usage.bytes - most_bytes) / bytes_a_row(usage)
            while excess > 0:
                op = PruneSessions(
                    before=self._bounds.fresh,
                    most=_SESSIONS_AT_ONCE,
                    rows=int(excess) + 1,
                    cursor=cursor,
                )
                (pruning,) = await self._store.commit(op)
                await self._count_removed(pruning.sessions)
                yield
                excess -= sum(map(rows_of, pruning.sessions))
                cursor = pruning.cursor
                if cursor is None and not pruning.sessions:  # the others are needed
                    more = False
                    break
            async for _ in self._sweep():
                yield

    async def _count_removed(self, sessions: Sequence[StoredSession]) -> None:
        self.tally.sessions += len(sessions)
        for session in sessions:
            size = await asyncio.to_thread(drop_artifacts, self._artifacts, session.id)
            self.tally.bytes += size
            self.tally.artifacts += size > 0
            await drop_shared(self._store, session.id)

    async def _sweep(self) -> AsyncIterator[None]:
        while True:
            (swept,) = await self._store.commit(SweepRows(most=_ROWS_AT_ONCE))
            self.tally.events += swept.events
            self.tally.messages += swept.messages
            self.tally.calls += swept.calls
            yield
            if not swept.more:
                return

    async def _prune_events(self, before: float) -> AsyncIterator[None]:
        cursor = None
        while True:
            op = PruneEvents(before=before, most=_EVENTS_AT_ONCE, cursor=cursor)
            (pruning,) = await self._store.commit(op)
            self.tally.events += pruning.events
            self.tally.calls += pruning.calls
            yield
            cursor = pruning.cursor
            if cursor is None:
                return

    async def _prune_artifacts(self, before: float) -> AsyncIterator[None]:
        for session, changed in await asyncio.to_thread(directories, self._artifacts):
            files = await prunable_artifacts(self._store, self._artifacts, session, changed, before)
            if files is None:
                size = await asyncio.to_thread(drop_artifacts, self._artifacts, session)
                self.tally.bytes += size
                self.tally.artifacts += 1
            for path, size in (files or {}).items():
                if _unlink(path):
                    self.tally.bytes += size
                    self.tally.artifacts += 1
            if files:
                await drop_shared(self._store, session, before)
            yield

    async def _prune_audit(self, before_ms: int) -> None:
        if not os.path.exists(self._audit.path):
            return
        await asyncio.to_thread(self._audit.close_before, before_ms)
        old = await asyncio.to_thread(old_segments, self._audit.path, before_ms)
        dropped = await asyncio.to_thread(self._audit.drop, [*old]) if old else []
        self.tally.audit_files += len(dropped)
        self.tally.bytes += sum(old.get(each, 0) for each in dropped)

    async def _release_pages(self) -> AsyncIterator[None]:
        while True:
            (released,) = await self._store.commit(ReleasePages(most=_PAGES_AT_ONCE))
            yield
            if not released.more:
                return


async def prunable_artifacts(
    store: Store, root: str, session: str, changed: float, before: float
) -> dict[str, int] | None:
    """Old files of a session that nobody uses; None: the session is gone, and all of it may go."""
    directory = directory_of(root, session)
    if directory is None:
        return {}
    try:
        snapshot = await store.snapshot(session)
    except SessionNotFound:
        return None if changed < before and changed < _orphaned_before() else {}
    if snapshot.session.owner is not None or snapshot.calls:
        return {}
    return await asyncio.to_thread(old_files, directory, before)


def bytes_a_row(usage: StoreUsage) -> float:
    """How much of the file an event, a message or a session takes, on average."""
    return max(1.0, usage.bytes / max(1, usage.events + usage.messages + usage.sessions))


def rows_of(session: StoredSession) -> int:
    return session.last_seq + session.messages + 1


def _orphaned_before() -> float:
    return time.time() - ORPHAN_S


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:  # gone already, or not ours
        return False
    return True
