"""An event loop beside the main thread, which waits for the keyboard.

Signals reach the main thread alone, and line editing belongs there: so the runtime has a
thread of its own, and goes on while a line is typed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_LOOK_S = 0.1
"""How often the main thread looks whether a signal came while it waits."""


class BackgroundLoop:
    """Use it in a `with`: the loop runs from its entry to its end."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> BackgroundLoop:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """A second time changes nothing."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something there to its end, or until Ctrl-C."""
        future = self.start(work)
        try:
            return self.wait_for(future)
        except KeyboardInterrupt:
            future.cancel()
            raise

    @staticmethod
    def wait_for(future: concurrent.futures.Future[T]) -> T:
        """Its result. The system may hand a signal to another thread, or just before this one
        begins to wait: neither would wake it."""
        while concurrent.futures.wait([future], _LOOK_S).not_done:
            pass
        return future.result()

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._ready.set()
        await self._over.wait()
