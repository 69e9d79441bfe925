"""Which rules the record suggests. Nothing is saved here: that is `routes.saved_rules`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from callgate.config.backtest_inputs import suggested_rules
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.rule_texts import rule_lines
from callgate.core.sessions import Mode
from callgate.policy.suggestions.suggesting import Suggestion, Suggestions, Wanted
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.problems import invalid
from callgate.surfaces.http.routes.audit import Moment
from callgate.surfaces.http.routes.policy import stored_modes
from callgate.surfaces.http.routes.values import Input, Value

_MONTH_S = 30 * 86_400.0


class SuggestionQuery(Input, frozen=True, kw_only=True):
    since: Moment | None = None
    """None: 30 days ago."""
    least: Annotated[int, Meta(ge=1, le=1_000_000)] = 3
    """How often it must have been agreed to."""
    tool: str | None = None
    session: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000
    """Calls that are looked at, the newest first."""


class SuggestedRule(Value, frozen=True, kw_only=True):
    rule: dict[str, Any]
    """As `POST /v1/policy/rules` takes it."""
    toml: str
    count: int
    """Calls that were agreed to."""
    answered: int
    """Those of them that a person answered."""
    sessions: int
    first: float
    last: float
    example: str
    """The arguments of the newest, as the record has them."""
    steps: dict[str, int]
    """What it would have answered, such as `ask->allow`."""
    same: int
    undecidable: int
    dropped: str | None
    """Why it is not suggested: `would_allow_denied`, `denial_unclear`."""
    denied_call: str | None
    """The denial that speaks against it."""


class Suggested(Value, frozen=True, kw_only=True):
    since: float
    looked_at: int
    suggestions: list[SuggestedRule]
    dropped: list[SuggestedRule]
    left_out: dict[str, int]
    """Calls that were agreed to and for which there is no narrow rule, by the reason."""
    rare: int
    untried: int


async def list_suggestions(context: Context, request: Request) -> Suggested:
    query: SuggestionQuery = request.query
    modes = await stored_modes(await context.runtime.store())
    try:
        found = await asyncio.to_thread(_suggested, context, query, modes)
    except SettingsError as error:
        raise invalid(str(error), "settings_invalid") from None
    described = found.described()
    described["suggestions"] = [*map(_rule, found.suggested)]
    described["dropped"] = [*map(_rule, found.dropped)]
    return Suggested(**described)


def _suggested(context: Context, query: SuggestionQuery, modes: Mapping[str, Mode]) -> Suggestions:
    """In a thread: it reads files, and takes a while for a long record."""
    since = time.time() - _MONTH_S if query.since is None else query.since
    return suggested_rules(
        Home(context.served.home),
        Wanted(least=query.least, tool=query.tool, session=query.session),
        since_ms=int(since * 1000),
        tool=context.runtime.find_tool,
        modes=modes,
        limit=query.limit,
    )


def _rule(suggestion: Suggestion) -> SuggestedRule:
    described = suggestion.described()
    lines = ["[[policy.rules]]", *rule_lines(described["rule"])]
    return SuggestedRule(**described, toml="\n".join(lines) + "\n")


OPERATIONS = (
    Operation(
        "GET",
        "/v1/policy/suggestions",
        "Say which narrow rules the calls on record suggest.",
        list_suggestions,
        Suggested,
        query=SuggestionQuery,
    ),
)
