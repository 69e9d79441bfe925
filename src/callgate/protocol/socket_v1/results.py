"""A call's result as the envelope of the socket protocol.

The runtime's own keys in `meta` and `details` stand above those that a tool chose alike. Details
that are not an object are sent as they are, and the runtime's keys are then in `meta.errorInfo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from callgate.core import results
from callgate.core.content import TextBlock
from callgate.core.errors import ToolErrorClass
from callgate.core.results import ErrorInfo, ToolResult
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.frames import Code, Diagnostic, Envelope, Failure

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
"""What a tool puts into its metadata and the envelope has a place of its own for."""
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
    """The result as the runtime has it, beside an envelope without its content.

    A value that is the text of the only block is left out.
    """
    meta = {"callId": result.call_id, "durationMs": result.duration_ms}
    error = None if result.error is None else _failure(result.error)
    fields = msgspec.structs.asdict(result)
    del fields["diffs"], fields["native"]  # for those who show a call in a conversation
    if len(result.content) == 1 and result.value == getattr(result.content[0], "text", None):
        del fields["value"]  # not the same text twice
    written: Any = fields
    try:  # what a tool put into its metadata may be anything
        written = msgspec.Raw(msgspec.json.encode(fields, enc_hook=repr))
    except (TypeError, ValueError, RecursionError):
        pass  # it has no JSON spelling, and the wire says so
    envelope = Envelope(ok=result.ok, meta=meta, error=error)
    return frames.ToolResult(request_id=request_id, result=envelope, whole=written)


def _diagnostic(diagnostic: str | results.Diagnostic) -> Diagnostic:
    if isinstance(diagnostic, str):
        return Diagnostic(level="info", message=diagnostic)
    return Diagnostic(level=diagnostic.level, message=diagnostic.message)


def _content(result: ToolResult) -> Any:
    if result.value is not None:
        return result.value
    if result.error is not None:  # the content is the error's message once more
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
    """Whether the runtime's keys can stand in the details."""
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
    code = error.detail_fields.get("code")  # which a tool may choose for its own failure
    if isinstance(code, str) and code in _CODE_NAMES:
        wire_code = Code(code)
    else:
        wire_code = CODES[error.error_class]
    return Failure(code=wire_code, message=error.message, details=details)
