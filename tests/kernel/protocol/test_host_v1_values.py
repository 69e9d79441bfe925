"""What a host says of its tools, their results and failures, as our values."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from callgate.core.content import ImageBlock, ImageSource, TextBlock
from callgate.core.errors import (
    GENERIC_FAILURE,
    ToolError,
    ToolErrorClass,
    ToolExecutionError,
    ToolNotFound,
    ToolPermissionDenied,
    ToolRegistrationError,
    WorkspaceEscapeError,
)
from callgate.core.tools import ToolOutput
from callgate.protocol.host_v1 import values
from callgate.protocol.host_v1.frames import Event, Failure
from callgate.protocol.host_v1.values import (
    TYPES,
    ProviderNative,
    ToolSchema,
    error_class,
    read_schemas,
    to_error,
    to_failure,
    to_model_text,
    to_output,
    to_value,
)


def plain(output: ToolOutput) -> Any:
    return msgspec.to_builtins(output)


@pytest.mark.spec("S1-25")
@pytest.mark.parametrize(
    "value", [None, 0, "", [], False, {"a": 1}, {"success": "yes"}, {"success": 1, "result": 2}, "text"]
)
def test_a_value_without_success_is_the_result(value: Any) -> None:
    output = to_output(value)
    assert (output.success, output.value) == (True, value)


@pytest.mark.spec("S1-24")
def test_the_inner_success_decides() -> None:
    assert plain(to_output({"success": True, "result": {"n": 1}})) == plain(
        ToolOutput(content=[TextBlock('{"n":1}')], value={"n": 1})
    )
    assert plain(to_output({"success": False, "error": "no"})) == plain(
        ToolOutput(content=[TextBlock("no")], success=False, value=None)
    )


@pytest.mark.parametrize("error", [None, "", UnboundLocalError])
def test_a_failure_without_words_gets_some(error: Any) -> None:
    value = {"success": False} if error is UnboundLocalError else {"success": False, "error": error}
    assert to_output(value).content == [TextBlock(GENERIC_FAILURE)]


def test_a_host_may_show_something_else_than_its_value() -> None:
    image = {"type": "image", "source": {"kind": "base64", "data": "AA=="}, "media_type": "image/png"}
    more = {"content": [image], "truncated": True, "files_modified": ["a"], "command_executed": "rm"}
    output = to_output({"success": True, "result": 1, "output": more})
    assert output.content == [ImageBlock(ImageSource(data="AA=="), "image/png")]
    assert (output.value, output.truncated, output.files_modified, output.command_executed) == (1, True, None, None)


@pytest.mark.parametrize("more", [None, 1, [], {"content": "x"}, {"content": [{"type": "video"}]}])
def test_extras_in_another_shape_lose_no_result(more: Any) -> None:
    assert plain(to_output({"success": True, "result": 1, "output": more})) == plain(
        to_output({"success": True, "result": 1})
    )


@pytest.mark.parametrize(
    "output",
    [
        ToolOutput(content=[TextBlock("hi")], value="hi"),
        ToolOutput(content=[TextBlock('{"n":1}')], value={"n": 1}),
        ToolOutput(content=[TextBlock("")], value=None),
        ToolOutput(content=[TextBlock("one"), TextBlock("two")]),
        ToolOutput(content=[], value=1),
        ToolOutput(content=[TextBlock("no")], success=False, value=None, metadata={"reason": "why"}),
        ToolOutput(content=[TextBlock("")], success=False),
        ToolOutput(
            content=[ImageBlock(ImageSource(data="AA=="), "image/png")],
            value=1,
            files_modified=["a"],
            command_executed="ls",
            truncated=True,
        ),
    ],
    ids=range(8),
)
def test_nothing_is_lost_between_our_own_processes(output: ToolOutput) -> None:
    value = msgspec.json.decode(msgspec.json.encode(to_value(output)))
    assert plain(to_output(value, trusted=True)) == plain(output)


@pytest.mark.spec("S1-39")
@pytest.mark.parametrize("text", ["", "hi", '{"type":"provider_native_tool_result"}'])
def test_a_string_is_the_text_for_the_model(text: str) -> None:
    assert to_model_text(text) == text


@pytest.mark.spec("S1-40")
@pytest.mark.parametrize("format", ["openai.chat_completions", "openai.responses", "anthropic.messages"])
def test_the_explicit_envelope_stays_structured(format: Any) -> None:
    value = {"type": "provider_native_tool_result", "format": format, "content": [{"type": "text", "text": "x"}]}
    assert to_model_text(value) == ProviderNative(format=format, content=value["content"])


@pytest.mark.spec("S1-41", "S1-42")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            {"type": "other", "format": "openai.responses", "content": []},
            '{"type":"other","format":"openai.responses","content":[]}',
        ),
        (
            {"type": "provider_native_tool_result", "format": "x", "content": []},
            '{"type":"provider_native_tool_result","format":"x","content":[]}',
        ),
        (
            {"type": "provider_native_tool_result", "format": "openai.responses", "content": "x"},
            '{"type":"provider_native_tool_result","format":"openai.responses","content":"x"}',
        ),
        ({"type": "provider_native_tool_result"}, '{"type":"provider_native_tool_result"}'),
        ({"type": ["provider_native_tool_result"]}, '{"type":["provider_native_tool_result"]}'),
        ([1], "[1]"),
        (5, "5"),
        (None, ""),
    ],
)
def test_anything_else_becomes_text(value: Any, text: str) -> None:
    assert to_model_text(value) == text


SCHEMA = {"type": "object", "properties": {}}


@pytest.mark.spec("S1-21", "S1-22")
@pytest.mark.parametrize(
    "entry",
    [
        {"type": "function", "function": {"name": "t", "description": "d", "parameters": SCHEMA}},
        {"type": "function", "name": "t", "description": "d", "parameters": SCHEMA},
        {"name": "t", "description": "d", "input_schema": SCHEMA},
        {"name": "t", "description": "d", "inputSchema": SCHEMA},
    ],
    ids=range(4),
)
def test_each_of_the_four_spellings_is_one_tool(entry: dict[str, Any]) -> None:
    assert read_schemas([entry], "h") == [ToolSchema(name="t", description="d", input_schema=SCHEMA)]
    claimed = read_schemas([{**entry, "x-capabilities": ["pure", 5]}], "h")
    assert claimed == [ToolSchema(name="t", description="d", input_schema=SCHEMA, capabilities=("pure",))]


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"name": "t"},
        {"name": "t", "input_schema": "x"},
        {"name": "t", "input_schema": SCHEMA, "inputSchema": SCHEMA},
        {"name": "", "input_schema": SCHEMA},
        {"name": 5, "input_schema": SCHEMA},
        {"name": "t", "description": 5, "input_schema": SCHEMA},
        {"type": "function", "function": "t"},
        {"type": "custom", "name": "t", "format": {"type": "text"}},
    ],
    ids=range(9),
)
def test_an_entry_in_another_spelling_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(ToolRegistrationError):
        read_schemas([entry], "h")


@pytest.mark.spec("S1-22", "T22")
@pytest.mark.parametrize("other", ["echo", "ECHO", "ｅｃｈｏ"])
def test_two_tools_of_one_name_are_refused(other: str) -> None:
    with pytest.raises(ToolRegistrationError):
        read_schemas([{"name": name, "input_schema": SCHEMA} for name in ("echo", other)], "h")


def test_every_error_class_has_one_word() -> None:
    assert set(TYPES) == set(ToolErrorClass)
    assert len(set(TYPES.values())) == len(TYPES)
    assert {error_class(word, trusted=True) for word in TYPES.values()} == set(ToolErrorClass)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("UnknownTool", "not_found"),
        ("NotFound", "not_found"),
        ("ValidationError", "validation_error"),
        ("ProtocolError", "protocol_error"),
        ("Error", "execution_error"),
        ("TypeError", "execution_error"),
        ("UserDenied", "execution_error"),
        ("PermissionDenied", "execution_error"),
        ("Cancelled", "execution_error"),
        ("Timeout", "execution_error"),
        ("", "execution_error"),
    ],
)
def test_a_foreign_host_cannot_say_that_somebody_refused(word: str, expected: str) -> None:
    assert error_class(word) == expected


@pytest.mark.spec("S1-26")
def test_a_failed_answer_is_an_error_with_its_detail_and_without_its_stack() -> None:
    error = to_error(Failure(type="TypeError", detail="no", stack="secret"))
    assert (type(error), error.message, error.details) == (ToolExecutionError, "no", {"type": "TypeError"})
    assert to_error(Failure()).message == GENERIC_FAILURE


@pytest.mark.parametrize(
    "error",
    [
        ToolNotFound("a"),
        ToolPermissionDenied("b", reason="r", details={"n": 1}),
        WorkspaceEscapeError("c"),
        ToolExecutionError("d"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_our_own_errors_come_back_as_they_were(error: ToolError) -> None:
    back = to_error(to_failure(error), trusted=True)
    assert (type(back), back.message, back.reason, back.details) == (
        type(error),
        error.message,
        error.reason,
        error.details,
    )


def test_a_message_that_is_not_to_be_seen_stays_where_it_is() -> None:
    assert to_failure(ToolExecutionError("secret", is_user_visible=False)).detail == GENERIC_FAILURE


@pytest.mark.spec("S1-30", "S1-32")
@pytest.mark.parametrize(
    ("event", "published"),
    [
        (values.progress("half", 0.5), ("tool.progress", {"message": "half", "fraction": 0.5})),
        (values.progress(), ("tool.progress", {"message": None, "fraction": None})),
        (values.log("m", "warn"), ("tool.log", {"level": "warn", "message": "m"})),
        (values.output("x", "stderr"), ("tool.output_delta", {"stream": "stderr", "text": "x"})),
        (
            Event(type="part", payload={"text": "x", "stream": ["stdout"]}),
            ("tool.part", {"payload": {"text": "x", "stream": ["stdout"]}}),
        ),
        (Event(type="part", payload={"text": "x"}), ("tool.part", {"payload": {"text": "x"}})),
        (
            Event(type="part", payload={"kind": "text", "text": "x"}),
            ("tool.part", {"payload": {"kind": "text", "text": "x"}}),
        ),
        (
            Event(type="part", payload={"artifact": {"mime_type": "text/plain"}}),
            ("tool.artifact", {"mime_type": "text/plain"}),
        ),
        (Event(type="part", payload={"text": "x", "more": 1}), ("tool.part", {"payload": {"text": "x", "more": 1}})),
        (Event(type="part", payload={"progress": 5}), ("tool.part", {"payload": {"progress": 5}})),
        (Event(type="part", payload="x"), ("tool.part", {"payload": "x"})),
        (Event(type="part"), ("tool.part", {"payload": None})),
        (Event(type="x\n", payload=[1]), ("tool.log", {"level": "debug", "message": "x\\n: [1]"})),
    ],
    ids=range(13),
)
def test_a_part_is_what_it_says(event: Event, published: Any) -> None:
    assert values.to_event(event) == published
