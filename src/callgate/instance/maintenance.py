"""Periodic work of a running instance: its socket, record, settings, memory and old records.

    each second -> the home was replaced or removed -> it stops, with a message
                   its socket was removed           -> created again, or it stops, with a message
                   its record was removed           -> written again
                   the settings changed             -> loaded again, and reported as an event
                   others consider it dead          -> it stops, with a message
                   its home is a copy               -> it stops, with a message
    when idle   -> old records are deleted in small steps, a few an hour; free memory is released

An instance that cannot be reached or stopped by name is worse than none. One process of a home
prunes at a time, and never while a call runs.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

from callgate.config.home import Home
from callgate.config.schema import Settings
from callgate.core.events import Event
from callgate.core.local.disk import make_private_directory
from callgate.core.stores import StoreError
from callgate.runtime import Runtime
from callgate.socket.connections import SocketServer
from callgate.socket.instances import InstanceRecord, publish
from callgate.socket.listening import CannotListen, Listener

LOOK_EVERY_S = 1.0
_log = logging.getLogger("callgate.serve")


class Maintenance:
    def __init__(
        self,
        home: str,
        record: InstanceRecord,
        server: SocketServer,
        listener: Listener,
        chores: Sequence[Callable[[], object]],
        refusal: Callable[[], str | None],
    ) -> None:
        """`chores` run each second, too. `refusal` returns why the instance must end, or None."""
        self._home = home
        self._directory = os.stat(home)
        self._record = record
        self._server = server
        self._chores = chores
        self._refusal = refusal
        self._listener = listener
        self._is_leaving = False

    async def run(self) -> str:
        """Run until the instance must end; return the reason."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for chore in self._chores:
                chore()
            if (why := self._refusal()) is not None:
                return why
            try:
                if not self._is_leaving:
                    self._stay_known()
            except CannotListen as error:
                return str(error)
            except OSError as error:
                return f"{self._home} cannot be used: {error.strerror or error}"

    def _stay_known(self) -> None:
        """Raises `CannotListen` or OSError."""
        if not os.path.samestat(os.stat(self._home), self._directory):
            raise CannotListen(f"{self._home} is another directory than it was")
        if not self._listener.is_reachable:
            self._server.stop_accepting()
            self._listener = self._listener.renew()
            self._server.start(self._listener)
            _log.error("%s was gone and has been made again", self._listener.path)
        publish(self._home, self._record, anew=False)

    def stop_listening(self) -> None:
        """Accept no more peers; present ones stay, and `callgate stop` still finds the instance."""
        self._is_leaving = True
        self._server.stop_accepting()
        self._listener.close()

    def close(self) -> None:
        """Close the present listener, the first one or its replacement."""
        self._listener.close()


_MADE_BEFORE_A_LOOK = 2_000
"""Number of new objects before garbage collection: some are in reference cycles."""
_GROWN = 8 * 1024 * 1024
"""Growth of memory in bytes before it is examined: few objects can be large."""
_LONGEST_PAUSE = 64
_SWITCH_S = 0.0005
"""Maximum time for which a thread that writes to the store delays the event loop."""
_M_MMAP_THRESHOLD = -3
_LARGE = 1024 * 1024
"""Size of buffers that return to the system as soon as they are freed."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """Memory management of the process. Create it after all imports, before serving."""

    def __init__(self) -> None:
        gc.collect()
        gc.freeze()  # present objects stay, so the collector can skip them
        gc.set_threshold(_MADE_BEFORE_A_LOOK)
        sys.setswitchinterval(_SWITCH_S)
        self._libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
        # Otherwise glibc would retain all buffers after the first large one was freed.
        self._tell_libc("mallopt", _M_MMAP_THRESHOLD, _LARGE)
        self._least = self._last = _resident()
        """Smallest size in bytes, and the size after the last collection."""
        self._pause, self._looks = 1, 0

    def tidy(self) -> None:
        """Collect cycles and release free memory, if there may be much of it.

        Call it periodically: it tries less often if the last attempts found little.
        """
        size = _resident()
        self._least = min(self._least, size)
        if size < self._least + _GROWN:
            return
        if size > self._last + _GROWN:
            self._pause = 1
        self._looks += 1
        if self._looks < self._pause:
            return
        gc.collect()
        self._tell_libc("malloc_trim", 0)
        self._last, self._looks = _resident(), 0
        self._pause = 1 if self._last < size - _GROWN else min(self._pause * 2, _LONGEST_PAUSE)

    def _tell_libc(self, function: str, *given: int) -> None:
        found = getattr(self._libc, function, None)  # only glibc has these
        if found is not None:
            found(*given)


def _resident() -> int:
    """Return the resident memory in bytes, or 0 if it is unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


FIRST_S = 60.0
EVERY_S = 3_600.0
_LOOK_S = 1.0
"""How often a busy instance checks whether it is idle."""
_STEPS = 500
"""Maximum steps of one pass."""


class IdlePruning:
    def __init__(
        self, runtime: Runtime, home: Home, settings: Callable[[], Settings | None]
    ) -> None:
        """`settings` returns None while they cannot be read; then nothing is deleted."""
        self._runtime = runtime
        self._home = home
        self._settings = settings
        self._stamp = os.path.join(home.path, "run", "pruned")

    async def run(self) -> None:
        """Prune periodically. Never ends."""
        await asyncio.sleep(FIRST_S)
        while True:
            try:
                await self.prune_if_due()
            except (StoreError, OSError) as error:
                _log.warning("old records could not be deleted: %s", error)
            await asyncio.sleep(EVERY_S / 10)

    async def prune_if_due(self) -> bool:
        """Run one pass, unless it is too early or another process runs one."""
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
        from callgate.sessions.pruning import (  # lazy: as above  # noqa: PLC0415
            Bounds,
            Pruning,
            paced,
        )

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
        # A separate log: the one for calls must not be used in another thread.
        audit = AuditLog(
            self._home.audit, max_bytes=settings.audit.max_bytes, keep=settings.audit.keep
        )
        pruning = Pruning(await self._runtime.sessions.store(), bounds, self._home.artifacts, audit)
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
        while self._runtime.calls.in_flight():  # noqa: ASYNC110  # no event reports the last end
            await asyncio.sleep(_LOOK_S)


class Usage:
    def __init__(self, limit_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._now = now
        self._last = now()

    def note(self, event: Event | None = None) -> None:
        """Note that the instance is used now."""
        self._last = self._now()

    @property
    def is_over(self) -> bool:
        """Whether it was unused for the limit."""
        return self._now() - self._last >= self._limit_s
