"""The rules about connections that mode guarded contains, and what lifts them."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.policy.decisions import Decision, Reason
from callgate.policy.guarded_rules import GUARDED_RULES, allow_connection
from callgate.policy.rules import Origin, Outcome

ASK = Decision(outcome=Outcome.ASK, reason=Reason.CLASS_DEFAULT, sentence="It needs approval.")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"host": "127.0.0.1:8123", "port": 8123}, "localhost"),
        ({"host": "[::1]:8123", "port": 8123}, "localhost"),
        ({"host": "private:localhost", "port": 80, "address": "127.0.0.1"}, "localhost"),
        ({"host": "git.corp.example", "port": 443, "reads": "git"}, "git_fetch"),
    ],
)
def test_a_rule_allows_above_the_guard_and_can_be_removed(arguments: dict[str, Any], name: str) -> None:
    decision = allow_connection(ASK, arguments, None)
    assert (decision.outcome, decision.any_destination) == (Outcome.ALLOW, True)
    assert f"`{name}`" in decision.sentence
    others = tuple(each.name for each in GUARDED_RULES if each.name != name)
    assert allow_connection(ASK, arguments, others) is ASK
    assert allow_connection(ASK, arguments, ()) is ASK


@pytest.mark.parametrize(
    "arguments",
    [
        {"host": "127.0.0.1:25", "port": 25},
        {"host": "127.0.0.1:3128", "port": 3128},
        {"host": "127.0.0.2:80", "port": 80},
        {"host": "private:evil.example", "port": 80, "address": "127.0.0.1"},
        {"host": "private:localhost", "port": 80, "address": "10.0.0.1"},
        {"host": "localhost.evil.example", "port": 80},
        {"host": "api.github.com", "port": 443, "reads": "gh"},
        {"host": "pypi.org", "port": 443, "installs": "pip"},
    ],
)
def test_no_rule_allows_another_connection(arguments: dict[str, Any]) -> None:
    assert allow_connection(ASK, arguments, None) is ASK


@pytest.mark.parametrize(
    "decision",
    [
        Decision(outcome=Outcome.ASK, reason=Reason.RULE, sentence="", explicit=True),
        Decision(outcome=Outcome.DENY, reason=Reason.RULE, sentence=""),
        Decision(outcome=Outcome.ASK, reason=Reason.CLASS_DEFAULT, sentence="", origin=Origin("a", 1)),
    ],
)
def test_what_the_user_set_stays(decision: Decision) -> None:
    assert allow_connection(decision, {"host": "127.0.0.1", "port": 80}, None) is decision
