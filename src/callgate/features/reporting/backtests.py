"""Comparison of two sets of settings over the recorded calls. Nothing is executed.

    record -> recall -> kind of call -> decided by the settings in force and by the others
                            |                     |
                 decided alike by both    the same | a change | not decidable

A call is evaluated from its record (`recorded_calls`), in every way that the record leaves open
(`rejudging`). The caller provides records, settings, modes and tools (`backtest_inputs`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from callgate.core.sessions import Mode, Root
from callgate.features.reporting.recorded_calls import (
    REFUSED_PLACES,
    Lookups,
    PolicySettings,
    Record,
    RecordedCall,
    WorkspacePolicy,
    plain_sha256,
    read_arguments,
    recall,
)
from callgate.features.reporting.rejudging import Doubt, View, decision_of, narrowed
from callgate.policy.decisions import Decision, Question, Reason
from callgate.policy.rules import Outcome, Rule

_REPORT_EVERY = 2_000
_REMEMBERED = 50_000


class DecisionChange(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one tool that get a different decision, all for the same reasons."""

    newest: Record
    old: Decision
    new: Decision
    count: int

    @property
    def loosened(self) -> bool:
        return self.new.outcome.strictness < self.old.outcome.strictness

    @property
    def step(self) -> str:
        return f"{self.old.outcome}->{self.new.outcome}"


class Backtest(msgspec.Struct, frozen=True, kw_only=True):
    since_ms: int
    same: int
    changes: tuple[DecisionChange, ...]
    """Loosened ones first, then the most frequent."""
    undecidable: Mapping[Doubt, int]
    unjudged: int
    """Calls that ended before the policy applied: unknown tool, invalid arguments."""

    @property
    def changed(self) -> int:
        return sum(change.count for change in self.changes)

    @property
    def judged(self) -> int:
        return self.same + self.changed + sum(self.undecidable.values())

    @property
    def loosened(self) -> int:
        return sum(change.count for change in self.changes if change.loosened)

    @property
    def steps(self) -> Mapping[str, int]:
        """Number of calls by change, such as `ask->allow`."""
        steps: Counter[str] = Counter()
        for change in self.changes:
            steps[change.step] += change.count
        return steps

    def described(self) -> dict[str, Any]:
        """Return the output for surfaces; times in seconds since 1970."""
        return {
            "since": self.since_ms / 1000,
            "judged": self.judged,
            "same": self.same,
            "loosened": self.loosened,
            "steps": dict(self.steps),
            "changed": [_described(change) for change in self.changes],
            "undecidable": {
                "count": sum(self.undecidable.values()),
                "why": {str(doubt): count for doubt, count in self.undecidable.items()},
            },
            "unjudged": self.unjudged,
        }


def backtest(
    old: PolicySettings,
    new: PolicySettings,
    records: Iterable[Record],
    *,
    since_ms: int,
    lookups: Lookups,
    modes: Mapping[str, Mode],
    report: Callable[[int], None] = lambda count: None,
) -> Backtest:
    """Evaluate recorded calls with the settings in force and with changed ones.

    `records` start with the newest and end at `since_ms`; `modes` are the stored modes of the
    sessions. Slow for a long log.
    """
    judge = Comparison(old, new, lookups, modes)
    same = unjudged = 0
    doubts: Counter[Doubt] = Counter()
    groups: dict[tuple[object, ...], list[Any]] = {}
    for number, record in enumerate(records, start=1):
        if number % _REPORT_EVERY == 0:
            report(number)
        answer = judge(record)
        if answer is None:
            unjudged += 1
        elif isinstance(answer, Doubt):
            doubts[answer] += 1
        elif answer[0].outcome is answer[1].outcome:
            same += 1
        else:
            key = (record.tool, *(d.policy_reason + d.outcome for d in answer))
            groups.setdefault(key, [record, answer, 0])[2] += 1
    changes = [
        DecisionChange(newest=newest, old=before, new=after, count=count)
        for newest, (before, after), count in groups.values()
    ]
    changes.sort(key=lambda each: (not each.loosened, -each.count, each.newest.tool))
    return Backtest(
        since_ms=since_ms,
        same=same,
        changes=tuple(changes),
        undecidable=dict(doubts.most_common()),
        unjudged=unjudged,
    )


class _Kind(msgspec.Struct, frozen=True):
    """Facts that all calls of a tool from one place share."""

    old: View
    new: View
    alike: bool
    """Whether both sides decide the same for all arguments."""
    looks: bool
    """Whether the decision depends on the arguments."""


Answer = tuple[Decision, Decision] | Doubt
"""The decisions of both sides, or the reason why they are unknown."""
_ANY = Decision(outcome=Outcome.ASK, reason=Reason.CLASS_DEFAULT, sentence="")
_SAME = (_ANY, _ANY)


class Comparison:
    """Evaluates records with two sets of settings; caches its results."""

    def __init__(
        self,
        old: PolicySettings,
        new: PolicySettings,
        lookups: Lookups,
        modes: Mapping[str, Mode],
        *,
        decide_all: bool = False,
    ) -> None:
        """`decide_all`: also return decisions that are the same for all arguments, instead of
        `_SAME`.
        """
        self._decide_all = decide_all
        self._sides = (old, new)
        self._lookups = lookups
        self._modes = modes
        self._workspaces: dict[str, WorkspacePolicy | None] = {}
        self._kinds: dict[tuple[object, ...], _Kind | None] = {}
        self._answers: dict[tuple[object, ...], Answer] = {}

    def __call__(self, record: Record) -> Answer | None:
        """Return both decisions, or why they are unknown; None for a call that the policy never
        evaluated.
        """
        call = recall(record, self._lookups.tool(record.tool))
        if call is None:
            return None
        key = (
            record.tool,
            record.side_effects,
            call.destructive,
            record.caller,
            record.cwd,
            self._modes.get(record.session),
            call.sandboxed,
        )
        if key not in self._kinds:
            self._kinds[key] = self._kind(call)
        kind = self._kinds[key]
        if kind is None:
            return Doubt.WORKSPACE
        if kind.alike:
            return _SAME
        if kind.looks:
            call = msgspec.structs.replace(call, sha256=self._sha256(record, kind))
        session_id = record.session if "/artifacts/" in record.args else ""
        looked_at = (record.args, record.args_hash, session_id) if kind.looks else ()
        seen = (
            *key,
            *looked_at,
            record.reason,
            record.policy is None,
            call.repaired,
            record.sandbox,
            record.decision,
        )
        answer = self._answers.get(seen)
        if answer is None:
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            call = msgspec.structs.replace(call, arguments=read_arguments(call))
            answer = self._answers[seen] = _answer(kind, call)
        return answer

    def _sha256(self, record: Record, kind: _Kind) -> str:
        rules = (rule.arguments_sha256 for rule in (*kind.old.rules, *kind.new.rules))
        return plain_sha256(record, self._lookups, rules)

    def _kind(self, call: RecordedCall) -> _Kind | None:
        found = self._workspace(call.record.cwd)
        if found is None:
            return None
        old, new = (self._view(side, call, found) for side in self._sides)
        rules = [*old.rules, *new.rules]
        if old.roots == new.roots and all(rule.path is None for rule in rules):
            old, new = (msgspec.structs.replace(view, needs_paths=False) for view in (old, new))
        alike = not self._decide_all and old.grounds(call) == new.grounds(call)
        looks = bool(call.path_params) or call.sandboxed or any(map(_looks, rules))
        return _Kind(old, new, alike, looks)

    def _workspace(self, path: str) -> WorkspacePolicy | None:
        if path not in self._workspaces:
            self._workspaces[path] = self._lookups.workspace(path)
        return self._workspaces[path]

    def _view(self, side: PolicySettings, call: RecordedCall, workspace: WorkspacePolicy) -> View:
        mode, policy = self._mode(side, call.record.session), workspace.policy
        question = Question(
            tool=call.record.tool,
            aliases=call.aliases,
            effect=call.effect,
            mode=mode,
            caller=call.caller,
            workspace=workspace.directory,
        )
        return View(
            settings=side,
            lookups=self._lookups,
            mode=mode,
            user=narrowed(side.user, question),
            workspace=None if policy is None else narrowed(policy, question),
            directory=workspace.directory,
            roots=(Root(workspace.directory, writable=True), *side.roots),
        )

    def _mode(self, side: PolicySettings, session: str) -> Mode:
        """Return the mode of a session. A mode that equals the default in force counts as the
        default.
        """
        stored = self._modes.get(session)
        if stored is None or stored is self._sides[0].mode:
            return side.mode
        return stored


def _looks(rule: Rule) -> bool:
    """Whether a rule depends on arguments, or on paths and commands in them."""
    about = (
        rule.path,
        rule.command,
        rule.arguments or None,
        rule.without or None,
        rule.arguments_sha256,
        rule.network,
    )
    return any(each is not None for each in about)


def _answer(kind: _Kind, call: RecordedCall) -> Answer:
    old = decision_of(kind.old, call)
    if isinstance(old, Doubt):
        return old
    if call.refused_by_path is not (old.reason in REFUSED_PLACES):
        return Doubt.LINK  # a link, which the path's text does not show
    new = decision_of(kind.new, call)
    return new if isinstance(new, Doubt) else (old, new)


def _described(change: DecisionChange) -> dict[str, Any]:
    newest = change.newest
    return {
        "tool": newest.tool,
        "arguments": newest.args,
        "at": newest.ts / 1000,
        "session": newest.session,
        "call": newest.call_id,
        "caller": newest.caller,
        "workspace": newest.cwd,
        "loosened": change.loosened,
        "old": _described_decision(change.old),
        "new": _described_decision(change.new),
        "count": change.count,
    }


def _described_decision(decision: Decision) -> dict[str, Any]:
    return {
        "outcome": decision.outcome,
        "reason": decision.reason,
        "sentence": decision.sentence,
        "origin": {"file": decision.origin.file, "line": decision.origin.line},
    }
