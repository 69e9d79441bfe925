"""A thread that sends what comes into the audit log: that of the process which has the cursor.

    log --read_part--> Pipeline.export --taken--> metrics, cursor
                             |
                             +-- not taken: the same again, with growing waits

It works a fraction of the time while calls are made, so that they have the processor; the log is
its buffer. Whoever
ends gives the cursor to another process, or to the next one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from msgspec import structs

from callgate.audit.cursors import Cursor, CursorHeld, CursorUnreadable
from callgate.audit.forward import LogReplaced, Place, end_of, read_part
from callgate.audit.records import CallRecord
from callgate.audit.segments import segment_path

PART = 64 * 1024
_IDLE_SHARE = 31
"""For each second of work so many of rest, while calls are being made ..."""
_HURRIED_SHARE = 3
"""... and where it is far behind: the log keeps its lines for a while only."""
_FAR = 16 * 1024 * 1024
"""Bytes."""
_LONGEST_WAIT_S = 60.0
_CURSOR_EVERY_S = 2.0
_MOST_DEFECTS = 5
"""Attempts with records of which no spans can be made."""
_log = logging.getLogger("callgate.telemetry")


class TelemetryUnusable(Exception):
    """Why nothing can be sent, ever."""


class Target(Protocol):
    """Same interface as `Pipeline`."""

    def export(self, records: Sequence[CallRecord]) -> bool: ...
    def count(self, records: Sequence[CallRecord]) -> None: ...
    def close(self, timeout_s: float) -> None: ...
    def interrupt(self) -> None: ...


class TelemetryThread:
    def __init__(
        self, log: str, cursor: str, open_target: Callable[[], Target], *, delay_s: float = 5.0
    ) -> None:
        """It begins with what comes from now on, unless the cursor knows another place."""
        self._path = log
        self._cursor_path = cursor
        self._open_target = open_target
        self._delay_s = delay_s
        self._start = self._place = end_of(log)
        self._failures = 0
        self._cursor: Cursor | None = None
        self._target: Target | None = None
        self._stopping = threading.Event()
        self._deadline = float("inf")
        if not os.path.exists(cursor):  # what comes from now on is sent though we are killed
            self._take_cursor()
        self._thread = threading.Thread(target=self._run, name="callgate-telemetry", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, flush_s: float) -> None:
        """Send what is left, in this time; the rest is for whoever comes next. Blocks."""
        self._deadline = time.monotonic() + flush_s
        self._stopping.set()
        self._thread.join(flush_s)
        if self._thread.is_alive() and self._target is not None:
            self._target.interrupt()
            self._thread.join(flush_s / 4)

    # In the thread.

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._stopping.wait(self._step())
            if self._cursor is None:
                self._take_cursor()
            while time.monotonic() < self._deadline and self._cursor is not None:
                if self._send_part() is not None:
                    break
            if self._target is not None:
                self._target.close(max(0.1, self._deadline - time.monotonic()))
        except TelemetryUnusable as error:
            _log.error("no telemetry is sent: %s", error)
        except Exception:  # of the SDK, or a defect of ours: no call knows of it
            _log.exception("telemetry has ended")
        finally:
            if self._cursor is not None:
                self._cursor.close()

    def _step(self) -> float:
        """Do something; how long to wait before the next time."""
        if self._cursor is None and not self._take_cursor():
            return _CURSOR_EVERY_S
        began, size = time.monotonic(), self._size()
        wait_s = self._send_part()
        if wait_s is not None:
            return wait_s
        if self._size() == size:  # no call ends meanwhile
            return 0.0
        share = _HURRIED_SHARE if self._is_far_behind() else _IDLE_SHARE
        return (time.monotonic() - began) * share

    def _is_far_behind(self) -> bool:
        in_closed_file = os.path.exists(segment_path(self._path, self._place.file))
        return in_closed_file or self._size() - self._place.offset > _FAR

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except OSError:
            return 0

    def _take_cursor(self) -> bool:
        with suppress(CursorHeld):
            try:
                self._cursor = Cursor(self._cursor_path, "telemetry")
            except CursorUnreadable as error:
                _log.error("telemetry begins anew: %s", error)
                with suppress(OSError):
                    os.unlink(self._cursor_path)
            except OSError as error:
                _log.error("telemetry has no cursor: %s", error)
        if self._cursor is None:
            return False
        self._place = self._cursor.positions.logs.get(self._path) or self._start
        if self._cursor.is_new:
            self._advance(self._place)
        self._failures = 0
        return True

    def _send_part(self) -> float | None:
        """Send some; None: there may be more, else how long to wait."""
        try:
            part = read_part(self._path, self._place, PART)
        except LogReplaced as error:
            _log.error("telemetry begins anew: %s", error)
            self._place = end_of(self._path)
            return self._delay_s
        except OSError as error:
            _log.error("the audit log cannot be read: %s", error)
            return _LONGEST_WAIT_S
        if part.dropped:
            _log.error("%d files of the audit log went before they were sent", part.dropped)
        records = [record for record, _ in part.records]
        if records:
            if self._target is None:
                self._target = self._open_target()
            if not self._export(self._target, records):
                self._failures += 1
                if self._failures == 1:
                    _log.warning("the collector takes no spans; they are sent later")
                return float(min(2**self._failures, _LONGEST_WAIT_S))
            self._failures = 0
        if part.place != self._place:
            self._advance(part.place)
        return self._delay_s if part.is_end else None

    def _export(self, target: Target, records: list[CallRecord]) -> bool:
        try:
            if not target.export(records):
                return False
            target.count(records)
        except Exception:  # of the SDK, which is to take anything
            if self._failures < _MOST_DEFECTS:
                _log.exception("the spans of %d calls could not be made", len(records))
                return False
            _log.error("the spans of %d calls are left out", len(records))
        return True

    def _advance(self, place: Place) -> None:
        assert self._cursor is not None
        self._place = place
        known = self._cursor.positions
        try:
            self._cursor.advance(structs.replace(known, logs={self._path: place}))
        except OSError as error:  # after a crash some are sent again
            _log.error("how far telemetry is cannot be kept: %s", error)
