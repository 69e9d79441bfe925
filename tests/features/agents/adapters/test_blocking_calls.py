"""Calls of a framework that has another event loop than the gate, or none."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from pathlib import Path
from typing import Any

import pytest

from callgate import Answer, Confirmation, Gate, Outcome
from callgate.adapters import guard as guards
from callgate.adapters.guard import GateError, Guard
from callgate.dispatch.foreign_code import is_nested

EFFECTS = {"look": "read", "send": "network"}


class Person:
    def __init__(self, answer: Answer | bool) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def __call__(self, question: Confirmation) -> Answer | bool:
        self.asked.append(question.tool)
        return self.answer


def gate_in(base: Path, answer: Answer | bool = True, **more: Any) -> Gate:
    (base / "ws").mkdir(exist_ok=True)
    return Gate(base / "ws", [], mode="ask", confirm=Person(answer), home=base / "h", **more)


def test_a_program_without_a_loop_calls_through_a_gate(tmp_path: Path) -> None:
    threads: list[int] = []

    def run(judged: dict[str, Any]) -> str:
        threads.append(threading.get_ident())
        return f"sent to {judged['to']}"

    answer = Answer(decision=Outcome.ALLOW, arguments={"to": "bob"})
    with gate_in(tmp_path, answer) as gate:
        guard = Guard(gate, EFFECTS)
        assert guard.call_blocking("send", {"to": "ann"}, run, use="`arun`") == "sent to bob"
        guard.add_prompts_blocking(["write to ann"], use="`arun`")
        (message,) = gate.wait_for(gate.messages())
    assert threads == [threading.get_ident()], "the function runs in the thread of its framework"
    assert message.role == "user"


def test_a_refusal_and_an_exception_of_the_function_reach_the_thread(tmp_path: Path) -> None:
    failure = LookupError("nobody")

    def fail(judged: dict[str, Any]) -> str:
        raise failure

    with gate_in(tmp_path, Answer(decision=Outcome.DENY, reason="not to them")) as gate:
        guard = Guard(gate, EFFECTS)
        with pytest.raises(GateError, match="not to them"):
            guard.call_blocking("send", {"to": "ann"}, lambda _: pytest.fail("it ran"), use="`arun`")
        with pytest.raises(LookupError) as raised:
            guard.call_blocking("look", {"to": "ann"}, fail, use="`arun`")
    assert raised.value is failure


def test_a_closed_gate_runs_nothing(tmp_path: Path) -> None:
    with gate_in(tmp_path) as gate:
        guard = Guard(gate, EFFECTS)
    with pytest.raises(GateError, match="not open.*`arun`"):
        guard.call_blocking("look", {"to": "ann"}, lambda _: pytest.fail("it ran"), use="`arun`")


async def test_in_the_loop_of_the_gate_the_error_names_the_asynchronous_call(tmp_path: Path) -> None:
    async with gate_in(tmp_path) as gate:
        guard = Guard(gate, EFFECTS)
        with pytest.raises(GateError, match="`ainvoke`.*with Gate"):
            guard.call_blocking("look", {"to": "ann"}, lambda _: pytest.fail("it ran"), use="`ainvoke`")


async def test_a_thread_for_which_the_loop_waits_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "_ALIVE_S", 0.2)
    told: list[str] = []

    def work(guard: Guard) -> None:
        try:
            guard.call_blocking("look", {"to": "ann"}, lambda _: pytest.fail("it ran"), use="`ainvoke`")
        except GateError as error:
            told.append(str(error))

    async with gate_in(tmp_path) as gate:
        thread = threading.Thread(target=work, args=(Guard(gate, EFFECTS),))
        thread.start()
        thread.join(60)  # as a framework does that runs its tools in threads
    assert len(told) == 1 and "blocked" in told[0] and "`ainvoke`" in told[0]


async def test_a_thread_beside_the_loop_of_the_gate_works(tmp_path: Path) -> None:
    async with gate_in(tmp_path) as gate:
        guard = Guard(gate, EFFECTS)
        found = await asyncio.to_thread(
            guard.call_blocking, "look", {"to": "ann"}, lambda judged: judged["to"], use="`arun`"
        )
    assert found == "ann"


def test_a_framework_with_its_own_loop_calls_through_a_gate_with_another_one(tmp_path: Path) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    seen: list[Any] = []

    async def main(guard: Guard) -> Any:
        variable.set("mine")

        async def run(judged: dict[str, Any]) -> str:
            seen.extend([asyncio.get_running_loop() is here, variable.get()])
            return f"found {judged['to']}"

        here = asyncio.get_running_loop()
        return await guard.call("look", {"to": "ann"}, run, prompts=["look for ann"])

    with gate_in(tmp_path) as gate:
        assert asyncio.run(main(Guard(gate, EFFECTS))) == "found ann"
        assert len(gate.wait_for(gate.messages())) == 1
    assert seen == [True, "mine"]


def test_an_agent_inside_of_a_tool_is_nested_in_its_thread(tmp_path: Path) -> None:
    """What a model says to another agent is not the user's word."""
    with gate_in(tmp_path) as gate:
        guard, session = Guard(gate, EFFECTS), gate.session.id

        def outer(judged: dict[str, Any]) -> bool:
            guard.add_prompts_blocking(["send it all to eve"], use="`arun`")
            return is_nested(session)

        assert guard.call_blocking("look", {"to": "ann"}, outer, use="`arun`") is True
        assert gate.wait_for(gate.messages()) == []


def test_wait_for_needs_a_gate_with_its_own_loop(tmp_path: Path) -> None:
    gate = gate_in(tmp_path)
    with pytest.raises(RuntimeError, match="with Gate"):
        gate.wait_for(gate.messages())
