"""What would be decided about a call, and what other settings would have decided about those on
record: nothing runs, nobody is asked, nothing is recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, structs

from callgate.audit.reading import newest_calls
from callgate.config.backtest_inputs import changed_settings, lookups, settings_in_force
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import ToolError
from callgate.core.results import ErrorInfo
from callgate.core.sessions import Mode, Session
from callgate.core.stores import Store
from callgate.policy.backtesting.backtests import Backtest, backtest
from callgate.policy.rules import CLASS_DEFAULTS, Budget, Origin, Outcome, PolicyMode, Rule, Setting
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.problems import invalid
from callgate.surfaces.http.routes.audit import Moment
from callgate.surfaces.http.routes.calls import ensure_same
from callgate.surfaces.http.routes.values import Directory, Input, Value

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
    """None: the call would end before anything is decided."""
    reason: str | None = None
    sentence: str | None = None
    origin: Place | None = None
    sandbox: str | None = None
    paths: list[str] = []
    budgets: list[str] = []
    """How much of each budget of the call is used."""
    ends_before: ErrorInfo | None = None


async def explain_call(context: Context, request: Request) -> Explained:
    body: Supposed = request.body
    session = await _session(context, body)
    if body.mode is not None:
        session = structs.replace(session, mode=body.mode)
    call = ToolCall(tool=body.tool, arguments=body.arguments, session=session, caller=body.caller)
    try:
        subject, decision = context.runtime.explain(call)
    except ToolError as error:
        return Explained(outcome=None, ends_before=ErrorInfo.of(error, body.tool))
    used_by = structs.replace(session, id=body.session or session.id)
    supposed = structs.replace(call, session=used_by)
    budgets = await context.runtime.forecast_budgets(supposed, subject, decision)
    decision = budgets.decision
    origin = decision.origin
    return Explained(
        outcome=decision.outcome,
        reason=decision.reason,
        sentence=decision.sentence,
        origin=_origin(origin),
        sandbox=None if subject.enclosure is None else str(subject.enclosure),
        paths=[path.real for path in subject.resolved_paths],
        budgets=list(budgets.usage),
    )


async def _session(context: Context, body: Supposed) -> Session:
    if body.session is None:
        return context.sessions.fresh(body.workspace)
    session = context.sessions.find(body.session)
    if session is None:
        stored = await (await context.runtime.store()).get_session(body.session)
        session = context.sessions.fresh(stored.workspace, stored.mode)
    ensure_same(body.workspace, session.workspace)
    return session


class Word(Value, frozen=True, kw_only=True):
    """What holds for a tool, or for every tool of an effect."""

    name: str
    word: PolicyMode
    origin: Place


class RuleInForce(Value, frozen=True, kw_only=True):
    decision: Outcome
    says: str
    """Its conditions."""
    origin: Place
    workspace: bool
    """From the workspace's own settings, which only narrow."""


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


async def get_policy(context: Context, request: Request) -> InForce:
    query: PolicyQuery = request.query
    session = context.sessions.fresh(query.workspace)
    book = context.runtime.policies(session.workspace)
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
    """TOML, as `settings.toml` has it."""
    added: bool = False
    """Only lines to add at the end of the settings in force."""
    since: Moment | None = None
    """None: a week ago."""
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000


class Tested(Value, frozen=True, kw_only=True):
    since: float
    judged: int
    same: int
    loosened: int
    steps: dict[str, int]
    """How many calls went from which decision to which, such as `ask->allow`."""
    changed: list[dict[str, Any]]
    undecidable: dict[str, Any]
    unjudged: int


async def backtest_policy(context: Context, request: Request) -> Tested:
    body: OtherSettings = request.body
    modes = await stored_modes(await context.runtime.store())
    try:
        found = await asyncio.to_thread(_backtest, context, body, modes)
    except SettingsError as error:
        raise invalid(str(error), "settings_invalid") from None
    return Tested(**found.described())


def _backtest(context: Context, body: OtherSettings, modes: Mapping[str, Mode]) -> Backtest:
    """In a thread: it reads files, and takes a while for a long record."""
    home = Home(context.served.home)
    since = time.time() - _WEEK_S if body.since is None else body.since
    since_ms = int(since * 1000)
    return backtest(
        settings_in_force(home),
        changed_settings(home, _text(body, home), "settings"),
        newest_calls(home.audit, since_ms, body.limit),
        since_ms=since_ms,
        lookups=lookups(home, context.runtime.find_tool),
        modes=modes,
    )


def _text(body: OtherSettings, home: Home) -> bytes:
    try:
        before = Path(home.settings).read_bytes() + b"\n" if body.added else b""
    except FileNotFoundError:
        before = b""
    return before + body.settings.encode()


async def stored_modes(store: Store) -> dict[str, Mode]:
    """The modes of the sessions that are kept."""
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
        "What holds in a workspace, and where it stands.",
        get_policy,
        InForce,
        query=PolicyQuery,
        errors=(403,),
    ),
    Operation(
        "POST",
        "/v1/policy/test",
        "Say which calls on record other settings decide otherwise.",
        backtest_policy,
        Tested,
        body=OtherSettings,
    ),
    Operation(
        "POST",
        "/v1/policy/explain",
        "Say what would be decided about a call.",
        explain_call,
        Explained,
        body=Supposed,
        errors=(403, 404, 409),
        while_draining=True,
    ),
)
