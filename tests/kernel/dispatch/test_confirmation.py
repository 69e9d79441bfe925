"""Asking a person: who is asked, what they see, and what each answer does."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from callgate.core.calls import CallerKind
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Mode, Session
from callgate.dispatch.permission.confirmations import Answer, Scope
from callgate.policy.rules import Outcome, Policy, PolicyMode, Rule, Setting
from tests.support import Bench, FakeHuman, make_tool

TEXT = {"type": "object", "properties": {"text": {"type": "string"}, "path": {"type": "string"}}}
ALLOW, DENY = Outcome.ALLOW, Outcome.DENY


def writer(ran: list[Any] | None = None, name: str = "writer") -> Any:
    def run(input: Any, context: Any) -> str:
        if ran is not None:
            ran.append(input)
        return "written"

    return make_tool(name, SideEffects.WRITE, TEXT, run)


@pytest.mark.spec("S4-44")
@pytest.mark.parametrize(("effect", "asks"), [("none", 0), ("read", 0), ("write", 1), ("network", 1), ("execute", 1)])
async def test_by_default_effects_are_asked_about_and_reads_are_not(effect: str, asks: int) -> None:
    human = FakeHuman(True)
    bench = Bench("/", make_tool(effect=SideEffects(effect)), human=human)
    assert (await bench.run("probe")).ok
    assert len(human.questions) == asks


@pytest.mark.spec("S4-45")
async def test_a_word_about_a_tool_beats_its_class_both_ways() -> None:
    human = FakeHuman(True)
    policy = Policy(per_tool={"writer": Setting(PolicyMode.AUTO), "look": Setting(PolicyMode.PROMPT)})
    bench = Bench("/", writer(), make_tool("look", SideEffects.READ), policy=policy, human=human)
    await bench.run("writer")
    assert human.questions == []
    await bench.run("look")
    assert len(human.questions) == 1


@pytest.mark.spec("S4-46")
async def test_a_denied_tool_is_blocked_without_a_question() -> None:
    human = FakeHuman(True)
    bench = Bench("/", writer(), policy=Policy(per_tool={"writer": Setting(PolicyMode.DENY)}), human=human)
    result = await bench.run("writer")
    assert (result.error.error_class, result.error.reason) == (ToolErrorClass.PERMISSION_DENIED, "policy_deny")
    assert human.questions == []


@pytest.mark.spec("S4-48", "T-5")
async def test_the_question_says_what_will_happen(tmp_path: Any) -> None:
    human = FakeHuman(True)
    bench = Bench(tmp_path, writer(), human=human)
    await bench.run("writer", {"path": "src/auth.ts", "text": "x" * 5000})
    event = bench.recorder.one("tool.confirmation_requested")
    assert event.payload["tool_name"] == "writer"
    assert event.payload["side_effects"] == "write"
    assert event.payload["projected_modifications"] == ["src/auth.ts"]
    assert event.payload["confirmation_request_id"] == human.questions[0].id
    assert event.payload["expires_at"] > time.time()
    assert len(event.payload["input_summary"]) <= 2000
    assert bench.recorder.types.index("tool.confirmation_requested") < bench.recorder.types.index("tool.called")


@pytest.mark.spec("S4-59")
async def test_secrets_in_a_question_are_masked_and_the_end_of_a_command_stays_visible() -> None:
    human = FakeHuman(True)
    command = "echo " + "a" * 3000 + " && rm -rf build"
    schema = {"type": "object", "properties": {"command": {"type": "string"}, "api_key": {"type": "string"}}}
    bench = Bench("/", make_tool(effect=SideEffects.EXECUTE, schema=schema), human=human)
    await bench.run("probe", {"command": command, "api_key": "hunter2-hunter2"})
    payload = bench.recorder.one("tool.confirmation_requested").payload
    assert payload["command_summary"].rstrip('"').endswith("rm -rf build")
    assert len(payload["command_summary"]) < 2100
    assert "hunter2" not in payload["input_summary"]


@pytest.mark.spec("S4-51")
async def test_a_yes_is_followed_by_execution() -> None:
    ran: list[Any] = []
    bench = Bench("/", writer(ran), human=FakeHuman("allow"))
    assert (await bench.run("writer", {"text": "a"})).ok
    resolved = bench.recorder.one("tool.confirmation_resolved")
    assert (resolved.payload["decision"], resolved.payload["scope"], resolved.actor) == ("allow", "once", "user")
    assert ran == [{"text": "a"}]


@pytest.mark.spec("S4-52")
async def test_a_no_is_final_and_nothing_runs() -> None:
    ran: list[Any] = []
    answer = Answer(decision=DENY, reason="not in this directory", by="tui")
    bench = Bench("/", writer(ran), human=FakeHuman(answer))
    result = await bench.run("writer")
    assert result.error.error_class is ToolErrorClass.USER_DENIED
    assert "not in this directory" in result.text
    assert bench.recorder.types == ["tool.confirmation_requested", "tool.confirmation_resolved", "tool.failed"]
    assert ran == []
    (record,) = bench.recorder.records
    assert (record.decision, record.answered_by, record.confirmation_id is not None) == ("deny", "tui", True)


@pytest.mark.spec("S4-53")
async def test_always_covers_the_same_tool_in_the_same_session_only() -> None:
    human = FakeHuman("always-allow-this-tool", True, True)
    bench = Bench("/", writer(), writer(name="other"), human=human)
    await bench.run("writer", {"text": "1"})
    await bench.run("writer", {"text": "2"})
    assert len(human.questions) == 1
    await bench.run("other")
    assert len(human.questions) == 2
    await bench.run("writer", session=Session(workspace="/"))
    assert len(human.questions) == 3


async def test_a_remembered_no_needs_no_second_question() -> None:
    human = FakeHuman(Answer(decision=DENY, scope=Scope.SESSION))
    bench = Bench("/", writer(), human=human)
    await bench.run("writer")
    result = await bench.run("writer")
    assert (result.error.error_class, result.error.reason) == (ToolErrorClass.USER_DENIED, "sticky")
    assert len(human.questions) == 1


async def test_remembered_answers_are_gone_when_the_session_closes() -> None:
    human = FakeHuman("always-allow-this-tool", False)
    bench = Bench("/", writer(), human=human)
    await bench.run("writer")
    await bench.dispatcher.close_session(bench.session)
    assert (await bench.run("writer")).error.error_class is ToolErrorClass.USER_DENIED


async def test_a_yes_to_prompt_once_counts_for_the_session() -> None:
    human = FakeHuman(True)
    bench = Bench("/", writer(), policy=Policy(per_tool={"writer": Setting(PolicyMode.PROMPT_ONCE)}), human=human)
    await bench.run("writer")
    await bench.run("writer")
    assert len(human.questions) == 1


async def test_an_always_of_a_sub_agent_counts_once() -> None:
    human = FakeHuman("always-allow-this-tool", True)
    bench = Bench("/", writer(), human=human)
    bench.session.is_worker = True
    await bench.run("writer")
    await bench.run("writer")
    assert len(human.questions) == 2


async def test_an_answer_for_good_is_handed_on_to_be_saved() -> None:
    answer = Answer(decision=ALLOW, scope=Scope.ALWAYS, pattern="x *")
    bench = Bench("/", writer(), human=FakeHuman(answer, True))
    await bench.run("writer")
    assert [each[2] for each in bench.saved] == [answer]


@pytest.mark.spec("S4-54")
async def test_no_answer_in_time_ends_the_call() -> None:
    async def silent(question: Any) -> bool:
        await asyncio.Event().wait()
        return True

    ran: list[Any] = []
    bench = Bench("/", writer(ran), human=silent, confirmation_timeout_s=0.03)
    result = await bench.run("writer")
    assert result.error.error_class is ToolErrorClass.CONFIRMATION_TIMEOUT
    resolved = bench.recorder.one("tool.confirmation_resolved")
    assert (resolved.payload["decision"], resolved.payload["scope"], resolved.actor) == ("timeout", None, "system")
    assert bench.recorder.one("tool.failed").payload["error_class"] == "confirmation_timeout"
    assert ran == []


async def test_a_turn_waits_for_someone_to_attach() -> None:
    bench = Bench("/", writer())
    call = bench.start("writer", turn_id="t1")
    question = await bench.recorder.seen("tool.confirmation_requested")
    await bench.confirmations.answer(question.payload["confirmation_request_id"], Answer(decision=ALLOW))
    assert (await call).ok


@pytest.mark.spec("S4-60", "T-5")
async def test_with_nobody_to_ask_a_prompt_means_no() -> None:
    ran: list[Any] = []
    bench = Bench("/", writer(ran))
    result = await bench.run("writer")
    assert (result.error.error_class, result.error.reason) == (ToolErrorClass.PERMISSION_DENIED, "no_confirmer")
    assert ran == []
    assert bench.recorder.types == ["tool.failed"]


@pytest.mark.spec("S4-56", "T18")
async def test_of_many_answers_the_first_wins_and_the_others_are_told() -> None:
    ran: list[Any] = []
    bench = Bench("/", writer(ran))
    call = bench.start("writer", turn_id="t1")
    question = await bench.recorder.seen("tool.confirmation_requested")
    id = question.payload["confirmation_request_id"]

    async def put(n: int) -> bool:
        answer = Answer(decision=ALLOW if n % 2 else DENY, by=str(n))
        return (await bench.confirmations.answer(id, answer)).applied

    applied = await asyncio.gather(*(put(n) for n in range(100)))
    assert applied == [True] + [False] * 99
    assert (await call).error.error_class is ToolErrorClass.USER_DENIED
    late = await bench.confirmations.answer(id, Answer(decision=ALLOW))
    assert (late.applied, late.answer.by) == (False, "0")
    assert len(bench.recorder.of("tool.confirmation_resolved")) == 1
    assert ran == []


@pytest.mark.spec("S4-57")
async def test_an_unknown_question_cannot_be_answered() -> None:
    with pytest.raises(KeyError):
        await Bench("/").confirmations.answer("01NEVER", Answer(decision=ALLOW))


@pytest.mark.spec("T-6")
async def test_the_id_in_the_event_is_the_id_that_is_answered() -> None:
    bench = Bench("/", writer())
    call = bench.start("writer", turn_id="t1")
    event = await bench.recorder.seen("tool.confirmation_requested")
    assert [q.id for q in await bench.confirmations.open()] == [event.payload["confirmation_request_id"]]
    await bench.confirmations.answer(event.payload["confirmation_request_id"], Answer(decision=ALLOW))
    assert (await call).ok


@pytest.mark.spec("S4-58")
async def test_a_cancel_withdraws_the_question() -> None:
    bench = Bench("/", writer())
    call = bench.start("writer", turn_id="t1")
    event = await bench.recorder.seen("tool.confirmation_requested")
    await bench.dispatcher.cancel_session_tools(bench.session.id)
    assert (await call).error.error_class is ToolErrorClass.CANCELLED
    assert bench.recorder.one("tool.confirmation_resolved").payload["decision"] == "cancelled"
    assert await bench.confirmations.open() == []
    late = await bench.confirmations.answer(event.payload["confirmation_request_id"], Answer(decision=ALLOW))
    assert not late.applied


async def test_a_confirmer_that_fails_is_a_no() -> None:
    async def broken(question: Any) -> bool:
        raise RuntimeError("no terminal")

    bench = Bench("/", writer(), human=broken)
    result = await bench.run("writer")
    assert (result.error.error_class, result.error.reason) == (ToolErrorClass.PERMISSION_DENIED, "confirmer_failed")


async def test_a_confirmer_that_talks_nonsense_is_a_no() -> None:
    bench = Bench("/", writer(), human=FakeHuman("maybe"))
    assert (await bench.run("writer")).error.reason == "confirmer_failed"


async def test_of_two_confirmers_the_quicker_answers_and_a_broken_one_harms_nobody() -> None:
    async def broken(question: Any) -> bool:
        raise RuntimeError

    bench = Bench("/", writer(), human=broken)
    with bench.confirmations.attach(FakeHuman(True), bench.session.id):
        assert (await bench.run("writer")).ok


async def test_a_confirmer_of_another_session_is_not_asked() -> None:
    elsewhere = FakeHuman(True)
    bench = Bench("/", writer())
    with bench.confirmations.attach(elsewhere, "sess_other"):
        assert (await bench.run("writer")).error.reason == "no_confirmer"
    assert elsewhere.questions == []


@pytest.mark.spec("T17")
async def test_amended_arguments_run_instead_and_are_what_is_recorded() -> None:
    ran: list[Any] = []
    human = FakeHuman(Answer(decision=ALLOW, arguments={"text": "tamed"}))
    bench = Bench("/", writer(ran), human=human)
    assert (await bench.run("writer", {"text": "wild"})).ok
    assert ran == [{"text": "tamed"}]
    assert bench.recorder.records[0].args == '{"text":"tamed"}'
    assert len(human.questions) == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"text": 1}, ToolErrorClass.VALIDATION_ERROR),
        ({"path": "../../etc/passwd"}, ToolErrorClass.PERMISSION_DENIED),
        ({"path": "forbidden/x"}, ToolErrorClass.PERMISSION_DENIED),
    ],
)
async def test_amended_arguments_pass_every_check_again(tmp_path: Any, arguments: Any, error: Any) -> None:
    ran: list[Any] = []
    policy = Policy(rules=(Rule(decision=DENY, path="forbidden/**"),))
    bench = Bench(tmp_path, writer(ran), policy=policy, human=FakeHuman(Answer(decision=ALLOW, arguments=arguments)))
    assert (await bench.run("writer", {"text": "wild"})).error.error_class is error
    assert ran == []


@pytest.mark.parametrize(("caller", "asks"), [(kind, not kind.trusted) for kind in CallerKind])
async def test_only_callers_inside_the_program_are_not_asked(caller: CallerKind, asks: bool) -> None:
    human = FakeHuman(True)
    bench = Bench("/", writer(), human=human)
    assert (await bench.run("writer", caller=caller)).ok
    assert len(human.questions) == asks


async def test_a_mode_change_holds_from_the_next_call_on() -> None:
    bench = Bench("/", writer(), mode=Mode.WRITE)
    assert (await bench.run("writer")).ok
    bench.session.mode = Mode.READ
    assert (await bench.run("writer")).error.reason == "mode_read"
    bench.session.mode = Mode.NONE
    assert (await bench.run("writer")).error.reason == "mode_none"


async def test_a_grant_admits_as_many_calls_as_it_says() -> None:
    from callgate.dispatch.permission.grants import Grant

    bench = Bench("/", writer(), writer(name="other"))
    bench.grants.add(bench.session, Grant(tool="writer", uses=1))
    assert not (await bench.run("other")).ok
    assert (await bench.run("writer")).ok
    assert not (await bench.run("writer")).ok
    bench.grants.add(bench.session, Grant(tool="writer", expires_at=time.time() - 1))
    assert not (await bench.run("writer")).ok


async def test_a_destructive_tool_asks_even_where_its_class_would_not() -> None:
    human = FakeHuman(True)
    tool = make_tool("wipe", SideEffects.WRITE, capabilities=frozenset({Capability.DESTRUCTIVE}))
    bench = Bench("/w", tool, policy=Policy(default={SideEffects.WRITE: Setting(PolicyMode.AUTO)}), human=human)
    await bench.run("wipe")
    assert len(human.questions) == 1
