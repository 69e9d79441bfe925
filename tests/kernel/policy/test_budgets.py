"""Which counters a call takes from, and what is decided beyond a limit."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.core.budgets import Amount, Overrun
from callgate.policy.budgets import budget_unknown, charges, over_budget, sending
from callgate.policy.decisions import Decision, Reason
from callgate.policy.rules import Budget, Origin, Outcome

CALLS = Budget(amount="calls", per="session", limit=3, origin=Origin("user.toml", 1))
FEWER = Budget(amount="calls", per="session", limit=2, origin=Origin("ws.toml", 5))
OF_TOOL = Budget(amount="destinations", per="day", tool="alias", limit=9)
WHO: dict[str, Any] = {"session": "s", "principal": "p", "day": "2026-01-01"}


def test_the_lowest_limit_of_a_counter_holds_and_is_the_one_that_is_named() -> None:
    (charge,) = charges((CALLS, FEWER), names=("t",), sending=None, **WHO)
    assert (charge.ledger, charge.day, charge.tool, charge.limits) == ("session/s", "", "", {Amount.CALLS: 2})
    passed = Overrun(ledger="session/s", tool="", amount=Amount.CALLS, used=2, limit=2)
    decision = Decision(outcome=Outcome.ALLOW, reason=Reason.RULE, sentence="Rule.", budgets=(CALLS, FEWER))
    asked = over_budget(decision, (passed,), ("t",))
    assert (asked.outcome, asked.sentence, asked.policy_reason, asked.counts_once) == (
        *(Outcome.ASK, "Over budget: 2 of 2 calls in this session are used.", "budget (ws.toml:5)", True),
    )


def test_a_budget_of_an_alias_is_one_of_its_tool_and_of_no_other() -> None:
    sent = sending("t", 7, None, ["bob@x.example"])
    (charge,) = charges((OF_TOOL,), names=("t", "alias"), sending=sent, **WHO)
    assert (charge.ledger, charge.day, charge.tool, charge.bytes_out, len(charge.destinations)) == (
        *("day/p", "2026-01-01", "t", 7, 1),
    )
    assert charges((OF_TOOL,), names=("other",), sending=sent, **WHO) == ()


def test_a_question_that_was_asked_anyway_keeps_its_own_sentence_and_is_not_remembered() -> None:
    hosts = (("a.example",),)
    decision = Decision(
        outcome=Outcome.ASK, reason="class_default", sentence="First.", hosts=hosts, remember=True, budgets=(CALLS,)
    )
    asked = budget_unknown(decision, "the disk is full")
    assert asked.sentence == "First. The used part of the budgets is unknown: the disk is full."
    assert (asked.hosts, asked.remember, asked.explicit, asked.budgets) == (hosts, False, True, (CALLS,))


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (["a@x.example, b@x.example"], ["B@X.example", "Anna <a@x.example>"], True),
        (["a@x.example"], ["b@x.example"], False),
        (["https://x.example/a,b"], ["https://x.example:443/c?d"], True),
        (["https://x.example"], ["https://x.example.evil"], False),
        (["https://x.example"], ["https://xn--x-example.evil"], False),
        (["https://x.example@evil.example/"], ["https://x.example/"], False),
    ],
)
def test_destinations_are_told_apart_by_where_they_lead(one: list[str], other: list[str], alike: bool) -> None:
    found = [set(sending("t", 1, None, values).destinations) for values in (one, other)]
    assert (found[0] == found[1]) is alike


def test_a_command_that_names_no_host_goes_where_its_words_say() -> None:
    first, same, other = (
        sending("shell", 1, command, ()).destinations for command in ("make  push", "make push", "make pull")
    )
    assert first == same != other
