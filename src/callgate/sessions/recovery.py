"""What processes left open when they went: closed once, and on record.

    lines of dead processes ---> their events are in the store          (`journal_lines`)
    dead owners -------------> calls with effects end as interrupted, their records are owed
    sessions they owned -----> calls without effects that have no line end the same way
    records owed by the dead -> lines in the audit log, unless they are there ---> cleared

A call that had started is never run again by itself; a question of a direct call closes with its
caller; a question of a turn stays open. One process at a time does this, under a lock.

Where several homes share the store, each has a lock and journals of its own: the lines of dead
processes are read in their home alone (`homes`), and records that are owed are claimed before
their lines are written. The rest the store does once, however many ask for it.
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
"""How often a runtime that lives on looks for processes that died."""
_WAIT_S = 10.0
"""How long another process that recovers is waited for."""
_TRY_EVERY_S = 0.01
_AGAIN_S = 60.0
"""When it tries again what could not be written."""

_log = logging.getLogger("callgate.sessions")


class Recovery:
    """Opens the store of one runtime, after those who are gone."""

    def __init__(
        self,
        log: SessionLog,
        audit: AuditLog | None,
        directory: str,
        home: HomeIdentity | None = None,
        find_key: Callable[[Store], Awaitable[bytes]] | None = None,
    ) -> None:
        """`directory` is that of the processes' files. Without an audit log nothing is closed:
        whoever has one does it. `home`: one of several that share the store; `find_key` finds the
        key that their audit logs have in common."""
        self._home = home
        self._find_key = find_key
        self._log = log
        self._audit = audit
        self._directory = directory
        self._is_key_shared = False
        self.refusal: str | None = None
        """Why this runtime must not live on: its home is a copy of another that is in use, or its
        key does not decrypt the secrets of the store."""

    async def enter(self, store: Store) -> Store:
        """A store in which nothing of the dead is open, unless it cannot be read now: then they
        are closed later. Closes it where it can never be used."""
        try:
            await self._share_key(store)
            await self._recover(store)
        except StoreUnreadable as error:
            _log.warning("calls of processes that are gone may stay open: %s", error)
        except BaseException:
            await store.close()
            raise
        return store

    async def watch(self) -> None:
        """Close what other processes left open when they died, now and from now on. For a
        runtime that lives on; never returns."""
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
                if str(error) != problem:  # once, however long it lasts
                    _log.warning("calls of processes that are gone stay open: %s", error)
                problem = str(error)
                wait_s = _LOOK_EVERY_S if isinstance(error, StoreUnreadable) else _AGAIN_S
            await asyncio.sleep(wait_s)

    async def declare(self, store: Store) -> None:
        """Have it known that a process of this home lives on. Sets `refusal` where it must not."""
        if self._home is None or self._audit is None:
            return
        from callgate.sessions import homes  # lazy: most stores have one home  # noqa: PLC0415

        try:
            await homes.declare_home(store, self._home)
        except homes.CopiedHome as error:
            self.refusal = str(error)

    async def _recover(self, store: Store) -> bool:
        """Whether nothing of the dead is left open, as far as we can tell."""
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
            self._is_key_shared = not isinstance(error, StoreUnreadable)  # as far as it can be
            _log.warning("the key of the audit log is not shared: %s", error)


async def needs_recovery(store: Store, directory: str, home: HomeIdentity | None = None) -> bool:
    """Whether the dead left anything open, or a question's time is over.

    `directory` is that of the processes' files. `home`: one of several that share the store; what
    waits for another of them does not count.
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
    """Close what the dead left open and what nobody answered in time, and write their lines.

    False where that is not possible now: a later process does it.
    """
    try:
        async with _alone(directory):
            await _recover(store, audit, directory, home)
            return True
    except (StoreUnwritable, StoreUnreadable) as error:
        _log.warning("calls of processes that are gone stay open: %s", error)
    except TimeoutError as error:
        _log.warning("calls of processes that are gone may stay open: %s", error)
    except OSError as error:
        _log.critical("calls of processes that are gone are not in the audit log: %s", error)
    return False


async def _recover(
    store: Store, audit: AuditLog, directory: str, home: HomeIdentity | None
) -> None:
    from callgate.sessions import journal_lines, owed_lines  # lazy: few processes die  # noqa: PLC0415

    dead = await store.dead_owners()  # first: whoever dies later may have lines that were not read
    unread = await journal_lines.store_lines(store, audit.path, directory, dead, home)
    await reap_dead(store, time.time(), [each for each in dead if each not in unread])
    await store.commit(ExpireConfirmations(at=time.time()))
    await journal_lines.close_cut(store, audit.path, directory, home)
    await owed_lines.write_owed(store, audit, home)
    if home is not None:
        await _forget(store)


async def _forget(store: Store) -> None:
    """Forget the dead of all homes who left nothing open any more."""
    from callgate.sessions.homes import forget_absences  # lazy: as above  # noqa: PLC0415

    cut, records = await asyncio.gather(store.cut_sessions(), store.outbox())
    owners = {owner for each in cut for owner in each.owners} | {each.owner for each in records}
    await forget_absences(store, owners)


@asynccontextmanager
async def _alone(directory: str) -> AsyncIterator[None]:
    """Under the lock of those who recover. `TimeoutError` where another does not let go of it:
    it may be stopped."""
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
                    raise TimeoutError(errno.ETIMEDOUT, "another process is at it") from None
            await asyncio.sleep(_TRY_EVERY_S)
        yield
    finally:
        os.close(descriptor)
