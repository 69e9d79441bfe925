"""Whether the instance takes work, for load balancers: cheap, without secrets, for anybody.

    settings   the files can be used
    store      answers a small read within `LIMIT_S`
    work       the instance is not draining

`/healthz` says that the process answers; `/readyz`, that work may be sent here. Anybody may ask
as often as they like: one read of the store at most is under way, and what it found counts for
`FRESH_S`. What is said is one of a few words, never the text of an error, which names files or
machines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from callgate.core.stores import StoreClosed, StoreError, StoreTooNew
from callgate.core.task_sets import start_task
from callgate.runtime import Runtime
from callgate.surfaces.draining import Draining

LIMIT_S = 1.0
"""How long the store may take to answer."""
FRESH_S = 1.0
"""How long its answer counts."""
OK = "ok"
_KIND = "readyz"
"""Of shared entries: there are none, so the read gives nothing back."""


class Readiness:
    def __init__(
        self,
        runtime: Runtime,
        draining: Draining,
        workspace: str,
        *,
        limit_s: float = LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`workspace`: whose settings are looked at beside the user's."""
        self._runtime = runtime
        self._draining = draining
        self._workspace = workspace
        self._limit_s = limit_s
        self._clock = clock
        self._reading: asyncio.Task[str] | None = None
        self._began = 0.0
        self._found = OK
        self._fresh_until = -1.0

    async def checks(self) -> Mapping[str, str]:
        """`OK`, or one word of what is wrong, for each thing that is looked at."""
        settings = self._runtime.settings_state(self._workspace)
        return {
            "settings": OK if settings.problem is None else "unusable",
            "store": await self._store(),
            "work": "draining" if self._draining.has_begun else OK,
        }

    async def _store(self) -> str:
        now = self._clock()
        if self._reading is None:
            if now < self._fresh_until:
                return self._found
            self._began = now
            self._reading = start_task(self._read())
        # Whoever comes while it is being read waits for the same read.
        left_s = self._began + self._limit_s - now
        done, _ = await asyncio.wait({self._reading}, timeout=max(left_s, 0.0))
        return self._found if done else "no_answer"

    async def _read(self) -> str:
        try:
            store = await self._runtime.store()
            await store.entries(_KIND)
            self._found = OK
        except StoreTooNew:
            self._found = "too_new"
        except StoreClosed:
            self._found = "closed"
        except StoreError:
            self._found = "unreachable"
        finally:
            self._reading = None
            self._fresh_until = self._clock() + FRESH_S
        return self._found
