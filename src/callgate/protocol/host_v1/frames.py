"""Frames between the runtime and a host: every line, and every method, as a struct.

    Request     ->   Emitted, any number   ->   Returned or Failed, exactly one

Both sides send requests. The runtime requests a host's tools and their calls (`OF_HOST`). A host
may request the needs of an isolated tool (`OF_RUNTIME`), if both declared that in `init`. The ids
of the two directions are independent.

Unknown keys are skipped, so that either side may be newer than the other. The type of the
parameters is the method. Excerpts of skipped lines are for logs.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from callgate.core.texts import escape

SHOWN = 200
"""Maximum characters of an excerpt."""


class Passed(msgspec.Struct, frozen=True):
    """A line that was ignored."""

    why: Literal["noise", "too_long", "unknown_id", "abandoned", "not_agreed", "complaint"]
    shown: str
    """The beginning of the line."""


def excerpt(text: str | bytes) -> str:
    """Return the beginning of a text in printable ASCII, without line ends."""
    if isinstance(text, bytes):
        text = text[: 4 * SHOWN].decode("utf-8", "backslashreplace")
    shown = (char if " " <= char <= "~" else escape(char) for char in text[:SHOWN])
    return "".join(shown)[:SHOWN]


VERSION: Literal[1] = 1
MAX_ID = 128

RequestId = Annotated[str, Meta(pattern=r"^[ -~]{1,128}\Z")]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Path = Annotated[str, Meta(min_length=1, max_length=4_096)]
Encoding = Literal["utf-8", "base64"]
Object = dict[str, Any]


# Defaults from such a factory are encoded; other defaults are omitted.


def _version() -> Literal[1]:
    return VERSION


def _true() -> Literal[True]:
    return True


def _false() -> Literal[False]:
    return False


def _null() -> None:
    return None


def _nothing() -> Object:
    return {}


def _none() -> list[Object]:
    return []


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A value inside a frame."""


class _Stateful(_Part, frozen=True, kw_only=True):
    state: Object = msgspec.field(default_factory=_nothing)
    """Last state that the host returned for this session; the answer has the new one."""


# Requests of the runtime to a host. The first three are required.


class Offer(_Part, frozen=True, kw_only=True):
    """Capabilities of the runtime."""

    answers: list[Name]
    """The methods that the runtime answers."""


class Init(_Part, frozen=True, kw_only=True):
    config: Object = msgspec.field(default_factory=_nothing)
    runtime: Offer | UnsetType = UNSET


class GetToolSchemas(_Stateful, frozen=True, kw_only=True):
    pass


class CallContext(_Part, frozen=True, kw_only=True):
    """Origin of a call; sent only to a host that sends requests itself."""

    session_id: str
    turn_id: str | None = None
    tool_use_id: str
    workspace_path: str
    scope: dict[str, str] = {}


class ExecuteTool(_Part, frozen=True, kw_only=True):
    tool_name: Name
    arguments: Object = msgspec.field(default_factory=_nothing)
    state: Object = msgspec.field(default_factory=_nothing)
    context: CallContext | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET
    """The span of the call, in W3C Trace Context format; a host may ignore it."""


class GetConfigSchema(_Part, frozen=True, kw_only=True):
    pass


class GetUiElements(_Part, frozen=True, kw_only=True):
    pass


class GetTags(_Part, frozen=True, kw_only=True):
    config: Object = msgspec.field(default_factory=_nothing)
    models: list[Object] = msgspec.field(default_factory=_none)


class RequiredTags(_Part, frozen=True, kw_only=True):
    pass


class FormatToolResult(_Stateful, frozen=True, kw_only=True):
    result: Object
    """The value of `execute_tool`, with `success`."""


class FormatToolCallPreview(_Stateful, frozen=True, kw_only=True):
    tool_name: Name
    arguments: Object = msgspec.field(default_factory=_nothing)


class ToDisplayFormat(_Stateful, frozen=True, kw_only=True):
    text: str
    result: Object


class Cancel(_Part, frozen=True, kw_only=True):
    id: RequestId
    """Id of the pending `execute_tool` to stop."""


# Requests of a host to the runtime, each for one call that the host is executing.


class _Reach(_Part, frozen=True, kw_only=True):
    call: RequestId
    """The id of an `execute_tool` that the host has not answered."""


class ReadFile(_Reach, frozen=True, kw_only=True):
    path: Path
    encoding: Encoding = "utf-8"


class WriteFile(_Reach, frozen=True, kw_only=True):
    path: Path
    content: str
    encoding: Encoding = "utf-8"


class AppendFile(_Reach, frozen=True, kw_only=True):
    path: Path
    content: str


class PatchFile(_Reach, frozen=True, kw_only=True):
    path: Path
    old: str
    new: str


class DeleteFile(_Reach, frozen=True, kw_only=True):
    path: Path


class FileExists(_Reach, frozen=True, kw_only=True):
    path: Path


class ListFiles(_Reach, frozen=True, kw_only=True):
    path: Path


class KeepArtifact(_Reach, frozen=True, kw_only=True):
    """Create a file of the call, for output too large for a result."""

    name: Name


class IsCancelled(_Reach, frozen=True, kw_only=True):
    """Return whether the call was cancelled."""


OfHost = (
    Init
    | GetToolSchemas
    | ExecuteTool
    | GetConfigSchema
    | GetUiElements
    | GetTags
    | RequiredTags
    | FormatToolResult
    | FormatToolCallPreview
    | ToDisplayFormat
    | Cancel
)
OfRuntime = (
    ReadFile
    | WriteFile
    | AppendFile
    | PatchFile
    | DeleteFile
    | FileExists
    | ListFiles
    | KeepArtifact
    | IsCancelled
)
Params = OfHost | OfRuntime

OF_HOST: dict[str, type[OfHost]] = {
    "init": Init,
    "get_tool_schemas": GetToolSchemas,
    "execute_tool": ExecuteTool,
    "get_config_schema": GetConfigSchema,
    "get_ui_elements": GetUiElements,
    "get_tags": GetTags,
    "required_tags": RequiredTags,
    "format_tool_result": FormatToolResult,
    "format_tool_call_preview": FormatToolCallPreview,
    "to_display_format": ToDisplayFormat,
    "cancel": Cancel,
}
OF_RUNTIME: dict[str, type[OfRuntime]] = {
    "read_file": ReadFile,
    "write_file": WriteFile,
    "append_file": AppendFile,
    "patch_file": PatchFile,
    "delete_file": DeleteFile,
    "file_exists": FileExists,
    "list_files": ListFiles,
    "keep_artifact": KeepArtifact,
    "is_cancelled": IsCancelled,
}
REQUIRED = frozenset({"init", "get_tool_schemas", "execute_tool"})
"""A host may answer `MethodNotFound` to all other methods."""

METHODS: dict[type, str] = {kind: name for name, kind in (*OF_HOST.items(), *OF_RUNTIME.items())}

VALUES: dict[type, Any] = {
    GetToolSchemas: list[Object],
    GetConfigSchema: Object | None,
    GetUiElements: list[Object] | None,
    GetTags: list[str] | None,
    RequiredTags: list[str] | None,
    FormatToolCallPreview: str | None,
    ToDisplayFormat: Object | None,
    ReadFile: str,
    FileExists: bool,
    ListFiles: list[str],
    KeepArtifact: str | None,
    IsCancelled: bool,
}
"""Required types of the values of answers; methods that are not listed permit any value."""


# The lines.

P = TypeVar("P")


class _Frame(_Part, frozen=True, kw_only=True):
    v: Literal[1] = msgspec.field(default_factory=_version)


class Request(_Frame, Generic[P], frozen=True, kw_only=True):
    id: str
    """1 to 128 printable ASCII characters."""
    method: str
    params: P


def ask(id: str, params: Params) -> Request[Any]:
    return Request(id=id, method=METHODS[type(params)], params=params)


class Announcement(_Part, frozen=True, kw_only=True):
    """Capabilities of a host, in its answer to `init`."""

    methods: list[Name] | UnsetType = UNSET
    """Supported methods; if missing, the host may get any method and may refuse it."""
    asks: list[Name] = []
    """Methods of the runtime that the host may call."""


class Result(_Part, frozen=True, kw_only=True):
    value: Any = msgspec.field(default_factory=_null)
    state: Object | UnsetType = UNSET
    """Absent: unchanged."""
    host: Announcement | UnsetType = UNSET


class Returned(_Frame, frozen=True, kw_only=True):
    id: str
    ok: Literal[True] = msgspec.field(default_factory=_true)
    result: Result


class Failure(_Part, frozen=True, kw_only=True):
    type: str = msgspec.field(default_factory=lambda: "Error")
    """`failures` lists the types that the runtime interprets."""
    detail: str = msgspec.field(default_factory=str)
    """Text for the caller."""
    stack: str | None = None
    """For logs only."""
    reason: str | None = None
    details: Any = UNSET
    """Any JSON value, for programs."""


class Failed(_Frame, frozen=True, kw_only=True):
    id: str | None
    """Null in an answer to a line whose id was unreadable or belongs to another request."""
    ok: Literal[False] = msgspec.field(default_factory=_false)
    error: Failure


class Event(_Part, frozen=True, kw_only=True):
    type: str
    """`part`; other types are only logged."""
    payload: Any = UNSET


class Emitted(_Frame, frozen=True, kw_only=True):
    id: str
    event: Event


Answer = Returned | Failed
Frame = Request[Any] | Answer | Emitted
