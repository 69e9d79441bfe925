"""What pruning would delete, without deleting it."""

from __future__ import annotations

import asyncio

from callgate.audit.old_segments import old_segments
from callgate.core.pruning.usage import StoreUsage
from callgate.core.stored import StoredSession
from callgate.core.stores import SessionNotFound, Store
from callgate.sessions.artifacts import directories, directory_of, size_of
from callgate.sessions.pruning import bytes_a_row, prunable_artifacts, rows_of
from callgate.sessions.retention import Bounds, Tally

_PAGE = 1_000


class Plan:
    def __init__(self, store: Store, bounds: Bounds, artifacts: str, audit: str) -> None:
        self._store = store
        self._bounds = bounds
        self._artifacts = artifacts
        self._audit = audit
        self._tally = Tally()
        self._rows = 0
        self._going: set[str] = set()

    async def make(self) -> Tally:
        usage, bounds, tally = await self._store.usage(), self._bounds, self._tally
        if bounds.sessions is not None:
            await self._count_sessions(bounds.sessions)
        if bounds.store_bytes:
            await self._count_excess(usage, bounds.store_bytes)
        if bounds.events is not None:
            await self._count_events(bounds.events)
        tally.bytes += int(self._rows * bytes_a_row(usage))
        await self._count_artifacts()
        if bounds.audit is not None:
            old = await asyncio.to_thread(old_segments, self._audit, int(bounds.audit * 1000))
            tally.audit_files = len(old)
            tally.bytes += sum(old.values())
        return tally

    async def _count_sessions(self, before: float, most_rows: float | None = None) -> None:
        cursor = None
        while most_rows is None or self._rows < most_rows:
            page = await self._store.prunable(before, cursor, _PAGE)
            fresh = [each for each in page.sessions if each.id not in self._going]
            for session in fresh:
                self._count_session(session)
                if most_rows is not None and self._rows >= most_rows:
                    break
            self._tally.calls += page.calls if fresh else 0
            cursor = page.cursor
            if cursor is None:
                return

    def _count_session(self, session: StoredSession) -> None:
        self._going.add(session.id)
        self._rows += rows_of(session)
        self._tally.sessions += 1
        self._tally.events += session.last_seq
        self._tally.messages += session.messages

    async def _count_excess(self, usage: StoreUsage, most_bytes: int) -> None:
        excess = (usage.bytes - most_bytes) / bytes_a_row(usage)
        if excess > self._rows:
            await self._count_sessions(self._bounds.fresh, excess)

    async def _count_events(self, before: float) -> None:
        cursor = None
        while True:
            page = await self._store.list_sessions(cursor=cursor, limit=_PAGE, workers=True)
            for session in page.sessions:
                if session.created_at < before and session.id not in self._going:
                    await self._count_old_events(session.id, before)
            cursor = page.cursor
            if cursor is None:
                return

    async def _count_old_events(self, session: str, before: float) -> None:
        after = 0
        try:
            if await self._store.open_calls(session):
                return
            while events := await self._store.read_events(session, after):
                after += len(events)
                # What stands for an event that is pruned has no time.
                old = [each for each in events if each.timestamp < before]
                self._tally.events += sum(each.timestamp > 0 for each in old)
                self._rows += sum(each.timestamp > 0 for each in old)
                if len(old) < len(events):
                    return
        except SessionNotFound:  # deleted meanwhile
            return

    async def _count_artifacts(self) -> None:
        before, tally = self._bounds.artifacts, self._tally
        for session, changed in await asyncio.to_thread(directories, self._artifacts):
            directory = directory_of(self._artifacts, session)
            if directory is None:
                continue
            files: dict[str, int] | None = {}
            if before is not None:
                files = await prunable_artifacts(
                    self._store, self._artifacts, session, changed, before
                )
            size = await asyncio.to_thread(size_of, directory)
            if files is None:
                tally.artifacts += 1
                tally.bytes += size
                continue
            old = sum(files.values())
            tally.artifacts += len(files)
            tally.bytes += old
            if session in self._going and size > old:  # the rest goes with it
                tally.artifacts += 1
                tally.bytes += size - old
