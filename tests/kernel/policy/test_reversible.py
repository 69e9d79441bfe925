"""Reversible calls: fewer questions, and nothing else."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode
from callgate.policy.decide import Rulebook, decide
from callgate.policy.decisions import Question, Reason
from callgate.policy.rules import Origin, Outcome, Policy, PolicyMode, Rule, Setting

ALLOW, ASK, DENY = Outcome.ALLOW, Outcome.ASK, Outcome.DENY
AUTO, PROMPT = Setting(PolicyMode.AUTO), Setting(PolicyMode.PROMPT)
WRITE, EXECUTE = SideEffects.WRITE, SideEffects.EXECUTE
OPT_IN = Policy(reversible=AUTO)


def question(tool: str = "delete_file", effect: SideEffects = WRITE, **more: Any) -> Question:
    return Question(tool=tool, effect=effect, **({"reversible": True} | more))


def test_the_setting_allows_reversible_calls_in_mode_ask_only() -> None:
    for mode in Mode:
        decided = decide(question(mode=mode, destructive=True), OPT_IN)
        without = decide(question(mode=mode, destructive=True), Policy())
        if mode is Mode.ASK:
            assert (decided.outcome, decided.reason) == (ALLOW, Reason.REVERSIBLE)
            assert without.outcome is ASK
        else:
            assert decided == without
    assert decide(question("shell", EXECUTE), OPT_IN).outcome is ALLOW


@pytest.mark.parametrize(
    "more", [{"reversible": False}, {"network": True}, {"outward": True}, {"outward": True, "network": True}]
)
def test_only_a_reversible_call_that_sends_nothing_out_is_allowed(more: dict[str, Any]) -> None:
    assert decide(question("shell", EXECUTE, **more), OPT_IN).outcome is ASK


@pytest.mark.parametrize(
    "policy",
    [
        Policy(reversible=AUTO, rules=(Rule(decision=ASK, tool="delete_file"),)),
        Policy(reversible=AUTO, rules=(Rule(decision=ASK, reversible=True),)),
        Policy(reversible=AUTO, per_tool={"delete_file": PROMPT}),
        Policy(reversible=AUTO, confirm_destructive=True),
        Policy(reversible=PROMPT),
    ],
)
def test_a_question_that_the_user_requires_stays(policy: Policy) -> None:
    assert decide(question(destructive=True), policy).outcome is ASK


def test_a_deny_stays_and_a_workspace_only_narrows() -> None:
    denied = Policy(reversible=AUTO, rules=(Rule(decision=DENY, tool="*"),))
    assert decide(question(), denied).outcome is DENY
    assert decide(question(mode=Mode.READ), OPT_IN).outcome is DENY
    assert decide(question(), OPT_IN, Policy(reversible=PROMPT)).outcome is ASK
    assert decide(question(), Policy(), OPT_IN).outcome is ASK
    assert decide(question(), OPT_IN, Policy(rules=(Rule(decision=ASK, tool="*"),))).outcome is ASK


def test_a_rule_may_require_that_a_call_is_reversible_or_is_not() -> None:
    allowing = Policy(rules=(Rule(decision=ALLOW, tool="shell", reversible=True),))
    refusing = Policy(rules=(Rule(decision=DENY, tool="shell", reversible=False),))
    for reversible, policy, expected in (
        (True, allowing, ALLOW),
        (False, allowing, ASK),
        (True, refusing, ASK),
        (False, refusing, DENY),
    ):
        assert decide(question("shell", EXECUTE, reversible=reversible), policy).outcome is expected


def test_mode_guarded_deletes_files_that_undo_can_restore() -> None:
    guarded = {"mode": Mode.GUARDED, "destructive": True}
    assert decide(question(**guarded), Policy()).outcome is ALLOW
    assert decide(question(**guarded, reversible=False), Policy()).outcome is ASK
    assert decide(question(**guarded, outward=True), Policy()).outcome is ASK
    assert decide(question(**guarded), Policy(confirm_destructive=True)).outcome is ASK


def test_a_cached_decision_about_a_rule_does_not_cover_an_irreversible_call() -> None:
    rules = (Rule(decision=ALLOW, tool="shell", reversible=True, origin=Origin("settings.toml", 1)),)
    book = Rulebook(Policy(rules=rules), None, "/ws")
    for reversible, expected in ((True, ALLOW), (False, ASK), (True, ALLOW)):
        asked = question("shell", EXECUTE, reversible=reversible, workspace="/ws")
        assert book.decide(asked, "shell").outcome is expected


def test_without_a_setting_and_outside_mode_guarded_nothing_depends_on_it() -> None:
    for mode, effect, destructive, network, outward in product(Mode, SideEffects, *[(False, True)] * 3):
        if mode is Mode.GUARDED:
            continue
        facts = {"mode": mode, "destructive": destructive, "network": network, "outward": outward}
        one, other = (decide(question("t", effect, reversible=each, **facts), Policy()) for each in (False, True))
        assert one == other
