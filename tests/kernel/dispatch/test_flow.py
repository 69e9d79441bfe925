"""The road of one call: the order of its stages, its events, its result, its record."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import msgspec
import pytest

from callgate.core.content import ImageBlock, ImageSource, TextBlock, ToolUseBlock
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Mode, Session
from callgate.core.tools import ToolOutput
from callgate.dispatch.dispatcher import CallLimits
from callgate.instance.wiring.runtime import BUILT_IN
from tests.support import QUICK, Bench, FakeHuman, make_tool

PATHS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


@pytest.mark.spec("S4-12")
async def test_an_unknown_tool_fails_without_being_called() -> None:
    bench = Bench("/")
    block = await bench.dispatcher.dispatch(ToolUseBlock("x1", "nope", {}), bench.session)
    assert block.is_error
    assert bench.recorder.types == ["tool.failed"]
    assert bench.recorder.events[0].payload["error_class"] == "not_found"


@pytest.mark.spec("S4-13")
@pytest.mark.parametrize("effect", list(SideEffects))
async def test_bad_input_is_reported_whole_and_never_called(effect: SideEffects) -> None:
    bench = Bench("/", make_tool(effect=effect, schema=ADD), human=FakeHuman())
    result = await bench.run("probe", {"a": "x", "c": 1})
    assert result.error.error_class is ToolErrorClass.VALIDATION_ERROR
    assert {each["path"] for each in result.error.details["errors"]} == {"", "a", "c"}
    assert bench.recorder.types == ["tool.input_invalid"]
    payload = bench.recorder.events[0].payload
    assert len(payload["validation_errors"]) == 3
    assert payload["tool_use_id"] == result.call_id


@pytest.mark.spec("S4-14", "S4-15")
async def test_an_escaping_path_is_denied_before_anyone_is_asked(tmp_path: Any) -> None:
    human = FakeHuman(True)
    bench = Bench(tmp_path, make_tool(effect=SideEffects.WRITE, schema=PATHS), human=human)
    result = await bench.run("probe", {"path": "../../etc/passwd"})
    assert result.error.error_class is ToolErrorClass.PERMISSION_DENIED
    assert bench.recorder.types == ["tool.failed"]
    assert human.questions == []
    assert "../../etc/passwd" in result.text


@pytest.mark.spec("S4-15")
async def test_an_invalid_call_asks_nobody() -> None:
    human = FakeHuman(True)
    bench = Bench("/", make_tool(effect=SideEffects.WRITE, schema=ADD), human=human)
    await bench.run("probe", {})
    assert human.questions == []


@pytest.mark.spec("S4-16", "S4-17", "S4-25")
async def test_a_good_call_is_called_then_completed() -> None:
    bench = Bench("/", make_tool(effect=SideEffects.READ, schema=ADD, run=lambda i, c: str(i["a"] + i["b"])))
    block = await bench.dispatcher.dispatch(ToolUseBlock("tu_x", "probe", {"a": 1, "b": 2}), bench.session)
    assert (block.tool_use_id, block.content, block.is_error) == ("tu_x", [TextBlock("3")], False)
    called, completed = bench.recorder.events
    assert called.type == "tool.called"
    assert called.payload["tool_use_id"] == "tu_x"
    assert called.payload["side_effects"] == "read"
    assert called.payload["input_size_bytes"] == len(b'{"a":1,"b":2}')
    assert len(called.payload["input_hash"]) == 64
    assert "input" not in called.payload
    assert completed.type == "tool.completed"
    assert completed.payload["success"] is True
    assert completed.payload["output_size_bytes"] == 1


@pytest.mark.spec("S4-16")
async def test_called_is_emitted_before_the_tool_starts() -> None:
    seen: list[list[str]] = []
    bench = Bench("/", make_tool(run=lambda i, c: seen.append(list(bench.recorder.types)) or "ok"))
    await bench.run("probe")
    assert seen == [["tool.called"]]


@pytest.mark.spec("S4-16")
@pytest.mark.parametrize("factory", BUILT_IN, ids=lambda factory: factory.__name__)
async def test_the_called_event_of_each_built_in_states_its_declared_class(factory: Any, tmp_path: Any) -> None:
    (tmp_path / "f").write_text("x")
    arguments = {
        "path": "f",
        "content": "y",
        "old": "x",
        "new": "y",
        "command": "true",
        "pattern": "f",
    }
    definition = factory().definition
    properties = definition.input_schema["properties"]
    given = {k: v for k, v in arguments.items() if k in properties}
    if definition.name in ("list_dir", "find_files", "search_text"):
        given.pop("path", None)
    bench = Bench(tmp_path, factory, human=FakeHuman(True))
    await bench.run(definition.name, given)
    assert bench.recorder.one("tool.called").payload["side_effects"] == definition.side_effects.value


@pytest.mark.spec("S4-18")
async def test_a_failure_the_tool_handled_completes_and_is_an_error_to_the_agent() -> None:
    output = ToolOutput(content=[TextBlock("exit 1")], success=False)
    bench = Bench("/", make_tool(run=lambda i, c: output))
    result = await bench.run("probe")
    assert not result.ok
    assert result.text == "exit 1"
    assert bench.recorder.one("tool.completed").payload["success"] is False


@pytest.mark.spec("S4-21")
async def test_the_events_of_a_call_form_a_chain() -> None:
    bench = Bench("/", make_tool(effect=SideEffects.WRITE), human=FakeHuman(True))
    await bench.run("probe", parent_event_id="01TURN")
    events = bench.recorder.events
    assert bench.recorder.types == [
        "tool.confirmation_requested",
        "tool.confirmation_resolved",
        "tool.called",
        "tool.completed",
    ]
    assert [event.parent_event_id for event in events] == ["01TURN", *(e.id for e in events[:-1])]
    assert len({event.payload["tool_use_id"] for event in events}) == 1
    assert [event.id for event in events] == sorted(event.id for event in events)


@pytest.mark.spec("S4-22")
async def test_images_reach_the_agent_as_the_tool_gave_them() -> None:
    image = ImageBlock(ImageSource(data="QUJD"), "image/png")
    bench = Bench("/", make_tool(run=lambda i, c: ToolOutput(content=[image])))
    block = await bench.dispatcher.dispatch(ToolUseBlock("a", "probe", {}), bench.session)
    assert block.content == [image]


@pytest.mark.spec("S4-23")
@pytest.mark.parametrize(
    ("effect", "seconds"), [("none", 60), ("read", 60), ("write", 60), ("network", 600), ("execute", 600)]
)
def test_the_time_limit_follows_the_class(effect: str, seconds: float) -> None:
    bench = Bench("/", make_tool(effect=SideEffects(effect)), make_tool("own", SideEffects(effect), timeout_s=7))
    assert bench.dispatcher.registry.find("probe").timeout_s == seconds
    assert bench.dispatcher.registry.find("own").timeout_s == 7


@pytest.mark.spec("S4-23")
async def test_a_tool_that_takes_too_long_is_stopped_and_reported_as_timeout() -> None:
    stopped = asyncio.Event()

    async def run(input: Any, context: Any) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return "never"

    bench = Bench("/", make_tool(run=run, timeout_s=0.03))
    result = await bench.run("probe")
    assert result.error.error_class is ToolErrorClass.TIMEOUT
    assert result.error.details == {"stopped": True}
    assert stopped.is_set()
    assert bench.recorder.one("tool.failed").payload["error_class"] == "timeout"


@pytest.mark.spec("S4-23")
async def test_the_call_limit_beats_the_tool_limit_and_is_clamped() -> None:
    async def run(input: Any, context: Any) -> str:
        await asyncio.sleep(60)
        return "never"

    bench = Bench("/", make_tool(run=run), limits=msgspec.structs.replace(QUICK, max_timeout_s=0.03))
    assert (await bench.run("probe", timeout_s=99)).error.error_class is ToolErrorClass.TIMEOUT
    bench = Bench("/", make_tool(run=run))
    assert (await bench.run("probe", timeout_s=0.03)).error.error_class is ToolErrorClass.TIMEOUT
    assert (await bench.run("probe", timeout_s=0)).error.error_class is ToolErrorClass.VALIDATION_ERROR


@pytest.mark.spec("S4-24")
async def test_waiting_for_a_person_does_not_use_up_the_time_limit() -> None:
    async def slow_human(question: Any) -> bool:
        await asyncio.sleep(0.1)
        return True

    bench = Bench("/", make_tool(effect=SideEffects.WRITE, timeout_s=0.05), human=slow_human)
    assert (await bench.run("probe")).ok


@pytest.mark.spec("S4-24")
async def test_waiting_for_a_slot_does_not_use_up_the_time_limit() -> None:
    async def run(input: Any, context: Any) -> str:
        await asyncio.sleep(0.06)
        return "ok"

    limits = CallLimits(concurrency=1, stop=QUICK.stop)
    bench = Bench("/", make_tool(run=run, timeout_s=0.1), limits=limits)
    results = await asyncio.gather(*(bench.run("probe") for _ in range(3)))
    assert [result.ok for result in results] == [True, True, True]


@pytest.mark.spec("S4-26")
async def test_the_tool_is_told_all_about_its_session(tmp_path: Any, monkeypatch: Any) -> None:
    seen: list[Any] = []
    monkeypatch.setenv("HOME", str(tmp_path))
    bench = Bench("~", make_tool(run=lambda i, c: seen.append(c) or "ok"))
    bench.session.turn_id = "turn1"
    await bench.dispatcher.dispatch(ToolUseBlock("u1", "probe", {}), bench.session)
    (context,) = seen
    assert context.session_id == bench.session.id
    assert context.turn_id == "turn1"
    assert context.tool_use_id == "u1"
    assert context.workspace_path == str(tmp_path)
    assert not context.cancel_event.is_set()
    context.logger.warning("hello")
    assert os.path.samefile(context.workspace_files.workspace_root, tmp_path)


@pytest.mark.spec("T17")
async def test_the_tool_gets_its_own_copy_of_exactly_what_was_checked() -> None:
    mine = {"a": 1, "b": {"c": [1]}}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "object"}}}
    got: list[Any] = []

    async def human(question: Any) -> bool:
        mine["b"]["c"].append("evil")  # the caller changes its mind while the person reads
        return True

    bench = Bench(
        "/", make_tool(effect=SideEffects.WRITE, schema=schema, run=lambda i, c: got.append(i) or "ok"), human=human
    )
    await bench.run("probe", mine)
    assert got == [{"a": 1, "b": {"c": [1]}}]


async def test_the_id_of_an_agent_is_kept_beside_ours() -> None:
    bench = Bench("/", make_tool())
    block = await bench.dispatcher.dispatch(ToolUseBlock("toolu_1", "probe", {}), bench.session)
    assert block.tool_use_id == "toolu_1"
    (record,) = bench.recorder.records
    assert record.external_id == "toolu_1"
    assert record.call_id.startswith("tu_")
    assert {event.payload["call_id"] for event in bench.recorder.events} == {record.call_id}


async def test_an_id_in_flight_is_refused_and_the_first_call_is_unharmed() -> None:
    release = asyncio.Event()

    async def run(input: Any, context: Any) -> str:
        await release.wait()
        return "first"

    bench = Bench("/", make_tool(run=run))
    use = ToolUseBlock("same", "probe", {})
    first = asyncio.create_task(bench.dispatcher.dispatch(use, bench.session))
    await bench.recorder.seen("tool.called")
    second = await bench.dispatcher.dispatch(use, bench.session)
    assert second.is_error
    other = Session(workspace="/")
    elsewhere = asyncio.create_task(bench.dispatcher.dispatch(use, other))
    await bench.recorder.seen("tool.called", 2)
    release.set()
    assert (await first).content == [TextBlock("first")]
    assert (await elsewhere).content == [TextBlock("first")]
    again = await bench.dispatcher.dispatch(use, bench.session)
    assert again.is_error
    assert bench.recorder.types.count("tool.called") == 2


async def test_dispatch_without_a_session_is_a_programming_error() -> None:
    bench = Bench("/")
    with pytest.raises(TypeError):
        await bench.dispatcher.dispatch(ToolUseBlock("a", "b", {}), "sess")  # type: ignore[arg-type]


@pytest.mark.spec("S4-42")
async def test_a_file_opened_around_the_wall_is_permitted_and_logged_once(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "outside.txt"
    secret.write_text("x")

    def run(input: Any, context: Any) -> str:
        for _ in range(3):
            with open(secret) as file:
                text = file.read()
        return text

    (tmp_path / "ws").mkdir()
    bench = Bench(tmp_path / "ws", make_tool(run=run))
    with caplog.at_level(logging.WARNING, "callgate.raw_open"):
        assert (await bench.run("probe")).text == "x"
    assert [str(secret) in record.message for record in caplog.records] == [True]


@pytest.mark.spec("S4-42")
async def test_files_read_through_the_wall_leave_no_such_line(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "f").write_text("x")

    def run(input: Any, context: Any) -> str:
        context.workspace_files.write("g", "y")
        return context.workspace_files.read("f")

    bench = Bench(tmp_path, make_tool(run=run, effect=SideEffects.WRITE), mode=Mode.WRITE)
    with caplog.at_level(logging.WARNING, "callgate.raw_open"):
        assert (await bench.run("probe")).text == "x"
    assert caplog.records == []


async def test_an_effect_that_cannot_be_recorded_does_not_happen() -> None:
    ran: list[int] = []
    bench = Bench(
        "/",
        make_tool(effect=SideEffects.WRITE, run=lambda i, c: ran.append(1) or "ok"),
        make_tool("look"),
        human=FakeHuman(True),
    )
    bench.recorder.unwritable = OSError(28, "No space left on device")
    result = await bench.run("probe")
    assert (result.error.error_class, result.error.reason) == (ToolErrorClass.PERMISSION_DENIED, "audit_unwritable")
    assert ran == []
    assert bench.human.questions == []
    assert (await bench.run("look")).ok, "a call without effects still runs"


@pytest.mark.spec("S4-15")
async def test_a_limit_that_makes_no_sense_asks_nobody() -> None:
    bench = Bench("/", make_tool(effect=SideEffects.WRITE), human=FakeHuman(True))
    assert (await bench.run("probe", timeout_s=-1)).error.error_class is ToolErrorClass.VALIDATION_ERROR
    assert bench.human.questions == []


async def test_every_end_leaves_one_record() -> None:
    def fail(input: Any, context: Any) -> str:
        raise RuntimeError("x")

    bench = Bench(
        "/",
        make_tool("good"),
        make_tool("bad", run=fail),
        make_tool("write", SideEffects.WRITE),
        make_tool("strict", schema=ADD),
    )
    for tool, arguments in [
        ("good", {}),
        ("bad", {}),
        ("write", {}),
        ("strict", {}),
        ("nope", {}),
        ("good", "text"),
        ("good", None),
    ]:
        await bench.dispatcher.run(bench.tool_call(tool, arguments))
    assert [(r.tool, r.decision, r.error_class) for r in bench.recorder.records] == [
        ("good", "allow", None),
        ("bad", "allow", "execution_error"),
        ("write", "deny", "permission_denied"),
        ("strict", "allow", "validation_error"),
        ("nope", "allow", "not_found"),
        ("good", "allow", "validation_error"),
        ("good", "allow", None),
    ]


async def test_what_a_tool_says_while_it_works_becomes_events() -> None:
    def run(input: Any, context: Any) -> str:
        context.progress("half", 0.5)
        context.output("line\n", "stdout")
        return "ok"

    bench = Bench("/", make_tool(run=run))
    await bench.run("probe")
    assert bench.recorder.types == ["tool.called", "tool.progress", "tool.output_delta", "tool.completed"]
    delta = bench.recorder.one("tool.output_delta")
    assert delta.payload["text"] == "line\n"
    assert delta.payload["stream"] == "stdout"
