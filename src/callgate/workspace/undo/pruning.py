"""Drops the oldest changes of the history: those too old, then as many as are too much.

Once an hour at most, whichever process notices first, in a thread of its own; sooner only if
this process alone has added an eighth of what may be kept in all. A process that ends waits
for it. Killed in the middle, it leaves contents without lines, which the next one drops.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections import Counter
from typing import NamedTuple

import msgspec

from callgate.workspace.paths import opening
from callgate.workspace.undo.blobs import Blobs
from callgate.workspace.undo.records import read

_log = logging.getLogger("callgate.history")

_EVERY_S = 3600.0
_FRESH_S = 60.0
"""What was touched that lately stays: its line may be about to be written."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    max_file: int = 16 * 1024 * 1024
    """Bytes of the largest content that is kept."""
    max_total: int = 512 * 1024 * 1024
    """Bytes that are kept in all."""
    max_age_s: float = 30 * 86_400.0

    @property
    def limit(self) -> int:
        return min(self.max_file, self.max_total)


class _Call(NamedTuple):
    touched: float
    path: str
    size: int
    digests: set[str]


class Pruning:
    def __init__(self, directory: str, blobs: Blobs, calls: str, bounds: Bounds) -> None:
        self._stamp = os.path.join(directory, "pruned")
        self._blobs = blobs
        self._calls = calls
        self._bounds = bounds
        self._added = 0
        self._looked = -_EVERY_S
        self._lock = threading.Lock()

    def added(self, size: int) -> None:
        """So much more is kept. Prunes in the background where it is time to."""
        with self._lock:
            self._added += size
            much = self._added > self._bounds.max_total // 8
            now = time.monotonic()
            if not much and now - self._looked < _EVERY_S:
                return
            self._looked, self._added = now, 0
        if much or self._is_due():
            threading.Thread(target=self._run_quietly, name="callgate-prune").start()

    def run(self) -> None:
        """Prune now, unless another process is at it."""
        with opening():
            guard = os.open(self._stamp, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        else:
            self._prune(time.time())
            os.utime(guard)
        finally:
            os.close(guard)

    def _run_quietly(self) -> None:
        try:
            self.run()
        except OSError as error:
            _log.warning("old changes could not be dropped: %s", error)

    def _is_due(self) -> bool:
        try:
            return time.time() - os.stat(self._stamp).st_mtime >= _EVERY_S
        except OSError:
            return True

    def _prune(self, now: float) -> None:
        sizes = self._blobs.sizes()
        calls = sorted(self._found())
        users = Counter(digest for call in calls for digest in call.digests)
        total = sum(call.size for call in calls) + sum(sizes.get(each, 0) for each in users)
        oldest, fresh = now - self._bounds.max_age_s, now - _FRESH_S
        for call in calls:
            too_much = total > self._bounds.max_total and call.touched < fresh
            if call.touched >= oldest and not too_much:
                break
            _unlink(call.path)
            total -= call.size
            for digest in call.digests:
                users[digest] -= 1
                if not users[digest]:
                    del users[digest]
                    total -= sizes.get(digest, 0)
        self._blobs.drop_others(users.keys(), fresh)

    def _found(self) -> list[_Call]:
        found = []
        try:
            names = os.listdir(self._calls)
        except FileNotFoundError:
            return []
        for name in names:
            path = os.path.join(self._calls, name)
            try:
                with opening(), open(path, "rb") as file:
                    status, content = os.fstat(file.fileno()), file.read()
            except FileNotFoundError:
                continue
            digests = {
                state.sha256
                for change in read(content).changes
                for state in (change.before, change.after)
                if state is not None and state.kept and state.sha256
            }
            found.append(_Call(status.st_mtime, path, status.st_size, digests))
        return found


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
