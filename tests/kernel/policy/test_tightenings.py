"""The lists of which a decision consists: a relaxation touches only a question, a tightening only tightens."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.core.budgets import Amount, Overrun
from callgate.core.calls import CallerKind
from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode
from callgate.dispatch.permission.deciding import Authority, decide
from callgate.dispatch.subjects import Subject
from callgate.policy.decide import Rulebook
from callgate.policy.decisions import Decision, Question, Reason
from callgate.policy.relaxations import RELAXATIONS, Relaxation, relax
from callgate.policy.rules import Origin, Outcome, Policy, PolicyMode, Setting
from callgate.policy.tightenings import (
    LIFTABLE,
    NARROWINGS,
    TIGHTENINGS,
    Circumstances,
    PolicyTightening,
    Tightening,
    tighten,
)
from tests.kernel.policy.decision_snapshot import (
    BOOKS,
    BUDGETS,
    PATHS,
    TOOLS,
    VARIANTS,
    Denials,
    FixedFlow,
    call,
    checked,
)

MODES = st.sampled_from(list(Mode))
CALLERS = st.sampled_from(list(CallerKind))
EFFECTS = st.sampled_from(list(SideEffects))
FLOWS = st.sampled_from([variant.flow for variant in VARIANTS.values()])
OVERRUN = Overrun(ledger="day/local", tool="shell", amount=Amount.CALLS, used=3, limit=3)
decisions = st.builds(
    Decision,
    outcome=st.sampled_from(list(Outcome)),
    reason=st.sampled_from(list(Reason)),
    sentence=st.just("It was decided."),
    origin=st.just(Origin("settings.toml", 1)),
    remember=st.booleans(),
    explicit=st.booleans(),
    any_destination=st.booleans(),
    budgets=st.sampled_from([(), BUDGETS]),
)
circumstances = st.builds(
    lambda **facts: Circumstances(**facts),
    names=st.just(("shell",)),
    mode=MODES,
    caller=CALLERS,
    is_denied=st.booleans(),
    named=st.sampled_from([(), PATHS[".env"]]),
    flow=FLOWS,
    is_repaired=st.booleans(),
    always_ask=st.booleans(),
    is_unbound=st.booleans(),
    is_understood=st.booleans(),
    overruns=st.sampled_from([(), (OVERRUN,)]),
    budget_problem=st.sampled_from(["", "the store is closed"]),
)
questions = st.builds(
    Question,
    tool=st.sampled_from(["shell", "upload", "write_file"]),
    effect=EFFECTS,
    destructive=st.booleans(),
    mode=MODES,
    caller=CALLERS,
    workspace=st.just("/code/app"),
    arguments=st.sampled_from([{}, {"command": "git status"}]),
    read_only_sandbox=st.booleans(),
    network=st.booleans(),
    reading=st.booleans(),
    contained=st.booleans(),
    outward=st.booleans(),
    flow=FLOWS,
)
books = st.sampled_from([make() for make in BOOKS.values()])


@pytest.mark.parametrize("tightening", TIGHTENINGS)
@given(decision=decisions, facts=circumstances)
def test_no_tightening_is_laxer(tightening: Tightening, decision: Decision, facts: Circumstances) -> None:
    assert not decision.is_stricter_than(tightening(decision, facts))


@pytest.mark.parametrize("tightening", [*LIFTABLE, *NARROWINGS])
@given(decision=decisions, question=questions, book=books)
def test_no_tightening_by_a_policy_is_laxer(
    tightening: PolicyTightening, decision: Decision, question: Question, book: Rulebook
) -> None:
    for policy in (book.user, book.workspace or Policy()):
        assert not decision.is_stricter_than(tightening(question, policy, decision))


@given(decision=decisions)
def test_without_facts_nothing_is_tightened(decision: Decision) -> None:
    assert tighten(decision, Circumstances()) == decision


@given(decision=decisions, question=questions, book=books)
def test_a_relaxation_touches_neither_a_deny_nor_an_allow(
    decision: Decision, question: Question, book: Rulebook
) -> None:
    relaxed = relax(question, decision, book.user, book.workspace)
    if decision.outcome is not Outcome.ASK:
        assert relaxed == decision
    assert relaxed == decision or relaxed.outcome is Outcome.ALLOW


@pytest.mark.parametrize("relaxation", RELAXATIONS)
@given(decision=decisions, question=questions, book=books)
def test_a_relaxation_says_yes_or_nothing(
    relaxation: Relaxation, decision: Decision, question: Question, book: Rulebook
) -> None:
    allowed = relaxation(question, decision, book.user, book.workspace)
    assert allowed is None or allowed.outcome is Outcome.ALLOW


def test_only_objections_of_the_guard_override_grants() -> None:
    guard = {Reason.UNTRUSTED_DESTINATION, Reason.PRIVATE_OUTWARD, Reason.SECRET_OUTWARD, Reason.CONTROL_FILE}
    assert {reason for reason in Reason if reason.overrides_grants} == guard


def judged(*added: Tightening, tool: str = "write_file", book: Rulebook | None = None) -> Decision:
    held = book or Rulebook(Policy(default={SideEffects.WRITE: Setting(PolicyMode.AUTO)}))
    unset: Any = None
    grants: Any = Denials(False)
    flows: Any = FixedFlow(None)
    authority = Authority(
        policies=lambda workspace: held,
        grants=grants,
        flows=flows,
        confirmations=unset,
        preview=unset,
        save=unset,
        tightenings=added,
    )
    registered = next(each for each in TOOLS[False] if each.name == tool)
    subject = Subject(registered, checked(None, "src/a.py"), PATHS["src/a.py"])
    return decide(call(Mode.ASK, CallerKind.AGENT, False), subject, authority)


def asks_about_sources(decision: Decision, facts: Circumstances) -> Decision:
    """A tightening of a feature: it sees the tool, the effect and the arguments."""
    about = "write_file" in facts.names and facts.effect is SideEffects.WRITE
    if not about or decision.outcome is not Outcome.ALLOW or not facts.arguments["path"].startswith("src/"):
        return decision
    return msgspec.structs.replace(decision, outcome=Outcome.ASK)


def test_a_feature_adds_a_tightening_and_nothing_else() -> None:
    assert judged().outcome is Outcome.ALLOW
    assert judged(asks_about_sources).outcome is Outcome.ASK
    assert judged(asks_about_sources, tool="read_file").outcome is Outcome.ALLOW


def test_an_added_tightening_does_not_become_a_remembered_decision() -> None:
    book = Rulebook(Policy(default={SideEffects.WRITE: Setting(PolicyMode.AUTO)}))
    assert judged(asks_about_sources, book=book).outcome is Outcome.ASK
    assert judged(book=book).outcome is Outcome.ALLOW


def test_an_added_tightening_that_loosens_is_an_error() -> None:
    def allows(decision: Decision, facts: Circumstances) -> Decision:
        return msgspec.structs.replace(decision, outcome=Outcome.ALLOW)

    with pytest.raises(ValueError, match="made ask allow"):
        judged(allows, book=Rulebook(Policy()))
