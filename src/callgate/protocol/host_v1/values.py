"""Values in a host's frames: tools, outputs, parts and failures, in both directions.

    {"success": true, "result": any}         a success; the value is `result`
    {"success": false, "error": "..."}       a failure that the tool reports
    anything without a boolean `success`     a success with that value

Next to `result` or `error` a host may send `output`: the text to show instead of the value, and its
labels. A tool has one of four spellings; any other, or a duplicate name, is refused with its
position:

    {"type": "function", "function": {"name", "description", "parameters"}}
    {"type": "function", "name", "description", "parameters"}
    {"name", "description", "input_schema"}
    {"name", "description", "inputSchema"}

A `part` may be any value. Four shapes of it are events; a text with an unknown stream is an
ordinary part:

    {"progress": {"message"?, "fraction"?}}      {"log": {"level"?, "message"}}
    {"text": "...", "stream": "..."}             {"artifact": {"mime_type", "name"?, ...}}

A host may report that a tool is unknown, that arguments are wrong, or that the wire was misused;
any other code is a failure of the tool. Refusals by a person or a policy count only from a process
that runs our own functions, and from the runtime.
"""

from __future__ import annotations

import unicodedata
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from callgate.core import errors
from callgate.core.content import ContentBlock, FileDiff, NativeResult, TextBlock
from callgate.core.errors import (
    GENERIC_FAILURE,
    ToolError,
    ToolErrorClass,
    ToolRegistrationError,
    add_details,
)
from callgate.core.events import OUTPUT_DELTA, PROGRESS
from callgate.core.tools import OutputStream, ToolOutput
from callgate.protocol.host_v1.frames import Event, Failure, excerpt


class Output(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    content: list[ContentBlock] | UnsetType = UNSET
    metadata: dict[str, Any] = {}
    truncated: bool = False
    files_modified: list[str] | None = None
    """This field and the next one count only from a process that runs our own functions."""
    command_executed: str | None = None
    diffs: tuple[FileDiff, ...] = ()
    """Counts only from a worker."""


_NOTHING_MORE = Output()


class ProviderNative(NativeResult, frozen=True, kw_only=True, tag="provider_native_tool_result"):
    """Tool result in the native form of a model provider."""


def to_output(value: Any, *, trusted: bool = False) -> ToolOutput:
    """Convert a value. `trusted`: it comes from a process that runs our own functions."""
    if type(value) is not dict or type(value.get("success")) is not bool:
        return ToolOutput(content=[TextBlock(_text(value))], value=value)
    more = _more(value.get("output"))
    success = value["success"]
    result = value.get("result")
    text = _text(result) if success else _text(value.get("error")) or GENERIC_FAILURE
    return ToolOutput(
        content=[TextBlock(text)] if more.content is UNSET else more.content,
        success=success,
        value=UNSET if trusted and "result" not in value else result,
        metadata=more.metadata,
        truncated=more.truncated,
        files_modified=more.files_modified if trusted else None,
        command_executed=more.command_executed if trusted else None,
        diffs=more.diffs if trusted else (),
    )


def to_value(output: ToolOutput) -> dict[str, Any]:
    """Convert an output to a value, the inverse of `to_output` between our own processes."""
    value: dict[str, Any] = {"success": output.success}
    if output.value is not UNSET:
        value["result"] = output.value
    text_block = TextBlock(_text(output.value)) if output.success else None
    if not output.success:
        value["error"] = "\n".join(
            block.text for block in output.content if isinstance(block, TextBlock)
        )
        text_block = TextBlock(value["error"] or GENERIC_FAILURE)
    more = Output(
        content=UNSET if output.content == [text_block] else output.content,
        metadata=output.metadata,
        truncated=output.truncated,
        files_modified=output.files_modified,
        command_executed=output.command_executed,
        diffs=output.diffs,
    )
    if more != _NOTHING_MORE:
        value["output"] = msgspec.to_builtins(more)
    return value


def to_model_text(value: Any) -> str | ProviderNative:
    """Convert the value of `format_tool_result`: text, or one structured envelope."""
    if type(value) is dict and value.get("type") == ProviderNative.__struct_config__.tag:
        try:
            return msgspec.convert(value, ProviderNative)
        except msgspec.ValidationError:
            pass
    return _text(value)


def _more(output: Any) -> Output:
    """Parse the extra fields of an output; errors in them do not discard the result."""
    if output is None:
        return _NOTHING_MORE
    try:
        return msgspec.convert(output, Output)
    except msgspec.ValidationError:
        return _NOTHING_MORE


def _text(value: Any) -> str:
    if value is None or value is UNSET:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


_SPELLINGS = ("parameters", "input_schema", "inputSchema")


class ToolSchema(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    input_schema: dict[str, Any]
    capabilities: tuple[str, ...] = ()
    """Capabilities that the host claims in `x-capabilities`; they count only for a trusted host."""


def read_schemas(entries: list[dict[str, Any]], host: str) -> list[ToolSchema]:
    """Parse tool schemas. Raises `ToolRegistrationError`, which names the host and the entry."""
    tools: list[ToolSchema] = []
    names: dict[str, str] = {}
    for number, entry in enumerate(entries):
        tool = _read(entry, f"tool {number} of host {host}")
        same = unicodedata.normalize("NFKC", tool.name).casefold()
        if same in names:
            shown = f"{excerpt(names[same])} and {excerpt(tool.name)}"
            raise ToolRegistrationError(f"host {host} has two tools of one name: {shown}")
        names[same] = tool.name
        tools.append(tool)
    return tools


def _read(entry: dict[str, Any], path: str) -> ToolSchema:
    inner = entry.get("function")
    described = inner if entry.get("type") == "function" and type(inner) is dict else entry
    name, description = described.get("name"), described.get("description", "")
    if type(name) is not str or not name:
        raise ToolRegistrationError(f"{path} has no name")
    if type(description) is not str:
        raise ToolRegistrationError(f"{path} ({excerpt(name)}): the description is no text")
    found = [described[key] for key in _SPELLINGS if key in described]
    if len(found) != 1 or type(found[0]) is not dict:
        raise ToolRegistrationError(
            f"{path} ({excerpt(name)}): one of {', '.join(_SPELLINGS)} has to be an object"
        )
    return ToolSchema(
        name=name,
        description=description,
        input_schema=found[0],
        capabilities=_claims(entry, described, found[0]),
    )


def _claims(*tables: dict[str, Any]) -> tuple[str, ...]:
    for table in tables:
        claimed = table.get("x-capabilities")
        if type(claimed) is list:
            return tuple(each for each in claimed if type(each) is str)
    return ()


_LONGEST_TYPE = 128

TYPES = {each: "".join(map(str.capitalize, each.split("_"))) for each in ToolErrorClass}
"""Wire spelling of the error codes: `not_found` is `NotFound`."""

_OURS = {type: each for each, type in TYPES.items()}
_ANYONES = {
    "UnknownTool": ToolErrorClass.NOT_FOUND,
    "NotFound": ToolErrorClass.NOT_FOUND,
    "ValidationError": ToolErrorClass.VALIDATION_ERROR,
    "ProtocolError": ToolErrorClass.PROTOCOL_ERROR,
}
_ERRORS: dict[ToolErrorClass, type[ToolError]] = {
    ToolErrorClass.NOT_FOUND: errors.ToolNotFound,
    ToolErrorClass.VALIDATION_ERROR: errors.ToolValidationError,
    ToolErrorClass.PERMISSION_DENIED: errors.ToolPermissionDenied,
    ToolErrorClass.USER_DENIED: errors.ToolUserDenied,
    ToolErrorClass.CONFIRMATION_TIMEOUT: errors.ConfirmationTimeout,
    ToolErrorClass.TIMEOUT: errors.ToolTimeout,
    ToolErrorClass.EXECUTION_ERROR: errors.ToolExecutionError,
    ToolErrorClass.CANCELLED: errors.ToolCancelled,
    ToolErrorClass.SHUTTING_DOWN: errors.ToolShuttingDown,
    ToolErrorClass.PROTOCOL_ERROR: errors.ToolProtocolError,
    ToolErrorClass.HOST_UNAVAILABLE: errors.ToolHostUnavailable,
    ToolErrorClass.PARSE_ERROR: errors.ToolParseError,
}


def error_class(type: str, *, trusted: bool = False) -> ToolErrorClass:
    """Return the class of an error. `trusted`: callgate sent the code, not a foreign host."""
    known = _ANYONES.get(type)
    if known is None and trusted:
        known = _OURS.get(type)
    return ToolErrorClass.EXECUTION_ERROR if known is None else known


def to_failure(error: ToolError, stack: str | None = None) -> Failure:
    return Failure(
        type=TYPES[error.error_class],
        detail=error.message if error.is_user_visible else GENERIC_FAILURE,
        stack=stack,
        reason=error.reason,
        details=UNSET if error.details is None else error.details,
    )


def to_error(failure: Failure, *, trusted: bool = False) -> ToolError:
    """Return the error for a failed request, without the stack."""
    kind = _ERRORS[error_class(failure.type, trusted=trusted)]
    if trusted and failure.reason == "workspace_escape":
        kind = errors.WorkspaceEscapeError
    details = None if failure.details is UNSET else failure.details
    if not trusted:  # the host's own code, which may be finer than ours
        details = add_details(details, type=failure.type[:_LONGEST_TYPE])
    is_hidden = failure.detail in ("", GENERIC_FAILURE)
    return kind(
        failure.detail or GENERIC_FAILURE,
        reason=failure.reason,
        details=details,
        is_user_visible=not is_hidden,
    )


LOG = "tool.log"
PART = "tool.part"
ARTIFACT = "tool.artifact"
_STREAMS = frozenset({"stdout", "stderr", "text"})


def progress(message: str | None = None, fraction: float | None = None) -> Event:
    values = {"message": message, "fraction": fraction}
    payload = {key: value for key, value in values.items() if value is not None}
    return Event(type="part", payload={"progress": payload})


def log(message: str, level: str = "info") -> Event:
    return Event(type="part", payload={"log": {"level": level, "message": message}})


def output(text: str, stream: OutputStream = "text") -> Event:
    return Event(type="part", payload={"text": text, "stream": stream})


def to_event(event: Event) -> tuple[str, dict[str, Any]]:
    """Return the type and the payload of an event of a running call."""
    payload: Any = None if event.payload is UNSET else event.payload
    if event.type != "part":
        shown = msgspec.json.encode(payload).decode()
        line = f"{excerpt(event.type)}: {excerpt(shown)}"
        return LOG, {"level": "debug", "message": line}
    match payload:
        case {"progress": dict() as told} if len(payload) == 1:
            return PROGRESS, {key: told.get(key) for key in ("message", "fraction")}
        case {"log": dict() as told} if len(payload) == 1:
            level, message = told.get("level", "info"), told.get("message", "")
            return LOG, {"level": str(level), "message": str(message)}
        case {"text": str() as text, "stream": str() as stream} if len(payload) == 2:
            if stream in _STREAMS:
                return OUTPUT_DELTA, {"stream": stream, "text": text}
        case {"artifact": dict() as told} if len(payload) == 1:
            return ARTIFACT, told
    return PART, {"payload": payload}
