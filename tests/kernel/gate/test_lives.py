"""Processes that are killed in the middle of calls: what they left is found, once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from callgate import Answer, Gate, Message, Outcome, ToolErrorClass
from callgate.audit.reading import newest_first
from callgate.audit.verify import verify
from callgate.core.calls import CallerKind, Handover, ToolCall
from callgate.core.events import CALLED, COMPLETED, FAILED, INPUT_INVALID, SESSION_CREATED, TERMINAL, Event
from callgate.core.sessions import Client
from callgate.core.stores import SessionLocked, SessionNotFound
from callgate.dispatch.permission import questions
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.gate.lives import mark, think
from tests.kernel.storage.processes import (
    MANY_KILLS,
    Child,
    all_events,
    child,
    kill_again_and_again,
)

LIVES = "tests.kernel.gate.lives"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


def marks(ws: Path) -> list[str]:
    path = ws.parent / "marks"
    return path.read_text().split() if path.exists() else []


@pytest.mark.spec("T46", "T48")
@pytest.mark.timeout(3400)
@pytest.mark.parametrize(("kills", "seed"), [(40, 0), *MANY_KILLS])
async def test_whatever_a_kill_interrupts_ran_once_and_ends_once(
    home: Path, ws: Path, kills: int, seed: int, record_property: Any
) -> None:
    zygotes = child("killed", home, ws, "mark", "think", module=LIVES)
    heard = await kill_again_and_again(zygotes, kills, seed=seed, works=6)
    async with Gate(workspace=ws, tools=[mark, think], home=home, mode="write") as gate:
        assert (await gate.call("mark", {"n": 1})).ok  # whoever comes next closes what is open
        store = await gate._wired.log.store()
        assert list(await store.open_calls(owner=None)) == []
        events = await all_events(store)

    every = [event for some in events.values() for event in some]
    assert len({event.id for event in every}) == len(every), "an event is there twice"
    marking = {e.payload["call_id"] for e in every if e.payload.get("tool_name") == "mark"}
    effects = [e for e in every if e.payload.get("call_id") in marking]
    starts = Counter(e.payload["call_id"] for e in effects if e.type == CALLED)
    ends = Counter(e.payload["call_id"] for e in effects if e.type in TERMINAL)
    assert set(starts.values()) == {1}
    assert {call: ends[call] for call in starts} == dict(starts), "a call has no end, or two"

    ran = Counter(marks(ws))
    assert set(ran.values()) == {1}, "a call ran twice"
    assert set(ran) <= set(starts), "a call ran before its start was on the disk"

    acknowledged = {said["call"] for said in heard if said.get("ok") and said["tool"] == "mark"}
    completed = {e.payload["call_id"] for e in effects if e.type == COMPLETED}
    interrupted = {e.payload["call_id"] for e in effects if e.type == FAILED}
    assert acknowledged <= completed, "what a caller was told is lost"
    assert interrupted.isdisjoint(completed)
    assert interrupted, "no kill hit a running call: the test proves nothing"
    assert {e.payload["reason"] for e in effects if e.type == FAILED} == {"interrupted"}

    records = Counter(r.call_id for r, _ in newest_first(str(home / "audit.jsonl")))
    assert {call: records[call] for call in starts} == dict(starts), "not one record each"
    assert verify(str(home / "audit.jsonl")).ok
    record_property("kills", kills)
    print(
        f"{kills} kills: {len(starts)} calls, {len(acknowledged)} acknowledged, "
        f"{len(interrupted)} interrupted, 0 lost, 0 twice"
    )


@pytest.mark.spec("T46", "T48")
@pytest.mark.timeout(3400)
@pytest.mark.parametrize("names", [("think",), ("mark", "think")], ids=" and ".join)
@pytest.mark.parametrize(("kills", "seed"), [(20, 7), pytest.param(500, 8, marks=pytest.mark.soak)])
async def test_after_a_kill_each_call_has_one_line_and_one_end_that_say_the_same(
    home: Path, ws: Path, kills: int, seed: int, names: tuple[str, ...], record_property: Any
) -> None:
    zygotes = child("killed", home, ws, *names, module=LIVES)
    heard = await kill_again_and_again(zygotes, kills, seed=seed, works=20)
    async with Gate(workspace=ws, tools=[mark, think], home=home, mode="write") as gate:
        store = await gate._wired.log.store()  # recovers at once
        events = [event for some in (await all_events(store)).values() for event in some]
        assert [*await store.outbox(), *await store.cut_sessions()] == []
        assert list(await store.open_calls()) == []
    lines = Counter(line.call_id for line, _ in newest_first(str(home / "audit.jsonl")))
    ends = Counter(e.payload["call_id"] for e in events if e.type in TERMINAL)
    starts = Counter(e.payload["call_id"] for e in events if e.type == CALLED)
    assert set(lines.values()) == {1}, "a call has two lines"
    assert lines == ends, "the store and the audit log do not have the same calls"
    assert starts.keys() <= ends.keys(), "a call has no end"
    assert len({event.id for event in events}) == len(events), "an event is there twice"
    answered = {said["call"]: said["ok"] for said in heard if "call" in said}
    assert answered.keys() <= lines.keys(), "what a caller was told is not on record"
    said = {f"audit_{e.id}": e.payload.get("success", False) for e in events if e.type in TERMINAL}
    for line, _ in newest_first(str(home / "audit.jsonl")):
        assert said[line.id] == (line.error_class is None), "the line and the store disagree"
        assert answered.get(line.call_id, said[line.id]) == said[line.id], "the caller was told otherwise"
    interrupted = [e for e in events if e.payload.get("reason") == "interrupted"]
    assert interrupted or "mark" not in names, "no kill hit a running call: the test proves nothing"
    assert verify(str(home / "audit.jsonl")).ok
    assert not [name for name in os.listdir(home / "run") if name.endswith(".journal")]
    record_property("kills", kills)
    print(f"{kills} kills: {len(lines)} calls, {len(answered)} answered, {len(interrupted)} interrupted")


async def _recovered(home: Path, session: str) -> list[Event]:
    """The events of a session, after a process that only looks."""
    async with Gate(workspace=home.parent, tools=[], home=home) as gate:
        store = await gate._wired.log.store()
        return list(await store.read_events(session))


@pytest.mark.spec("T46")
async def test_what_was_answered_reaches_the_store_though_its_process_died_at_once(home: Path, ws: Path) -> None:
    async with child("die", home, ws, module=LIVES) as dying:
        answers = [await dying.hear() for _ in range(4)]
        assert await dying.process.wait() == -signal.SIGKILL
    assert [each["ok"] for each in answers] == [True, True, False, False]
    lines = {line.call_id: line for line, _ in newest_first(str(home / "audit.jsonl"))}
    assert lines.keys() == {each["call"] for each in answers}
    async with await SqliteStore.open(str(home)) as store:
        with pytest.raises(SessionNotFound):
            await store.read_events(answers[0]["session"])
    for _ in range(2):  # whoever looks again finds the same
        events = await _recovered(home, answers[0]["session"])
        ends = {e.payload["call_id"]: e for e in events if e.type in TERMINAL}
        assert [e.type for e in events] == [
            SESSION_CREATED,
            *[CALLED, COMPLETED] * 2,
            *[CALLED, FAILED],
            INPUT_INVALID,
        ]
        assert {f"audit_{e.id}" for e in ends.values()} == {line.id for line in lines.values()}
        assert {e.id for e in events if e.type == CALLED} == {line.called for line in lines.values() if line.called}
        assert len(list(newest_first(str(home / "audit.jsonl")))) == 4


@pytest.mark.spec("T46")
async def test_a_call_without_effects_that_a_kill_cut_off_is_interrupted_and_on_record(home: Path, ws: Path) -> None:
    async with child("hang", home, ws, module=LIVES) as hanging:
        said = await hanging.hear()
        await _killed(hanging)
    events = await _recovered(home, said["session"])
    end = events[-1]
    assert (end.type, end.payload["call_id"], end.payload["reason"]) == (FAILED, said["call"], "interrupted")
    ((line, _),) = newest_first(str(home / "audit.jsonl"))
    assert (line.id, line.call_id, line.reason) == (f"audit_{end.id}", said["call"], "interrupted")
    assert (line.tool, line.session, line.side_effects) == ("wonder", said["session"], "none")
    assert await _recovered(home, said["session"]) == events


async def _asked(process: Child) -> tuple[str, str]:
    said = await process.hear()
    return said["session"], said["question"]


async def _killed(process: Child) -> None:
    process.process.kill()
    await process.process.wait()


@pytest.mark.spec("T48")
async def test_an_answer_in_another_process_is_taken(home: Path, ws: Path) -> None:
    async with child("turn", home, ws, module=LIVES) as asking:
        _, question = await _asked(asking)
        async with await SqliteStore.open(str(home)) as store:
            receipt = await questions.answer(store, question, Answer(decision=Outcome.ALLOW))
        assert receipt.applied
        assert await asking.hear() == {"ok": True, "by": None}
    assert len(marks(ws)) == 1


@pytest.mark.spec("T48")
async def test_a_call_of_a_turn_that_is_allowed_after_a_kill_runs_once_when_resumed(home: Path, ws: Path) -> None:
    async with child("turn", home, ws, module=LIVES) as asking:
        session, question = await _asked(asking)
        with pytest.raises(SessionLocked):
            async with Gate(tools=[mark], home=home, session=session):
                pass
        await _killed(asking)
    async with await SqliteStore.open(str(home)) as store:
        receipt = await questions.answer(store, question, Answer(decision=Outcome.ALLOW))
        assert receipt.applied
    assert marks(ws) == []
    for resumed in range(2):
        async with Gate(tools=[mark], home=home, session=session) as gate:
            assert gate.resumed is not None
            results = await asyncio.gather(*gate.resumed.calls.values())
            assert [result.ok for result in results] == ([True] if resumed == 0 else [])
            assert gate.session.turn_id is not None
            said = await gate.messages()
            assert [message.role for message in said] == ["user", "user"]
    assert len(marks(ws)) == 1


@pytest.mark.spec("T48")
async def test_a_question_of_a_turn_is_still_open_after_a_kill_and_can_be_answered(home: Path, ws: Path) -> None:
    async with child("turn", home, ws, module=LIVES) as asking:
        session, question = await _asked(asking)
        await _killed(asking)
    asked: list[Any] = []

    async def confirm(put: Any) -> bool:
        asked.append(put.id)
        return True

    async with Gate(tools=[mark], home=home, session=session, confirm=confirm) as gate:
        assert gate.resumed is not None
        (result,) = await asyncio.gather(*gate.resumed.calls.values())
    assert result.ok
    assert asked == [question]
    assert len(marks(ws)) == 1


@pytest.mark.spec("T48")
async def test_a_question_of_a_turn_stays_open_when_its_process_ends_as_it_should(home: Path, ws: Path) -> None:
    async with Gate(workspace=ws, tools=[mark], home=home) as gate:
        events = gate.runtime.sessions.events(types=["tool.confirmation_requested"])
        await gate.runtime.sessions.conversations.begin_turn(gate.session, Message.text("user", "mark"))
        call = asyncio.create_task(gate.call("mark", {"n": 0}))
        async for event in events:
            question = event.payload["confirmation_request_id"]
            break
    left = (await call).error
    assert left is not None
    assert (left.error_class, left.reason) == (ToolErrorClass.SHUTTING_DOWN, "question_open")
    for answer in (None, Answer(decision=Outcome.ALLOW)):  # resumed, and left again
        async with Gate(tools=[mark], home=home, session=gate.session.id) as again:
            assert [each.id for each in await again.runtime.permission.open_confirmations()] == [question]
            if answer is not None:
                assert (await again.runtime.permission.answer(question, answer)).applied
                assert again.resumed is not None
                (result,) = await asyncio.gather(*again.resumed.calls.values())
                assert result.ok
    assert len(marks(ws)) == 1
    assert [r.call_id for r, _ in newest_first(str(home / "audit.jsonl"))] == [result.call_id]


@pytest.mark.parametrize("answer", [None, Answer(decision=Outcome.ALLOW)], ids=["open", "allowed"])
@pytest.mark.parametrize("place", [None, "the agent's own process"])
async def test_a_resumed_call_that_was_handed_over_runs_nothing(
    home: Path, ws: Path, place: str | None, answer: Answer | None
) -> None:
    ran: list[str] = []

    def work(factory: Any) -> Any:
        ran.append("by the agent")
        return factory()

    async with Gate(workspace=ws, tools=[mark], home=home) as gate:
        events = gate.runtime.sessions.events(types=["tool.confirmation_requested"])
        session = gate.session
        await gate.runtime.sessions.conversations.begin_turn(session, Message.text("user", "mark"))
        call = ToolCall(
            tool="mark",
            arguments={"n": 0},
            session=session,
            caller=CallerKind.AGENT,
            turn_id=session.turn_id,
            principal="ann",
            answer_s=200.0,
            repaired=True,
            client=Client(name="agent"),
            handover=Handover(work, place, takes_slot=False),
        )
        waiting = asyncio.create_task(gate.runtime.calls.run(call))
        async for event in events:
            question = event.payload["confirmation_request_id"]
            break
    await waiting
    if answer is not None:
        async with await SqliteStore.open(str(home)) as store:
            assert (await questions.answer(store, question, answer)).applied
    async with Gate(tools=[mark], home=home, session=session.id) as again:
        assert again.resumed is not None
        (result,) = await asyncio.gather(*again.resumed.calls.values())
        assert result.error is not None
        assert (result.error.error_class, result.error.reason) == (ToolErrorClass.CANCELLED, "handed_over")
        assert await again.runtime.permission.open_confirmations() == []
        assert not (await again.runtime.permission.answer(question, Answer(decision=Outcome.ALLOW))).applied
    ((record, _),) = newest_first(str(home / "audit.jsonl"))
    assert (record.principal, record.client, record.reason) == ("ann", "agent", "handed_over")
    assert (marks(ws), ran) == ([], [])
    async with Gate(tools=[mark], home=home, session=session.id) as once_more:
        assert once_more.resumed is not None and once_more.resumed.calls == {}


@pytest.mark.spec("T48")
async def test_a_question_of_a_direct_call_closes_with_its_caller(home: Path, ws: Path) -> None:
    async with child("direct", home, ws, module=LIVES) as asking:
        session, question = await _asked(asking)
        await _killed(asking)
    async with Gate(tools=[mark], home=home, session=session) as gate:
        assert gate.resumed is not None and gate.resumed.calls == {}
        receipt = await gate.runtime.permission.answer(question, Answer(decision=Outcome.ALLOW))
        assert not receipt.applied
        assert await gate.runtime.permission.open_confirmations() == []
    assert marks(ws) == []
