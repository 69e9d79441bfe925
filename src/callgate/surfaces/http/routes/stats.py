"""The record in numbers: calls, waits and failures by tool and over time, and tokens by model.

Each server counts its own log (`tallies`); whoever is asked adds up what all of them say.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
from msgspec import Meta

from callgate.core.events import LLM_COMPLETED
from callgate.core.stored import StoredSession
from callgate.core.stores import Store
from callgate.core.task_sets import start_task
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.routes import records, tallies
from callgate.surfaces.http.routes.audit import Moment
from callgate.surfaces.http.routes.tallies import ErrorGroup, Tally, ToolTally
from callgate.surfaces.http.routes.values import Input, Value
from callgate.surfaces.http.servers.directory import Server

_DAY_S = 86_400.0
_SPANS = 60
"""Into how many spans the time is divided."""
_MOST_EVENTS = 50_000
"""Events of agents' sessions that are looked at for tokens; those of older ones are left out."""
_MOST_GROUPS = 50
_PAGE = 500
_LIMIT_S = 5.0
"""How long another server may take to count."""
TARGET = "/v1/server/tally"


class StatsQuery(Input, frozen=True, kw_only=True):
    since: Moment | None = None
    """None: a day ago."""


class TallyQuery(Input, frozen=True, kw_only=True):
    since: Moment
    span_s: Annotated[float, Meta(ge=1)]


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
    missing: list[str] = []
    """Servers that did not answer in time: the calls in their logs are not counted."""


async def get_stats(context: Context, request: Request) -> Stats:
    query: StatsQuery = request.query
    now = time.time()
    since = now - _DAY_S if query.since is None else min(query.since, now)
    span_s = max((now - since) / _SPANS, 1.0)
    tally, missing = await _count_all(context, since, span_s)
    return Stats(
        since=since,
        span_s=span_s,
        tools=[_of_tool(name, tally.tools[name]) for name in sorted(tally.tools)],
        times=[
            SpanStats(
                at=since + n * span_s, calls=each.calls, errors=each.errors, denials=each.denials
            )
            for n, each in sorted(tally.spans.items())
        ],
        errors=tallies.most_frequent(tally.errors, _MOST_GROUPS),
        models=await _models(await context.runtime.store(), since),
        missing=missing,
    )


async def _count_all(context: Context, since: float, span_s: float) -> tuple[Tally, list[str]]:
    """The calls in the logs of all servers, and the servers that did not say theirs."""
    others = [*(await records.other_homes(context)).values()]
    query = urlencode({"since": repr(since), "span_s": repr(span_s)})
    counting = start_task(asyncio.to_thread(tallies.count_log, context.served.audit, since, span_s))
    answers = await asyncio.gather(*(_ask(context, each, f"{TARGET}?{query}") for each in others))
    missing = [
        each.about.label for each, answer in zip(others, answers, strict=True) if answer is None
    ]
    return tallies.add_up([await counting, *filter(None, answers)]), sorted(missing)


async def _ask(context: Context, server: Server, target: str) -> Tally | None:
    assert context.carrier is not None
    answer = await context.carrier.ask(server, target, _LIMIT_S)
    try:
        return None if answer is None else msgspec.json.decode(answer, type=Tally)
    except (ValueError, RecursionError):
        return None  # of another version


async def count_own(context: Context, request: Request) -> Tally:
    query: TallyQuery = request.query
    return await asyncio.to_thread(
        tallies.count_log, context.served.audit, query.since, query.span_s
    )


def _of_tool(name: str, tally: ToolTally) -> ToolStats:
    return ToolStats(
        tool=name,
        calls=tally.calls,
        errors=tally.errors,
        denials=tally.denials,
        p50_ms=tallies.quantile(tally.took, 0.5),
        p95_ms=tallies.quantile(tally.took, 0.95),
        asked=sum(tally.waited.values()),
        waited_p50_ms=tallies.quantile(tally.waited, 0.5),
        waited_p95_ms=tallies.quantile(tally.waited, 0.95),
    )


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
    Operation(
        "GET",
        TARGET,
        "For another server: the calls in this server's log, counted.",
        count_own,
        Tally,
        query=TallyQuery,
        for_servers=True,
    ),
)
