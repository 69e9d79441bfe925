"""Calls on record counted in such a way that the counts of several logs add up.

Times and waits are counted by value, those of a long log rounded to three digits: so a log of any
length makes a small tally, and a quantile of all logs is as good as one of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from callgate.audit.reading import newest_first
from callgate.audit.records import CallRecord
from callgate.surfaces.http.routes.rows import state_of
from callgate.surfaces.http.routes.values import Value

MOST = 200_000
"""Records of one log that are counted; older ones are left out."""
MOST_GROUPS = 200
"""Of calls that ended alike, of one log: the most frequent."""
_LONGEST_MESSAGE = 300
_RAN = ("ok", "failed")
_MOST_EXACT = 2_000
"""Different times of one tool that are kept as they are."""

Times = dict[str, int]
"""How often each time occurred, in milliseconds, as text: a key of JSON is text."""


class ToolTally(Value, frozen=True, kw_only=True):
    calls: int = 0
    errors: int = 0
    denials: int = 0
    took: Times = {}
    """Of the calls that ran, without the wait for people."""
    waited: Times = {}
    """Of the calls that a person was asked about."""


class SpanTally(Value, frozen=True, kw_only=True):
    calls: int = 0
    errors: int = 0
    denials: int = 0


class ErrorGroup(Value, frozen=True, kw_only=True):
    """Calls of one tool that ended alike."""

    tool: str
    error_class: str
    reason: str | None
    count: int
    last_at: float
    call: str
    """The newest of them, and the beginning of what its caller was told."""
    message: str

    @property
    def key(self) -> tuple[str, str, str | None]:
        return self.tool, self.error_class, self.reason


class Tally(Value, frozen=True, kw_only=True):
    """What one log says, or several."""

    tools: dict[str, ToolTally] = {}
    spans: dict[int, SpanTally] = {}
    """By the number of the span."""
    errors: list[ErrorGroup] = []
    """The most frequent first."""


def count_log(path: str, since: float, span_s: float) -> Tally:
    """The calls of one log that ended since a moment."""
    tools: dict[str, _Counting] = {}
    spans: dict[int, _Counting] = {}
    errors: dict[tuple[str, str, str | None], ErrorGroup] = {}
    for seen, (line, _) in enumerate(newest_first(path)):
        at = line.ts / 1000
        if at < since or seen == MOST:
            break
        tools.setdefault(line.tool, _Counting()).add(line)
        spans.setdefault(int((at - since) // span_s), _Counting()).add(line)
        if line.error_class is not None:
            _merge_group(errors, _group_of(line))
    return Tally(
        tools={name: each.of_tool() for name, each in tools.items()},
        spans={number: each.of_span() for number, each in spans.items()},
        errors=most_frequent(errors.values(), MOST_GROUPS),
    )


class _Counting:
    def __init__(self) -> None:
        self.calls = self.errors = self.denials = 0
        self.took: Counter[float] = Counter()
        self.waited: Counter[float] = Counter()

    def add(self, line: CallRecord) -> None:
        self.calls += 1
        state = state_of(line.error_class)
        self.denials += state == "denied"
        self.errors += state in ("failed", "invalid")
        if state in _RAN:
            self.took[line.ms] += 1
        if line.confirmation_id is not None:
            self.waited[line.waited_ms] += 1

    def of_tool(self) -> ToolTally:
        return ToolTally(
            calls=self.calls,
            errors=self.errors,
            denials=self.denials,
            took=_as_times(self.took),
            waited=_as_times(self.waited),
        )

    def of_span(self) -> SpanTally:
        return SpanTally(calls=self.calls, errors=self.errors, denials=self.denials)


def _as_times(counted: Counter[float]) -> Times:
    digits = 3 if len(counted) > _MOST_EXACT else 12
    times: Counter[str] = Counter()
    for ms, count in counted.items():
        times[f"{ms:.{digits}g}"] += count
    return dict(times)


def _group_of(line: CallRecord) -> ErrorGroup:
    return ErrorGroup(
        tool=line.tool,
        error_class=str(line.error_class),
        reason=line.reason,
        count=1,
        last_at=line.ts / 1000,
        call=line.call_id,
        message=line.result[:_LONGEST_MESSAGE],
    )


def add_up(tallies: Iterable[Tally]) -> Tally:
    """What several logs say together. Pure."""
    tools: dict[str, ToolTally] = {}
    spans: dict[int, SpanTally] = {}
    errors: dict[tuple[str, str, str | None], ErrorGroup] = {}
    for tally in tallies:
        for name, tool in tally.tools.items():
            known = tools.get(name, ToolTally())
            tools[name] = ToolTally(
                calls=known.calls + tool.calls,
                errors=known.errors + tool.errors,
                denials=known.denials + tool.denials,
                took=_sum(known.took, tool.took),
                waited=_sum(known.waited, tool.waited),
            )
        for number, span in tally.spans.items():
            before = spans.get(number, SpanTally())
            spans[number] = SpanTally(
                calls=before.calls + span.calls,
                errors=before.errors + span.errors,
                denials=before.denials + span.denials,
            )
        for group in tally.errors:
            _merge_group(errors, group)
    return Tally(tools=tools, spans=spans, errors=most_frequent(errors.values(), MOST_GROUPS))


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> Times:
    return dict(Counter(one) + Counter(other))


def _merge_group(groups: dict[tuple[str, str, str | None], ErrorGroup], group: ErrorGroup) -> None:
    known = groups.get(group.key)
    newest = group if known is None or group.last_at > known.last_at else known
    count = group.count + (0 if known is None else known.count)
    groups[group.key] = ErrorGroup(
        tool=newest.tool,
        error_class=newest.error_class,
        reason=newest.reason,
        count=count,
        last_at=newest.last_at,
        call=newest.call,
        message=newest.message,
    )


def most_frequent(groups: Iterable[ErrorGroup], most: int) -> list[ErrorGroup]:
    return sorted(groups, key=lambda each: (-each.count, -each.last_at))[:most]


def quantile(times: Times, part: float) -> float:
    """The smallest time that so large a part does not exceed; 0 where there is none."""
    ordered = sorted((float(time), count) for time, count in times.items())
    left = max(1, -int(-sum(times.values()) * part // 1))
    for time, count in ordered:
        left -= count
        if left <= 0:
            return time
    return 0.0
