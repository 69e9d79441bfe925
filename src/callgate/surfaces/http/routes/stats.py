"""The record in numbers: calls, waits and failures by tool and over time, and tokens by model."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from callgate.audit.reading import newest_first
from callgate.audit.records import CallRecord
from callgate.core.events import LLM_COMPLETED
from callgate.core.stored import StoredSession
from callgate.core.stores import Store
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.routes.audit import Moment
from callgate.surfaces.http.routes.rows import state_of
from callgate.surfaces.http.routes.values import Input, Value

_DAY_S = 86_400.0
_SPANS = 60
"""Into how many spans the time is divided."""
_MOST = 200_000
"""Records that are counted; older ones are left out."""
_MOST_EVENTS = 50_000
"""Events of agents' sessions that are looked at for tokens; those of older ones are left out."""
_MOST_GROUPS = 50
_LONGEST_MESSAGE = 300
_RAN = ("ok", "failed")
_PAGE = 500


class StatsQuery(Input, frozen=True, kw_only=True):
    since: Moment | None = None
    """None: a day ago."""


class ToolStats(Value, frozen=True, kw_only=True):
    tool: str
    calls: int
    errors: int
    denials: int
    p50_ms: float
    """Of the calls that ran, without the wait for people; 0 where none did."""
    p95_ms: float
    asked: int
    """Calls that a person was asked about."""
    waited_p50_ms: float
    """Of the calls that were asked about: the wait for a person."""
    waited_p95_ms: float


class SpanStats(Value, frozen=True, kw_only=True):
    at: float
    """When the span begins."""
    calls: int
    errors: int
    denials: int


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


class ModelStats(Value, frozen=True, kw_only=True):
    model: str
    replies: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    """None where no price is known."""


class Stats(Value, frozen=True, kw_only=True):
    since: float
    span_s: float
    tools: list[ToolStats]
    times: list[SpanStats]
    errors: list[ErrorGroup]
    """The most frequent first."""
    models: list[ModelStats]


async def get_stats(context: Context, request: Request) -> Stats:
    query: StatsQuery = request.query
    now = time.time()
    since = now - _DAY_S if query.since is None else min(query.since, now)
    models = await _models(await context.runtime.store(), since)
    return await asyncio.to_thread(_count, context.served.audit, since, now, models)


class _Tally:
    def __init__(self) -> None:
        self.calls = self.errors = self.denials = 0
        self.took_ms: list[float] = []
        self.waited_ms: list[float] = []

    def add(self, line: CallRecord) -> None:
        self.calls += 1
        state = state_of(line.error_class)
        self.denials += state == "denied"
        self.errors += state in ("failed", "invalid")
        if state in _RAN:
            self.took_ms.append(line.ms)
        if line.confirmation_id is not None:
            self.waited_ms.append(line.waited_ms)


def _count(path: str, since: float, now: float, models: list[ModelStats]) -> Stats:
    span_s = max((now - since) / _SPANS, 1.0)
    tools: dict[str, _Tally] = defaultdict(_Tally)
    spans: dict[int, _Tally] = defaultdict(_Tally)
    alike: dict[tuple[str, str, str | None], list[CallRecord]] = defaultdict(list)
    for seen, (line, _) in enumerate(newest_first(path)):
        at = line.ts / 1000
        if at < since or seen == _MOST:
            break
        tools[line.tool].add(line)
        spans[int((at - since) // span_s)].add(line)
        if line.error_class is not None:
            alike[line.tool, line.error_class, line.reason].append(line)
    return Stats(
        since=since,
        span_s=span_s,
        tools=[_of_tool(name, tools[name]) for name in sorted(tools)],
        times=[
            SpanStats(
                at=since + n * span_s, calls=each.calls, errors=each.errors, denials=each.denials
            )
            for n, each in sorted(spans.items())
        ],
        errors=_groups(alike.values()),
        models=models,
    )


def _of_tool(name: str, tally: _Tally) -> ToolStats:
    took, waited = sorted(tally.took_ms), sorted(tally.waited_ms)
    return ToolStats(
        tool=name,
        calls=tally.calls,
        errors=tally.errors,
        denials=tally.denials,
        p50_ms=_quantile(took, 0.5),
        p95_ms=_quantile(took, 0.95),
        asked=len(waited),
        waited_p50_ms=_quantile(waited, 0.5),
        waited_p95_ms=_quantile(waited, 0.95),
    )


def _quantile(ordered: list[float], part: float) -> float:
    """The smallest value that so large a part does not exceed."""
    return ordered[max(0, -int(-len(ordered) * part // 1) - 1)] if ordered else 0.0


def _groups(alike: Iterable[list[CallRecord]]) -> list[ErrorGroup]:
    """`alike`: records that ended alike, the newest first."""
    most = sorted(alike, key=lambda lines: (-len(lines), -lines[0].ts))[:_MOST_GROUPS]
    return [
        ErrorGroup(
            tool=lines[0].tool,
            error_class=str(lines[0].error_class),
            reason=lines[0].reason,
            count=len(lines),
            last_at=lines[0].ts / 1000,
            call=lines[0].call_id,
            message=lines[0].result[:_LONGEST_MESSAGE],
        )
        for lines in most
    ]


async def _models(store: Store, since: float) -> list[ModelStats]:
    replies: dict[str, list[Any]] = defaultdict(list)
    looked_at = 0
    for session in await _talked_in(store, since):
        after = 0
        while looked_at < _MOST_EVENTS and (
            events := await store.read_events(session.id, after, _PAGE)
        ):
            after += len(events)
            looked_at += len(events)
            for event in events:
                if event.type == LLM_COMPLETED and event.timestamp >= since:
                    replies[str(event.payload.get("model"))].append(event.payload)
    return [_of_model(name, replies[name]) for name in sorted(replies)]


async def _talked_in(store: Store, since: float) -> list[StoredSession]:
    """The sessions with messages that were used since, sub-agents' too; last used first."""
    found: list[StoredSession] = []
    cursor = None
    while True:
        page = await store.list_sessions(cursor=cursor, limit=_PAGE, workers=True)
        used = [each for each in page.sessions if each.updated_at >= since]
        found += [each for each in used if each.messages]
        cursor = page.cursor
        if cursor is None or len(used) < len(page.sessions):
            return found


def _of_model(name: str, replies: list[Any]) -> ModelStats:
    costs = [each["cost_usd"] for each in replies if "cost_usd" in each]
    return ModelStats(
        model=name,
        replies=len(replies),
        input_tokens=sum(each.get("input_tokens", 0) for each in replies),
        output_tokens=sum(each.get("output_tokens", 0) for each in replies),
        cost_usd=sum(costs) if costs else None,
    )


OPERATIONS = (
    Operation("GET", "/v1/stats", "Count calls on record.", get_stats, Stats, query=StatsQuery),
)
