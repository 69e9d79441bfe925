"""Texts and keys that the specification quotes stay word for word.

A rewording of our messages must not change them: clients, models and people rely on these words.
"""

import ast
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src"

TEXTS = {
    "results of a dispatcher": (
        "escapes workspace boundary",
        "User denied this operation.",
    ),
    "error classes": (
        "not_found",
        "validation_error",
        "permission_denied",
        "user_denied",
        "timeout",
        "execution_error",
        "cancelled",
        "confirmation_timeout",
    ),
    "events": (
        "tool.called",
        "tool.completed",
        "tool.failed",
        "tool.input_invalid",
        "tool.confirmation_requested",
        "tool.confirmation_resolved",
        "tool.output_delta",
    ),
    "codes of the socket": (
        "UNKNOWN_TOOL",
        "VALIDATION_ERROR",
        "PERMISSION_DENIED",
        "TIMEOUT",
        "TOOL_FAILED",
        "RUNTIME_SHUTTING_DOWN",
        "CANCELLED",
        "PROTOCOL_ERROR",
    ),
    "capabilities": (
        "read-only",
        "writes-files",
        "controls-browser",
        "starts-process",
        "accesses-network",
        "destructive",
    ),
    "modes of an editor": (
        "No tools available.",
        "File reads and searches",
        "Every write or shell command requires approval.",
        "All tools allowed without per-call approval",
    ),
    "answers of an editor": ("Allow", "Always allow ", "Deny", "Always deny "),
    "skills in an editor": ("additional context (optional)",),
    "log of an editor's agent": ("ACP client connected: ",),
    "files of the home": ("config.json", "instances", "audit.jsonl"),
    "methods of a tool host": (
        "init",
        "get_tool_schemas",
        "execute_tool",
        "get_config_schema",
        "get_ui_elements",
        "get_tags",
        "required_tags",
        "format_tool_result",
        "format_tool_call_preview",
        "to_display_format",
        "provider_native_tool_result",
        "openai.chat_completions",
        "openai.responses",
    ),
    "output of a model": (
        "toolCalls",
        "Failed to parse JSON: ",
        "Invalid tool call: ",
    ),
}


@pytest.fixture(scope="module")
def constants() -> set[str]:
    """All texts, parameters and fields in the code; a docstring does not count."""
    found = set()
    for path in sorted(SOURCES.rglob("*.py")):
        statements = set()  # `ast.walk` meets a statement before its value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Expr():
                    statements.add(id(node.value))
                case ast.Constant(value=str(text)) if id(node) not in statements:
                    found.add(text)
                case ast.arg():
                    found.add(node.arg)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(name)
    return found


@pytest.mark.parametrize("area", TEXTS)
def test_the_texts_are_in_the_code(area: str, constants: set[str]) -> None:
    """A text with a blank may be a part of a longer one."""
    missing = [
        text
        for text in TEXTS[area]
        if text not in constants and (" " not in text or not any(text in each for each in constants))
    ]
    assert missing == []
