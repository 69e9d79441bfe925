"""Deletes old records while an instance has nothing else to do: a few small steps an hour.

No step begins while a call runs. One process of a home does it at a time, and a pass has an end:
what is left over is for the next one.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Callable
from contextlib import aclosing

from callgate.config.home import Home
from callgate.config.schema import Settings
from callgate.core.directories import make_private_directory
from callgate.core.stores import StoreError
from callgate.runtime import Runtime

FIRST_S = 60.0
EVERY_S = 3_600.0
_LOOK_S = 1.0
"""How often an instance that is at work looks whether it still is."""
_STEPS = 500
"""Of one pass."""

_log = logging.getLogger("callgate.serve")


class IdlePruning:
    def __init__(
        self, runtime: Runtime, home: Home, settings: Callable[[], Settings | None]
    ) -> None:
        """`settings` gives None while they cannot be read: how long to keep is not guessed."""
        self._runtime = runtime
        self._home = home
        self._settings = settings
        self._stamp = os.path.join(home.path, "run", "pruned")

    async def run(self) -> None:
        """Never ends."""
        await asyncio.sleep(FIRST_S)
        while True:
            try:
                await self.prune_if_due()
            except (StoreError, OSError) as error:
                _log.warning("old records could not be deleted: %s", error)
            await asyncio.sleep(EVERY_S / 10)

    async def prune_if_due(self) -> bool:
        """One pass, unless it is too early or another process is at it."""
        if not os.path.exists(self._home.path) or not self._is_due():
            return False
        make_private_directory(os.path.dirname(self._stamp))
        guard = os.open(self._stamp, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            await self._prune()
            os.utime(guard)
        except BlockingIOError:
            return False
        finally:
            os.close(guard)
        return True

    def _is_due(self) -> bool:
        try:
            return time.time() - os.stat(self._stamp).st_mtime >= EVERY_S
        except FileNotFoundError:
            return True

    async def _prune(self) -> None:
        from callgate.audit.log import AuditLog  # lazy: once an hour  # noqa: PLC0415
        from callgate.sessions.pruning import Pruning, paced  # lazy: as above  # noqa: PLC0415
        from callgate.sessions.retention import Bounds  # lazy: as above  # noqa: PLC0415

        settings = self._settings()
        if settings is None:
            return
        table = settings.retention
        bounds = Bounds.at(
            time.time(),
            sessions_days=table.sessions_days,
            events_days=table.events_days,
            artifacts_days=table.artifacts_days,
            audit_days=table.audit_days,
            store_bytes=table.store_bytes,
        )
        # A log of its own: that of the calls is not to be used in another thread.
        audit = AuditLog(
            self._home.audit, max_bytes=settings.audit.max_bytes, keep=settings.audit.keep
        )
        pruning = Pruning(await self._runtime.store(), bounds, self._home.artifacts, audit)
        left = _STEPS
        try:
            await self._idle()
            async with aclosing(paced(pruning.steps())) as steps:
                async for _ in steps:
                    left -= 1
                    if not left:
                        break
                    await self._idle()
        finally:
            audit.close()
            if not pruning.tally.is_empty:
                done = pruning.tally.describe(), bounds.describe()
                _log.warning("deleted old records: %s; bounds: %s", *done)

    async def _idle(self) -> None:
        while self._runtime.in_flight():  # noqa: ASYNC110  # nobody has to say when none is left
            await asyncio.sleep(_LOOK_S)
