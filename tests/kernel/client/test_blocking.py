"""`with connect()`: the same words without an event loop, from any number of threads."""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from callgate import BlockingGate, InstanceGone, NoInstance, RequestRefused, ToolErrorClass, connect
from callgate.client.blocking import _MOST_SAYINGS, _Inbox
from callgate.core.calls import Diagnostic, ToolResult
from callgate.core.events import CALLED, COMPLETED, CONFIRMATION_REQUESTED
from callgate.events.bus import Gap
from callgate.protocol.socket_v1.frames import Log, PartialText
from tests.kernel.client.instances import LIMIT_S, SLEEP, Served, serving


def test_a_call_is_one_line(working: Served) -> None:
    with connect(**working.target) as gate:
        assert gate.call("read_file", path="a.txt").value == "hello\n"
        assert gate.call("read_file", {"path": "a.txt"}).text == "hello\n"
        assert "read_file" in [tool.name for tool in gate.tools()]
    gate.close()
    with pytest.raises(InstanceGone) as gone:
        gate.call("read_file", path="a.txt")
    assert (gone.value.reason, gone.value.may_have_run) == ("closed", False)


def test_what_a_call_says_is_told_in_the_thread_that_made_it(working: Served) -> None:
    heard: list[tuple[int, Any]] = []
    with connect(**working.target) as gate:
        gate.call("says", count=2, on_event=lambda each: heard.append((threading.get_ident(), each)))
    assert {ident for ident, _ in heard} == {threading.get_ident()}
    assert "".join(each.text for _, each in heard if isinstance(each, PartialText)) == "01"


def test_a_listener_that_fails_ends_its_call(working: Served) -> None:
    with connect(**working.target) as gate:
        with pytest.raises(ZeroDivisionError):
            gate.call("shell", command=SLEEP, on_event=lambda _: 1 // 0)
        assert working.records()[0].error_class == "cancelled"
        assert gate.call("values", which="zero").ok


def test_a_listener_that_takes_nothing_is_told_what_was_dropped() -> None:
    """What waits for it is bounded, however much a tool says."""
    inbox = _Inbox()
    for number in range(_MOST_SAYINGS + 5):
        inbox.say(PartialText(text=str(number)))
    assert inbox.get() == PartialText(text="0")
    inbox.say(PartialText(text="after"))
    got: list[Any] = [inbox.get() for _ in range(_MOST_SAYINGS + 1)]
    assert [each.text for each in got[:-2]] == list(map(str, range(1, _MOST_SAYINGS)))
    assert isinstance(got[-2], Log) and got[-2].message.startswith("5 ")
    assert got[-1] == PartialText(text="after")
    result = ToolResult(call_id="c", tool="t", ok=True, content=[])
    (note,) = inbox.counted(result).diagnostics
    assert isinstance(note, Diagnostic) and note.message.startswith("5 ")
    assert _Inbox().counted(result) == result


@pytest.mark.spec("S0-20")
def test_threads_share_a_connection(working: Served) -> None:
    with connect(**working.target) as gate, ThreadPoolExecutor(16) as pool:
        begun = threading.Event()
        slow = pool.submit(gate.call, "shell", command=SLEEP, on_event=lambda _: begun.set())
        assert begun.wait(LIMIT_S)
        sessions = pool.map(lambda _: gate.call("says", count=1).value, range(200))
        assert len(set(sessions)) == 1
        assert not slow.done()
        gate.cancel()
        ended = slow.result(LIMIT_S).error
        assert ended is not None and ended.error_class is ToolErrorClass.CANCELLED


def test_closing_frees_the_threads_that_wait(working: Served) -> None:
    with ThreadPoolExecutor(2) as pool:
        with connect(**working.target) as gate:
            begun = threading.Event()
            slow = pool.submit(gate.call, "shell", command=SLEEP, on_event=lambda _: begun.set())
            reader = pool.submit(list, gate.events(["none"]))
            assert begun.wait(LIMIT_S)
        assert reader.result(LIMIT_S) == []
        with pytest.raises(InstanceGone) as gone:
            slow.result(LIMIT_S)
        assert gone.value.may_have_run is True


@pytest.mark.spec("S0-49")
def test_an_interrupt_stops_the_call_and_is_raised(working: Served) -> None:
    with connect(**working.target) as gate:
        with pytest.raises(KeyboardInterrupt):
            gate.call("shell", command=SLEEP, on_event=lambda _: _thread.interrupt_main())
        assert working.records()[0].error_class == "cancelled"
        assert gate.call("values", which="zero").ok


def test_a_question_waits_for_a_person_and_can_be_taken_back(asking: Served) -> None:
    with connect(**asking.target, confirmer=True) as gate, ThreadPoolExecutor(1) as pool:
        with gate.events([CONFIRMATION_REQUESTED]) as events:
            call = pool.submit(gate.call, "write_file", path="b.txt", content="y")
            next(iter(events))
        (question,) = gate.confirmations()
        with pytest.raises(RequestRefused):
            gate.answer(question, True)
        assert gate.answer(question, False).applied is True
        ended = call.result(LIMIT_S).error
        assert ended is not None and ended.error_class is ToolErrorClass.USER_DENIED


def test_events_are_read_one_after_the_other(working: Served) -> None:
    with connect(**working.target) as gate:
        events = gate.events()
        gate.call("values", which="zero")
        reading = iter(events)
        first = [next(reading), next(reading)]
        assert [each.type for each in first if not isinstance(each, Gap)] == [CALLED, COMPLETED]
        events.close()
        assert list(events) == []
    events.close()


def test_an_instance_that_dies_is_said_to_be_gone() -> None:
    with serving("--mode", "write") as served, connect(**served.target) as gate:
        with pytest.raises(InstanceGone) as gone:
            gate.call("shell", command=SLEEP, on_event=lambda _: served.process.kill())
        assert (gone.value.reason, gone.value.may_have_run) == ("lost", True)


def test_where_nobody_listens_no_thread_is_left(asking: Served) -> None:
    before = threading.active_count()
    with pytest.raises(NoInstance), connect(home=asking.base / "none"):
        pass
    assert threading.active_count() == before


_FORGETFUL = """
import sys, callgate
gate = callgate.connect(home=sys.argv[1], cwd=sys.argv[2]).__enter__()
print(gate.call("read_file", path="a.txt").value, end="")
"""


def test_a_program_that_does_not_close_can_end(working: Served) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _FORGETFUL, working.home, working.ws],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=os.environ,
    )
    assert (ran.returncode, ran.stdout) == (0, "hello\n")


def test_both_faces_are_typed() -> None:
    """Which of the two comes out is decided by the kind of `with`."""
    assert connect().__enter__.__annotations__["return"] == BlockingGate.__name__
