"""Recovery: close everything that dead processes left open, once, with audit lines.

    lines of dead processes ---> their events are in the store          (`journal_lines`)
    dead owners -------------> calls with effects end as interrupted, their records are owed
    sessions they owned -----> calls without effects and without a line end in the same way
    owed records ------------> lines in the audit log, unless they exist ---> cleared

A started call is never run again automatically; a question of a direct call closes with its caller;
a question of a turn stays open. One process at a time recovers, under a lock.

If several homes share the store, each has its own lock and journals: the lines of dead processes
are read only in their home (`homes`), and owed records are claimed before their lines are written.
The store does everything else exactly once for any number of callers.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from callgate.audit.journals import any_dead
from callgate.audit.log import AuditLog
from callgate.core.ops import ExpireConfirmations
from callgate.core.stores import (
    Store,
    StoreError,
    StoreMisconfigured,
    StoreUnreadable,
    StoreUnwritable,
    reap_dead,
)
from callgate.events.log import SessionLog

if TYPE_CHECKING:  # most stores have one home
    from callgate.sessions.homes import HomeIdentity

_LOCK = "recovery.lock"
_LOOK_EVERY_S = 2.0
"""Interval in which a long-lived runtime looks for dead processes."""
_WAIT_S = 10.0
"""Time to wait for another process that recovers."""
_TRY_EVERY_S = 0.01
_AGAIN_S = 60.0
"""Interval of retries after a failed write."""

_log = logging.getLogger("callgate.sessions")


class Recovery:
    """Opens the store of one runtime, after recovery."""

    def __init__(
        self,
        log: SessionLog,
        audit: AuditLog | None,
        directory: str,
        home: HomeIdentity | None = None,
        find_key: Callable[[Store], Awaitable[bytes]] | None = None,
    ) -> None:
        """`directory` has the files of the processes. A process without an audit log closes
        nothing, and leaves it to one that has a log. `home`: one of several that share the store;
        `find_key` returns the common key of their audit logs."""
        self._home = home
        self._find_key = find_key
        self._log = log
        self._audit = audit
        self._directory = directory
        self._is_key_shared = False
        self.refusal: str | None = None
        """The reason to end this runtime: its home is a copy of another that is in use, or its
        key does not decrypt the secrets of the store."""

    async def enter(self, store: Store) -> Store:
        """Return the store after recovery. If it is unreadable now, recovery follows later. An
        unusable store is closed."""
        try:
            await self._share_key(store)
            await self._recover(store)
        except StoreUnreadable as error:
            _log.warning("calls of dead processes may stay open: %s", error)
        except BaseException:
            await store.close()
            raise
        return store

    async def watch(self) -> None:
        """Recover repeatedly, for a long-lived runtime. Never returns."""
        problem = ""
        while True:
            wait_s = _LOOK_EVERY_S
            try:
                store = await self._log.store()
                if not self._is_key_shared:
                    await self._share_key(store)
                await self.declare(store)
                if not await self._recover(store):
                    wait_s = _AGAIN_S
                problem = ""
            except StoreError as error:
                if str(error) != problem:  # log each problem once
                    _log.warning("calls of dead processes stay open: %s", error)
                problem = str(error)
                wait_s = _LOOK_EVERY_S if isinstance(error, StoreUnreadable) else _AGAIN_S
            await asyncio.sleep(wait_s)

    async def declare(self, store: Store) -> None:
        """Declare this process as alive in its home. Sets `refusal` if it must end."""
        if self._home is None or self._audit is None:
            return
        from callgate.sessions import homes  # lazy: most stores have one home  # noqa: PLC0415

        try:
            await homes.declare_home(store, self._home)
        except homes.CopiedHome as error:
            self.refusal = str(error)

    async def _recover(self, store: Store) -> bool:
        """Recover. Returns whether dead processes left no open calls, as far as is visible."""
        if self._audit is None or not await needs_recovery(store, self._directory, self._home):
            return True
        return await recover(store, self._audit, self._directory, self._home)

    async def _share_key(self, store: Store) -> None:
        """Use the key that the audit logs of all homes have in common."""
        if self._audit is None or self._find_key is None:
            self._is_key_shared = True
            return
        try:
            self._audit.use_key(await self._find_key(store))
            self._is_key_shared = True
        except StoreMisconfigured as error:
            self.refusal = str(error)
        except (StoreError, OSError) as error:
            self._is_key_shared = not isinstance(error, StoreUnreadable)  # retry only if unreadable
            _log.warning("the key of the audit log is not shared: %s", error)


async def needs_recovery(store: Store, directory: str, home: HomeIdentity | None = None) -> bool:
    """Whether dead processes left anything open, or a question has expired.

    `directory` has the files of the processes. `home`: one of several that share the store; work
    for the others does not count.
    """
    dead, cut, records, questions = await asyncio.gather(
        store.dead_owners(),
        store.cut_sessions(),
        store.outbox(of_dead=True),
        store.open_confirmations(),
    )
    now = time.time()
    late = any(each.expires_at <= now for each in questions)
    if dead or late or any_dead(directory):
        return True
    owners = {owner for each in cut for owner in each.owners} | {each.owner for each in records}
    if home is None or any(map(home.has, owners)):
        return bool(owners)
    from callgate.sessions.homes import any_due  # lazy: most stores have one home  # noqa: PLC0415

    return await any_due(store, home, owners, now)


async def recover(
    store: Store, audit: AuditLog, directory: str, home: HomeIdentity | None = None
) -> bool:
    """Close what dead processes left open and expired questions, and write their lines.

    False if that is impossible now: a later process does it.
    """
    try:
        async with _alone(directory):
            await _recover(store, audit, directory, home)
            return True
    except (StoreUnwritable, StoreUnreadable) as error:
        _log.warning("calls of dead processes stay open: %s", error)
    except TimeoutError as error:
        _log.warning("calls of dead processes may stay open: %s", error)
    except OSError as error:
        _log.critical("calls of dead processes are not in the audit log: %s", error)
    return False


async def _recover(
    store: Store, audit: AuditLog, directory: str, home: HomeIdentity | None
) -> None:
    from callgate.sessions import journal_lines  # lazy: few processes die  # noqa: PLC0415

    dead = await store.dead_owners()  # first: processes that die later may have unread lines
    unread = await journal_lines.store_lines(store, audit.path, directory, dead, home)
    await reap_dead(store, time.time(), [each for each in dead if each not in unread])
    await store.commit(ExpireConfirmations(at=time.time()))
    await journal_lines.close_cut(store, audit.path, directory, home)
    await journal_lines.write_owed(store, audit, home)
    if home is not None:
        await _forget(store)


async def _forget(store: Store) -> None:
    """Forget the dead owners of all homes that have no open calls any more."""
    from callgate.sessions.homes import forget_absences  # lazy: as above  # noqa: PLC0415

    cut, records = await asyncio.gather(store.cut_sessions(), store.outbox())
    owners = {owner for each in cut for owner in each.owners} | {each.owner for each in records}
    await forget_absences(store, owners)


@asynccontextmanager
async def _alone(directory: str) -> AsyncIterator[None]:
    """Take the recovery lock. Raises `TimeoutError` if another process does not release it, perhaps
    because it is suspended."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    descriptor = os.open(os.path.join(directory, _LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        until = time.monotonic() + _WAIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(errno.ETIMEDOUT, "another process is recovering") from None
            await asyncio.sleep(_TRY_EVERY_S)
        yield
    finally:
        os.close(descriptor)
