"""Whatever happens and whenever: each call ends in exactly one terminal event."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.core.effects import SideEffects
from callgate.core.errors import ToolCancelled, ToolExecutionError
from callgate.core.events import (
    CALLED,
    CONFIRMATION_REQUESTED,
    CONFIRMATION_RESOLVED,
    SESSION_CREATED,
    TERMINAL,
)
from callgate.core.stored import CallState, ConfirmationState, StoredCall, StoredConfirmation
from callgate.dispatch.dispatcher import CallLimits
from callgate.dispatch.running import StopLimits
from callgate.storage.encoding import decode_event
from tests.support import Bench, make_tool

LIMITS = CallLimits(concurrency=2, stop=StopLimits(grace_s=0.002, abandon_s=0.02, slot_s=0.02))
BEHAVIOURS = ["return", "raise", "tool_error", "sleep", "poll", "swallow", "late", "exit"]
TRICKS = ["nothing", "cancel_session", "cancel_call", "cancel_task", "close", "answer_no", "answer_yes"]

plans = st.lists(
    st.tuples(
        st.sampled_from(BEHAVIOURS),
        st.booleans(),  # asks a person
        st.sampled_from([0.001, 0.01, 5.0]),  # its time limit
    ),
    min_size=1,
    max_size=6,
)
tricks = st.lists(st.tuples(st.sampled_from(TRICKS), st.integers(0, 6)), max_size=6)


def body(behaviour: str) -> Any:
    async def run(input: Any, context: Any) -> Any:
        if behaviour == "raise":
            raise RuntimeError("boom")
        if behaviour == "tool_error":
            raise ToolExecutionError("no")
        if behaviour == "exit":
            raise SystemExit(1)
        if behaviour == "sleep":
            await asyncio.sleep(0.05)
        if behaviour == "poll":
            await context.cancel_event.wait()
            raise ToolCancelled()
        if behaviour == "swallow":
            for _ in range(3):
                try:
                    await asyncio.sleep(0.05)
                except asyncio.CancelledError:
                    pass
        if behaviour == "late":
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return "ok"

    return run


async def scenario(plan: list[Any], moves: list[Any], seed: int) -> Bench:
    chance = random.Random(seed)
    bench = Bench("/", limits=LIMITS, confirmation_timeout_s=0.03)
    tasks = []
    for index, (behaviour, asks, limit) in enumerate(plan):
        effect = SideEffects.WRITE if asks else SideEffects.READ
        bench.dispatcher.register(make_tool(f"t{index}", effect, run=body(behaviour), timeout_s=limit))
        tasks.append(bench.start(f"t{index}", turn_id="turn"))
    for move, target in moves:
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.004]))
        await play(bench, tasks, move, target)
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks, return_exceptions=True)
        await bench.dispatcher.close()
        await bench.log.flush()
    return bench


async def play(bench: Bench, tasks: list[Any], move: str, target: int) -> None:
    from callgate.dispatch.permission.confirmations import Answer

    open_questions = await bench.confirmations.open()
    calls = bench.dispatcher.running.of_session(bench.session.id)
    if move == "cancel_session":
        await bench.dispatcher.cancel_session_tools(bench.session.id)
    elif move == "cancel_call" and calls:
        await bench.dispatcher.cancel(calls[target % len(calls)].call.id)
    elif move == "cancel_task":
        tasks[target % len(tasks)].cancel()
    elif move == "close":
        await bench.dispatcher.close()
    elif move.startswith("answer") and open_questions:
        answer = Answer.read(move == "answer_yes")
        await bench.confirmations.answer(open_questions[target % len(open_questions)].id, answer)


def check(bench: Bench, calls: int) -> None:
    ends = Counter(event.payload["call_id"] for event in bench.recorder.terminal)
    assert set(ends.values()) <= {1}, "one end each"
    assert len(ends) <= calls  # a task cancelled before its first step made no call
    assert len(bench.recorder.records) == len(ends), "and one record each"
    called = [event.payload["call_id"] for event in bench.recorder.of("tool.called")]
    assert len(called) == len(set(called))
    # A shutdown leaves the questions of turns open; their calls end when the session is resumed.
    left = {call.id for call in bench.tables.all(StoredCall) if call.state is CallState.WAITING}
    assert bench.dispatcher.running.closing or not left
    for event in bench.recorder.events:
        assert event.payload["call_id"] in ends.keys() | left, "nothing is left without an end"
    asked = {e.payload["call_id"] for e in bench.recorder.of("tool.confirmation_requested")}
    resolved = {e.payload["call_id"] for e in bench.recorder.of("tool.confirmation_resolved")}
    assert asked - left == resolved - left
    assert len(bench.dispatcher.running) == 0
    check_store(bench, ends)


def check_store(bench: Bench, ends: Counter[str]) -> None:
    """What is kept says the same as what was told."""
    tables = bench.tables
    waiting = {call.id for call in tables.all(StoredCall) if call.state is CallState.WAITING}
    pending = tables.find(StoredConfirmation, "state", ConfirmationState.PENDING)
    assert {question.call_id for question in pending} <= waiting
    assert CallState.RUNNING not in {call.state for call in tables.all(StoredCall)}
    kept = [decode_event(text) for _, text in tables.events(bench.session.id)]
    terminal = Counter(e.payload["call_id"] for e in kept if e.type in TERMINAL)
    assert terminal == ends
    told = {event.id for event in bench.recorder.events}
    ids = {event.id for event in kept}
    # An answer that another client gave just before a stop stands, though we told of the stop.
    odd = {event.type for event in bench.recorder.events if event.id not in ids}
    assert odd <= {CONFIRMATION_RESOLVED}
    # A call that was stopped on its way to the disk was not shown to start or to be asked about.
    assert {e.type for e in kept if e.id not in told} <= {
        SESSION_CREATED,
        CALLED,
        CONFIRMATION_REQUESTED,
        CONFIRMATION_RESOLVED,
    }


@pytest.mark.spec("S4-20", "S4-19")
@given(plan=plans, moves=tricks, seed=st.integers(0, 2**16))
def test_every_call_ends_exactly_once(plan: list[Any], moves: list[Any], seed: int) -> None:
    check(asyncio.run(scenario(plan, moves, seed)), len(plan))


@pytest.mark.soak
@settings(max_examples=1000)
@given(plan=plans, moves=tricks, seed=st.integers(0, 2**16))
def test_every_call_ends_exactly_once_however_often_it_is_tried(plan: list[Any], moves: list[Any], seed: int) -> None:
    check(asyncio.run(scenario(plan, moves, seed)), len(plan))
