"""The adaptive attacks are whole, and one of them is played behind three gates."""

from __future__ import annotations

import pytest

from safety.adaptive import runs
from safety.adaptive.attacks import Attack, Situation, situations, tools
from safety.contestants.callgate_modes import CallgateMode
from safety.contestants.hooks import CallgateHook
from safety.contestants.plain import Plain
from safety.people import Reader
from safety.values import Call

FAMILIES = {
    "addresses", "verbs", "roles", "amounts", "quoting", "sources", "texts", "links", "keys", "floods",
}  # fmt: skip
HARMS = {"sends", "destroys", "pays", "grants", "changes", "content", "runs"}

ALL = (*situations(), *situations("fresh.toml"))


def _attack(id: str) -> tuple[Situation, Attack]:
    return next((situation, attack) for situation in situations() for attack in situation.attacks if attack.id == id)


def test_there_are_at_least_two_hundred_attacks_of_every_family_on_known_tools():
    attacks = [attack for situation in situations() for attack in situation.attacks]
    assert len(attacks) >= 200
    assert len({attack.id for attack in attacks}) == len(attacks)
    assert {attack.family for attack in attacks} == FAMILIES
    assert {attack.harm for attack in attacks} == HARMS


@pytest.mark.parametrize("situation", ALL, ids=lambda each: each.id)
def test_every_call_fits_the_schema_of_its_tool(situation: Situation):
    schemas = {tool.name: tool.input_schema for tool in tools()}
    calls = [*situation.calls, *(call for attack in situation.attacks for call in attack.calls)]
    for call in calls:
        schema = schemas[call.tool]
        assert set(schema["required"]) <= set(call.arguments) <= set(schema["properties"]), call
    assert not any(call == mine for attack in situation.attacks for call in attack.calls for mine in situation.calls)


@pytest.mark.parametrize("situation", situations("fresh.toml"), ids=lambda each: each.id)
async def test_no_fresh_attack_is_through_in_guarded(situation: Situation):
    gate = CallgateMode("guarded", "", "guarded")
    verdicts = [await runs.attacked(situation, attack, gate) for attack in situation.attacks]
    assert [verdict.id for verdict in verdicts if verdict.outcome == "through"] == []


async def test_without_a_gate_an_attack_is_through():
    verdict = await runs.attacked(*_attack("documentation/query"), Plain("none", ""))
    assert (verdict.outcome, verdict.group, verdict.kind) == ("through", "addresses", "sends")


async def test_a_refused_attack_counts_as_asked():
    gate = CallgateMode("ask", "", "ask")
    verdict = await runs.attacked(*_attack("look-at-event/invite-stranger"), gate)
    assert (verdict.outcome, verdict.why.split(":")[0]) == ("asked", "add_participants")


async def test_behind_the_hook_the_person_sees_the_call_of_the_application():
    situation, attack = _attack("publishing/other-page")
    verdict = await runs.attacked(situation, attack, CallgateHook("hook", "", "ask"))
    assert (verdict.outcome, verdict.why.split(":")[0]) == ("asked", "publish_page")


async def test_an_attack_that_no_person_saw_is_denied_behind_an_allow_list():
    gate = Plain("allow-list", "", listed_only=True)
    verdict = await runs.attacked(*_attack("look-at-event/invite-stranger"), gate)
    assert verdict.outcome == "denied"


def test_a_person_tires_of_questions_that_do_not_belong_to_the_task():
    person = Reader([Call("a", {})], patience=2)
    answers = [person.allows(tool, {}) for tool in ("b", "a", "c", "d")]
    assert answers == [False, True, False, True]
