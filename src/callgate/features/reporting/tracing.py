"""Telemetry of a runtime: the caller's span, and a thread that sends new records of the audit log.

    log --read_part--> Pipeline.export --accepted--> metrics, cursor
                             |
                             +-- not accepted: retry with growing waits

The thread runs in the process that owns the cursor. It rests most of the time while calls run, so
that they have the processor; the log is its buffer. A process that ends releases the cursor to
another one.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from msgspec import structs

from callgate.audit.forward import (
    Cursor,
    CursorHeld,
    CursorUnreadable,
    LogReplaced,
    Position,
    end_of,
    read_part,
)
from callgate.audit.records import CallRecord, segment_path
from callgate.core.ids import TraceContext, parse_traceparent

PART = 64 * 1024
_IDLE_SHARE = 31
"""Seconds of rest per second of work, while calls run ..."""
_HURRIED_SHARE = 3
"""... and while the thread is far behind, because the log deletes old files."""
_FAR = 16 * 1024 * 1024
"""Number of unsent bytes that count as far behind."""
_LONGEST_WAIT_S = 60.0
_CURSOR_EVERY_S = 2.0
_MOST_DEFECTS = 5
"""Number of attempts for records that raise an error."""
_log = logging.getLogger("callgate.features.reporting.telemetry")


class TelemetryUnusable(Exception):
    """The reason why nothing can be sent."""


class Target(Protocol):
    """The interface of `Pipeline`."""

    def export(self, records: Sequence[CallRecord]) -> bool: ...
    def count(self, records: Sequence[CallRecord]) -> None: ...
    def close(self, timeout_s: float) -> None: ...
    def interrupt(self) -> None: ...


class TelemetryThread:
    def __init__(
        self, log: str, cursor: str, open_target: Callable[[], Target], *, delay_s: float = 5.0
    ) -> None:
        """Starts with new records, unless the cursor has another position."""
        self._path = log
        self._cursor_path = cursor
        self._open_target = open_target
        self._delay_s = delay_s
        self._start = self._position = end_of(log)
        self._failures = 0
        self._cursor: Cursor | None = None
        self._target: Target | None = None
        self._stopping = threading.Event()
        self._deadline = float("inf")
        # writes the position, so that new records are sent even after a crash
        if not os.path.exists(cursor):
            self._take_cursor()
        self._thread = threading.Thread(target=self._run, name="callgate-telemetry", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, flush_s: float) -> None:
        """Send the remaining records within this time; the next process sends the rest. Blocks."""
        self._deadline = time.monotonic() + flush_s
        self._stopping.set()
        self._thread.join(flush_s)
        if self._thread.is_alive() and self._target is not None:
            self._target.interrupt()
            self._thread.join(flush_s / 4)

    # Methods of the thread.

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
            _log.error("telemetry is not sent: %s", error)
        except Exception:  # an error of the SDK or of this code must not affect calls
            _log.exception("telemetry has stopped")
        finally:
            if self._cursor is not None:
                self._cursor.close()

    def _step(self) -> float:
        """Do one step. Return the seconds until the next one."""
        if self._cursor is None and not self._take_cursor():
            return _CURSOR_EVERY_S
        began, size = time.monotonic(), self._size()
        wait_s = self._send_part()
        if wait_s is not None:
            return wait_s
        if self._size() == size:  # no call has ended during this step
            return 0.0
        share = _HURRIED_SHARE if self._is_far_behind() else _IDLE_SHARE
        return (time.monotonic() - began) * share

    def _is_far_behind(self) -> bool:
        in_closed_file = os.path.exists(segment_path(self._path, self._position.file))
        return in_closed_file or self._size() - self._position.offset > _FAR

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
                _log.error("telemetry starts with a new cursor: %s", error)
                with suppress(OSError):
                    os.unlink(self._cursor_path)
            except OSError as error:
                _log.error("the telemetry cursor cannot be opened: %s", error)
        if self._cursor is None:
            return False
        self._position = self._cursor.positions.logs.get(self._path) or self._start
        if self._cursor.is_new:
            self._advance(self._position)
        self._failures = 0
        return True

    def _send_part(self) -> float | None:
        """Send a part. Return the seconds to wait, or None if there may be more."""
        try:
            part = read_part(self._path, self._position, PART)
        except LogReplaced as error:
            _log.error("telemetry restarts at the end of the log: %s", error)
            self._position = end_of(self._path)
            return self._delay_s
        except OSError as error:
            _log.error("the audit log cannot be read: %s", error)
            return _LONGEST_WAIT_S
        if part.dropped:
            _log.error("%d files of the audit log were deleted before they were sent", part.dropped)
        records = [record for record, _ in part.records]
        if records:
            if self._target is None:
                self._target = self._open_target()
            if not self._export(self._target, records):
                self._failures += 1
                if self._failures == 1:
                    _log.warning("the collector does not accept spans; retrying later")
                return float(min(2**self._failures, _LONGEST_WAIT_S))
            self._failures = 0
        if part.position != self._position:
            self._advance(part.position)
        return self._delay_s if part.is_end else None

    def _export(self, target: Target, records: list[CallRecord]) -> bool:
        try:
            if not target.export(records):
                return False
            target.count(records)
        except Exception:  # the SDK should accept any record
            if self._failures < _MOST_DEFECTS:
                _log.exception("creating the spans of %d calls failed", len(records))
                return False
            _log.error("skipped the spans of %d calls", len(records))
        return True

    def _advance(self, position: Position) -> None:
        assert self._cursor is not None
        self._position = position
        known = self._cursor.positions
        try:
            self._cursor.advance(structs.replace(known, logs={self._path: position}))
        except OSError as error:  # after a crash, some records are sent again
            _log.error("the telemetry cursor cannot be stored: %s", error)


_BSP_DELAY_MS = 5_000.0


class Tracing:
    def __init__(self, log: str, cursor: str, *, with_arguments: bool, flush_s: float) -> None:
        self._with_arguments = with_arguments
        self._flush_s = flush_s
        self.ratio = sampled_ratio(os.environ)
        delay_s = _number(os.environ, "OTEL_BSP_SCHEDULE_DELAY", _BSP_DELAY_MS) / 1000
        self._thread = TelemetryThread(log, cursor, self._open, delay_s=delay_s)
        self._thread.start()

    def _open(self) -> Target:
        from callgate.features.reporting.spans import (  # lazy: it loads the SDK  # noqa: PLC0415
            Pipeline,
            UnknownExporter,
        )

        try:
            return Pipeline(with_arguments=self._with_arguments)
        except UnknownExporter as error:
            raise TelemetryUnusable(str(error)) from None

    def current(self) -> TraceContext | None:
        """Return the span of the present code, or of the process that started this one
        (`TRACEPARENT`).
        """
        trace = sys.modules.get("opentelemetry.trace")
        if trace is not None:
            context = trace.get_current_span().get_span_context()
            if context.is_valid:
                return TraceContext(
                    f"{context.trace_id:032x}",
                    f"{context.span_id:016x}",
                    int(context.trace_flags) & 1,
                    context.trace_state.to_header() if context.trace_state else "",
                )
        given = os.environ.get("TRACEPARENT")
        return None if given is None else parse_traceparent(given, os.environ.get("TRACESTATE"))

    def close(self) -> None:
        """Send the remaining records, within `flush_s`. Blocks."""
        self._thread.stop(self._flush_s)


def is_disabled(environ: Mapping[str, str]) -> bool:
    return environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def sampled_ratio(environ: Mapping[str, str]) -> float:
    """Return the sampling ratio of traces that start here, from the variables of the SDK."""
    name = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower().removeprefix("parentbased_")
    if name == "always_off":
        return 0.0
    if name != "traceidratio":
        return 1.0
    return min(max(_number(environ, "OTEL_TRACES_SAMPLER_ARG", 1.0), 0.0), 1.0)


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(environ.get(name, "") or default)
    except ValueError:
        _log.warning("%s is not a number", name)
        return default
