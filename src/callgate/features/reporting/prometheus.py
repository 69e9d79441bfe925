"""Metrics of calls for Prometheus, computed from the audit log on request, so that no call counts.

Only lines of this process's own chain count, from its start on. The number of series is bounded:
labels have few values for any input, and tools beyond `MOST_TOOLS` count as one.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from callgate.audit.forward import LogReplaced, Position, end_of, read_parts
from callgate.audit.records import CallRecord
from callgate.core.errors import ToolErrorClass

UNKNOWN = "unknown"
"""Label of calls to unknown tools, because callers can invent names."""


def tool_label(record: CallRecord) -> str:
    return UNKNOWN if record.source is None else record.tool


def outcome(record: CallRecord) -> str:
    return "ok" if record.error_class is None else record.error_class


def question_outcome(record: CallRecord) -> str | None:
    """Return the end of the question about a call; None if there was none."""
    if record.confirmation_id is None:
        return None
    if record.error_class == ToolErrorClass.CONFIRMATION_TIMEOUT:
        return "timeout"
    if record.called is not None:
        return "allowed"
    return "denied" if record.error_class == ToolErrorClass.USER_DENIED else "withdrawn"


MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_TOOLS = 500
OTHER = "other"
BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0)

Labels = tuple[tuple[str, str], ...]


class Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, labels: Labels) -> Iterator[str]:
        total = 0
        for bound, count in zip((*BUCKETS, float("inf")), self._counts, strict=True):
            total += count
            written = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield _line(f"{name}_bucket", (*labels, ("le", written)), total)
        yield _line(f"{name}_sum", labels, self._sum)
        yield _line(f"{name}_count", labels, total)


class CallMetrics:
    def __init__(
        self, log: str, chain: Callable[[], str | None], begin: Position | None = None
    ) -> None:
        """`chain` returns the chain of this process; None: it has written no line yet. `begin`:
        start of its lines; None: the present end of the log.
        """
        self._path = log
        self._chain = chain
        self._position = begin or end_of(log)
        self._reading = threading.Lock()
        self._tools: set[str] = set()
        self._calls: Counter[Labels] = Counter()
        self._decisions: Counter[Labels] = Counter()
        self._questions: Counter[Labels] = Counter()
        self._durations: dict[str, Histogram] = {}
        self._waits = Histogram()
        self._dropped = 0

    def read(self) -> None:
        """Count new records. Blocks; one caller at a time. Raises `OSError`."""
        with self._reading:
            chain = self._chain()
            try:
                for part in read_parts(self._path, self._position):
                    self._dropped += part.dropped
                    for record, _ in part.records:
                        if record.chain == chain:
                            self._count(record)
                    self._position = part.position
            except LogReplaced:
                self._position = end_of(self._path)

    def _count(self, record: CallRecord) -> None:
        tool, effect = tool_label(record), record.side_effects or "unknown"
        if tool not in self._tools:
            if len(self._tools) < MOST_TOOLS:
                self._tools.add(tool)
            else:
                tool = OTHER
        self._calls[("tool", tool), ("effect", effect), ("outcome", outcome(record))] += 1
        self._decisions[("decision", record.decision), ("effect", effect)] += 1
        if record.called is not None:
            self._durations.setdefault(effect, Histogram()).add(record.ms / 1000)
        if (end := question_outcome(record)) is not None:
            self._questions[(("outcome", end),)] += 1
            self._waits.add(record.waited_ms / 1000)

    def lines(self) -> Iterator[str]:
        with self._reading:
            yield from _counter("callgate_calls_total", "Calls that ended", self._calls)
            yield from _counter("callgate_decisions_total", "Decisions on calls", self._decisions)
            yield from _counter(
                "callgate_questions_total", "Questions to people that were closed", self._questions
            )
            name = "callgate_call_duration_seconds"
            yield from _head(name, "How long tools ran", "histogram")
            for effect, histogram in sorted(self._durations.items()):
                yield from histogram.lines(name, (("effect", effect),))
            name = "callgate_question_wait_seconds"
            yield from _head(name, "Waiting time of questions", "histogram")
            yield from self._waits.lines(name, ())
            dropped: dict[Labels, int] = {(): self._dropped}
            yield from _counter(
                "callgate_uncounted_files_total", "Files of the log that went uncounted", dropped
            )


def gauges(values: Mapping[str, tuple[str, Mapping[Labels, float]]]) -> Iterator[str]:
    """Yield present values. `values` maps a name to its help text and its values by labels."""
    for name, (help, series) in values.items():
        yield from _head(name, help, "gauge")
        for labels, value in series.items():
            yield _line(name, labels, value)


def exposition(lines: Iterable[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")


def _counter(name: str, help: str, series: Mapping[Labels, int]) -> Iterator[str]:
    yield from _head(name, help, "counter")
    for labels, value in sorted(series.items()):
        yield _line(name, labels, value)


def _head(name: str, help: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {help}."
    yield f"# TYPE {name} {kind}"


def _line(name: str, labels: Labels, value: float) -> str:
    written = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
    return f"{name}{{{written}}} {value!r}" if written else f"{name} {value!r}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
