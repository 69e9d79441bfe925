"""Rules that the audit log suggests: approved often enough, and never denied.

    records -> needs approval today, and approved -> narrow rule -> counted
            -> tested on all calls of its tool -> suggested | dropped, with the denial against it

Each rule is tested like the settings in `policy test` (`backtests`). A rule is dropped if it would
allow, or might allow, a denied call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Mode, pool_workspace
from callgate.features.reporting.backtests import Comparison
from callgate.features.reporting.narrow_rules import LeftOut, narrow_rule, written
from callgate.features.reporting.recorded_calls import (
    Lookups,
    PolicySettings,
    Record,
    RecordedCall,
    plain_sha256,
    read_arguments,
    recall,
)
from callgate.features.reporting.rejudging import Doubt
from callgate.policy.rules import Outcome, Rule, is_within

MOST = 100
"""Maximum number of rules to test; the rest are only counted."""
_REPORT_EVERY = 2_000
_DENIALS = frozenset({ToolErrorClass.USER_DENIED, ToolErrorClass.PERMISSION_DENIED})
_NOT_ABOUT_IT = frozenset(
    {"no_confirmer", "settings_invalid", "changed_while_waiting", "mode_none", "mode_read"}
)
"""Reasons of refusals that are unrelated to the call itself."""


class AnsweredRecord(Record, Protocol):
    """A record with its answer and its start."""

    @property
    def called(self) -> str | None: ...
    @property
    def answered_by(self) -> str | None: ...


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Selection of calls for suggestions. Denials always count."""

    least: int = 3
    """Minimum number of approvals."""
    session: str | None = None
    tool: str | None = None
    workspace: str | None = None
    """Only calls in this directory or below."""

    def includes(self, record: Record) -> bool:
        return (
            self.session in (None, record.session)
            and self.tool in (None, record.tool)
            and (self.workspace is None or is_within(record.cwd, self.workspace))
        )


_Kinds = dict[tuple[object, ...], tuple[AnsweredRecord, int]]
"""Records that every policy treats alike: one of them, and their number."""


class Drop(StrEnum):
    """The reason why a rule is dropped."""

    DENIED = "would_allow_denied"
    UNCLEAR = "denial_unclear"


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    rule: Rule
    count: int
    """Number of approved calls."""
    answered: int
    """Number of these calls that a person answered; a mode or an earlier answer allowed the
    others.
    """
    sessions: int
    first_ms: int
    last_ms: int
    example: str
    """The recorded arguments of the newest call."""
    steps: Mapping[str, int] = {}
    """Number of changed decisions, by change."""
    same: int = 0
    undecidable: int = 0
    dropped: Drop | None = None
    denied_call: str | None = None
    """The newest denied call that the rule would allow."""

    def described(self) -> dict[str, Any]:
        """Return the output for surfaces; times in seconds since 1970."""
        return {
            "rule": written(self.rule),
            "count": self.count,
            "answered": self.answered,
            "sessions": self.sessions,
            "first": self.first_ms / 1000,
            "last": self.last_ms / 1000,
            "example": self.example,
            "steps": dict(self.steps),
            "same": self.same,
            "undecidable": self.undecidable,
            "dropped": self.dropped,
            "denied_call": self.denied_call,
        }


class Suggestions(msgspec.Struct, frozen=True, kw_only=True):
    since_ms: int
    looked_at: int
    suggested: tuple[Suggestion, ...]
    dropped: tuple[Suggestion, ...]
    left_out: Mapping[LeftOut, int]
    """Approved calls without a narrow rule."""
    rare: int
    """Number of rules that were not approved often enough."""
    untried: int
    """Number of rules beyond `MOST`."""

    def described(self) -> dict[str, Any]:
        return {
            "since": self.since_ms / 1000,
            "looked_at": self.looked_at,
            "suggestions": [each.described() for each in self.suggested],
            "dropped": [each.described() for each in self.dropped],
            "left_out": {str(why): count for why, count in self.left_out.items()},
            "rare": self.rare,
            "untried": self.untried,
        }


def suggest(
    settings: PolicySettings,
    records: Iterable[AnsweredRecord],
    denials: Iterable[AnsweredRecord],
    *,
    since_ms: int,
    wanted: Wanted,
    lookups: Lookups,
    modes: Mapping[str, Mode],
    report: Callable[[int], None] = lambda count: None,
) -> Suggestions:
    """Return the suggested rules. Slow for a long log.

    `records` start with the newest and end at `since_ms`; `denials` are records of refused calls
    of any age.
    """
    by_tool: dict[str, _Kinds] = {}
    denied: dict[str, list[AnsweredRecord]] = {}
    for record in filter(_is_denied, denials):
        denied.setdefault(record.tool, []).append(record)
    groups: dict[bytes, tuple[Rule, list[AnsweredRecord]]] = {}
    left_out: Counter[LeftOut] = Counter()
    # Ignores modes: a call that mode write allowed needs approval in other sessions.
    asking = _in_mode_ask(settings)
    judge = Comparison(asking, asking, lookups, {}, decide_all=True)
    looked_at = 0
    for looked_at, record in enumerate(records, start=1):
        if looked_at % _REPORT_EVERY == 0:
            report(looked_at)
        _count(by_tool.setdefault(record.tool, {}), record, modes)
        if not (wanted.includes(record) and _is_agreed(record)):
            continue
        found = _candidate(record, settings, lookups, judge)
        if isinstance(found, LeftOut):
            left_out[found] += 1
        elif found is not None:
            key = msgspec.json.encode(written(found))
            groups.setdefault(key, (found, []))[1].append(record)
    often = sorted(
        ((rule, calls) for rule, calls in groups.values() if len(calls) >= wanted.least),
        key=lambda each: (-len(each[1]), str(each[0])),
    )
    trial = _Trial(settings, lookups, modes, by_tool, denied)
    tried: list[Suggestion] = []
    for rule, calls in often[:MOST]:
        if trial.helps(rule, calls[0]):
            tried.append(trial(rule, calls))
        else:
            left_out[LeftOut.RULE] += len(calls)
    return Suggestions(
        since_ms=since_ms,
        looked_at=looked_at,
        suggested=tuple(each for each in tried if each.dropped is None),
        dropped=tuple(each for each in tried if each.dropped is not None),
        left_out=dict(left_out.most_common()),
        rare=len(groups) - len(often),
        untried=max(len(often) - MOST, 0),
    )


def _is_agreed(record: AnsweredRecord) -> bool:
    """Whether a person allowed the call, or it ran."""
    started = record.called is not None or record.answered_by is not None
    return record.decision == Outcome.ALLOW and started


def _is_denied(record: AnsweredRecord) -> bool:
    refused = record.decision == Outcome.DENY and record.error_class in _DENIALS
    return refused and record.reason not in _NOT_ABOUT_IT


def _count(kinds: _Kinds, record: AnsweredRecord, modes: Mapping[str, Mode]) -> None:
    """Count a call with the calls that every policy treats alike; each kind is tested once."""
    session = record.session if "/artifacts/" in record.args else modes.get(record.session)
    key = (
        *(session, record.caller, record.cwd, record.args, record.args_hash, record.side_effects),
        *(record.capabilities, record.sandbox, record.decision, record.reason, record.policy),
        record.error_class,
    )
    first, count = kinds.get(key, (record, 0))
    kinds[key] = (first, count + 1)


def _candidate(
    record: AnsweredRecord, settings: PolicySettings, lookups: Lookups, judge: Comparison
) -> Rule | LeftOut | None:
    """Return the narrow rule for a call that needs approval today; None for all others."""
    call = recall(record, lookups.tool(record.tool))
    answer = judge(record)
    if call is None or answer is None:
        return None
    if pool_workspace(record.cwd) is not None:  # only a worker knows its paths
        return LeftOut.UNDECIDABLE
    if isinstance(answer, Doubt):
        return _unjudged(answer, call)
    if answer[0].outcome is not Outcome.ASK:
        return None
    workspace = lookups.workspace(record.cwd)
    if workspace is None:
        return LeftOut.WORKSPACE
    call = msgspec.structs.replace(call, sha256=plain_sha256(record, lookups))
    call = msgspec.structs.replace(call, arguments=read_arguments(call))
    return narrow_rule(call, workspace, settings.roots, lookups)


def _unjudged(doubt: Doubt, call: RecordedCall) -> LeftOut:
    if doubt is Doubt.ARGUMENTS:
        return LeftOut.REDACTED
    if doubt is Doubt.WORKSPACE:
        return LeftOut.WORKSPACE
    return LeftOut.TOOL if call.tool is None else LeftOut.UNDECIDABLE


class _Trial:
    """Tests of rules on the calls of their tool."""

    def __init__(
        self,
        settings: PolicySettings,
        lookups: Lookups,
        modes: Mapping[str, Mode],
        kinds: Mapping[str, _Kinds],
        denials: Mapping[str, Sequence[AnsweredRecord]],
    ) -> None:
        self._settings = settings
        self._lookups = lookups
        self._modes = modes
        self._kinds = kinds
        self._denials = denials

    def __call__(self, rule: Rule, calls: Sequence[AnsweredRecord]) -> Suggestion:
        """Return the suggestion for a rule: its changed decisions, and the denial that contradicts
        it.
        """
        tool = calls[0].tool
        judge = self._with(rule, self._settings, self._modes)
        steps: Counter[str] = Counter()
        same = undecidable = 0
        for record, count in self._kinds[tool].values():
            answer = judge(record)
            if isinstance(answer, Doubt):
                undecidable += count
            elif answer is not None and answer[0].outcome is answer[1].outcome:
                same += count
            elif answer is not None:
                steps[f"{answer[0].outcome}->{answer[1].outcome}"] += count
        dropped, denied_call = self._against(rule, self._denials.get(tool, ()))
        return Suggestion(
            rule=rule,
            count=len(calls),
            answered=sum(each.answered_by is not None for each in calls),
            sessions=len({each.session for each in calls}),
            first_ms=min(each.ts for each in calls),
            last_ms=max(each.ts for each in calls),
            example=calls[0].args,
            steps=dict(steps),
            same=same,
            undecidable=undecidable,
            dropped=dropped,
            denied_call=denied_call,
        )

    def helps(self, rule: Rule, record: AnsweredRecord) -> bool:
        """Whether the rule removes the need for approval. An `ask` rule and the settings of a
        workspace take precedence over an allow.
        """
        answer = self._with(rule, _in_mode_ask(self._settings), {})(record)
        return isinstance(answer, tuple) and answer[1].outcome is Outcome.ALLOW

    def _against(
        self, rule: Rule, denials: Sequence[AnsweredRecord]
    ) -> tuple[Drop | None, str | None]:
        """Return the reason to drop a rule that would allow a denied call, or may allow it, and the
        id of that call; None for a usable rule. Ignores modes, because the session's mode may have
        changed since the denial.
        """
        judge = self._with(rule, _in_mode_ask(self._settings), {})
        unclear: str | None = None
        for record in denials:
            answer = judge(record)
            if isinstance(answer, Doubt):
                unclear = unclear or record.call_id
            elif answer is not None and answer[0].outcome is not answer[1].outcome:
                return Drop.DENIED, record.call_id
        return (None if unclear is None else Drop.UNCLEAR), unclear

    def _with(self, rule: Rule, settings: PolicySettings, modes: Mapping[str, Mode]) -> Comparison:
        user = msgspec.structs.replace(settings.user, rules=(*settings.user.rules, rule))
        changed = msgspec.structs.replace(settings, user=user)
        return Comparison(settings, changed, self._lookups, modes)


def _in_mode_ask(settings: PolicySettings) -> PolicySettings:
    return msgspec.structs.replace(settings, mode=Mode.ASK)
