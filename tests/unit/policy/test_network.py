"""A command that asks for the network: who lets it, and who does not."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode
from callgate.policy.commands import parse_pattern
from callgate.policy.decide import Question, decide
from callgate.policy.rules import Outcome, Policy, PolicyMode, Rule, Setting

ALLOW, ASK, DENY = Outcome.ALLOW, Outcome.ASK, Outcome.DENY
AUTO = Setting(PolicyMode.AUTO)


def question(network: bool = True, **more: Any) -> Question:
    arguments = {"command": "pip install x", "network": network}
    return Question(tool="shell", effect=SideEffects.EXECUTE, arguments=arguments, network=network, **more)


def outcome(policy: Policy = Policy(), narrowing: Policy | None = None, **more: Any) -> Outcome:
    return decide(question(**more), policy, narrowing).outcome


def rule(decision: Outcome, network: bool | None = None, command: str = "pip install *") -> Policy:
    return Policy(rules=(Rule(decision=decision, tool="shell", command=parse_pattern(command), network=network),))


@pytest.mark.parametrize(
    ("policy", "without", "with_network"),
    [
        (rule(ALLOW), ALLOW, ASK),
        (rule(ALLOW, True), ALLOW, ALLOW),
        (rule(ALLOW, False), ALLOW, ASK),
        (Policy(rules=(Rule(decision=ALLOW, tool="*"),)), ALLOW, ASK),
        (rule(DENY), DENY, DENY),
        (rule(DENY, True), ASK, DENY),
        (rule(DENY, False), DENY, ASK),
        (rule(ASK, True), ASK, ASK),
        (Policy(per_tool={"shell": AUTO}), ALLOW, ASK),
        (Policy(default={SideEffects.EXECUTE: AUTO}), ALLOW, ASK),
        (Policy(default={SideEffects.EXECUTE: AUTO, SideEffects.NETWORK: AUTO}), ALLOW, ALLOW),
        (Policy(default={SideEffects.NETWORK: Setting(PolicyMode.DENY)}), ASK, DENY),
        (Policy(), ASK, ASK),
    ],
)
def test_a_yes_to_a_command_is_no_yes_to_the_network(
    policy: Policy, without: Outcome, with_network: Outcome
) -> None:
    assert (outcome(policy, network=False), outcome(policy)) == (without, with_network)


def test_a_denied_network_is_denied_whatever_a_rule_allows() -> None:
    denied = Policy(
        default={SideEffects.NETWORK: Setting(PolicyMode.DENY)}, rules=rule(ALLOW, True).rules
    )
    assert (outcome(denied), outcome(denied, network=False)) == (DENY, ALLOW)


def test_mode_write_asks_nothing_and_mode_read_gives_no_network() -> None:
    assert outcome(mode=Mode.WRITE) is ALLOW
    assert outcome(rule(ASK, True), mode=Mode.WRITE) is ASK
    assert outcome(mode=Mode.READ, read_only_sandbox=True) is DENY
    assert outcome(mode=Mode.READ, read_only_sandbox=True, network=False) is ALLOW


def test_a_workspace_may_take_the_network_away() -> None:
    narrowing = Policy(default={SideEffects.NETWORK: Setting(PolicyMode.DENY)})
    assert outcome(rule(ALLOW, True), narrowing) is DENY
    assert outcome(rule(ALLOW, True), narrowing, network=False) is ALLOW


def test_a_trusted_workspace_may_give_the_network() -> None:
    trusting = Policy(
        trusted_workspaces=("/ws",),
        trusted_workspace_overrides={SideEffects.EXECUTE: AUTO, SideEffects.NETWORK: AUTO},
    )
    assert (outcome(trusting, workspace="/ws"), outcome(trusting, workspace="/other")) == (ALLOW, ASK)
