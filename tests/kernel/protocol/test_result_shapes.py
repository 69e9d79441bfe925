"""Results in the shapes of Anthropic, OpenAI and MCP."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.core.calls import ErrorInfo, ToolResult
from callgate.core.content import ImageBlock, ImageSource, JsonBlock, TextBlock
from callgate.core.errors import ToolErrorClass
from callgate.protocol.provider_shapes import (
    to_anthropic_result,
    to_mcp_result,
    to_openai_chat_result,
    to_openai_responses_result,
)

PICTURE = ImageBlock(ImageSource(data="aGk="), "image/png")
LINKED = ImageBlock(ImageSource(kind="url", data="https://x.test/a.png"), "image/png")
STORED = ImageBlock(ImageSource(kind="file_ref", data="file_1"), "image/png")


def result(*content: Any, **more: Any) -> ToolResult:
    more.setdefault("ok", True)
    return ToolResult(call_id="tu_1", tool="probe", content=list(content), **more)


SHOWN = result(TextBlock("one"), JsonBlock({"a": 1}), PICTURE, LINKED, STORED)
EMPTY = result(TextBlock(""))
FAILED = result(
    TextBlock("No such file."),
    ok=False,
    error=ErrorInfo(
        error_class=ToolErrorClass.EXECUTION_ERROR,
        message="No such file.",
        reason="missing",
        details={"path": "a"},
    ),
)
FAILED_WITH_PICTURE = result(PICTURE, ok=False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            SHOWN,
            {
                "type": "tool_result",
                "tool_use_id": "x",
                "is_error": False,
                "content": [
                    {"type": "text", "text": "one"},
                    {"type": "text", "text": '{"a":1}'},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
                    },
                    {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
                    {"type": "text", "text": "[image image/png file_1]"},
                ],
            },
        ),
        (EMPTY, {"type": "tool_result", "tool_use_id": "x", "is_error": False}),
        (
            FAILED,
            {
                "type": "tool_result",
                "tool_use_id": "x",
                "is_error": True,
                "content": [{"type": "text", "text": "No such file."}],
            },
        ),
    ],
)
def test_anthropic(given: ToolResult, expected: Any) -> None:
    assert to_anthropic_result(given, "x") == expected


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            SHOWN,
            'one\n{"a":1}\n[image image/png]\n[image image/png https://x.test/a.png]\n[image image/png file_1]',
        ),
        (EMPTY, ""),
        (FAILED, "Error: No such file."),
    ],
)
def test_openai_chat(given: ToolResult, text: str) -> None:
    expected = {"role": "tool", "tool_call_id": "x", "content": text}
    assert to_openai_chat_result(given, "x") == expected


@pytest.mark.parametrize(
    ("given", "output"),
    [
        (
            SHOWN,
            [
                {"type": "input_text", "text": "one"},
                {"type": "input_text", "text": '{"a":1}'},
                {"type": "input_image", "image_url": "data:image/png;base64,aGk="},
                {"type": "input_image", "image_url": "https://x.test/a.png"},
                {"type": "input_text", "text": "[image image/png file_1]"},
            ],
        ),
        (EMPTY, ""),
        (FAILED, "Error: No such file."),
        (
            FAILED_WITH_PICTURE,
            [
                {"type": "input_text", "text": "Error:"},
                {"type": "input_image", "image_url": "data:image/png;base64,aGk="},
            ],
        ),
    ],
)
def test_openai_responses(given: ToolResult, output: Any) -> None:
    expected = {"type": "function_call_output", "call_id": "x", "output": output}
    assert to_openai_responses_result(given, "x") == expected
    assert to_openai_responses_result(given, "x", "text") == {
        **expected,
        "type": "custom_tool_call_output",
    }


def test_mcp_shows_blocks_and_notes() -> None:
    given = result(
        *SHOWN.content,
        value={"n": 1},
        meta={"page": 2},
        diagnostics=("slow",),
        files_modified=["a.txt"],
        duration_ms=1.5,
    )
    assert to_mcp_result(given) == {
        "content": [
            {"type": "text", "text": "one"},
            {"type": "text", "text": '{"a":1}'},
            {"type": "image", "data": "aGk=", "mimeType": "image/png"},
            {
                "type": "resource_link",
                "uri": "https://x.test/a.png",
                "name": "https://x.test/a.png",
                "mimeType": "image/png",
            },
            {"type": "text", "text": "[image image/png file_1]"},
        ],
        "isError": False,
        "structuredContent": {"n": 1},
        "_meta": {
            "page": 2,
            "durationMs": 1.5,
            "diagnostics": ["slow"],
            "filesModified": ["a.txt"],
        },
    }


@pytest.mark.parametrize(
    ("value", "structured"),
    [({"a": 1}, {"a": 1}), ([1], {"result": [1]}), (0, {"result": 0}), ("x", {"result": "x"})],
)
def test_mcp_structured_content_is_always_an_object(value: Any, structured: Any) -> None:
    answer = to_mcp_result(result(TextBlock("x"), value=value))
    assert answer["structuredContent"] == structured


def test_mcp_leaves_structured_content_out_where_there_is_no_value() -> None:
    assert "structuredContent" not in to_mcp_result(EMPTY)


@pytest.mark.parametrize("error_class", list(ToolErrorClass))
def test_mcp_carries_every_error_class_in_structured_content(error_class: ToolErrorClass) -> None:
    info = ErrorInfo(error_class=error_class, message="No.", reason="r", details={"k": 1})
    assert to_mcp_result(result(TextBlock("No."), ok=False, error=info)) == {
        "content": [{"type": "text", "text": "No."}],
        "isError": True,
        "structuredContent": {
            "error": {
                "class": error_class.value,
                "message": "No.",
                "reason": "r",
                "details": {"k": 1},
            }
        },
        "_meta": {"durationMs": 0.0},
    }
