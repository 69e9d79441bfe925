"""Audit log: one line per call, appended by any number of processes.

Each process writes a separate chain: every line contains the hash of the line before it in the
chain, and the first contains the hash of the last line in the file. A line that follows a line of
another process also contains the hash of that line, so that the chains are linked to each other.

A line is one `write` to a file opened for appending, so lines of several processes never mix and a
crash loses at most the line in progress. The next process that opens the file alone truncates an
incomplete line. If other writers are alive, the next writer terminates it with a newline, and
`verify` reports it.

A line survives a power cut once a sync has followed it (`request_sync`). One sync covers many lines
(`audit.syncing`) and waits in a thread, never in the event loop. The name of a new file is synced,
too. Lines that are the journal of the store are synced before it commits.

A file at its maximum size is closed under a number, and a new file begins. Other processes notice
this within a moment; until then they write to the closed file, and nothing is lost. The oldest
files beyond `keep` are deleted, except files that are still written. A record in the chain names
them first, so that `verify` distinguishes a deleted file from a removed one.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING
from weakref import WeakSet

import msgspec

from callgate.audit.journals import JournalMark
from callgate.audit.keys import drop_signature, make_key, save_key
from callgate.audit.records import (
    DropMark,
    Line,
    closed_segments,
    encode_into,
    first_time,
    index_path,
    line_hash,
    lock_path,
    number_of,
    segment_path,
)
from callgate.core.ids import ulid
from callgate.core.local.disk import make_private_directory, sync_directory, sync_file

if TYPE_CHECKING:
    from callgate.audit.syncing import GroupSync

_LOOK_EVERY_S = 0.2
"""Interval at which a writer checks whether another process has closed the file."""
_TAIL = 1024 * 1024
_NEAR = 16 * 1024
"""Distance within which the last line of another process is searched; lines are shorter."""
_UNKNOWN = -1

_log = logging.getLogger("callgate.audit")

_logs: WeakSet[AuditLog] = WeakSet()


def _forked() -> None:
    """Reset the log in a forked child: it inherits descriptors but no chain."""
    for log in list(_logs):
        log.abandon()


os.register_at_fork(after_in_child=_forked)


_RESERVE = 32 * 1024
"""Reserved disk space for a few of the longest lines."""


class _Position(msgspec.Struct):
    """The end of a chain."""

    chain: str
    n: int = 0
    prev: str = ""
    file: int = 0
    """The number of the file with its last line."""


class AuditLog:
    """The log of this process. Opened on first use; raises `OSError` if it cannot be written."""

    def __init__(
        self,
        path: str,
        *,
        max_bytes: int = 64 * 1024 * 1024,
        keep: int = 8,
        journals: str | None = None,
        owner: str = "",
    ) -> None:
        """`journals` is the directory of the journal files; None if the store is never behind.
        `owner` is the name of this process in the store."""
        self.path = path
        self._journals = journals
        self.owner = owner
        self._mark: JournalMark | None = None
        self._max_bytes = max_bytes
        self._keep = keep
        self._fd = -1
        self._number = 0
        """Number of the open file, which it retains when another process closes it."""
        self._lock = -1
        self._looked = 0.0
        self._end = _UNKNOWN
        """Offset after our last line; if the file ends elsewhere, other processes have written."""
        self._failed = False
        self._dropping: list[tuple[str, int]] = []
        """Files to delete after a record names them, with the descriptors that protect them."""
        self._at = _Position(chain="")
        self._line = bytearray()
        """The last line; its memory is reused for the next."""
        self._begins_at = (0, 0)
        """Position before the first line of the chain that the store may lack."""
        self._is_unmarked = False
        """Whether the missing journal file was logged."""
        self._syncs: GroupSync | None = None
        self._switching = threading.Lock()
        """Held while descriptors change that a sync uses in its thread."""
        self._unsynced: list[int] = []
        """Descriptors of closed files whose last lines are not synced yet."""
        self._named = False
        """Whether the name of the open file was synced."""
        self._sync_lock = threading.Lock()
        """Held by the thread that syncs: the threads that wait for it rely on its sync."""
        self._unstored = 0
        """Number of lines that the store relies on ..."""
        self._unstored_synced = 0
        """... and how many of them a sync has covered."""
        _logs.add(self)

    def ensure_open(self) -> None:
        """Raise `OSError` if a line cannot be written now, or when the call ends."""
        self._get_ready()
        self._keep_reserve()
        if self._failed:
            self._write(b"\n")

    def append(self, record: Line, *, is_stored: bool = False) -> None:
        """Append one line; it is in the file when this returns. Without `is_stored`, the line is
        the journal of the store."""
        if self._fd < 0 or time.monotonic() - self._looked > _LOOK_EVERY_S:
            self._get_ready()
        at = self._at
        if at.n == 0:  # only now: since it was opened, files may have been closed
            last = _last_line(self._fd, _TAIL) or _last_closed_line(self.path)
            at.prev = line_hash(last) if last else ""
            self._begins_at = self.position
        if self._mark is None and self._journals is not None:
            self._begin_journal(self._journals)
        end = os.lseek(self._fd, 0, os.SEEK_END)
        beginning, record.seen = (b"", "") if end == self._end else self._found(end)
        record.chain, record.n, record.prev = at.chain, at.n + 1, at.prev
        if at.file != self._number:
            record.file, record.file_before = self._number, at.file
        if self._dropping:
            newest, guard = self._dropping[-1]
            record.kept_from = number_of(newest) + 1
            record.dropped_last = line_hash(_last_line(guard, _TAIL))
            record.signature = drop_signature(
                self.key, record.chain, record.n, record.kept_from, record.dropped_last
            )
        line = self._line
        encode_into(record, line)
        hash = sha256(line).hexdigest()
        line += b"\n"
        self._end = end + self._write(beginning + line if beginning else line)
        at.n += 1
        at.prev = hash
        at.file = self._number
        if not is_stored:
            self._unstored += 1
        if self._dropping:
            self._drop()

    def close_before(self, before_ms: int) -> None:
        """Close the current file if its first line is older, so that it can be deleted sooner."""
        self._get_ready()
        if 0 < first_time(self.path) < before_ms:
            self._rotate()

    def drop(self, segments: Sequence[str]) -> list[str]:
        """Delete these closed files, oldest first, up to the first that is still written.

        A line in the chain names them. Return the deleted files.
        """
        self._get_ready()
        self._choose([each for each in segments if each not in dict(self._dropping)])
        dropping = [segment for segment, _ in self._dropping]
        if dropping:
            now = time.time_ns() // 1_000_000
            self.append(DropMark(id=f"audit_{ulid()}", ts=now, dropped_files=len(dropping)))
        return [each for each in dropping if not (os.path.exists(each) and os.path.getsize(each))]

    @cached_property
    def key(self) -> bytes:
        """The key for hashes of arguments."""
        with suppress(OSError):  # then it is a key for now
            make_private_directory(os.path.dirname(self.path))
        return make_key(self.path)

    def use_key(self, key: bytes) -> None:
        """Use the key that all processes share."""
        if key != self.key:
            self.key = key
            save_key(self.path, key)

    @property
    def position(self) -> tuple[int, int]:
        """The number of the open file, and the offset of its end."""
        return self._number, os.lseek(self._fd, 0, os.SEEK_END) if self._fd >= 0 else 0

    @property
    def end(self) -> tuple[str, int, str, int]:
        """Return the end of our chain: its name, number of lines, last hash, and file."""
        at = self._at
        return at.chain, at.n, at.prev if at.n else "", at.file

    def stored(self, position: tuple[int, int]) -> None:
        """Record that the store has all lines before an offset."""
        if self._mark is not None and position[0]:
            self._mark.advance(*position)
        elif position[0]:
            self._begins_at = position

    def _begin_journal(self, directory: str) -> None:
        try:
            self._mark = JournalMark(directory, self._at.chain, self.owner, *self._begins_at)
        except OSError as error:  # the line is written all the same, and the next one tries again
            level = logging.DEBUG if self._is_unmarked else logging.WARNING
            _log.log(level, "what a crash leaves behind will not be found: %s", error)
            self._is_unmarked = True

    def request_sync(self) -> Future[None]:
        """Return a future that is done when all present lines are durable."""
        if self._syncs is None:
            from callgate.audit.syncing import GroupSync  # lazy: with the first effect  # noqa: PLC0415

            self._syncs = GroupSync(self._sync)
        return self._syncs.request()

    def sync_before_store(self) -> None:
        """Sync the lines from which the store is about to follow: what a power cut takes from the
        log, it takes from the store too. In any thread."""
        if self._unstored == self._unstored_synced:
            return
        try:
            with self._sync_lock:
                if self._unstored != self._unstored_synced:  # else it was under way
                    self._sync_now()
        except OSError as error:
            _log.critical("the audit lines of calls without effects are not on the disk: %s", error)

    def _sync(self) -> None:
        with self._sync_lock:
            self._sync_now()

    def _sync_now(self) -> None:
        with self._switching:
            covered = self._unstored
            descriptors, self._unsynced = self._unsynced, []
            if self._fd >= 0:
                descriptors.append(os.dup(self._fd))
            named, self._named = self._named, True
            mark = self._mark
        try:
            if mark is not None:
                mark.sync()
            for descriptor in descriptors:
                sync_file(descriptor)
            if not named:
                sync_directory(os.path.dirname(self.path))
            self._unstored_synced = covered
        except OSError:
            self._named = False
            raise
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def close(self, *, is_stored: bool = False) -> None:
        """Close the log. `is_stored`: the store has all lines."""
        if self._syncs is not None:
            self._syncs.close()
            self._syncs = None
        if self._mark is not None:
            if is_stored:
                self._mark.remove()
            else:
                self._mark.close()
            self._mark = None
        with self._switching:
            guards = (guard for _, guard in self._dropping)
            for descriptor in (self._fd, self._lock, *self._unsynced, *guards):
                if descriptor >= 0:
                    os.close(descriptor)
            self._fd = self._lock = -1
            self._unsynced = []
            self._dropping = []

    def abandon(self) -> None:
        """Close the log in a forked child, which has none of the threads."""
        self._switching, self._sync_lock = threading.Lock(), threading.Lock()
        self._syncs = None
        self.close()

    def _get_ready(self) -> None:
        if self._fd < 0:
            self._open()
        now = time.monotonic()
        if now - self._looked > _LOOK_EVERY_S:
            self._look()
            self._looked = now

    def _open(self) -> None:
        """Begin a chain: after a start, and in a forked child, which inherits no chain."""
        make_private_directory(os.path.dirname(self.path))
        self._lock = _opened(lock_path(self.path))
        try:
            alone = _locked(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._reopen()
            if alone:
                _repair(self._fd)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        except OSError:
            self.close()
            raise
        # Check the size with the first line: a short-lived process may find the file full.
        self._looked = 0.0
        self._at = _Position(chain=ulid())

    def _reopen(self) -> None:
        """Open the current file. A shared lock protects it from deletion."""
        while True:
            fresh = _opened(self.path, os.O_APPEND)
            try:
                fcntl.flock(fresh, fcntl.LOCK_SH)
                closed = closed_segments(self.path)
                if _is_at(fresh, self.path):  # else another process closed it
                    break
            except BaseException:
                os.close(fresh)
                raise
            os.close(fresh)
        with self._switching:
            left, self._fd, self._named = self._fd, fresh, False
            if left >= 0:
                fcntl.flock(left, fcntl.LOCK_UN)  # this process writes there no more
                self._unsynced.append(left)
        if left >= 0:
            self.request_sync()
        self._number = number_of(closed[-1]) + 1 if closed else 1
        self._end = _UNKNOWN

    def _found(self, end: int) -> tuple[bytes, str]:
        """What others left at the end: a torn line to close, and the hash of the last whole one."""
        tail = os.pread(self._fd, min(end, _NEAR), max(0, end - _NEAR))
        torn = bool(tail) and not tail.endswith(b"\n")
        complete = tail[: tail.rfind(b"\n") + 1].rstrip(b"\n")
        last = complete[complete.rfind(b"\n") + 1 :]
        known = complete and (b"\n" in complete or end <= _NEAR) and self._at.n
        return (b"\n" if torn else b""), (line_hash(last) if known else "")

    def _keep_reserve(self) -> None:
        """Reserve disk space, so that an allowed call can be recorded."""
        path = self._reserve_path
        try:
            if os.stat(path).st_size >= _RESERVE:
                return
        except FileNotFoundError:
            pass
        descriptor = _opened(path, os.O_TRUNC)
        try:
            if os.write(descriptor, bytes(_RESERVE)) < _RESERVE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)

    @property
    def _reserve_path(self) -> str:
        return self.path.removesuffix(".jsonl") + ".reserve"

    def _spend_reserve(self) -> bool:
        try:
            os.unlink(self._reserve_path)
        except OSError:
            return False
        return True

    def _write(self, data: bytes | bytearray) -> int:
        """Write all bytes, on a full disk into the reserved space; return their number."""
        size = len(data)
        try:
            written = os.write(self._fd, data)
            if written < size:
                self._write_rest(data, written)
        except OSError as error:
            self._failed = True
            self._end = _UNKNOWN
            if error.errno != errno.ENOSPC or not self._spend_reserve():
                raise
            self._write(b"\n" + data)
        self._failed = False
        return size

    def _write_rest(self, data: bytes | bytearray, written: int) -> None:
        """Continue a short write, which raises its cause; restart if another line came between."""
        start = os.lseek(self._fd, 0, os.SEEK_CUR) - written
        self._end = _UNKNOWN
        while written < len(data):
            written += os.write(self._fd, data[written:])
        if os.pread(self._fd, len(data), start) != data:
            self._write(b"\n" + data.lstrip(b"\n"))

    def _look(self) -> None:
        """Follow a file that another process has closed, and close a full one."""
        if not _is_at(self._fd, self.path):
            self._reopen()
        elif os.fstat(self._fd).st_size >= self._max_bytes:
            self._rotate()

    def _rotate(self) -> None:
        try:
            guard = _opened(lock_path(self.path) + ".rotate")
            try:
                if _locked(guard, fcntl.LOCK_EX | fcntl.LOCK_NB):  # else another is at it
                    if _is_at(self._fd, self.path):
                        os.rename(self.path, segment_path(self.path, self._number))
                    self._reopen()
                    self._choose_surplus()
            finally:
                os.close(guard)
        except OSError:
            pass  # the open file is still writable, under any name

    def _choose_surplus(self) -> None:
        """Choose the oldest files beyond the limit, up to the first that is still written."""
        if not self._dropping:
            self._choose(closed_segments(self.path)[: -self._keep or None])

    def _choose(self, segments: Sequence[str]) -> None:
        for segment in segments:
            guard = os.open(segment, os.O_RDONLY | os.O_CLOEXEC)
            if not _locked(guard, fcntl.LOCK_EX | fcntl.LOCK_NB):
                os.close(guard)
                return
            self._dropping.append((segment, guard))

    def _drop(self) -> None:
        dropping, self._dropping = self._dropping, []
        newest = closed_segments(self.path)[-1:]
        try:
            os.fsync(self._fd)  # else a log could look truncated after a power cut
            for segment, _ in dropping:
                with suppress(FileNotFoundError):
                    os.unlink(index_path(segment))
                if [segment] == newest:  # its name preserves the number of the open file
                    os.truncate(segment, 0)
                else:
                    os.unlink(segment)
        except OSError:
            pass  # the rest stays, and is chosen again
        finally:
            for _, guard in dropping:
                os.close(guard)


def _opened(path: str, flags: int = 0) -> int:
    return os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _repair(descriptor: int) -> None:
    """Truncate an incomplete line. Requires that no other process writes."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.ftruncate(descriptor, _last_newline(descriptor, size) + 1)


def _last_newline(descriptor: int, size: int) -> int:
    """Return the position of the last newline, or -1."""
    end = size
    while end > 0:
        start = max(0, end - _TAIL)
        at = os.pread(descriptor, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at
        end = start
    return -1


def _last_line(descriptor: int, within: int) -> bytes:
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, min(size, within), max(0, size - within))
    tail = tail[: tail.rfind(b"\n") + 1].rstrip(b"\n")
    return tail[tail.rfind(b"\n") + 1 :]


def _last_closed_line(path: str) -> bytes:
    segments = closed_segments(path)
    if not segments:
        return b""
    descriptor = os.open(segments[-1], os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _last_line(descriptor, _TAIL)
    finally:
        os.close(descriptor)
