"""The record of calls: found, and counted."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Annotated, Literal

from msgspec import Meta

from callgate.audit.reading import Filter, newest_first, page
from callgate.audit.records import CallRecord
from callgate.surfaces.http.calls import Limit
from callgate.surfaces.http.doors import Door
from callgate.surfaces.http.operations import Asked, Operation
from callgate.surfaces.http.rows import state_of
from callgate.surfaces.http.values import Input, Value

_DAY_S = 86_400.0
_SPANS = 60
"""Into how many spans the time is divided."""
_MOST = 200_000
"""Records that are counted; older ones are left out."""

Moment = Annotated[float, Meta(ge=0, lt=1e11)]


class AuditQuery(Input, frozen=True, kw_only=True):
    text: str | None = None
    tool: str | None = None
    session: str | None = None
    decision: Literal["allow", "deny"] | None = None
    error: str | None = None
    since: Moment | None = None
    before: str | None = None
    limit: Limit = 100


class RecordList(Value, frozen=True, kw_only=True):
    records: list[CallRecord]
    before: str | None


class StatsQuery(Input, frozen=True, kw_only=True):
    since: Moment | None = None
    """None: a day ago."""


class ToolStats(Value, frozen=True, kw_only=True):
    tool: str
    calls: int
    errors: int
    denials: int
    p50_ms: float
    p95_ms: float


class SpanStats(Value, frozen=True, kw_only=True):
    at: float
    """When the span begins."""
    calls: int
    errors: int
    denials: int


class Stats(Value, frozen=True, kw_only=True):
    since: float
    span_s: float
    tools: list[ToolStats]
    times: list[SpanStats]


async def found(door: Door, asked: Asked) -> RecordList:
    query: AuditQuery = asked.query
    wanted = Filter(
        text=query.text,
        tool=query.tool,
        session=query.session,
        decision=query.decision,
        error_class=query.error,
        since_ms=None if query.since is None else int(query.since * 1000),
    )
    records, before = await asyncio.to_thread(
        page, door.served.audit, wanted, query.limit, before=query.before
    )
    return RecordList(records=records, before=before)


async def counted(door: Door, asked: Asked) -> Stats:
    query: StatsQuery = asked.query
    now = time.time()
    since = now - _DAY_S if query.since is None else min(query.since, now)
    return await asyncio.to_thread(_count, door.served.audit, since, now)


class _Tally:
    def __init__(self) -> None:
        self.calls = self.errors = self.denials = 0
        self.took_ms: list[float] = []

    def add(self, line: CallRecord) -> None:
        self.calls += 1
        state = state_of(line.error_class)
        self.denials += state == "denied"
        self.errors += state in ("failed", "invalid")
        self.took_ms.append(line.ms)


def _count(path: str, since: float, now: float) -> Stats:
    span_s = max((now - since) / _SPANS, 1.0)
    tools: dict[str, _Tally] = defaultdict(_Tally)
    spans: dict[int, _Tally] = defaultdict(_Tally)
    for seen, (line, _) in enumerate(newest_first(path)):
        at = line.ts / 1000
        if at < since or seen == _MOST:
            break
        tools[line.tool].add(line)
        spans[int((at - since) // span_s)].add(line)
    return Stats(
        since=since,
        span_s=span_s,
        tools=[_of_tool(name, tools[name]) for name in sorted(tools)],
        times=[
            SpanStats(at=since + n * span_s, calls=each.calls, errors=each.errors,
                      denials=each.denials)
            for n, each in sorted(spans.items())
        ],
    )  # fmt: skip


def _of_tool(name: str, tally: _Tally) -> ToolStats:
    took = sorted(tally.took_ms)
    return ToolStats(
        tool=name,
        calls=tally.calls,
        errors=tally.errors,
        denials=tally.denials,
        p50_ms=_quantile(took, 0.5),
        p95_ms=_quantile(took, 0.95),
    )


def _quantile(ordered: list[float], part: float) -> float:
    """The smallest value that so large a part does not exceed."""
    return ordered[max(0, -int(-len(ordered) * part // 1) - 1)]


OPERATIONS = (
    Operation("GET", "/v1/audit", "Find calls on record.", found, RecordList, query=AuditQuery),
    Operation("GET", "/v1/stats", "Count calls on record.", counted, Stats, query=StatsQuery),
)
