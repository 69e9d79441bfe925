"""A command that asks for the network: who lets it, and who does not."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode
from callgate.policy.commands import parse_pattern
from callgate.policy.decide import decide
from callgate.policy.decisions import Question
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
def test_a_yes_to_a_command_is_no_yes_to_the_network(policy: Policy, without: Outcome, with_network: Outcome) -> None:
    assert (outcome(policy, network=False), outcome(policy)) == (without, with_network)


def test_a_denied_network_is_denied_whatever_a_rule_allows() -> None:
    denied = Policy(default={SideEffects.NETWORK: Setting(PolicyMode.DENY)}, rules=rule(ALLOW, True).rules)
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


# --- hosts -----------------------------------------------------------------------------------------

PYPI, GITHUB = ("pkgs.example.org", "*.files.example.org"), ("github.com",)


def named(decision: Outcome, hosts: tuple[str, ...], command: str = "pip install *") -> Rule:
    return Rule(decision=decision, tool="shell", command=parse_pattern(command), network=hosts)


@pytest.mark.parametrize(
    ("rules", "command", "expected"),
    [
        ([named(ALLOW, PYPI)], "pip install x", (ALLOW, (PYPI,))),
        ([named(ASK, PYPI)], "pip install x", (ASK, (PYPI,))),
        ([named(ALLOW, PYPI)], "curl x", (ASK, ())),
        ([named(ALLOW, PYPI)], "pip install x && curl y", (ASK, (PYPI,))),
        ([named(ALLOW, PYPI)], "pip install x > y", (ASK, (PYPI,))),
        ([*rule(ALLOW, True).rules, named(ALLOW, PYPI)], "pip install x", (ALLOW, (PYPI,))),
        ([named(ALLOW, PYPI), *rule(ALLOW, True).rules], "pip install x", (ALLOW, (PYPI,))),
        (
            [named(ALLOW, PYPI), named(ALLOW, GITHUB, "git clone *")],
            "pip install x && git clone y",
            (ALLOW, (PYPI, GITHUB)),
        ),
        ([named(ALLOW, PYPI), named(ALLOW, GITHUB, "git clone *")], "git clone y", (ALLOW, (GITHUB,))),
        ([Rule(decision=ALLOW, tool="shell", network=PYPI)], "curl x", (ALLOW, (PYPI,))),
        ([Rule(decision=ALLOW, tool="other", network=PYPI)], "curl x", (ASK, ())),
    ],
)
def test_every_list_of_hosts_that_speaks_of_a_call_bounds_it(
    rules: list[Rule], command: str, expected: tuple[Outcome, tuple[tuple[str, ...], ...]]
) -> None:
    asked = Question(tool="shell", effect=SideEffects.EXECUTE, arguments={"command": command}, network=True)
    decision = decide(asked, Policy(rules=tuple(rules)))
    assert (decision.outcome, decision.hosts) == expected


def test_a_list_of_hosts_is_about_calls_that_ask_for_the_network() -> None:
    policy = Policy(rules=(named(ALLOW, PYPI),))
    assert decide(question(network=False), policy).hosts == ()
    asking = Policy(rules=(named(ASK, PYPI),), default={SideEffects.EXECUTE: AUTO})
    assert (outcome(asking, network=False), outcome(asking)) == (ALLOW, ASK)


def test_mode_write_keeps_to_the_hosts_of_a_rule() -> None:
    policy = Policy(rules=(named(ALLOW, PYPI),))
    decision = decide(question(mode=Mode.WRITE), policy)
    assert (decision.outcome, decision.hosts) == (ALLOW, (PYPI,))


def test_a_workspace_adds_its_lists_and_takes_none_away() -> None:
    user, workspace = Policy(rules=(named(ALLOW, PYPI),)), Policy(rules=(named(ALLOW, GITHUB),))
    assert decide(question(), user, workspace).hosts == (PYPI, GITHUB)
    assert outcome(Policy(), workspace) is ASK
