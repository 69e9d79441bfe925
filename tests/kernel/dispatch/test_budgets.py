"""Beyond a budget a person is asked about each call, in every mode, and answers lift nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callgate.core.calls import CallerKind
from callgate.core.effects import Capability, SideEffects
from callgate.core.sessions import Mode, Session
from callgate.core.stores import StoreUnwritable, Trouble
from callgate.dispatch.permission.confirmations import Answer, Scope
from callgate.dispatch.permission.grants import Grant
from callgate.policy.rules import Budget, Origin, Outcome, Policy, PolicyMode, Setting
from tests.memory_store import MemoryStore, Tables
from tests.support import Bench, FakeHuman, HeldWork, make_tool

TEXTS = {"type": "object", "properties": {"to": {}, "cc": {}, "url": {}, "text": {"type": "string"}}}
ORIGIN = Origin("settings.toml", 7)


def budget(amount: str, limit: int, per: Any = "session", tool: str | None = None) -> Budget:
    return Budget(amount=amount, per=per, tool=tool, limit=limit, origin=ORIGIN)


def send(name: str = "send", **more: Any) -> Any:
    return make_tool(name, SideEffects.NETWORK, TEXTS, **more)


def bench(*budgets: Budget, human: Any = None, mode: Mode = Mode.WRITE, **more: Any) -> Bench:
    tools = (make_tool("look", SideEffects.READ), send(), send("post", aliases=("publish",)))
    return Bench("/", *tools, policy=Policy(budgets=budgets), human=human, mode=mode, **more)


async def test_beyond_its_calls_a_session_asks_in_mode_write_and_says_why() -> None:
    human = FakeHuman(True, False)
    world = bench(budget("calls", 2), human=human)
    results = [await world.run("look") for _ in range(4)]
    assert [result.ok for result in results] == [True, True, True, False]
    assert human.questions[0].why == (
        "Over budget: 2 of 2 calls in this session are used. The answer counts for this call alone."
    )
    assert human.questions[1].why.startswith("Over budget: 3 of 2 calls")
    assert human.questions[0].always_ask
    policies = [record.policy for record in world.recorder.records]
    assert policies[2:] == ["budget (settings.toml:7)", "budget (settings.toml:7)"]


async def test_where_nobody_can_be_asked_a_call_beyond_its_budget_is_refused() -> None:
    world = bench(budget("calls", 1))
    assert (await world.run("look")).ok
    refused = await world.run("look")
    assert refused.error.reason == "no_confirmer"


async def test_another_session_has_a_budget_of_its_own_but_not_its_sub_agent() -> None:
    world = bench(budget("calls", 1))
    assert (await world.run("look")).ok
    assert (await world.run("look", session=Session(workspace="/", mode=Mode.WRITE))).ok
    worker = Session(workspace="/", mode=Mode.WRITE, parent=world.session.id, is_worker=True)
    assert not (await world.run("look", session=worker)).ok


async def test_a_day_counts_all_sessions_of_one_person() -> None:
    world = bench(budget("calls", 1, "day"))
    assert (await world.run("look")).ok
    other = Session(workspace="/", mode=Mode.WRITE)
    assert not (await world.run("look", session=other)).ok
    assert (await world.run("look", session=other, principal="bob")).ok


async def test_a_budget_of_a_tool_counts_it_under_each_of_its_names() -> None:
    world = bench(budget("calls", 1, tool="publish"))
    assert (await world.run("look")).ok
    assert (await world.run("post")).ok
    assert not (await world.run("publish")).ok
    assert (await world.run("send")).ok


async def test_bytes_out_are_those_of_arguments_that_leave() -> None:
    world = bench(budget("bytes_out", 30))
    assert (await world.run("look")).ok
    assert (await world.run("send", {"text": "x" * 10})).ok  # 21 bytes
    assert not (await world.run("send", {"text": "x" * 10})).ok
    assert (await world.run("look")).ok


async def test_a_read_over_the_network_sends_its_arguments_too() -> None:
    caps = frozenset({Capability.READ_ONLY, Capability.ACCESSES_NETWORK})
    fetch = make_tool("fetch", None, TEXTS, capabilities=caps)
    world = Bench("/", fetch, policy=Policy(budgets=(budget("bytes_out", 5),)))
    assert not (await world.run("fetch", {"url": "https://a.example/?secret"})).ok


async def test_only_different_destinations_are_counted() -> None:
    world = bench(budget("destinations", 2))
    for arguments in (
        {"to": "bob@x.example"},
        {"to": ["BOB@x.example", "Eve <eve@x.example>"]},
        {"cc": "eve@x.example"},
    ):
        assert (await world.run("send", arguments)).ok
    assert not (await world.run("send", {"to": "mallory@x.example"})).ok
    assert (await world.run("send", {"to": "bob@x.example"})).ok


async def test_pages_of_one_host_are_one_destination() -> None:
    world = bench(budget("destinations", 1))
    assert (await world.run("send", {"url": "https://A.example/x"})).ok
    assert (await world.run("send", {"url": "https://user:pw@a.example/y?z"})).ok
    assert not (await world.run("send", {"url": "https://a.example.evil/"})).ok


async def test_a_call_that_names_no_destination_goes_to_its_tool() -> None:
    world = bench(budget("destinations", 1))
    assert (await world.run("send")).ok
    assert not (await world.run("post")).ok


async def test_a_yes_to_a_new_destination_does_not_make_it_known() -> None:
    human = FakeHuman(True, False)
    world = bench(budget("destinations", 1), human=human)
    assert (await world.run("send", {"to": "bob@x.example"})).ok
    assert (await world.run("send", {"to": "eve@x.example"})).ok
    assert not (await world.run("send", {"to": "eve@x.example"})).ok
    assert (await world.run("send", {"to": "bob@x.example"})).ok


@pytest.mark.parametrize("scope", [Scope.SESSION, Scope.ALWAYS])
async def test_no_answer_lifts_a_budget(scope: Scope) -> None:
    human = FakeHuman(Answer(decision=Outcome.ALLOW, scope=scope), False)
    world = bench(budget("calls", 0), human=human)
    assert (await world.run("send")).ok
    assert not (await world.run("send")).ok
    assert world.saved == []


async def test_a_remembered_yes_does_not_answer_for_a_budget_but_a_no_does() -> None:
    human = FakeHuman(False)
    world = bench(budget("calls", 1), human=human, mode=Mode.ASK)
    world.grants.add(world.session, Grant(tool=None))
    assert (await world.run("send")).ok
    assert (await world.run("send")).error.reason == "user_denied"
    world.grants.add(world.session, Grant(tool="send", decision=Outcome.DENY))
    assert (await world.run("send")).error.reason == "sticky"


async def test_what_a_person_refuses_is_given_back() -> None:
    human = FakeHuman(False, True, True)
    world = bench(budget("calls", 1), budget("destinations", 1), human=human, mode=Mode.ASK)
    assert not (await world.run("send", {"to": "eve@x.example"})).ok
    assert (await world.run("send", {"to": "bob@x.example"})).ok
    assert "Over budget" not in human.questions[1].why
    assert (await world.run("send", {"to": "bob@x.example"})).ok
    assert "1 of 1 calls" in human.questions[2].why


async def test_what_is_denied_or_wrong_is_not_counted() -> None:
    policy = Policy(budgets=(budget("calls", 1),), per_tool={"send": Setting(PolicyMode.DENY, ORIGIN)})
    world = Bench("/", send(), make_tool("look", SideEffects.READ), policy=policy)
    assert (await world.run("send")).error.reason == "policy_deny"
    assert not (await world.run("look", {"unknown": 1})).ok
    assert (await world.run("look")).ok
    assert not (await world.run("look")).ok


async def test_of_calls_at_once_only_as_many_run_as_are_left() -> None:
    held = HeldWork()
    held.free.release(100)
    tool = make_tool("work", SideEffects.READ, run=lambda input, context: held() or "done")
    world = Bench("/", tool, policy=Policy(budgets=(budget("calls", 3),)))
    results = await asyncio.gather(*(world.run("work") for _ in range(12)))
    assert (sum(result.ok for result in results), held.count) == (3, 3)


async def test_what_is_used_survives_a_restart() -> None:
    tables = Tables()
    first = bench(budget("calls", 1), tables=tables)
    assert (await first.run("look")).ok
    second = bench(budget("calls", 1), tables=tables)
    assert not (await second.run("look", session=first.session)).ok


async def test_other_arguments_in_the_answer_are_what_is_counted() -> None:
    human = FakeHuman(Answer(decision=Outcome.ALLOW, arguments={"to": "bob@x.example"}), True, True)
    world = bench(budget("destinations", 1), human=human, mode=Mode.ASK)
    assert (await world.run("send", {"to": "eve@x.example"})).ok
    assert (await world.run("send", {"to": "bob@x.example"})).ok
    assert "Over budget" not in human.questions[1].why
    assert (await world.run("send", {"to": "eve@x.example"})).ok
    assert "Over budget" in human.questions[2].why


async def test_a_count_that_cannot_be_read_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(MemoryStore):
        def commit(self, *ops: Any) -> Any:
            if any(type(op).__name__ == "UseBudget" for op in ops):
                raise StoreUnwritable("the disk", Trouble.FULL)
            return super().commit(*ops)

    human = FakeHuman(True)
    world = bench(budget("calls", 5), human=human)

    async def full() -> MemoryStore:
        return Full(world.tables)

    world.log._open_store = full
    assert (await world.run("look")).ok
    assert human.questions[0].why.startswith("The used part of the budgets is unknown: ")


async def test_the_program_itself_is_counted_and_not_asked() -> None:
    world = bench(budget("calls", 1))
    assert (await world.run("look", caller=CallerKind.INTERNAL)).ok
    assert (await world.run("look", caller=CallerKind.INTERNAL)).ok
    assert not (await world.run("look")).ok


async def test_a_workspace_narrows_a_budget_and_never_widens_it() -> None:
    policy, narrowing = Policy(budgets=(budget("calls", 2),)), Policy(budgets=(budget("calls", 9),))
    wider = Bench("/", make_tool("look"), policy=policy, narrowed_by=narrowing)
    assert [(await wider.run("look")).ok for _ in range(3)] == [True, True, False]
    narrower = Bench("/", make_tool("look"), policy=narrowing, narrowed_by=policy)
    assert [(await narrower.run("look")).ok for _ in range(3)] == [True, True, False]


async def test_a_repaired_call_is_counted_like_any_other() -> None:
    human = FakeHuman(True, True)
    world = bench(budget("calls", 1), human=human)
    assert (await world.run("send", repaired=True)).ok
    assert (await world.run("send", repaired=True)).ok
    assert "Over budget" in human.questions[1].why
