"""Has the store know how far our chain of the audit log has come, where several homes share it."""

from __future__ import annotations

import asyncio
import logging
import time

from callgate.audit.heads import Head, put_head
from callgate.audit.log import AuditLog
from callgate.core.stores import Store, StoreError
from callgate.core.task_sets import TaskSet
from callgate.events.log import SessionLog

_log = logging.getLogger("callgate.sessions")


class HeadPublisher:
    """One per runtime; told by the log, once a second while calls are made."""

    def __init__(self, log: SessionLog, audit: AuditLog, home: str) -> None:
        self._log = log
        self._audit = audit
        self._home = home
        self._published: tuple[str, int] = ("", 0)
        self._tasks = TaskSet()
        log.on_checkpoint = self._begin

    def _begin(self) -> None:
        self._tasks.start(self.publish())

    async def publish(self) -> None:
        """Publish the last line. Does what it can: the next one tells more."""
        chain, n, *_ = self._audit.end
        if n == 0 or (chain, n) == self._published:
            return
        try:
            await publish_head(await self._log.store(), self._audit, self._home)
            self._published = chain, n
        except (StoreError, OSError) as error:
            _log.warning("the store does not know the end of the audit log: %s", error)

    async def close(self) -> None:
        """Publish the end of the chain. Before the log is closed."""
        await self._tasks.wait()
        await self.publish()


async def publish_head(store: Store, audit: AuditLog, home: str) -> None:
    """Have the store know the last line of a log, once it is on the disk."""
    chain, n, hash, file = audit.end
    if n == 0:
        return
    head = Head(home=home, owner=audit.owner, n=n, hash=hash, file=file, at=time.time())
    await asyncio.wrap_future(audit.request_sync())
    await store.commit(put_head(chain, head))
