"""Counts of recorded calls that can be added up over several logs.

Durations and waits are counted by value. In a long log they are rounded to three digits, so that
the tally stays small. Quantiles are therefore computed over all logs together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from callgate.audit.reading import newest_first
from callgate.audit.records import CallRecord
from callgate.core.errors import ToolErrorClass
from callgate.features.web.routes.records import state_of
from callgate.features.web.routes.values import Value

MOST = 200_000
"""Maximum number of counted records of one log; older ones are left out."""
MOST_GROUPS = 200
"""Maximum number of error groups of one log, the most frequent ones."""
_LONGEST_MESSAGE = 300
_RAN = ("ok", "failed")
_FLAG = "--yes"
"""`answered_by` of answers that come from this option instead of a person."""
_MOST_EXACT = 2_000
"""Number of different times of one tool above which they are rounded."""

Times = dict[str, int]
"""Frequency of each time in milliseconds, which is a text as a key of JSON."""


class ToolTally(Value, frozen=True, kw_only=True):
    calls: int = 0
    errors: int = 0
    denials: int = 0
    took: Times = {}
    """Durations of the calls that ran, without the wait for approval."""
    waited: Times = {}
    """Waits of the calls that needed approval."""


class AnswerTally(Value, frozen=True, kw_only=True):
    """Answers of people to questions about calls."""

    approved: int = 0
    denied: int = 0
    waited: Times = {}
    """Time from each question to its answer."""


class SpanTally(Value, frozen=True, kw_only=True):
    calls: int = 0
    errors: int = 0
    denials: int = 0


class ErrorGroup(Value, frozen=True, kw_only=True):
    """Calls of one tool with the same error class and reason."""

    tool: str
    error_class: str
    reason: str | None
    count: int
    last_at: float
    call: str
    """The newest call; `message` is the beginning of its error message."""
    message: str

    @property
    def key(self) -> tuple[str, str, str | None]:
        return self.tool, self.error_class, self.reason


class Tally(Value, frozen=True, kw_only=True):
    """Counts of one log, or of several."""

    tools: dict[str, ToolTally] = {}
    spans: dict[int, SpanTally] = {}
    """Counts by the number of the span."""
    errors: list[ErrorGroup] = []
    """The most frequent first."""
    answers: AnswerTally = AnswerTally()


def count_log(path: str, since: float, span_s: float) -> Tally:
    """Count the calls of one log that ended since a time."""
    tools: dict[str, _Counting] = {}
    spans: dict[int, _Counting] = {}
    errors: dict[tuple[str, str, str | None], ErrorGroup] = {}
    answers = _CountingAnswers()
    for seen, (line, _) in enumerate(newest_first(path)):
        at = line.ts / 1000
        if at < since or seen == MOST:
            break
        tools.setdefault(line.tool, _Counting()).add(line)
        spans.setdefault(int((at - since) // span_s), _Counting()).add(line)
        answers.add(line)
        if line.error_class is not None:
            _merge_group(errors, _group_of(line))
    return Tally(
        tools={name: each.of_tool() for name, each in tools.items()},
        spans={number: each.of_span() for number, each in spans.items()},
        errors=most_frequent(errors.values(), MOST_GROUPS),
        answers=answers.tally(),
    )


class _CountingAnswers:
    """Counter of people's answers; expired questions and answers of `--yes` do not count."""

    def __init__(self) -> None:
        self.approved = self.denied = 0
        self.waited: Counter[float] = Counter()

    def add(self, line: CallRecord) -> None:
        if line.answered_by in (None, _FLAG):
            return
        is_denied = line.error_class == ToolErrorClass.USER_DENIED
        self.denied += is_denied
        self.approved += not is_denied
        self.waited[line.waited_ms] += 1

    def tally(self) -> AnswerTally:
        return AnswerTally(
            approved=self.approved, denied=self.denied, waited=_as_times(self.waited)
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
    """Add up the counts of several logs. Pure."""
    tools: dict[str, ToolTally] = {}
    spans: dict[int, SpanTally] = {}
    errors: dict[tuple[str, str, str | None], ErrorGroup] = {}
    answers = AnswerTally()
    for tally in tallies:
        answers = AnswerTally(
            approved=answers.approved + tally.answers.approved,
            denied=answers.denied + tally.answers.denied,
            waited=_sum(answers.waited, tally.answers.waited),
        )
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
    return Tally(
        tools=tools,
        spans=spans,
        errors=most_frequent(errors.values(), MOST_GROUPS),
        answers=answers,
    )


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
    """Return the quantile `part` of the times; 0 if there are none."""
    ordered = sorted((float(time), count) for time, count in times.items())
    left = max(1, -int(-sum(times.values()) * part // 1))
    for time, count in ordered:
        left -= count
        if left <= 0:
            return time
    return 0.0
