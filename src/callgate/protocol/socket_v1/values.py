"""Values in the socket's frames: descriptors of tools and questions, events, results.

The runtime's own keys in `meta` and `details` override equal keys of a tool. Details that are not
an object are sent unchanged, and the runtime's keys are then in `meta.errorInfo`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from callgate.core import calls, events
from callgate.core.calls import ErrorInfo, ToolResult
from callgate.core.content import TextBlock
from callgate.core.effects import Capability, SideEffects, derive, implied
from callgate.core.errors import ToolErrorClass
from callgate.core.events import Event
from callgate.core.tools import ToolDefinition
from callgate.protocol.provider_shapes import to_mcp
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.frames import (
    Artifact,
    Code,
    Descriptor,
    Diagnostic,
    Envelope,
    Failure,
    Happened,
    Happening,
    Log,
    Part,
    PartialText,
    Progress,
    Question,
)
from callgate.protocol.strict_json import MAX_LINE

_SPELT: dict[Capability, tuple[str, ...]] = {
    Capability.PURE: ("read-only",),
    Capability.MUTATES_EXTERNAL: ("accesses-network", "destructive"),
}
CAPABILITIES = (
    "read-only",
    "writes-files",
    "controls-browser",
    "starts-process",
    "accesses-network",
    "destructive",
)
"""The six capabilities of this wire, in its order."""
_FRAME = 1024
"""Maximum bytes around the questions of a list."""


def describe(definition: ToolDefinition, timeout_s: float | None = None) -> Descriptor:
    """Describe a tool. `timeout_s`: the limit if the definition has none."""
    effect = definition.effect
    limit_s = definition.timeout_s or timeout_s
    return Descriptor(
        name=definition.name,
        description=definition.description,
        input_schema=definition.input_schema,
        capabilities=_capabilities(definition, effect),
        side_effects=effect,
        timeout_ms=None if limit_s is None else max(1, round(limit_s * 1000)),
        tags=sorted(definition.tags),
        annotations=to_mcp(definition)["annotations"],
    )


def _capabilities(definition: ToolDefinition, effect: SideEffects) -> list[str]:
    declared = definition.capabilities
    if derive(declared) != effect:
        declared |= implied(effect)
    spelt = {word for each in declared for word in _SPELT.get(each, (each.value,))}
    return [word for word in CAPABILITIES if word in spelt]


def questions(confirmations: Iterable[Any]) -> list[Question]:
    """Convert confirmations of the dispatcher, by the names of their attributes.

    If they do not fit into a line, previews are omitted: the approver can still see large
    arguments.
    """
    listed = [msgspec.convert(each, Question, from_attributes=True) for each in confirmations]
    if len(msgspec.json.encode(listed)) < MAX_LINE - _FRAME:
        return listed
    return [msgspec.structs.replace(each, preview=None) for each in listed]


HAPPENINGS = frozenset(
    {events.PROGRESS, events.OUTPUT_DELTA, "tool.log", "tool.part", "tool.artifact"}
)
"""The types of events that the caller receives."""
_LEVELS = {"debug": "debug", "info": "info", "warn": "warn", "warning": "warn", "error": "error"}


def happening(event: Event) -> Happening | None:
    """Convert an event for its caller; None if the caller does not receive it."""
    payload = event.payload
    match event.type:
        case events.PROGRESS:
            return Progress(
                message=_text(payload, "message"), fraction=_fraction(payload.get("fraction"))
            )
        case events.OUTPUT_DELTA:
            text = _text(payload, "text") or ""
            return PartialText(text=text, stream=_text(payload, "stream"))
        case "tool.log":
            level = _LEVELS.get(str(payload.get("level")), "info")
            return Log(level=level, message=_text(payload, "message") or "")
        case "tool.part":  # a piece of a host's result, of any shape
            return Part(part=payload.get("payload"))
        case "tool.artifact":
            return _artifact(payload)
    return None


def happened(event: Event) -> Happened:
    """Convert an event for a subscriber."""
    return Happened(
        id=event.id,
        timestamp=event.timestamp,
        session_id=event.session_id,
        turn_id=event.turn_id,
        parent_event_id=event.parent_event_id,
        type=event.type,
        actor=event.actor,
        payload=dict(event.payload),
        sensitivity=event.sensitivity,
    )


def _artifact(payload: Mapping[str, Any]) -> Artifact:
    return Artifact(
        mime_type=_text(payload, "mime_type") or "application/octet-stream",
        name=_text(payload, "name"),
        data_base64=_text(payload, "data_base64"),
        path=_text(payload, "path"),
    )


def _text(payload: Mapping[str, Any], key: str) -> str | None:
    value = payload.get(key)
    return value if value is None or isinstance(value, str) else str(value)


def _fraction(value: Any) -> float | None:
    """Return a fraction from 0 to 1: tools count past the end and divide by zero."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return min(max(float(value), 0.0), 1.0)


CODES = {
    ToolErrorClass.NOT_FOUND: Code.UNKNOWN_TOOL,
    ToolErrorClass.VALIDATION_ERROR: Code.VALIDATION_ERROR,
    ToolErrorClass.PERMISSION_DENIED: Code.PERMISSION_DENIED,
    ToolErrorClass.USER_DENIED: Code.PERMISSION_DENIED,
    ToolErrorClass.CONFIRMATION_TIMEOUT: Code.PERMISSION_DENIED,
    ToolErrorClass.TIMEOUT: Code.TIMEOUT,
    ToolErrorClass.EXECUTION_ERROR: Code.TOOL_FAILED,
    ToolErrorClass.CANCELLED: Code.CANCELLED,
    ToolErrorClass.SHUTTING_DOWN: Code.RUNTIME_SHUTTING_DOWN,
    ToolErrorClass.PROTOCOL_ERROR: Code.PROTOCOL_ERROR,
    ToolErrorClass.HOST_UNAVAILABLE: Code.TOOL_FAILED,
    ToolErrorClass.PARSE_ERROR: Code.PROTOCOL_ERROR,
}
_CODE_NAMES = frozenset(Code)
TOLD_ELSEWHERE = ("diagnostics", "reason", "details")
"""Keys of a tool's metadata that have separate fields in the envelope."""
_NOTHING = [TextBlock("")]


def envelope(result: ToolResult) -> Envelope:
    return Envelope(
        ok=result.ok,
        content=_content(result),
        meta=_meta(result),
        diagnostics=list(map(_diagnostic, result.diagnostics)),
        error=None if result.error is None else _failure(result.error),
    )


def uncut(request_id: str, result: ToolResult) -> frames.ToolResult:
    """Return the complete result, next to an envelope without its content.

    A value that equals the text of the only block is omitted.
    """
    meta = {"callId": result.call_id, "durationMs": result.duration_ms}
    error = None if result.error is None else _failure(result.error)
    fields = msgspec.structs.asdict(result)
    del fields["diffs"], fields["native"]  # for clients that show a call in a conversation
    if len(result.content) == 1 and result.value == getattr(result.content[0], "text", None):
        del fields["value"]  # it repeats the text
    written: Any = fields
    try:  # a tool may put any value into its metadata
        written = msgspec.Raw(msgspec.json.encode(fields, enc_hook=repr))
    except (TypeError, ValueError, RecursionError):
        pass  # JSON cannot express it, which the wire reports
    envelope = Envelope(ok=result.ok, meta=meta, error=error)
    return frames.ToolResult(request_id=request_id, result=envelope, whole=written)


def _diagnostic(diagnostic: str | calls.Diagnostic) -> Diagnostic:
    if isinstance(diagnostic, str):
        return Diagnostic(level="info", message=diagnostic)
    return Diagnostic(level=diagnostic.level, message=diagnostic.message)


def _content(result: ToolResult) -> Any:
    if result.value is not None:
        return result.value
    if result.error is not None:  # the content repeats the error's message
        return UNSET
    return None if result.content == _NOTHING else result.content


def _meta(result: ToolResult) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    if result.meta:
        meta = {key: value for key, value in result.meta.items() if key not in TOLD_ELSEWHERE}
    meta["callId"] = result.call_id
    meta["durationMs"] = result.duration_ms
    if result.files_modified is not None:
        meta["filesModified"] = result.files_modified
    if result.command_executed is not None:
        meta["commandExecuted"] = result.command_executed
    if result.partial:
        meta["partial"] = True
    if result.truncated:
        meta["truncated"] = True
    if result.error is not None and not _has_fields(result.error):
        meta["errorInfo"] = _own_fields(result.error)
    return meta


def _has_fields(error: ErrorInfo) -> bool:
    """Whether the details can contain the runtime's keys."""
    return error.details is None or isinstance(error.details, Mapping)


def _own_fields(error: ErrorInfo) -> dict[str, Any]:
    fields: dict[str, Any] = {"errorClass": error.error_class}
    if error.reason is not None:
        fields["reason"] = error.reason
    if error.correlation_id is not None:
        fields["correlationId"] = error.correlation_id
    return fields


def _failure(error: ErrorInfo) -> Failure:
    details = error.details
    if _has_fields(error):
        details = {**error.detail_fields, **_own_fields(error)}
    code = error.detail_fields.get("code")  # a tool may choose one for its own failure
    if isinstance(code, str) and code in _CODE_NAMES:
        wire_code = Code(code)
    else:
        wire_code = CODES[error.error_class]
    return Failure(code=wire_code, message=error.message, details=details)
