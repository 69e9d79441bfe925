"""The audit log: one line per call, appended by as many processes as there are.

Each process keeps a chain of its own: every line holds the hash of the one before it in the
chain, and the first holds the hash of the last line it found. A line is one `write` to a file
opened for appending, so lines of several processes never mix and a crash loses at most the
line that was being written. A torn end is repaired when a writer opens the file: cut off if
nobody else writes, else closed with a newline and left for `verify` to report.

When the file has grown to its bound it is closed under a number and a new one begun. Others
notice within a moment and follow; until then they write to the closed file, and nothing is
lost. The oldest files beyond `keep` are dropped; what they ended with is written down, so
that `verify` can tell a dropped file from a cut one.
"""

from __future__ import annotations

import fcntl
import os
import time

import msgspec

from callgate.audit.records import CallRecord, encode, line_hash
from callgate.audit.segments import closed_segments, lock_path, next_segment
from callgate.core.ids import ulid

_LOOK_EVERY_S = 0.2
"""How often a writer looks whether the file was closed by another."""
_TAIL = 1024 * 1024


class Dropped(msgspec.Struct, frozen=True, tag="dropped"):
    """Stands at the head of a file: with which line each chain ended in what was dropped."""

    chains: dict[str, tuple[int, str]]


class _Position(msgspec.Struct):
    chain: str
    n: int = 0
    prev: str = ""


class AuditLog:
    """The log of this process. Opened when first used; `OSError` where it cannot be written."""

    def __init__(self, path: str, *, max_bytes: int = 64 * 1024 * 1024, keep: int = 8) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._fd = -1
        self._lock = -1
        self._pid = 0
        self._looked = 0.0
        self._torn = False
        """Our own last line was cut short (a full disk): the next one starts on a fresh line."""
        self._at = _Position(chain="")

    def ensure_open(self) -> None:
        """Raise `OSError` if a line could not be written now."""
        if self._fd < 0 or self._pid != os.getpid():
            self._open()
        if self._torn:
            self._write(b"\n")
            self._torn = False

    def append(self, record: CallRecord) -> None:
        """Write one line; when this returns it is in the file."""
        if self._fd < 0 or self._pid != os.getpid():
            self._open()
        now = time.monotonic()
        if now - self._looked > _LOOK_EVERY_S:
            self._looked = now
            self._look()
        at = self._at
        record.chain, record.n, record.prev = at.chain, at.n + 1, at.prev
        line = encode(record)
        self._write(b"\n" + line + b"\n" if self._torn else line + b"\n")
        self._torn = False
        at.n += 1
        at.prev = line_hash(line)

    def close(self) -> None:
        for descriptor in (self._fd, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._fd = self._lock = -1

    def _open(self) -> None:
        """Begin a chain: after a start, and in a forked child, which inherits no chain."""
        self.close()
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        self._lock = _opened(lock_path(self.path), os.O_RDWR)
        try:
            alone = _locked(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._fd = _opened(self.path, os.O_RDWR | os.O_APPEND)
            self._repair(alone)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        except OSError:
            self.close()
            raise
        self._pid = os.getpid()
        self._looked = time.monotonic()
        last = _last_line(self._fd) or _last_closed_line(self.path)
        self._at = _Position(chain=ulid(), prev=line_hash(last) if last else "")

    def _repair(self, alone: bool) -> None:
        size = os.fstat(self._fd).st_size
        if size == 0 or os.pread(self._fd, 1, size - 1) == b"\n":
            return
        if alone:
            os.ftruncate(self._fd, _last_newline(self._fd, size) + 1)
        else:
            self._write(b"\n")

    def _write(self, data: bytes) -> None:
        written = 0
        try:
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            self._torn = self._torn or written > 0
            raise

    def _look(self) -> None:
        """Follow a file that was closed by another, and close one that is full."""
        try:
            same = os.path.samestat(os.stat(self.path), mine := os.fstat(self._fd))
        except FileNotFoundError:
            same = False
        if not same:
            self._reopen()
        elif mine.st_size >= self._max_bytes:
            self._rotate()

    def _reopen(self) -> None:
        fresh = _opened(self.path, os.O_RDWR | os.O_APPEND)
        os.close(self._fd)
        self._fd = fresh

    def _rotate(self) -> None:
        guard = _opened(lock_path(self.path) + ".rotate", os.O_RDWR)
        try:
            if not _locked(guard, fcntl.LOCK_EX | fcntl.LOCK_NB):
                return None  # another is at it
            if os.stat(self.path).st_size < self._max_bytes:
                return self._reopen()
            os.rename(self.path, next_segment(self.path))
            fresh = _opened(self.path, os.O_RDWR | os.O_APPEND)
            dropped = self._drop()
            if dropped is not None:
                os.write(fresh, msgspec.json.encode(dropped) + b"\n")
            os.close(self._fd)
            self._fd = fresh
        finally:
            os.close(guard)

    def _drop(self) -> Dropped | None:
        """Remove the oldest files, and say how each chain ended in them."""
        surplus = closed_segments(self.path)[: -self._keep] if self._keep else []
        if not surplus:
            return None
        chains: dict[str, tuple[int, str]] = {}
        for segment in surplus:
            chains.update(chain_ends(segment))
            os.unlink(segment)
        return Dropped(chains)


class _Link(msgspec.Struct):
    chain: str = ""
    n: int = 0


def chain_ends(segment: str) -> dict[str, tuple[int, str]]:
    """The last number and hash of each chain in a file, and of those it says were dropped."""
    ends: dict[str, tuple[int, str]] = {}
    decode = msgspec.json.Decoder(_Link).decode
    with open(segment, "rb") as file:
        for line in file:
            line = line.rstrip(b"\n")
            try:
                if line.startswith(b'{"type":"dropped"'):
                    ends.update(msgspec.json.decode(line, type=Dropped).chains)
                elif line and (link := decode(line)).chain:
                    ends[link.chain] = (link.n, line_hash(line))
            except msgspec.DecodeError:
                continue
    return ends


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    return True


def _last_newline(descriptor: int, size: int) -> int:
    """The place of the last newline, or -1."""
    end = size
    while end > 0:
        start = max(0, end - _TAIL)
        at = os.pread(descriptor, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at
        end = start
    return -1


def _last_line(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, min(size, _TAIL), max(0, size - _TAIL)).rstrip(b"\n")
    return tail[tail.rfind(b"\n") + 1 :]


def _last_closed_line(path: str) -> bytes:
    segments = closed_segments(path)
    if not segments:
        return b""
    descriptor = os.open(segments[-1], os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _last_line(descriptor)
    finally:
        os.close(descriptor)
