"""One sync for many calls: it covers every line that was appended before it began.

    append, wait --+
    append, wait --+--> [ sync 2, not begun ]      a new caller joins the sync that has not begun
                        [ sync 1, running ]        it may have begun before the line was written

Loaded with the first call that waits for its line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class GroupSync:
    """Run syncs one after the other in a separate thread. Thread-safe, for any event loop."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._thread = ThreadPoolExecutor(1, "callgate-audit")
        self._guard = threading.Lock()
        self._next: Future[None] | None = None
        """The sync that has not begun."""

    def request(self) -> Future[None]:
        """A sync. Done when all earlier lines are durable; has the `OSError` if it failed."""
        with self._guard:
            if self._next is not None:
                return self._next
            try:
                self._next = self._thread.submit(self._run)
                return self._next
            except RuntimeError:  # the system has no thread to give
                return self._run_here()

    def _run_here(self) -> Future[None]:
        done: Future[None] = Future()
        try:
            self._sync()
            done.set_result(None)
        except OSError as error:
            done.set_exception(error)
        return done

    def _run(self) -> None:
        with self._guard:
            self._next = None
        self._sync()

    def close(self) -> None:
        """Complete all requested syncs, and wait for them."""
        self._thread.shutdown()
