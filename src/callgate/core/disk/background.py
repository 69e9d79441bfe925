"""Syncs beside the thread that needs them: several of one call at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

disk_jobs: set[object] = set()
"""What the disk's threads (`threads`) have to do or do just now."""
_FEW = 4
"""Jobs of the disk's threads up to which each has helpers: no more than three."""


class BackgroundSync:
    """Work that waits for the disk, in a thread beside its caller, who must `wait` for its end.

    Where many calls write it is done at once: the disk has work enough, and threads are not free.
    """

    __slots__ = ("_ended", "_error", "_tickets", "_work")

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._tickets = [None]
        """Whoever takes the one that is there does the work."""
        self._error: Exception | None = None
        self._ended: Future[None] | None = None
        if len(disk_jobs) <= _FEW:
            try:
                self._ended = _helpers().submit(self._run)
            except RuntimeError:
                pass  # the system has no thread to give
        if self._ended is None:
            self._run()

    def wait(self) -> None:
        """Return at the end of the work, or raise what it raised."""
        self.end()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Only wait. Idempotent."""
        if self._ended is not None:
            self._ended.result()

    def _run(self) -> None:
        try:
            self._tickets.pop()
        except IndexError:
            return  # its caller did it
        try:
            self._work()
        except Exception as error:  # for whoever waits
            self._error = error


@cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(3 * _FEW, "callgate-sync")


os.register_at_fork(after_in_child=_helpers.cache_clear)  # a child has none of the threads
