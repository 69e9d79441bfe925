"""`async with connect()`: calls, what they say, their end, questions, events, and bad peers."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from callgate import Answer, Gate, InstanceGone, NoInstance, RequestRefused, ToolErrorClass, connect
from callgate.client.remote import MOST_CALLS
from callgate.core.events import CALLED, COMPLETED, CONFIRMATION_REQUESTED
from callgate.events.bus import Gap
from callgate.protocol.socket_v1.frames import PartialText, Progress
from callgate.sources.functions import load_tools
from tests.kernel.client.instances import LIMIT_S, SLEEP, Served, pretending, serving


@pytest.mark.spec("S0-17", "S0-25")
async def test_a_call_gives_what_it_gives_in_the_same_process(working: Served) -> None:
    """The same values, whichever of the two faces is used."""
    cases: list[tuple[str, dict[str, Any]]] = [
        *(("values", {"which": each}) for each in ("none", "zero", "empty", "text", "list", "deep")),
        ("values", {"which": "other"}),
        ("values", {"wich": "none"}),
        ("noted", {}),
        *(("fails", {"how": each}) for each in ("reported", "raised", "crash")),
        ("read_file", {"path": "a.txt"}),
        ("read_file", {"path": "/etc/passwd"}),
        ("no_such_tool", {}),
    ]
    mine = load_tools("mine.py", beside=str(working.home))
    async with Gate(working.ws, home=working.base / "other") as gate, connect(**working.target) as far:
        for factory in mine:
            gate.register(factory)
        for tool, arguments in cases:
            here, there = await gate.call(tool, arguments), await far.call(tool, arguments)
            for field in (
                "tool",
                "ok",
                "content",
                "value",
                "diagnostics",
                "files_modified",
                "command_executed",
                "partial",
                "truncated",
                "text",
            ):
                assert getattr(there, field) == getattr(here, field), (tool, arguments, field)
            ours, theirs = here.error, there.error
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                assert (theirs.error_class, theirs.message, theirs.reason, theirs.user_visible) == (
                    ours.error_class,
                    ours.message,
                    ours.reason,
                    ours.user_visible,
                )
                assert (theirs.correlation_id is None) == (ours.correlation_id is None)
            assert there.call_id.startswith("tu_")


async def test_arguments_go_by_name_or_in_a_mapping(working: Served) -> None:
    async with connect(**working.target) as gate:
        by_name = await gate.call("read_file", path="a.txt")
        in_one = await gate.call("read_file", {"path": "a.txt"}, timeout_s=30)
        assert (by_name.value, in_one.value) == ("hello\n", "hello\n")
        assert "values" in [tool.name for tool in await gate.tools()]
        for wrong in (0, -1, float("nan"), 1e9):
            with pytest.raises(ValueError):
                await gate.call("values", which="none", timeout_s=wrong)


@pytest.mark.spec("S0-17", "S0-18", "S0-42")
async def test_what_a_call_says_comes_in_order_and_before_its_result(working: Served) -> None:
    async with connect(**working.target) as gate, connect(**working.target) as other:
        heard: list[Any] = []
        result = await gate.call("says", count=3, on_event=heard.append)
        before = list(heard)
        assert before[0] == Progress(message="halfway", fraction=0.5)
        assert "".join(each.text for each in before if isinstance(each, PartialText)) == "012"
        again = await gate.call("says", count=0)
        assert (heard, again.value) == (before, result.value)
        assert (await other.call("says", count=0)).value != result.value


async def test_a_listener_that_fails_ends_its_call_and_its_error_is_raised(working: Served) -> None:
    async with connect(**working.target) as gate:
        with pytest.raises(ZeroDivisionError):
            await gate.call("shell", command=SLEEP, on_event=lambda _: 1 // 0)
        assert (await gate.call("values", which="zero")).ok
    assert working.records()[1].error_class == "cancelled"


@pytest.mark.spec("S0-20")
async def test_many_calls_are_under_way_and_a_slow_one_holds_up_nobody(working: Served) -> None:
    async with connect(**working.target) as gate:
        begun = asyncio.Event()
        slow = asyncio.create_task(gate.call("shell", command=SLEEP, on_event=lambda _: begun.set()))
        await begun.wait()
        results = await asyncio.gather(*(gate.call("values", which="zero") for _ in range(5 * MOST_CALLS)))
        assert [each.value for each in results] == [0] * 5 * MOST_CALLS
        assert not slow.done()
        await gate.cancel()
        ended = (await slow).error
        assert ended is not None and ended.error_class is ToolErrorClass.CANCELLED


@pytest.mark.spec("S0-49")
async def test_a_cancelled_task_cancels_its_call_and_waits_for_that(working: Served) -> None:
    async with connect(**working.target) as gate:
        begun = asyncio.Event()
        task = asyncio.create_task(gate.call("shell", command=SLEEP, on_event=lambda _: begun.set()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert working.records()[0].error_class == "cancelled"
        assert (await gate.call("values", which="zero")).ok


@pytest.mark.spec("S0-51")
async def test_leaving_ends_the_calls_of_this_connection_alone(working: Served) -> None:
    async with connect(**working.target) as stays:
        begun = asyncio.Event()
        task = asyncio.create_task(stays.call("shell", command=SLEEP, on_event=lambda _: begun.set()))
        await begun.wait()
        async with connect(**working.target) as leaves:
            began = asyncio.Event()
            other = asyncio.create_task(leaves.call("shell", command=SLEEP, on_event=lambda _: began.set()))
            await began.wait()
        with pytest.raises(InstanceGone) as gone:
            await other
        assert (gone.value.reason, gone.value.may_have_run) == ("closed", True)
        with pytest.raises(InstanceGone) as gone:
            await leaves.call("values", which="zero")
        assert gone.value.may_have_run is False
        assert (await stays.call("values", which="zero")).ok
        assert not task.done()
        task.cancel()
        await asyncio.wait({task})


@pytest.mark.parametrize(
    "arguments",
    [
        {"a": "x" * (8 << 20)},
        {"a": float("nan")},
        {"a": [{"b": float("-inf")}]},
        {"a": object()},
        {"a": "\ud800"},
        {"a": 10**500},
        {"a": json.loads("[" * 70 + "]" * 70)},
        {str(number): 0 for number in range(10_001)},
    ],
    ids=["too large", "NaN", "infinity", "no JSON", "surrogate", "digits", "deep", "keys"],
)
async def test_what_the_instance_could_not_read_is_refused_here(arguments: Any, working: Served) -> None:
    async with connect(**working.target) as gate:
        result = await gate.call("values", arguments)
        assert result.error is not None and not result.ok
        assert (result.error.error_class, result.error.reason) == ("validation_error", "unsendable")
        assert (await gate.call("values", which="zero")).ok


async def test_without_anyone_to_answer_what_must_be_asked_is_refused(asking: Served) -> None:
    async with connect(**asking.target, caller="cli") as gate:
        result = await gate.call("write_file", path="no.txt", content="x")
        assert result.error is not None and result.error.reason == "no_confirmer"
    assert asking.records()[0].caller == "cli"
    async with connect(home=asking.home, cwd=asking.base) as elsewhere:
        result = await elsewhere.call("read_file", path="a.txt")
        assert result.error is not None and result.error.reason == "workspace_not_served"
        assert await elsewhere.tools() == []
    async with connect(home=asking.home, cwd=None) as its_own:
        assert (await its_own.call("read_file", path="a.txt")).value == "hello\n"
    with pytest.raises(ValueError):
        connect(caller="internal")  # type: ignore[arg-type]


async def test_a_program_waits_for_a_person_and_cannot_allow_its_own_call(asking: Served) -> None:
    async with connect(**asking.target, confirmer=True) as gate:
        events = gate.events([CONFIRMATION_REQUESTED])
        call = asyncio.create_task(gate.call("write_file", path="hand.txt", content="x"))
        asked = await anext(events)
        assert not isinstance(asked, Gap)
        (question,) = await gate.confirmations()
        assert question.id == asked.payload["confirmation_request_id"]
        for yes in (True, "allow", "always-allow-this-tool", Answer(decision="allow", scope="always")):
            with pytest.raises(RequestRefused):
                await gate.answer(question, yes)
        await asyncio.to_thread(asking.allow, question.id)
        assert (await call).ok
        with pytest.raises(RequestRefused):
            await gate.answer(question.id, False)


async def test_a_program_takes_its_question_back(asking: Served) -> None:
    async with connect(**asking.target, confirmer=True) as gate:
        events = gate.events([CONFIRMATION_REQUESTED])
        call = asyncio.create_task(gate.call("write_file", path="else.txt", content="x"))
        await anext(events)
        (question,) = await gate.confirmations()
        assert (await gate.answer(question, False)).applied is True
        ended = (await call).error
        assert ended is not None and ended.error_class is ToolErrorClass.USER_DENIED
    assert not (asking.ws / "else.txt").exists()


async def test_events_of_this_session_come_from_now_on(working: Served) -> None:
    async with connect(**working.target) as gate, connect(**working.target) as other:
        await gate.call("values", which="zero")
        with gate.events() as everything, gate.events([COMPLETED]) as ends:
            await other.call("values", which="zero")
            result = await gate.call("values", which="zero")
            events = [await anext(everything), await anext(everything), await anext(ends)]
            assert [(each.type, each.payload["call_id"]) for each in events if not isinstance(each, Gap)] == [
                (CALLED, result.call_id),
                (COMPLETED, result.call_id),
                (COMPLETED, result.call_id),
            ]
        assert [each async for each in ends] == []
        later = gate.events()
    assert [each async for each in later] == []


async def test_a_reader_that_falls_behind_is_told_how_much_it_missed(working: Served) -> None:
    async with connect(**working.target) as gate:
        reader = gate._readers.add(None, bound=2)
        ends = gate.events([COMPLETED])
        for _ in range(3):
            await gate.call("values", which="zero")
            await anext(ends)
        got = [await anext(reader) for _ in range(3)]
        assert [type(each).__name__ for each in got] == ["Event", "Event", "Gap"]
        assert got[2] == Gap(4)


@pytest.mark.parametrize(("signal", "reason"), [(signal.SIGINT, "shutting_down"), (signal.SIGKILL, "lost")])
async def test_an_instance_that_ends_is_gone_for_good(signal: int, reason: str) -> None:
    with serving("--mode", "write") as served:
        async with connect(**served.target) as gate:
            begun = asyncio.Event()
            call = asyncio.create_task(gate.call("shell", command=SLEEP, on_event=lambda _: begun.set()))
            await begun.wait()
            events = gate.events(["none"])
            await asyncio.to_thread(served.stop, signal)
            if reason == "lost":
                with pytest.raises(InstanceGone) as gone:
                    await call
                assert (gone.value.reason, gone.value.may_have_run) == (reason, True)
            else:
                assert not (await call).ok
            with pytest.raises(InstanceGone) as gone:
                await anext(events)
            with pytest.raises(InstanceGone) as gone:
                await gate.call("values", which="zero")
            assert (gone.value.reason, gone.value.may_have_run) == (reason, False)
        with pytest.raises(NoInstance):
            async with connect(**served.target):
                pass


@pytest.mark.spec("S0-14")
async def test_an_instance_is_named_by_socket_pid_or_label(working: Served, tmp_path: Path) -> None:
    for target in ({"socket": working.path, "home": tmp_path}, {"instance": working.process.pid}, {"instance": "ws"}):
        async with connect(**{**working.target, **target}) as gate:
            assert (await gate.call("read_file", path="a.txt")).ok
    (tmp_path / "file").touch()
    for target in (
        {"instance": "other"},
        {"instance": 1},
        {"home": tmp_path},
        {"socket": tmp_path / "none"},
        {"socket": tmp_path / "file"},
        {"socket": "x" * 200},
    ):
        with pytest.raises(NoInstance):
            async with connect(**{**working.target, **target}):
                pass


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def _rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hangs up at once."""


async def _foreign(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await reader.read()


async def _endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while not writer.is_closing():
        writer.write(b"x" * (1 << 20))
        await writer.drain()


@pytest.mark.parametrize("behave", [_silent, _rude, _foreign, _endless])
async def test_what_is_no_instance_is_not_taken_for_one(behave: Any) -> None:
    async with pretending(behave) as path:
        with pytest.raises(NoInstance):
            async with connect(socket=path, patience_s=0.5):
                pass


def _alive(line: bytes) -> bytes:
    return json.dumps({"type": "alive", "requestId": json.loads(line)["requestId"]}).encode() + b"\n"


async def _hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(_alive(await reader.readline()))
    await reader.read()


async def _talks_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(_alive(await reader.readline()))
    await reader.readline()
    writer.write(b'{"type":"tool_result","requestId":"req_9","result":{"ok":true}}\n')  # of nobody
    writer.write(b'{"type":"something_new"}\n')
    writer.write(b'{"type":"tool_result","requestId":"req_2","result":"done"}\n')
    await reader.read()


@pytest.mark.parametrize(("behave", "reason"), [(_hangs, "unresponsive"), (_talks_nonsense, "unreadable")])
async def test_an_instance_that_stops_making_sense_is_given_up(behave: Any, reason: str) -> None:
    async with pretending(behave) as path, connect(socket=path, patience_s=0.2) as gate:
        with pytest.raises(InstanceGone) as gone:
            await gate.call("values", which="zero")
        assert (gone.value.reason, gone.value.may_have_run) == (reason, True)


async def test_an_instance_may_be_silent_for_as_long_as_it_lives() -> None:
    checks = 3

    async def patient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_alive(await reader.readline()))
        call = json.loads(await reader.readline())
        for _ in range(checks):
            writer.write(_alive(await reader.readline()))
        result = {"type": "tool_result", "requestId": call["requestId"], "result": {"ok": True, "content": 1}}
        writer.write(json.dumps(result).encode() + b"\n")
        await reader.read()

    async with pretending(patient) as path, connect(socket=path, patience_s=0.2) as gate:
        assert (await gate.call("values", which="zero")).value == 1


async def test_an_answer_that_is_due_at_once_is_not_waited_for_for_ever() -> None:
    async def only_lives(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if b"check_alive" in line:
                writer.write(_alive(line))

    async with pretending(only_lives) as path, connect(socket=path, patience_s=0.2) as gate:
        with pytest.raises(InstanceGone) as gone:
            await gate.tools()
        assert (gone.value.reason, gone.value.may_have_run) == ("unresponsive", False)


async def test_not_more_is_sent_than_the_instance_takes() -> None:
    full, go = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_alive(await reader.readline()))
        for number in itertools.count(1):
            if not (line := await reader.readline()):
                return
            result = {"type": "tool_result", "requestId": json.loads(line)["requestId"], "result": {"ok": True}}
            if number == MOST_CALLS:
                full.set()
                await go.wait()
            writer.write(json.dumps(result).encode() + b"\n") if number >= MOST_CALLS else held.append(result)
            while number >= MOST_CALLS and held:
                writer.write(json.dumps(held.pop()).encode() + b"\n")

    held: list[Any] = []
    async with asyncio.timeout(LIMIT_S), pretending(slow) as path, connect(socket=path) as gate:
        calls = [asyncio.create_task(gate.call("x")) for _ in range(MOST_CALLS + 40)]
        await full.wait()
        assert len(gate.link.calls()) == MOST_CALLS
        go.set()
        assert [result.ok for result in await asyncio.gather(*calls)] == [True] * len(calls)


def test_nothing_of_the_client_is_loaded_before_it_is_used() -> None:
    code = "import sys, callgate; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert [name for name in ran.stdout.split() if name.startswith(("callgate.client", "asyncio", "msgspec"))] == []
