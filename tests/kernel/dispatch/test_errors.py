"""What the agent, the events and the log are told when something goes wrong."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from callgate.core import errors
from callgate.core.content import TextBlock, ToolUseBlock
from callgate.core.errors import ToolError, ToolErrorClass
from callgate.core.tools import ToolOutput
from callgate.tools.files import ReadFile
from tests.support import Bench, make_tool

RAISED = [
    errors.ToolNotFound,
    errors.ToolPermissionDenied,
    errors.WorkspaceEscapeError,
    errors.ToolUserDenied,
    errors.ConfirmationTimeout,
    errors.ToolTimeout,
    errors.ToolExecutionError,
    errors.ToolCancelled,
    errors.ToolShuttingDown,
    errors.ToolProtocolError,
    errors.ToolHostUnavailable,
    errors.ToolParseError,
]
SEED_CLASSES = {
    "not_found",
    "validation_error",
    "permission_denied",
    "user_denied",
    "timeout",
    "execution_error",
    "cancelled",
    "confirmation_timeout",
}


def raising(error: BaseException) -> Any:
    def run(input: Any, context: Any) -> str:
        raise error

    return make_tool(run=run)


@pytest.mark.spec("S4-71", "S4-72")
@pytest.mark.parametrize("kind", RAISED)
async def test_each_error_of_the_tree_reaches_the_agent_with_its_class_and_words(kind: type[ToolError]) -> None:
    bench = Bench("/", raising(kind("the printer is on fire")))
    result = await bench.run("probe")
    assert result.error.error_class is kind.error_class
    assert result.text == "the printer is on fire"
    payload = bench.recorder.one("tool.failed").payload
    assert payload["error_class"] in SEED_CLASSES
    assert payload["message"] == payload["error_message"] == "the printer is on fire"


@pytest.mark.spec("S4-71")
def test_the_classes_of_this_wire_are_exactly_the_eight_of_the_seed() -> None:
    assert {each.in_events.value for each in ToolErrorClass} == SEED_CLASSES
    assert len(ToolErrorClass) == 12


async def test_arguments_that_a_tool_itself_finds_invalid_are_reported_as_such() -> None:
    bench = Bench("/", raising(errors.ToolValidationError("x is odd", validation_errors=["x: odd"])))
    result = await bench.run("probe")
    assert result.error.error_class is ToolErrorClass.VALIDATION_ERROR
    assert [event.type for event in bench.recorder.terminal] == ["tool.input_invalid"]


@pytest.mark.spec("S4-73", "S4-19", "T43")
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("https://u:hunter2hunter2@db/x"),
        SystemExit(3),
        KeyError("k"),
        asyncio.CancelledError(),
        RecursionError(),
    ],
    ids=repr,
)
async def test_an_unexpected_exception_is_hidden_from_the_agent_and_logged_for_operators(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench("/", raising(error))
    with caplog.at_level(logging.ERROR, "callgate"):
        block = await bench.dispatcher.dispatch(ToolUseBlock("a", "probe", {}), bench.session)
    assert block.is_error
    shown = f"Tool 'probe' failed unexpectedly ({type(error).__name__}). Only the log has the details."
    assert block.content == [TextBlock(shown)]
    payload = bench.recorder.one("tool.failed").payload
    assert (payload["error_class"], payload["message"]) == ("execution_error", shown)
    assert "Traceback" in caplog.text
    assert "hunter2hunter2" not in caplog.text


@pytest.mark.spec("S4-73")
@pytest.mark.parametrize("kind", RAISED)
async def test_a_hidden_error_says_which_tool_failed_and_why_in_a_safe_sentence(kind: type[ToolError]) -> None:
    bench = Bench("/", raising(kind("password is hunter2hunter2", is_user_visible=False, reason="no_paper")))
    result = await bench.run("probe")
    assert result.error.error_class is kind.error_class
    assert result.text == result.error.message
    assert result.text.startswith("Tool 'probe' ")
    assert "(no_paper)" in result.text
    assert "hunter2" not in str(result) + str(bench.recorder.events)


async def test_a_hidden_reason_that_is_not_one_word_is_not_repeated() -> None:
    error = errors.ToolExecutionError("secret", is_user_visible=False, reason="at /home/ada: hunter2")
    result = await Bench("/", raising(error)).run("probe")
    assert result.text == "Tool 'probe' failed unexpectedly. Only the log has the details."


@pytest.mark.parametrize("details", [[1, {"a": None}], "text", 7, 2.5, True, False, [], "", 0, {"a": 1}])
@pytest.mark.parametrize("kind", [errors.ToolExecutionError, errors.ToolCancelled])
async def test_the_details_of_an_error_are_any_json_value(kind: type[ToolError], details: Any) -> None:
    result = await Bench("/", raising(kind("no", details=details))).run("probe")
    assert (result.error.error_class, result.error.message, result.error.details) == (kind.error_class, "no", details)


async def test_an_exception_can_be_found_in_the_log_by_its_correlation_id(caplog: Any) -> None:
    bench = Bench("/", raising(RuntimeError("x")))
    with caplog.at_level(logging.ERROR, "callgate"):
        result = await bench.run("probe")
    assert result.error.correlation_id in caplog.text


@pytest.mark.parametrize("output", [None, 3, {"ok": True}, [], ToolOutput(content=["text"]), ToolOutput(content=None)])
async def test_a_tool_that_returns_nonsense_fails_like_any_other(output: Any) -> None:
    bench = Bench("/", make_tool(run=lambda i, c: output))
    result = await bench.run("probe")
    assert result.error.error_class is ToolErrorClass.EXECUTION_ERROR
    assert [e.type for e in bench.recorder.terminal] == ["tool.failed"]


async def test_a_factory_that_fails_is_a_failed_call_and_frees_its_slot() -> None:
    broken = False
    Probe = make_tool()

    def factory() -> Any:
        if broken:
            raise RuntimeError("no instance")
        return Probe()

    bench = Bench("/", factory)
    broken = True
    for _ in range(6):
        assert (await bench.run("probe")).error.error_class is ToolErrorClass.EXECUTION_ERROR
    assert len(bench.recorder.terminal) == 6
    broken = False
    assert (await bench.run("probe")).ok


@pytest.mark.spec("S4-74", "T-4")
async def test_a_missing_file_is_named_to_the_agent(tmp_path: Any) -> None:
    bench = Bench(tmp_path, ReadFile)
    result = await bench.run("read_file", {"path": "no/such.txt"})
    assert result.error.error_class is ToolErrorClass.EXECUTION_ERROR
    assert result.error.reason == "file_not_found"
    assert "no/such.txt" in result.text


async def test_a_failing_audit_write_does_not_lose_the_result_but_is_reported_loudly(caplog: Any) -> None:
    bench = Bench("/", make_tool())
    bench.recorder.unwritable = OSError(28, "No space left on device")
    with caplog.at_level(logging.CRITICAL, "callgate"):
        assert (await bench.run("probe")).ok
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]


async def test_lone_surrogates_from_a_tool_break_nothing() -> None:
    bench = Bench("/", make_tool(run=lambda i, c: "a\ud800b"))
    assert (await bench.run("probe")).ok
