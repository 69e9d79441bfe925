"""One sync for many threads: it covers what each did before the sync began.

    rename, wait --+
    rename, wait --+--> [ sync 2, not begun ]      whoever comes joins the one that has not begun
                        [ sync 1, under way ]      it may have begun before our rename

No thread of its own: the first who waits for a sync does it. `audit.syncing` is the same for
callers in an event loop.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Hashable


class SharedSyncs:
    """Syncs by what they cover, such as a directory."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._next: dict[Hashable, _Sync] = {}
        """Those that have not begun."""
        self._under_way: dict[Hashable, threading.Lock] = {}

    def run(self, key: Hashable, sync: Callable[[], None]) -> None:
        """Return once a sync has ended that began after this call; raise why it failed."""
        with self._guard:
            joined = self._next.get(key)
            if joined is None:
                mine = self._next[key] = _Sync()
                before = self._under_way.get(key)
                self._under_way[key] = mine.ended
        if joined is not None:
            joined.wait()
            return
        if before is not None:
            with before:  # the one under way has ended
                pass
        with self._guard:
            del self._next[key]  # from here on it may miss what others do
        try:
            sync()
        except BaseException as error:
            mine.error = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))
            raise
        finally:
            with self._guard:
                if self._under_way.get(key) is mine.ended:
                    del self._under_way[key]
            mine.ended.release()


class _Sync:
    __slots__ = ("ended", "error")

    def __init__(self) -> None:
        self.ended = threading.Lock()
        """Locked until it has ended."""
        self.ended.acquire()
        self.error: OSError | None = None

    def wait(self) -> None:
        with self.ended:
            pass
        if self.error is not None:
            raise OSError(*self.error.args)


_syncs = SharedSyncs()


def share_sync(key: Hashable, sync: Callable[[], None]) -> None:
    """Share a sync with all who need the same in this process."""
    _syncs.run(key, sync)


def _begin_anew() -> None:
    global _syncs
    _syncs = SharedSyncs()


os.register_at_fork(after_in_child=_begin_anew)  # a child has none of the threads
