"""What came over the socket, as the values that a `Gate` gives; and what never went out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from callgate.core.content import ContentBlock, TextBlock
from callgate.core.errors import ToolError, ToolErrorClass, ToolProtocolError, ToolValidationError
from callgate.core.events import Event
from callgate.core.results import Diagnostic, ErrorInfo, ToolResult
from callgate.protocol import strict_json
from callgate.protocol.ndjson import Unsendable, line
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.results import CODES

_CLASSES = {code.value: error_class for error_class, code in reversed(CODES.items())}
"""For an instance that does not say the finer class."""
_META_FIELDS = frozenset(
    (
        "callId",
        "durationMs",
        "filesModified",
        "commandExecuted",
        "partial",
        "truncated",
        "errorInfo",
    )
)
_DETAIL_FIELDS = ("errorClass", "reason", "correlationId")
_CONTAINERS = (list, tuple, set, frozenset)


def read_reply(tool: str, reply: frames.ToolResult | frames.Error) -> ToolResult:
    """The end of a call. A frame that the instance refused is one as well."""
    if isinstance(reply, frames.Error):
        return refused(tool, ToolProtocolError(reply.message))
    got = reply.result
    meta = got.meta
    value = None if got.content is UNSET else got.content
    error = None if got.ok else _error(got.error, meta.get("errorInfo"))
    partial = meta.get("partial") is True
    content = _blocks(value) if error is None or partial else []
    if error is not None:  # its message is what the tool showed
        content.append(TextBlock(error.message))
    return ToolResult(
        call_id=str(meta.get("callId", "")),
        tool=tool,
        ok=got.ok,
        content=content,
        value=value,
        error=error,
        diagnostics=tuple(map(_diagnostic, got.diagnostics)),
        meta={key: item for key, item in meta.items() if key not in _META_FIELDS},
        files_modified=_texts(meta.get("filesModified")),
        command_executed=_text(meta.get("commandExecuted")),
        partial=partial,
        truncated=meta.get("truncated") is True,
        duration_ms=_number(meta.get("durationMs")),
    )


def _diagnostic(got: frames.Diagnostic) -> str | Diagnostic:
    match got.level:
        case "warn" | "error" as level:
            return Diagnostic(got.message, level)
        case _:
            return got.message


def refused(tool: str, error: ToolError) -> ToolResult:
    """A call that never reached the instance's tools."""
    content: list[ContentBlock] = [TextBlock(error.message)]
    return ToolResult(
        call_id="", tool=tool, ok=False, content=content, error=ErrorInfo.of(error, tool)
    )


def unsendable(request: frames.ToolCall) -> ToolError | None:
    """Why the instance could not read a call: it would not even know which one it was."""
    try:
        data = line(request)
        strict_json.loads(data[:-1])
    except (Unsendable, strict_json.StrictJsonError) as error:
        return _invalid(str(error))
    if b"null" in data and _has_nan(request.arguments):  # which the encoder writes as null
        return _invalid("NaN and infinity are not JSON")
    return None


def read_event(happened: frames.Happened) -> Event:
    actor: Any = happened.actor  # a newer instance may know others
    sensitivity: Any = happened.sensitivity or "private"
    return Event(
        id=happened.id,
        timestamp=happened.timestamp,
        session_id=happened.session_id,
        turn_id=happened.turn_id,
        parent_event_id=happened.parent_event_id,
        type=happened.type,
        actor=actor,
        payload=happened.payload,
        sensitivity=sensitivity,
    )


def _invalid(why: str) -> ToolError:
    return ToolValidationError(f"Invalid arguments: {why}", reason="unsendable")


def _has_nan(arguments: Any) -> bool:
    level = [arguments]
    while level:
        below: list[Any] = []
        for each in level:
            below += each.values() if isinstance(each, Mapping) else each
        if any(isinstance(each, float) and not math.isfinite(each) for each in below):
            return True
        level = [each for each in below if isinstance(each, (Mapping, *_CONTAINERS))]
    return False


def _blocks(value: Any) -> list[ContentBlock]:
    """What a tool showed: blocks as they are, text as text, anything else as its JSON."""
    if value is None:
        return [TextBlock("")]
    if isinstance(value, str):
        return [TextBlock(value)]
    if isinstance(value, list) and value:
        try:
            return msgspec.convert(value, list[ContentBlock])
        except msgspec.ValidationError:
            pass  # a list of something else
    return [TextBlock(msgspec.json.encode(value).decode())]


def _error(failure: frames.Failure | None, fields: Any) -> ErrorInfo:
    """`fields`: what the instance adds where the details are not an object."""
    if failure is None:
        return ErrorInfo(
            error_class=ToolErrorClass.EXECUTION_ERROR, message="The tool reported failure."
        )
    details: Any = None if failure.details is UNSET else failure.details
    if isinstance(details, dict):
        fields = details
        details = {k: v for k, v in details.items() if k not in _DETAIL_FIELDS} or None
    if not isinstance(fields, dict):
        fields = {}
    correlation_id = _text(fields.get("correlationId"))
    return ErrorInfo(
        error_class=_class(failure.code, fields.get("errorClass")),
        message=failure.message,
        reason=_text(fields.get("reason")),
        details=details,
        user_visible=correlation_id is None,
        correlation_id=correlation_id,
    )


def _class(code: str, finer: Any) -> ToolErrorClass:
    try:
        return ToolErrorClass(finer)
    except ValueError:  # an older or a newer instance
        return _CLASSES.get(code, ToolErrorClass.EXECUTION_ERROR)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: Any) -> list[str] | None:
    return list(map(str, value)) if isinstance(value, list) else None


def _number(value: Any) -> float:
    return value if isinstance(value, float | int) else 0.0
