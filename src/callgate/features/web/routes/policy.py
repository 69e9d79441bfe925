"""Policy questions without effects: explain a call, back-test settings, suggest rules.

These routes run no tool, ask no approver, and record and save nothing (`routes.approvals` saves
rules).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, structs

from callgate.audit.reading import newest_calls
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.saved import rule_lines
from callgate.core.calls import CallerKind, ErrorInfo, ToolCall
from callgate.core.errors import ToolError
from callgate.core.sessions import Mode, Session
from callgate.core.stores import Store
from callgate.dispatch.subjects import Subject
from callgate.features.reporting.backtest_inputs import (
    changed_settings,
    lookups,
    settings_in_force,
    suggested_rules,
)
from callgate.features.reporting.backtests import Backtest, backtest
from callgate.features.reporting.suggesting import Suggestion, Suggestions, Wanted
from callgate.features.web.contexts import Context, Operation, ParsedRequest
from callgate.features.web.responses import invalid
from callgate.features.web.routes.calls import ensure_same
from callgate.features.web.routes.values import Directory, Input, Moment, Value
from callgate.policy.decisions import Decision
from callgate.policy.rules import CLASS_DEFAULTS, Budget, Origin, Outcome, PolicyMode, Rule, Setting

_WEEK_S = 7 * 86_400.0
_PAGE = 500


class Supposed(Input, frozen=True, kw_only=True):
    tool: Annotated[str, Meta(min_length=1, max_length=128)]
    arguments: dict[str, Any] = {}
    session: str | None = None
    workspace: Directory | None = None
    mode: Mode | None = None
    caller: CallerKind = CallerKind.HTTP


class Place(Value, frozen=True, kw_only=True):
    file: str
    line: int | None


class Explained(Value, frozen=True, kw_only=True):
    outcome: Outcome | None
    """None if the call would end before the decision."""
    reason: str | None = None
    sentence: str | None = None
    origin: Place | None = None
    sandbox: str | None = None
    paths: list[str] = []
    budgets: list[str] = []
    """Usage of each budget that applies to the call."""
    ends_before: ErrorInfo | None = None


async def explain_call(context: Context, request: ParsedRequest) -> Explained:
    body: Supposed = request.body
    session = await _session(context, body)
    if body.mode is not None:
        session = structs.replace(session, mode=body.mode)
    call = ToolCall(tool=body.tool, arguments=body.arguments, session=session, caller=body.caller)
    try:
        subject, decision = context.runtime.permission.explain(call)
    except ToolError as error:
        return Explained(outcome=None, ends_before=ErrorInfo.of(error, body.tool))
    used_by = structs.replace(session, id=body.session or session.id)
    supposed = structs.replace(call, session=used_by)
    decision, usage = await _with_budgets(context, supposed, subject, decision)
    origin = decision.origin
    return Explained(
        outcome=decision.outcome,
        reason=decision.reason,
        sentence=decision.sentence,
        origin=_origin(origin),
        sandbox=None if subject.enclosure is None else str(subject.enclosure),
        paths=[path.real for path in subject.resolved_paths],
        budgets=list(usage),
    )


async def _with_budgets(
    context: Context, call: ToolCall, subject: Subject, decision: Decision
) -> tuple[Decision, Sequence[str]]:
    """Return what the budgets would make of a decision, and how much of them is used."""
    if not decision.budgets:
        return decision, ()
    from callgate.dispatch.permission.budgets import forecast  # lazy: few have budgets  # noqa: PLC0415

    guard = context.runtime.permission.rules(call.session.workspace).user.guard
    store = await context.runtime.sessions.store()
    budgets = await forecast(call, subject, decision, guard, store)
    return budgets.decision, budgets.usage


async def _session(context: Context, body: Supposed) -> Session:
    if body.session is None:
        return context.sessions.fresh(body.workspace)
    session = context.sessions.find(body.session)
    if session is None:
        stored = await (await context.runtime.sessions.store()).get_session(body.session)
        session = context.sessions.fresh(stored.workspace, stored.mode)
    ensure_same(body.workspace, session.workspace)
    return session


class Word(Value, frozen=True, kw_only=True):
    """Setting of a tool, or of all tools with an effect."""

    name: str
    word: PolicyMode
    origin: Place


class RuleInForce(Value, frozen=True, kw_only=True):
    decision: Outcome
    says: str
    """The conditions of the rule."""
    origin: Place
    workspace: bool
    """Whether it comes from the workspace's own settings, which only narrow."""


class BudgetInForce(Value, frozen=True, kw_only=True):
    amount: str
    """`calls`, `bytes_out` or `destinations`."""
    per: str
    """`session` or `day`."""
    tool: str | None
    """None: all tools together."""
    limit: int
    origin: Place


class InForce(Value, frozen=True, kw_only=True):
    rules: list[RuleInForce]
    tools: list[Word]
    classes: list[Word]
    trusted_workspaces: list[str]
    confirm_destructive: bool
    budgets: list[BudgetInForce] = []


class PolicyQuery(Input, frozen=True, kw_only=True):
    workspace: Directory | None = None


async def get_policy(context: Context, request: ParsedRequest) -> InForce:
    query: PolicyQuery = request.query
    session = context.sessions.fresh(query.workspace)
    book = context.runtime.permission.rules(session.workspace)
    workspace_rules = () if book.workspace is None else book.workspace.rules
    return InForce(
        rules=[
            *(_rule(each, workspace=False) for each in book.user.rules),
            *(_rule(each, workspace=True) for each in workspace_rules),
        ],
        tools=[_word(name, each) for name, each in sorted(book.user.per_tool.items())],
        classes=[
            _word(effect, book.user.default.get(effect, usual))
            for effect, usual in CLASS_DEFAULTS.items()
        ],
        trusted_workspaces=list(book.user.trusted_workspaces),
        confirm_destructive=book.user.confirm_destructive,
        budgets=[_budget(each) for each in book.budgets],
    )


def _budget(budget: Budget) -> BudgetInForce:
    return BudgetInForce(
        amount=budget.amount,
        per=budget.per,
        tool=budget.tool,
        limit=budget.limit,
        origin=_origin(budget.origin),
    )


def _rule(rule: Rule, *, workspace: bool) -> RuleInForce:
    says = str(rule).removeprefix(rule.decision).strip()
    return RuleInForce(
        decision=rule.decision, says=says, origin=_origin(rule.origin), workspace=workspace
    )


def _word(name: str, setting: Setting) -> Word:
    return Word(name=name, word=setting.mode, origin=_origin(setting.origin))


def _origin(origin: Origin) -> Place:
    return Place(file=origin.file, line=origin.line)


class OtherSettings(Input, frozen=True, kw_only=True):
    settings: Annotated[str, Meta(max_length=1_000_000)]
    """TOML in the format of `settings.toml`."""
    added: bool = False
    """Whether `settings` has only lines to append to the present settings."""
    since: Moment | None = None
    """None: a week ago."""
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000


class Tested(Value, frozen=True, kw_only=True):
    since: float
    judged: int
    same: int
    loosened: int
    steps: dict[str, int]
    """Number of calls by change of decision, such as `ask->allow`."""
    changed: list[dict[str, Any]]
    undecidable: dict[str, Any]
    unjudged: int


async def backtest_policy(context: Context, request: ParsedRequest) -> Tested:
    body: OtherSettings = request.body
    modes = await stored_modes(await context.runtime.sessions.store())
    try:
        found = await asyncio.to_thread(_backtest, context, body, modes)
    except SettingsError as error:
        raise invalid(str(error), "settings_invalid") from None
    return Tested(**found.described())


def _backtest(context: Context, body: OtherSettings, modes: Mapping[str, Mode]) -> Backtest:
    """Run the back-test. Blocks on files, so it runs in a thread."""
    home = Home(context.served.home)
    since = time.time() - _WEEK_S if body.since is None else body.since
    since_ms = int(since * 1000)
    return backtest(
        settings_in_force(home),
        changed_settings(home, _text(body, home), "settings"),
        newest_calls(home.audit, since_ms, body.limit),
        since_ms=since_ms,
        lookups=lookups(home, context.runtime.tools.find),
        modes=modes,
    )


def _text(body: OtherSettings, home: Home) -> bytes:
    try:
        before = Path(home.settings).read_bytes() + b"\n" if body.added else b""
    except FileNotFoundError:
        before = b""
    return before + body.settings.encode()


async def stored_modes(store: Store) -> dict[str, Mode]:
    """Return the modes of all stored sessions."""
    modes: dict[str, Mode] = {}
    cursor = None
    while True:
        page = await store.list_sessions(cursor=cursor, limit=_PAGE, workers=True)
        modes |= {each.id: each.mode for each in page.sessions}
        cursor = page.cursor
        if cursor is None:
            return modes


OPERATIONS = (
    Operation(
        "GET",
        "/v1/policy",
        "List the policy of a workspace, with its origins.",
        get_policy,
        InForce,
        query=PolicyQuery,
        errors=(403,),
    ),
    Operation(
        "POST",
        "/v1/policy/test",
        "Compare other settings with the recorded calls.",
        backtest_policy,
        Tested,
        body=OtherSettings,
    ),
    Operation(
        "POST",
        "/v1/policy/explain",
        "Explain the decision about a call.",
        explain_call,
        Explained,
        body=Supposed,
        errors=(403, 404, 409),
        while_draining=True,
    ),
)


_MONTH_S = 30 * 86_400.0


class SuggestionQuery(Input, frozen=True, kw_only=True):
    since: Moment | None = None
    """None: 30 days ago."""
    least: Annotated[int, Meta(ge=1, le=1_000_000)] = 3
    """Minimum number of approvals."""
    tool: str | None = None
    session: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000
    """Maximum number of examined calls, newest first."""


class SuggestedRule(Value, frozen=True, kw_only=True):
    rule: dict[str, Any]
    """Body for `POST /v1/policy/rules`."""
    toml: str
    count: int
    """Number of approved calls that it covers."""
    answered: int
    """Number of these calls that a person approved."""
    sessions: int
    first: float
    last: float
    example: str
    """The recorded arguments of the newest call."""
    steps: dict[str, int]
    """Number of calls by change of decision, such as `ask->allow`."""
    same: int
    undecidable: int
    dropped: str | None
    """The reason why it is not suggested: `would_allow_denied`, `denial_unclear`."""
    denied_call: str | None
    """The denied call that prevents the suggestion."""


class Suggested(Value, frozen=True, kw_only=True):
    since: float
    looked_at: int
    suggestions: list[SuggestedRule]
    dropped: list[SuggestedRule]
    left_out: dict[str, int]
    """Number of approved calls without a narrow rule, by reason."""
    rare: int
    untried: int


async def list_suggestions(context: Context, request: ParsedRequest) -> Suggested:
    query: SuggestionQuery = request.query
    modes = await stored_modes(await context.runtime.sessions.store())
    try:
        found = await asyncio.to_thread(_suggested, context, query, modes)
    except SettingsError as error:
        raise invalid(str(error), "settings_invalid") from None
    described = found.described()
    described["suggestions"] = [*map(_suggested_rule, found.suggested)]
    described["dropped"] = [*map(_suggested_rule, found.dropped)]
    return Suggested(**described)


def _suggested(context: Context, query: SuggestionQuery, modes: Mapping[str, Mode]) -> Suggestions:
    """Compute the suggestions. Blocks on files, so it runs in a thread."""
    since = time.time() - _MONTH_S if query.since is None else query.since
    return suggested_rules(
        Home(context.served.home),
        Wanted(least=query.least, tool=query.tool, session=query.session),
        since_ms=int(since * 1000),
        tool=context.runtime.tools.find,
        modes=modes,
        limit=query.limit,
    )


def _suggested_rule(suggestion: Suggestion) -> SuggestedRule:
    described = suggestion.described()
    lines = ["[[policy.rules]]", *rule_lines(described["rule"])]
    return SuggestedRule(**described, toml="\n".join(lines) + "\n")


SUGGESTION_OPERATIONS = (
    Operation(
        "GET",
        "/v1/policy/suggestions",
        "Suggest narrow rules from the recorded calls.",
        list_suggestions,
        Suggested,
        query=SuggestionQuery,
    ),
)
