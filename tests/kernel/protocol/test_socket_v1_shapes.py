"""Our values in the socket's spelling: results, events, tools and questions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from callgate.core.calls import Diagnostic, ErrorInfo, ToolResult
from callgate.core.content import ImageBlock, ImageSource, TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolError, ToolErrorClass, ToolValidationError
from callgate.core.events import Event
from callgate.core.schemas import ArgumentSchema
from callgate.core.tools import ToolDefinition
from callgate.dispatch.permission.confirmations import Confirmation
from callgate.protocol.socket_v1.frames import Code
from callgate.protocol.socket_v1.values import CAPABILITIES, CODES, describe, envelope, happened, happening, questions


def done(**more: Any) -> ToolResult:
    given: dict[str, Any] = {"call_id": "tu_1", "tool": "echo", "ok": True, "content": [TextBlock("")], **more}
    return ToolResult(**given)


def written(result: ToolResult) -> Any:
    return msgspec.to_builtins(envelope(result))


META = {"callId": "tu_1", "durationMs": 0.0}


@pytest.mark.spec("S0-30")
def test_every_error_class_has_a_code_and_every_code_a_class() -> None:
    assert set(CODES) == set(ToolErrorClass)
    assert set(CODES.values()) == set(Code)


@pytest.mark.spec("S0-25")
@pytest.mark.spec("T-15")
@pytest.mark.parametrize("value", [None, 0, "", [], False, {"ok": False}, {"a": 1}])
def test_a_value_is_the_content_also_where_it_is_empty(value: Any) -> None:
    assert written(done(value=value)) == {"ok": True, "content": value, "meta": META}


def test_what_a_tool_only_shows_is_a_list_of_blocks() -> None:
    shown = [TextBlock("see"), ImageBlock(ImageSource(data="AA=="), "image/png")]
    assert written(done(content=shown))["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image", "source": {"kind": "base64", "data": "AA=="}, "media_type": "image/png"},
    ]


@pytest.mark.spec("S0-27", "S0-32")
@pytest.mark.parametrize("error_class", ToolErrorClass)
def test_a_failure_has_its_code_message_and_details(error_class: ToolErrorClass) -> None:
    error = ErrorInfo(
        error_class=error_class,
        message="no",
        reason="why",
        details={"n": 1, "errorClass": "mine"},
        correlation_id="tu_1",
    )
    assert written(done(ok=False, content=[TextBlock("no")], error=error)) == {
        "ok": False,
        "meta": META,
        "error": {
            "code": CODES[error_class],
            "message": "no",
            "details": {"n": 1, "errorClass": error_class, "reason": "why", "correlationId": "tu_1"},
        },
    }


@pytest.mark.spec("S0-33")
def test_a_validation_error_names_the_fields() -> None:
    schema = ArgumentSchema({"type": "object", "properties": {"text": {"type": "string"}}}, "echo")
    with pytest.raises(ToolValidationError) as refused:
        schema.check({"text": 1, "txt": 2})
    failure = envelope(done(ok=False, error=ErrorInfo.of(refused.value, "probe"))).error
    assert failure is not None and failure.code == "VALIDATION_ERROR"
    assert {each["path"] for each in failure.details["errors"]} == {"text", "txt"}
    assert failure.details["errorClass"] == "validation_error"


def test_a_stopped_call_keeps_what_it_had() -> None:
    error = ErrorInfo.of(ToolError("stopped"), "probe")
    result = written(done(ok=False, value="half", partial=True, error=error))
    assert (result["content"], result["meta"]["partial"]) == ("half", True)


@pytest.mark.spec("S0-29")
def test_meta_is_an_object_and_diagnostics_have_levels() -> None:
    meta = {"diagnostics": ["careful"], "mine": 1, "durationMs": "forged", "callId": "forged"}
    result = done(
        value=1,
        meta=meta,
        diagnostics=("careful", Diagnostic("late", "warn")),
        files_modified=["a"],
        command_executed="ls",
        truncated=True,
        duration_ms=1.5,
    )
    assert written(result) == {
        "ok": True,
        "content": 1,
        "meta": {
            "mine": 1,
            "durationMs": 1.5,
            "callId": "tu_1",
            "filesModified": ["a"],
            "commandExecuted": "ls",
            "truncated": True,
        },
        "diagnostics": [
            {"level": "info", "message": "careful"},
            {"level": "warn", "message": "late"},
        ],
    }


def event(type: str, payload: dict[str, Any]) -> Event:
    return Event(id="01", timestamp=1.5, session_id="sess_1", type=type, actor="tool", payload=payload)


@pytest.mark.parametrize(
    ("type", "payload", "told"),
    [
        (
            "tool.progress",
            {"message": "half", "fraction": 0.5},
            {"kind": "progress", "message": "half", "fraction": 0.5},
        ),
        ("tool.progress", {"message": None, "fraction": None}, {"kind": "progress"}),
        ("tool.progress", {"fraction": 7}, {"kind": "progress", "fraction": 1.0}),
        ("tool.progress", {"fraction": float("nan"), "message": 3}, {"kind": "progress", "message": "3"}),
        (
            "tool.output_delta",
            {"stream": "stderr", "text": "x"},
            {"kind": "partial_text", "text": "x", "stream": "stderr"},
        ),
        ("tool.log", {"level": "warning", "message": "m"}, {"kind": "log", "level": "warn", "message": "m"}),
        ("tool.log", {"level": "LOUD", "message": "m"}, {"kind": "log", "level": "info", "message": "m"}),
        ("tool.part", {"payload": "x"}, {"kind": "part", "part": "x"}),
        ("tool.part", {"payload": {"text": "x"}}, {"kind": "part", "part": {"text": "x"}}),
        ("tool.part", {"payload": {"n": 1}}, {"kind": "part", "part": {"n": 1}}),
        (
            "tool.artifact",
            {"mime_type": "image/png", "name": "a", "data_base64": "AA=="},
            {"kind": "artifact", "mimeType": "image/png", "name": "a", "dataBase64": "AA=="},
        ),
    ],
)
def test_what_a_running_call_says_has_a_kind_that_clients_know(type: str, payload: dict[str, Any], told: Any) -> None:
    assert msgspec.to_builtins(happening(event(type, payload))) == told


def test_other_events_say_nothing_to_the_caller() -> None:
    assert happening(event("tool.called", {"tool_name": "echo"})) is None


def test_a_subscriber_sees_the_whole_event() -> None:
    assert msgspec.to_builtins(happened(event("tool.called", {"tool_name": "echo"}))) == {
        "id": "01",
        "timestamp": 1.5,
        "sessionId": "sess_1",
        "type": "tool.called",
        "actor": "tool",
        "payload": {"tool_name": "echo"},
        "sensitivity": "private",
    }


SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


@pytest.mark.spec("S0-23")
@pytest.mark.parametrize(
    ("declared", "capabilities", "effect"),
    [
        ({"capabilities": frozenset({Capability.PURE})}, ["read-only"], "none"),
        ({"side_effects": SideEffects.READ}, ["read-only"], "read"),
        (
            {"side_effects": SideEffects.WRITE, "capabilities": frozenset({Capability.DESTRUCTIVE})},
            ["writes-files", "destructive"],
            "write",
        ),
        ({"capabilities": frozenset({Capability.MUTATES_EXTERNAL})}, ["accesses-network", "destructive"], "network"),
        ({"capabilities": frozenset({Capability.CONTROLS_BROWSER})}, ["controls-browser"], "network"),
        ({"side_effects": SideEffects.EXECUTE}, ["starts-process"], "execute"),
        ({}, ["starts-process"], "execute"),
    ],
)
def test_a_tool_is_described_with_the_six_capabilities(declared: Any, capabilities: list[str], effect: str) -> None:
    definition = ToolDefinition(name="t", description="d", input_schema=SCHEMA, tags=frozenset({"b", "a"}), **declared)
    described = msgspec.to_builtins(describe(definition, timeout_s=60))
    annotations = described.pop("annotations")
    assert annotations["readOnlyHint"] == (effect in ("none", "read"))
    assert described == {
        "name": "t",
        "description": "d",
        "inputSchema": SCHEMA,
        "capabilities": capabilities,
        "sideEffects": effect,
        "timeoutMs": 60_000,
        "tags": ["a", "b"],
    }


def test_every_capability_of_ours_has_words_among_the_six() -> None:
    for each in Capability:
        definition = ToolDefinition(name="t", description="d", input_schema=SCHEMA, capabilities=frozenset({each}))
        words = describe(definition).capabilities
        assert words and set(words) <= set(CAPABILITIES)


def test_a_question_is_shown_with_all_that_the_dispatcher_says() -> None:
    asked = Confirmation(
        id="c1",
        event_id="e1",
        call_id="tu_1",
        tool_use_id="tu_1",
        session_id="sess_1",
        turn_id=None,
        tool="write_file",
        side_effects=SideEffects.WRITE,
        destructive=False,
        arguments={"path": "a"},
        arguments_sha256="00ff",
        workspace="/w",
        why="asked",
        input_summary="path=a",
        preview="+x",
        projected_modifications=("a",),
        expires_at=300.0,
    )
    assert msgspec.to_builtins(questions([asked])[0]) == {
        "id": "c1",
        "callId": "tu_1",
        "toolUseId": "tu_1",
        "sessionId": "sess_1",
        "tool": "write_file",
        "sideEffects": "write",
        "destructive": False,
        "arguments": {"path": "a"},
        "argumentsSha256": "00ff",
        "workspace": "/w",
        "why": "asked",
        "inputSummary": "path=a",
        "preview": "+x",
        "projectedModifications": ["a"],
        "expiresAt": 300.0,
    }
