"""Which rules the record suggests: agreed to often enough, and denied by nobody.

    records -> asked about today, and agreed to -> narrow rule -> counted
            -> tried on all calls of its tool -> suggested | dropped, with the denial against it

Each is tried as `policy test` does it (`backtesting`). A suggestion is dropped if it would allow a
call that somebody denied, or one of which that cannot be told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Mode, pool_workspace
from callgate.policy.backtesting.backtests import Comparison
from callgate.policy.backtesting.inputs import Lookups, PolicySettings, Record
from callgate.policy.backtesting.recorded_calls import (
    RecordedCall,
    plain_sha256,
    read_arguments,
    recall,
)
from callgate.policy.backtesting.rejudging import Doubt
from callgate.policy.rules import Outcome, Rule, is_within
from callgate.policy.suggestions.narrow_rules import LeftOut, narrow_rule, written

MOST = 100
"""Suggestions that are tried; the rest are only counted."""
_REPORT_EVERY = 2_000
_DENIALS = frozenset({ToolErrorClass.USER_DENIED, ToolErrorClass.PERMISSION_DENIED})
_NOT_ABOUT_IT = frozenset(
    {"no_confirmer", "settings_invalid", "changed_while_waiting", "mode_none", "mode_read"}
)
"""Reasons of refusals that say nothing about the call itself."""


class AnsweredRecord(Record, Protocol):
    """A record with what is known of its answer and its start."""

    @property
    def called(self) -> str | None: ...
    @property
    def answered_by(self) -> str | None: ...


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Of which calls rules are suggested. Denials count whatever is wanted."""

    least: int = 3
    """How often it must have been agreed to."""
    session: str | None = None
    tool: str | None = None
    workspace: str | None = None
    """There or below."""

    def includes(self, record: Record) -> bool:
        return (
            self.session in (None, record.session)
            and self.tool in (None, record.tool)
            and (self.workspace is None or is_within(record.cwd, self.workspace))
        )


_Kinds = dict[tuple[object, ...], tuple[AnsweredRecord, int]]
"""Records that no policy tells apart: one of them, and how many."""


class Drop(StrEnum):
    """Why a rule is not suggested."""

    DENIED = "would_allow_denied"
    UNCLEAR = "denial_unclear"


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    rule: Rule
    count: int
    """Calls that were agreed to."""
    answered: int
    """Those of them that a person answered; the others ran by a mode or an earlier answer."""
    sessions: int
    first_ms: int
    last_ms: int
    example: str
    """The arguments of the newest, as the record has them."""
    steps: Mapping[str, int] = {}
    """What it would have answered: how many calls go from which decision to which."""
    same: int = 0
    undecidable: int = 0
    dropped: Drop | None = None
    denied_call: str | None = None
    """The newest of the denials that speak against it."""

    def described(self) -> dict[str, Any]:
        """As surfaces give it; times in seconds since 1970."""
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
    """Calls that were agreed to, and for which there is no narrow rule."""
    rare: int
    """Rules that were not agreed to often enough."""
    untried: int
    """Rules beyond `MOST`."""

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
    """`records` are those since `since_ms`, newest first; `denials` those of refused calls,
    however old. Takes a while for a long record."""
    by_tool: dict[str, _Kinds] = {}
    denied: dict[str, list[AnsweredRecord]] = {}
    for record in filter(_is_denied, denials):
        denied.setdefault(record.tool, []).append(record)
    groups: dict[bytes, tuple[Rule, list[AnsweredRecord]]] = {}
    left_out: Counter[LeftOut] = Counter()
    # By the policy alone: what mode write let run is asked about in another session.
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
    """Whether a person allowed it, or it ran."""
    started = record.called is not None or record.answered_by is not None
    return record.decision == Outcome.ALLOW and started


def _is_denied(record: AnsweredRecord) -> bool:
    refused = record.decision == Outcome.DENY and record.error_class in _DENIALS
    return refused and record.reason not in _NOT_ABOUT_IT


def _count(kinds: _Kinds, record: AnsweredRecord, modes: Mapping[str, Mode]) -> None:
    """Count calls that no policy tells apart: each kind is tried once."""
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
    """The narrow rule for a call that is asked about today; None for any other."""
    call = recall(record, lookups.tool(record.tool))
    answer = judge(record)
    if call is None or answer is None:
        return None
    if pool_workspace(record.cwd) is not None:  # its paths only a worker knows
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
    """Rules tried on the calls of their tool."""

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
        """A rule, what it would have answered, and the denial that speaks against it."""
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
        """Whether a call of its kind would not be asked about any more: an `ask` of a rule, and
        what a workspace's settings say, go before an allow."""
        answer = self._with(rule, _in_mode_ask(self._settings), {})(record)
        return isinstance(answer, tuple) and answer[1].outcome is Outcome.ALLOW

    def _against(
        self, rule: Rule, denials: Sequence[AnsweredRecord]
    ) -> tuple[Drop | None, str | None]:
        """Whether a rule would allow what was denied, by the policy alone: the mode that its
        session has by now is not the one in which somebody said no."""
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
