"""Output of a tool: text, size, value, recorded beginning, and progress without secrets.

A stream may deliver a secret in two pieces. Complete lines are passed on immediately. The last
word of an incomplete line waits for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from callgate.core.calls import Diagnostic, ErrorInfo, ToolCall, ToolResult
from callgate.core.content import ContentBlock, TextBlock
from callgate.core.errors import ToolError
from callgate.core.events import OUTPUT_DELTA
from callgate.core.tools import ToolOutput
from callgate.redaction.data import LONGEST, redact_value
from callgate.redaction.texts import redact

MOST_DISPLAYED = 16_384
"""Maximum bytes of a tool's display data in events; the result has all of it."""


def completed_result(
    call: ToolCall,
    output: ToolOutput,
    content: list[ContentBlock],
    error: ErrorInfo | None,
    duration_ms: float,
) -> ToolResult:
    """Return the result of a call whose tool finished. `error` is the tool's own report."""
    return ToolResult(
        call_id=call.id,
        tool=call.tool,
        ok=output.success,
        content=content,
        value=output.value if output.value is not msgspec.UNSET else value_of(output, content),
        error=error,
        diagnostics=diagnostics(output.metadata) if output.metadata else (),
        meta=output.metadata,
        files_modified=output.files_modified,
        command_executed=output.command_executed,
        truncated=output.truncated,
        duration_ms=duration_ms,
        diffs=output.diffs,
        native=output.native,
    )


def failed_result(
    call: ToolCall,
    error: ErrorInfo,
    content: list[ContentBlock],
    duration_ms: float,
    partial: ToolOutput | None = None,
) -> ToolResult:
    """Return the result of a call that was refused, failed or was stopped, with its partial
    output."""
    return ToolResult(
        call_id=call.id,
        tool=call.tool,
        ok=False,
        content=content,
        value=None if partial is None else value_of(partial, content),
        error=error,
        partial=partial is not None,
        files_modified=None if partial is None else partial.files_modified,
        command_executed=None if partial is None else partial.command_executed,
        duration_ms=duration_ms,
        diffs=() if partial is None else partial.diffs,
    )


def handled(output: ToolOutput, content: list[ContentBlock]) -> ToolError:
    return ToolError(
        text_of(content)[:2_000] or "The tool reported failure.",
        reason=str(output.metadata.get("reason", "tool_reported")),
        details=output.metadata.get("details"),
    )


def diagnostics(metadata: Mapping[str, Any]) -> tuple[str | Diagnostic, ...]:
    found = metadata.get("diagnostics", ())
    return tuple(map(_diagnostic, found)) if isinstance(found, list | tuple) else ()


def _diagnostic(found: Any) -> str | Diagnostic:
    if not isinstance(found, dict) or not isinstance(message := found.get("message"), str):
        return str(found)
    level = found.get("level")
    return Diagnostic(message, level) if level in ("warn", "error") else message


def display_of(metadata: Mapping[str, Any]) -> Any:
    """Return a tool's display data without secrets; None if there is none, or too much for an
    event."""
    display = metadata.get("display")
    if not isinstance(display, dict):
        return None
    try:
        encoded = msgspec.json.encode(display)
    except (TypeError, ValueError, RecursionError):  # a function may return any value
        return None
    return redact_value(display) if len(encoded) <= MOST_DISPLAYED else None


def value_of(output: ToolOutput, content: list[ContentBlock]) -> Any:
    if output.value is not msgspec.UNSET:
        return output.value
    if len(content) == 1 and isinstance(content[0], TextBlock):
        return content[0].text
    try:
        return msgspec.to_builtins(content)
    except (TypeError, ValueError, RecursionError):  # a tool's own block may contain any value
        return None


def beginning(content: list[ContentBlock]) -> str:
    """Return the redacted beginning of a result. Redaction sees a longer text, so that it
    recognizes a secret across the cut."""
    match content:
        case [block] if type(block) is TextBlock:
            text = block.text
        case _:
            text = text_of(content)
    if not text[5:6]:  # too short for a name and a secret
        return text
    return redact(text[: 5 * LONGEST])[:LONGEST]


def text_of(content: list[ContentBlock]) -> str:
    if len(content) == 1 and type(content[0]) is TextBlock:
        return content[0].text
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


def size_of(content: list[ContentBlock]) -> int:
    size = 0
    for block in content:
        if type(block) is TextBlock:
            text = block.text
            size += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        else:
            size += len(msgspec.json.encode(block))
    return size


KEPT_OUTPUT = 1024 * 1024
"""Maximum characters of one call's output that are stored as events; live readers see all."""

_encode = msgspec.json.Encoder(enc_hook=str).encode

_LONGEST_LINE = 1_024


class OutputRedactor:
    """Redacts the output of one call as it arrives."""

    def __init__(self) -> None:
        self._unfinished: dict[str, str] = {}
        """The unfinished line at the end of each output stream."""
        self._printed = 0

    @property
    def worth_keeping(self) -> bool:
        """Whether the output so far is small enough to be stored as events."""
        return self._printed <= KEPT_OUTPUT

    def of(self, event_type: str, payload: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the redacted payloads that can be published now."""
        if event_type == OUTPUT_DELTA:
            payload = self._finished(payload)
            if not payload["text"]:
                return
            self._printed += len(payload["text"])
        shown = {str(key): _shown(value) for key, value in payload.items()}
        if event_type != OUTPUT_DELTA:
            self._printed += len(_encode(shown))
        yield shown

    def flush(self) -> Iterator[dict[str, Any]]:
        """Yield the rest of each stream at its end."""
        for stream, text in self._unfinished.items():
            yield {"stream": stream, "text": redact(text)}
        self._unfinished = {}

    def _finished(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        stream = str(payload["stream"])
        text = self._unfinished.pop(stream, "") + str(payload["text"])
        begins = max(text.rfind("\n"), text.rfind("\r")) + 1
        if len(text) - begins > _LONGEST_LINE:
            begins = _last_word(text)
        if 0 < len(text) - begins <= _LONGEST_LINE:
            self._unfinished[stream] = text[begins:]
            text = text[:begins]
        return {**payload, "stream": stream, "text": text}


def _last_word(text: str) -> int:
    """Return the index of the last word; 0 if it is too long to wait for."""
    for at in range(len(text) - 1, max(len(text) - _LONGEST_LINE - 2, -1), -1):
        if text[at].isspace():
            return at + 1
    return 0


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact_value(value)
