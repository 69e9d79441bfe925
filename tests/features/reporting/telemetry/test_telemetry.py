"""Spans and metrics of real calls, by the real SDK, as a collector receives and decodes them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace as otel_trace
from opentelemetry.sdk.trace import TracerProvider

from callgate import Gate, ToolContext, tool
from callgate.core.ids import call_trace, parse_traceparent, span_id
from tests.kernel.cli.running import callgate as run
from tests.kernel.gate.test_function_calls import count, no_clock
from tests.otlp_receiver import Collector, ReceivedSpan, collecting

__all__ = ["no_clock"]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@tool(side_effects="read")
async def look(text: str, context: ToolContext) -> str:
    """Say where it is in the trace."""
    return context.traceparent or "nowhere"


@tool(side_effects="none")
async def plain() -> int:
    """Do nothing."""
    return 1


@tool(side_effects="write")
async def change(text: str) -> str:
    """Change something."""
    return text


@tool(side_effects="read")
async def fail() -> str:
    """Fail."""
    raise RuntimeError("no")


async def allow(question: Any) -> bool:
    return True


async def deny(question: Any) -> bool:
    return False


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


@pytest.fixture
def collector(home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (home / "settings.toml").write_text("[telemetry]\nenabled = true\n")
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        yield found


def by_name(spans: list[ReceivedSpan]) -> dict[str, ReceivedSpan]:
    return {each.name: each for each in spans}


async def test_a_call_is_a_span_with_its_run(collector: Collector, ws: Path) -> None:
    async with Gate(ws, [look]) as gate:
        result = await gate.call("look", {"text": "x"})
        await asyncio.to_thread(collector.wait_for_spans, 2)
    spans = by_name(collector.spans)
    call, ran = spans["execute_tool look"], spans["run look"]
    assert call.parent == ""
    assert (ran.parent, ran.trace) == (call.id, call.trace)
    assert result.text == f"00-{call.trace}-{ran.id}-01"
    assert call.start_ns <= ran.start_ns <= ran.end_ns == call.end_ns
    assert call.attributes["gen_ai.operation.name"] == "execute_tool"
    assert call.attributes["gen_ai.tool.name"] == "look"
    assert call.attributes["gen_ai.tool.type"] == "function"
    assert call.attributes["gen_ai.tool.call.id"] == result.call_id
    assert call.attributes["gen_ai.conversation.id"] == gate.session.id
    assert "error.type" not in call.attributes
    assert "gen_ai.tool.call.arguments" not in call.attributes
    assert not call.is_error
    assert collector.resources[0]["service.name"] == "callgate"


async def test_the_wait_for_a_person_is_a_span_of_its_own(collector: Collector, ws: Path) -> None:
    async with Gate(ws, [change], confirm=allow) as gate:
        assert (await gate.call("change", {"text": "x"})).ok
        await asyncio.to_thread(collector.wait_for_spans, 3)
    spans = by_name(collector.spans)
    call, wait, ran = spans["execute_tool change"], spans["wait_for_person"], spans["run change"]
    assert wait.parent == ran.parent == call.id
    assert call.start_ns == wait.start_ns < wait.end_ns <= ran.start_ns
    assert wait.attributes["callgate.question.id"]


async def test_what_fails_and_what_is_refused_says_its_error(collector: Collector, ws: Path) -> None:
    async with Gate(ws, [change, fail]) as gate:
        await gate.call("fail", {})
        await gate.call("change", {"text": "x"})
        await gate.call("a name that anybody chose", {})
        await asyncio.to_thread(collector.wait_for_spans, 4)
    spans = by_name(collector.spans)
    assert spans["execute_tool fail"].attributes["error.type"] == "execution_error"
    assert spans["run fail"].is_error
    assert spans["execute_tool change"].attributes["callgate.decision"] == "deny"
    assert "run change" not in spans
    assert spans["execute_tool unknown"].attributes["error.type"] == "not_found"


async def test_arguments_are_in_a_span_by_choice_and_redacted(collector: Collector, ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text("[telemetry]\nenabled = true\narguments = true\n")
    async with Gate(ws, [look]) as gate:
        await gate.call("look", {"text": "password=hunter2-correct-horse"})
        await asyncio.to_thread(collector.wait_for_spans, 2)
    said = by_name(collector.spans)["execute_tool look"].attributes["gen_ai.tool.call.arguments"]
    assert "hunter2" not in said
    assert said.startswith('{"text"')
    assert b"hunter2" not in b"".join(each.body for each in collector.receiver.requests)


async def test_the_span_of_the_program_is_the_parent(collector: Collector, ws: Path) -> None:
    tracer = TracerProvider().get_tracer("program")
    async with Gate(ws, [look]) as gate:
        with tracer.start_as_current_span("turn") as turn:
            await gate.call("look", {"text": "x"})
        await asyncio.to_thread(collector.wait_for_spans, 2)
    call = by_name(collector.spans)["execute_tool look"]
    context = turn.get_span_context()
    assert (call.trace, call.parent) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert otel_trace.get_tracer_provider() is not None


async def test_a_caller_who_does_not_sample_is_not_sampled(collector: Collector, ws: Path) -> None:
    caller = otel_trace.SpanContext(1, 2, True, otel_trace.TraceFlags(0))
    async with Gate(ws, [look]) as gate:
        with otel_trace.use_span(otel_trace.NonRecordingSpan(caller)):
            result = await gate.call("look", {"text": "x"})
        await gate.call("look", {"text": "y"})
        await asyncio.to_thread(collector.wait_for_spans, 2)
    assert result.text.endswith("-00")
    assert len(collector.spans) == 2


@pytest.mark.parametrize(("sampler", "argument"), [("always_off", ""), ("traceidratio", "0")])
async def test_the_sampler_of_the_variables_counts(
    sampler: str, argument: str, collector: Collector, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    async with Gate(ws, [look]) as gate:
        assert (await gate.call("look", {"text": "x"})).text.endswith("-00")
    assert collector.spans == []


async def test_metrics_are_sent(collector: Collector, ws: Path) -> None:
    async with Gate(ws, [look, change], confirm=deny) as gate:
        for _ in range(3):
            await gate.call("look", {"text": "x"})
        await gate.call("change", {"text": "x"})
    metrics = collector.metrics
    (looked,) = [
        each
        for each in metrics["gen_ai.execute_tool.duration"]
        if {a.key: a.value.string_value for a in each.attributes}["gen_ai.tool.name"] == "look"
    ]
    assert looked.count == 3
    assert sum(each.as_int for each in metrics["callgate.decisions"]) == 4
    assert [each.as_int for each in metrics["callgate.questions"]] == [1]


def test_a_command_line_takes_its_place_from_the_environment(collector: Collector, ws: Path, home: Path) -> None:
    env = {
        "TRACEPARENT": TRACE,
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_SERVICE_NAME": "mine",
    }
    ran = run("call", "shell", "command=echo $TRACEPARENT", "--yes", cwd=ws, env=env)
    assert ran.code == 0, ran
    spans = by_name(collector.spans)
    call = spans["execute_tool shell"]
    assert (call.trace, call.parent) == tuple(TRACE.split("-")[1:3])
    assert ran.out.strip() == f"00-{call.trace}-{spans['run shell'].id}-01"
    assert collector.resources[0]["service.name"] == "mine"


async def test_nothing_is_lost_while_the_collector_is_away(
    home: Path, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "settings.toml").write_text("[telemetry]\nenabled = true\nflush_seconds = 0.2\n")
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    async with Gate(ws, [look]) as gate:
        for _ in range(5):
            assert (await gate.call("look", {"text": "x"})).ok
    with collecting(port) as collector:
        (home / "settings.toml").write_text("[telemetry]\nenabled = true\n")
        async with Gate(ws, [look]) as gate:
            assert (await gate.call("look", {"text": "x"})).ok
            await asyncio.to_thread(collector.wait_for_spans, 12)
        calls = [each for each in collector.spans if each.name == "execute_tool look"]
        assert len(calls) == len({each.id for each in calls}) == 6


KILLED = """
import asyncio, os, signal, sys
from callgate import Gate, tool

@tool(side_effects="read")
async def look(text: str) -> str:
    "Look."
    return text

async def main():
    async with Gate(sys.argv[1], [look]) as gate:
        for n in range(7):
            await gate.call("look", {"text": str(n)})
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_the_calls_of_a_killed_process_are_sent_by_the_next(collector: Collector, ws: Path) -> None:
    env = {**os.environ, "OTEL_BSP_SCHEDULE_DELAY": "60000"}
    killed = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", KILLED, str(ws)], env=env)
    assert killed.returncode == -signal.SIGKILL
    assert collector.spans == []
    async with Gate(ws, [look]) as gate:
        await gate.call("look", {"text": "x"})
        await asyncio.to_thread(collector.wait_for_spans, 16)
    calls = [each.id for each in collector.spans if each.name.startswith("execute_tool")]
    assert len(calls) == len(set(calls)) == 8


async def test_of_two_processes_one_sends_for_both(collector: Collector, ws: Path, home: Path) -> None:
    async with Gate(ws, [look]) as first, Gate(ws, [look]) as second:
        await first.call("look", {"text": "x"})
        await second.call("look", {"text": "x"})
        await asyncio.to_thread(collector.wait_for_spans, 4)
    assert len({each.id for each in collector.spans}) == len(collector.spans) == 4


async def test_history_before_it_was_on_is_not_sent(collector: Collector, ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text("")
    async with Gate(ws, [look]) as gate:
        await gate.call("look", {"text": "before"})
    (home / "settings.toml").write_text("[telemetry]\nenabled = true\n")
    async with Gate(ws, [look]) as gate:
        await gate.call("look", {"text": "after"})
        await asyncio.to_thread(collector.wait_for_spans, 2)
    assert len(collector.spans) == 2


LOADED = """
import asyncio, sys
from callgate import Gate, tool

@tool(side_effects="read")
async def look() -> str:
    "Look."
    return "x"

async def main():
    async with Gate(sys.argv[1], [look]) as gate:
        assert (await gate.call("look")).ok

asyncio.run(main())
print(sorted(name for name in sys.modules if "opentelemetry" in name or "telemetry" in name or name.endswith("core.traces")))
"""


def test_nothing_of_it_is_loaded_where_it_is_off(ws: Path, home: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOADED, str(ws)], capture_output=True, text=True, env=os.environ, check=True
    )
    assert ran.stdout == "[]\n"


@pytest.mark.usefixtures("no_clock")
async def test_a_call_makes_few_more_function_calls_where_it_is_on(collector: Collector, ws: Path, home: Path) -> None:
    async def least() -> int:
        async with Gate(ws, [plain]) as gate:
            for _ in range(5):
                await gate.call("plain")
            return min([await count(lambda: gate.call("plain")) for _ in range(20)])

    on = await least()
    (home / "settings.toml").write_text("")
    assert on - await least() <= 40


async def test_without_the_extra_calls_run_and_the_log_says_so(
    collector: Collector, ws: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with caplog.at_level(logging.ERROR):
        async with Gate(ws, [look]) as gate:
            assert (await gate.call("look", {"text": "x"})).text == "nowhere"
    assert "callgate[otel]" in caplog.text


async def test_an_exporter_that_is_not_installed_is_said_and_stops_no_call(
    collector: Collector, ws: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "pigeon")
    with caplog.at_level(logging.ERROR):
        async with Gate(ws, [look]) as gate:
            assert (await gate.call("look", {"text": "x"})).ok
    assert "telemetry is not sent" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        None,
        3,
        TRACE.upper(),
        TRACE + "-00",
        "ff" + TRACE[2:],
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        "0" * 9999,
    ],
)
def test_what_is_no_traceparent_is_none(text: Any) -> None:
    assert parse_traceparent(text) is None


def test_the_ids_of_a_call_follow_from_it() -> None:
    parent = parse_traceparent(TRACE, "vendor=1")
    assert parent is not None
    given = call_trace("tu_1", parent)
    assert (given.trace_id, given.span_id) == (parent.trace_id, span_id("tu_1", "run"))
    assert given.carrier == {"traceparent": given.traceparent, "tracestate": "vendor=1"}
    assert call_trace("tu_1", None) == call_trace("tu_1", None) != call_trace("tu_2", None)
    assert parse_traceparent(TRACE, "a\nb") == parse_traceparent(TRACE)
    assert json.dumps(given.carrier)
