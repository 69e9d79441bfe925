"""Deletion of old changes from the history, by age, then by size.

It runs at most once an hour, in the first process that notices, in a separate thread; sooner only
if this process alone has added an eighth of the limit. A process that ends waits for it. After a
kill, contents without lines may remain, which the next pruning drops.
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
from callgate.workspace.undo import other_disks
from callgate.workspace.undo.records import Blobs, read

_log = logging.getLogger("callgate.history")

_EVERY_S = 3600.0
FRESH_S = 60.0
"""Age in seconds below which contents remain: a line may be about to be written."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    max_file: int = 16 * 1024 * 1024
    """Maximum size in bytes of a stored content."""
    max_call: int = 512 * 1024 * 1024
    """Maximum size in bytes of the stored files of one command."""
    max_total: int = 512 * 1024 * 1024
    """Maximum size in bytes of all stored contents."""
    max_age_s: float = 30 * 86_400.0
    excluded: tuple[str, ...] = ()
    """Names of directories in which commands change files that are not stored."""
    strict: bool = False
    """Whether commands may not change files that cannot be stored."""
    tolerant: bool = False
    """Whether commands may change files that a full disk prevents from being stored."""

    @property
    def limit(self) -> int:
        return min(self.max_file, self.max_total)


class _Call(NamedTuple):
    touched: float
    path: str
    size: int
    digests: set[str]
    directories: set[str]
    """Directories with stored files."""


class Pruning:
    def __init__(
        self, directory: str, blobs: Blobs, calls: str, files: str, bounds: Bounds
    ) -> None:
        self._stamp = os.path.join(directory, "pruned")
        self._blobs = blobs
        self._calls = calls
        self._files = files
        self._bounds = bounds
        self._added = 0
        self._looked = -_EVERY_S
        self._lock = threading.Lock()

    def added(self, size: int) -> None:
        """Add to the stored size. Prunes in the background when it is due."""
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
        """Prune now, unless another process does."""
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
        oldest, fresh = now - self._bounds.max_age_s, now - FRESH_S
        for call in calls:
            too_much = total > self._bounds.max_total and call.touched < fresh
            if call.touched >= oldest and not too_much:
                break
            _unlink(call.path)
            for name in call.directories:
                other_disks.remove(os.path.join(self._files, name))
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
            states = [
                state
                for change in read(content).changes
                for state in (change.before, change.after)
                if state is not None
            ]
            stored = {state.body or state.stored for state in states}
            directories = {name.partition("/")[0] for name in stored if name is not None}
            stored_size = sum(size_of(os.path.join(self._files, name)) for name in directories)
            digests = {
                state.sha256
                for state in states
                if state.kept and state.sha256 and not (state.body or state.stored or state.target)
            }
            size = status.st_size + stored_size
            found.append(_Call(status.st_mtime, path, size, digests, directories))
        return found


def size_of(directory: str) -> int:
    """Return the space that the files in a directory hold: none for files with other names."""
    total = 0
    for each in other_disks.directories(directory):
        try:
            with os.scandir(each) as entries:
                for entry in entries:
                    facts = entry.stat(follow_symlinks=False)
                    total += facts.st_blocks * 512 if facts.st_nlink == 1 else 0
        except OSError:
            continue
    return total


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
