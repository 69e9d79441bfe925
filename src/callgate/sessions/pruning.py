"""Deletion of expired data in short steps, and a plan that deletes nothing.

    artifacts -> files of the audit log -> rows left by a prune that was killed
      -> sessions by age -> sessions beyond the size -> events of sessions that stay -> empty pages

Files come first: on a full disk they make the room that the store needs for a deletion. Each
step is one transaction, or a few files. The caller may stop after any step: the next prune of any
process completes an interrupted deletion.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from datetime import datetime

import msgspec

from callgate.audit.log import AuditLog
from callgate.audit.records import old_segments
from callgate.core.budgets import PruneEvents, PruneSessions, ReleasePages, StoreUsage, SweepRows
from callgate.core.stored import StoredSession
from callgate.core.stores import SessionNotFound, Store
from callgate.core.tasks import start_task
from callgate.sessions.artifacts import (
    directories,
    directory_of,
    drop_artifacts,
    drop_shared,
    old_files,
    size_of,
)

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_DAY_S = 86_400.0
FRESH_S = 3_600.0
"""Age in seconds below which items remain, even above the size limits."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Items before these moments (seconds since 1970) are deleted. None: no limit."""

    sessions: float | None = None
    """Sessions that were last used before it."""
    events: float | None = None
    """Events, and the calls that ended with them, of sessions that stay."""
    artifacts: float | None = None
    audit: float | None = None
    """Closed files of the audit log whose every line is older."""
    store_bytes: int = 0
    """Maximum size of the store; beyond it, the least recently used sessions go. 0: no limit."""
    fresh: float = 0.0
    """Sessions that were used since then remain, regardless of the size."""

    @classmethod
    def at(
        cls,
        now: float,
        *,
        sessions_days: float,
        events_days: float,
        artifacts_days: float,
        audit_days: float,
        store_bytes: int,
    ) -> Bounds:
        """Return the bounds for these limits; 0 days or bytes mean no limit."""

        def before(days: float) -> float | None:
            return now - days * _DAY_S if days else None

        return cls(
            sessions=before(sessions_days),
            events=before(events_days),
            artifacts=before(artifacts_days),
            audit=before(audit_days),
            store_bytes=store_bytes,
            fresh=now - FRESH_S,
        )

    def describe(self) -> str:
        """Describe the expired items."""
        return ", ".join(self.each()) or "none"

    def each(self) -> Iterator[str]:
        if self.sessions is not None:
            yield f"sessions not used since {_moment(self.sessions)}"
        if self.store_bytes:
            size = _size(self.store_bytes)
            yield f"sessions beyond {size}, but for those used since {_moment(self.fresh)}"
        if self.events is not None:
            yield f"events before {_moment(self.events)}"
        if self.artifacts is not None:
            yield f"artifacts before {_moment(self.artifacts)}"
        if self.audit is not None:
            yield f"audit files before {_moment(self.audit)}"


class Tally(msgspec.Struct, kw_only=True):
    """Numbers of deleted items, or of items that would be deleted."""

    sessions: int = 0
    events: int = 0
    calls: int = 0
    messages: int = 0
    artifacts: int = 0
    """Files, or directories of deleted sessions."""
    audit_files: int = 0
    bytes: int = 0
    """Size of store, artifacts and audit log; an estimate before the run."""

    @property
    def is_empty(self) -> bool:
        return self == Tally()

    def counts(self) -> list[str]:
        names = {
            "sessions": self.sessions,
            "events": self.events,
            "calls": self.calls,
            "messages": self.messages,
            "artifacts": self.artifacts,
            "audit files": self.audit_files,
        }
        counts = [f"{name} {count:,}" for name, count in names.items() if count]
        return [*counts, f"about {_size(self.bytes)}"] if self.bytes else counts

    def describe(self) -> str:
        return ", ".join(self.counts()) or "nothing"


def _moment(timestamp: float) -> str:
    try:
        return datetime.fromtimestamp(timestamp).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return "long ago"


def _size(count: float) -> str:
    for unit in _UNITS[:-1]:
        if count < 1024:
            return f"{count:,.0f} {unit}"
        count /= 1024
    return f"{count:,.1f} {_UNITS[-1]}"


ORPHAN_S = 86_400.0
"""Age in seconds below which a directory without a session remains: it may be stored soon."""
_SESSIONS_AT_ONCE = 100
_ROWS_AT_ONCE = 1_000
_EVENTS_AT_ONCE = 500
_PAGES_AT_ONCE = 500
_LONGEST_REST_S = 0.1


async def paced(steps: AsyncIterator[None]) -> AsyncGenerator[None]:
    """Sleep after each step for its duration, so that other writers have priority.

    A step that has begun is completed and counted, even if its caller is cancelled.
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
    """One run of pruning. `tally` counts the deleted items."""

    def __init__(self, store: Store, bounds: Bounds, artifacts: str, audit: AuditLog) -> None:
        self._store = store
        self._bounds = bounds
        self._artifacts = artifacts
        self._audit = audit
        self.tally = Tally()

    async def steps(self) -> AsyncIterator[None]:
        """Prune; yields after each step."""
        bounds = self._bounds
        if bounds.artifacts is not None:
            async for _ in self._prune_artifacts(bounds.artifacts):
                yield
        if bounds.audit is not None:
            await self._prune_audit(int(bounds.audit * 1000))
            yield
        before = await self._store.usage()
        if before.bytes:  # otherwise there is no file, and none is created
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
        """Delete the least recently used sessions until the rest fits."""
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
    """Return the deletable files of an unused session; None: the session was deleted, and all of
    its files may go."""
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
    """Return the average size of an event, a message or a session in the file."""
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


_PAGE = 1_000


class PruningPlan:
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
                # The event that replaces pruned ones has no time.
                old = [each for each in events if each.timestamp < before]
                self._tally.events += sum(each.timestamp > 0 for each in old)
                self._rows += sum(each.timestamp > 0 for each in old)
                if len(old) < len(events):
                    return
        except SessionNotFound:  # deleted since the list was read
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
