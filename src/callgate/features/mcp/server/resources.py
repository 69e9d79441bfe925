"""MCP resources and prompts: the port, and the workspace files and stored outputs of a session."""

from __future__ import annotations

import base64
import mimetypes
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, unquote

import mcp_types as types
import msgspec

from callgate.core.calls import CallerKind, ToolCall, ToolResult
from callgate.core.content import TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolError, ToolExecutionError
from callgate.core.sessions import Session
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.features.mcp.server.pending_requests import PendingRequest
from callgate.runtime import Runtime
from callgate.tools.search import Aside
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.search import find

T = TypeVar("T")

Run = Callable[[ToolCall], Awaitable[ToolResult]]
"""Runs a call as part of a request, so that its questions reach the client."""


class Here:
    """Context of a request for resources or prompts."""

    def __init__(
        self, session: Session, run: Run, client: PendingRequest[object] | None = None
    ) -> None:
        self.session = session
        self.run = run
        self.client = client
        """The pending request, for questions to the client; None if questions are not possible."""


class Typed(NamedTuple):
    """A partial value to complete."""

    name: str
    """Name of the parameter or argument."""
    value: str
    """The beginning of its value."""
    given: Mapping[str, str] = {}
    """Values of the other parameters."""


Contents = types.TextResourceContents | types.BlobResourceContents


class Resources(Protocol):
    async def listed(self, here: Here) -> Sequence[types.Resource]: ...

    async def templates(self, here: Here) -> Sequence[types.ResourceTemplate]: ...

    async def read(self, uri: str, here: Here) -> Sequence[Contents] | None:
        """Return the contents; None if there is no such resource. Raises `ToolError`."""
        ...

    async def complete(self, template: str, typed: Typed, here: Here) -> Sequence[str]:
        """Return completions for a parameter of a template."""
        ...


class Prompts(Protocol):
    async def listed(self, here: Here) -> Sequence[types.Prompt]: ...

    async def get(
        self, name: str, arguments: Mapping[str, str], here: Here
    ) -> types.GetPromptResult | None:
        """Return the prompt; None if there is no such prompt. Raises `ToolError`."""
        ...

    async def complete(self, prompt: str, typed: Typed, here: Here) -> Sequence[str]:
        """Return completions for an argument of a prompt."""
        ...


TAG = "callgate:mcp-resources"
_WORKSPACE = "workspace:///"
_ARTIFACT = "artifact:///"
_TEMPLATE = "workspace:///{+path}"
_MOST_FILES = 5_000
_MOST_BYTES = 10 * 1024 * 1024


def workspace_uri(path: str) -> str:
    return _WORKSPACE + quote(path, errors="surrogateescape")


class ReadWorkspaceFile:
    definition = ToolDefinition(
        name="read_resource",
        description="Read the unchanged bytes of a file.",
        input_schema={
            "type": "object",
            "properties": {"path": {"type": "string", "minLength": 1}},
            "required": ["path"],
        },
        side_effects=SideEffects.READ,
        capabilities=frozenset({Capability.READ_ONLY}),
        path_params=("path",),
        kind="read",
        source="builtin",
        required_tags=frozenset({TAG}),
    )

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        content = context.workspace_files.read_bytes(input["path"])
        if len(content) > _MOST_BYTES:
            raise ToolExecutionError(
                f"The file has {len(content):,} bytes; the maximum is {_MOST_BYTES:,}.",
                reason="too_large",
            )
        size = f"{len(content)} bytes"
        return ToolOutput(content=[TextBlock(size)], value=content)

    async def cancel(self) -> bool:
        return False


class ListWorkspaceFiles:
    definition = ToolDefinition(
        name="list_resources",
        description="List the files of the workspace.",
        input_schema={"type": "object", "properties": {}},
        side_effects=SideEffects.READ,
        capabilities=frozenset({Capability.READ_ONLY}),
        kind="search",
        source="builtin",
        required_tags=frozenset({TAG}),
    )

    def __init__(self) -> None:
        self._aside = Aside()

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        files = context.workspace_files
        if not isinstance(files, WorkspaceFileAPI):
            raise ToolExecutionError("The session has no workspace files.", reason="no_workspace")
        found = await self._aside.run(
            context, lambda stop: find(files, "**", ".", _MOST_FILES, should_stop=stop)
        )
        text = f"{len(found.paths)} files"
        return ToolOutput(content=[TextBlock(text)], value=found.paths)

    async def cancel(self) -> bool:
        return self._aside.stop()


def register(runtime: Runtime) -> None:
    """Register the tools. Raises `ToolRegistrationError` if a name already exists."""
    runtime.tools.register(ReadWorkspaceFile)
    runtime.tools.register(ListWorkspaceFiles)


class WorkspaceResources:
    def __init__(self, artifacts: str | None = None) -> None:
        """`artifacts` contains a directory with the artifacts of each session."""
        self._artifacts = artifacts

    async def listed(self, here: Here) -> Sequence[types.Resource]:
        paths = await self._paths(here)
        found = [_resource(workspace_uri(path), path) for path in paths]
        return found + [
            _resource(_ARTIFACT + quote(name), name) for name in self._artifact_names(here)
        ]

    async def templates(self, here: Here) -> Sequence[types.ResourceTemplate]:
        return [
            types.ResourceTemplate(
                name="workspace file",
                uri_template=_TEMPLATE,
                description="A file by its path in the workspace.",
            )
        ]

    async def read(self, uri: str, here: Here) -> Sequence[Contents] | None:
        path = self._path(uri, here)
        if path is None:
            return None
        result = await here.run(call_for("read_resource", {"path": path}, here.session))
        if result.error is not None and result.error.reason in ("file_not_found", "wrong_type"):
            return None
        return [_contents(uri, path, value_of(result))]

    async def complete(self, template: str, typed: Typed, here: Here) -> Sequence[str]:
        if (template, typed.name) != (_TEMPLATE, "path"):
            return []
        return [path for path in await self._paths(here) if path.startswith(typed.value)]

    async def _paths(self, here: Here) -> list[str]:
        paths: list[str] = value_of(await here.run(call_for("list_resources", {}, here.session)))
        return paths

    def _artifact_names(self, here: Here) -> list[str]:
        try:
            return sorted(os.listdir(self._directory(here)))
        except OSError:
            return []

    def _directory(self, here: Here) -> str:
        return os.path.join(self._artifacts or os.devnull, here.session.id)

    def _path(self, uri: str, here: Here) -> str | None:
        if uri.startswith(_WORKSPACE):
            return unquote(uri.removeprefix(_WORKSPACE), errors="surrogateescape") or None
        name = unquote(uri.removeprefix(_ARTIFACT)) if uri.startswith(_ARTIFACT) else ""
        return (
            os.path.join(self._directory(here), name)
            if name in self._artifact_names(here)
            else None
        )


def call_for(tool: str, arguments: dict[str, Any], session: Session) -> ToolCall:
    tagged = msgspec.structs.replace(session, tags=session.tags | {TAG})
    return ToolCall(tool=tool, arguments=arguments, session=tagged, caller=CallerKind.MCP)


def value_of(result: ToolResult) -> Any:
    if result.error is not None:
        error = ToolError(result.error.message, reason=result.error.reason)
        error.error_class = result.error.error_class
        raise error
    return result.value


def _resource(uri: str, path: str) -> types.Resource:
    return types.Resource(uri=uri, name=path, mime_type=_type(path))


def _type(path: str) -> str | None:
    return mimetypes.guess_type(path)[0]


def _contents(uri: str, path: str, content: bytes) -> Contents:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        blob = base64.b64encode(content).decode()
        media_type = _type(path) or "application/octet-stream"
        return types.BlobResourceContents(uri=uri, blob=blob, mime_type=media_type)
    return types.TextResourceContents(uri=uri, text=text, mime_type=_type(path) or "text/plain")
