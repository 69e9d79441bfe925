"""Statistics of the audit log: calls, waits and failures by tool and time, and tokens by model.

Each server counts its own log (`tallies`); the server that answers a request adds up all counts.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
from msgspec import Meta

from callgate.core.events import LLM_COMPLETED
from callgate.core.stored import StoredSession
from callgate.core.stores import Store
from callgate.core.tasks import start_task
from callgate.features.web.contexts import Context, Operation, ParsedRequest, Peer
from callgate.features.web.routes import records, tallies
from callgate.features.web.routes.tallies import ErrorGroup, Tally, ToolTally
from callgate.features.web.routes.values import Input, Moment, Value

_DAY_S = 86_400.0
_SPANS = 60
"""Number of time spans."""
_MOST_EVENTS = 50_000
"""Maximum number of events that are searched for tokens; the oldest sessions are left out."""
_MOST_GROUPS = 50
_MOST_SESSIONS = 20
_PAGE = 500
_LIMIT_S = 5.0
"""Time limit for another server's counts."""
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
    """Duration of the calls that ran, without the wait for approval; 0 if none ran."""
    p95_ms: float
    asked: int
    """Number of calls that needed approval."""
    waited_p50_ms: float
    """Wait for approval of these calls."""
    waited_p95_ms: float


class SpanStats(Value, frozen=True, kw_only=True):
    at: float
    """The start of the span."""
    calls: int
    errors: int
    denials: int


class ModelStats(Value, frozen=True, kw_only=True):
    model: str
    replies: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    """Cost of the replies with a known price; None if there are none."""


class AnswerStats(Value, frozen=True, kw_only=True):
    """Answers of people; questions without one do not count."""

    approved: int
    denied: int
    p50_ms: float
    """Time from the question to its answer; 0 if there is no answer."""
    p95_ms: float


class SessionCost(Value, frozen=True, kw_only=True):
    session: str
    title: str | None
    replies: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    """Cost of the replies with a known price; None if there are none."""


class Stats(Value, frozen=True, kw_only=True):
    since: float
    span_s: float
    tools: list[ToolStats]
    times: list[SpanStats]
    errors: list[ErrorGroup]
    """The most frequent first."""
    answers: AnswerStats
    models: list[ModelStats]
    sessions: list[SessionCost]
    """The sessions with the most expensive replies of a model."""
    missing: list[str] = []
    """Servers that did not answer in time, so that their logs are not counted."""


async def get_stats(context: Context, request: ParsedRequest) -> Stats:
    query: StatsQuery = request.query
    now = time.time()
    since = now - _DAY_S if query.since is None else min(query.since, now)
    span_s = max((now - since) / _SPANS, 1.0)
    tally, missing = await _count_all(context, since, span_s)
    replies = await _replies(await context.runtime.sessions.store(), since)
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
        answers=AnswerStats(
            approved=tally.answers.approved,
            denied=tally.answers.denied,
            p50_ms=tallies.quantile(tally.answers.waited, 0.5),
            p95_ms=tallies.quantile(tally.answers.waited, 0.95),
        ),
        models=_by_model(replies),
        sessions=_by_session(replies),
        missing=missing,
    )


async def _count_all(context: Context, since: float, span_s: float) -> tuple[Tally, list[str]]:
    """Return the counts of all servers, and the servers that did not answer."""
    others = [*(await records.other_homes(context)).values()]
    query = urlencode({"since": repr(since), "span_s": repr(span_s)})
    counting = start_task(asyncio.to_thread(tallies.count_log, context.served.audit, since, span_s))
    answers = await asyncio.gather(*(_ask(context, each, f"{TARGET}?{query}") for each in others))
    missing = [each.label for each, answer in zip(others, answers, strict=True) if answer is None]
    return tallies.add_up([await counting, *filter(None, answers)]), sorted(missing)


async def _ask(context: Context, peer: Peer, target: str) -> Tally | None:
    answer = await context.peers.ask(peer, target, _LIMIT_S)
    try:
        return None if answer is None else msgspec.json.decode(answer, type=Tally)
    except (ValueError, RecursionError):
        return None  # another version


async def count_own(context: Context, request: ParsedRequest) -> Tally:
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


_Replies = list[tuple[StoredSession, list[Mapping[str, Any]]]]


async def _replies(store: Store, since: float) -> _Replies:
    """Return the reply events of each session's model since a time."""
    found: _Replies = []
    looked_at = 0
    for session in await _talked_in(store, since):
        replies: list[Mapping[str, Any]] = []
        after = 0
        while looked_at < _MOST_EVENTS and (
            events := await store.read_events(session.id, after, _PAGE)
        ):
            after += len(events)
            looked_at += len(events)
            replies += [
                event.payload
                for event in events
                if event.type == LLM_COMPLETED and event.timestamp >= since
            ]
        if replies:
            found.append((session, replies))
    return found


def _by_model(replies: _Replies) -> list[ModelStats]:
    models: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for _, payloads in replies:
        for payload in payloads:
            models[str(payload.get("model"))].append(payload)
    return [ModelStats(model=name, **_use(models[name])) for name in sorted(models)]


def _by_session(replies: _Replies) -> list[SessionCost]:
    costs = [
        SessionCost(session=session.id, title=session.title, **_use(payloads))
        for session, payloads in replies
    ]
    costs.sort(key=lambda each: (each.cost_usd or 0.0, each.input_tokens), reverse=True)
    return costs[:_MOST_SESSIONS]


async def _talked_in(store: Store, since: float) -> list[StoredSession]:
    """Return sessions with messages used since a time, also of sub-agents; last used first."""
    found: list[StoredSession] = []
    cursor = None
    while True:
        page = await store.list_sessions(cursor=cursor, limit=_PAGE, workers=True)
        used = [each for each in page.sessions if each.updated_at >= since]
        found += [each for each in used if each.messages]
        cursor = page.cursor
        if cursor is None or len(used) < len(page.sessions):
            return found


def _use(replies: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the number of replies, their tokens and their known costs."""
    costs = [each["cost_usd"] for each in replies if "cost_usd" in each]
    return {
        "replies": len(replies),
        "input_tokens": sum(each.get("input_tokens", 0) for each in replies),
        "output_tokens": sum(each.get("output_tokens", 0) for each in replies),
        "cost_usd": sum(costs) if costs else None,
    }


OPERATIONS = (
    Operation("GET", "/v1/stats", "Count the recorded calls.", get_stats, Stats, query=StatsQuery),
    Operation(
        "GET",
        TARGET,
        "Count the calls in this server's log, for another server.",
        count_own,
        Tally,
        query=TallyQuery,
        for_servers=True,
    ),
)
