"""The built-in file tools: read_file, write_file, patch_file, list_dir, delete_file.

They reach the disk through `context.workspace_files` alone, which is the wall.
"""

from __future__ import annotations

import base64
import stat
from collections.abc import Callable
from functools import partial
from typing import Any

from callgate.core.content import ImageBlock, ImageSource, TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolCancelled, ToolError
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput, WorkspaceFiles
from callgate.tools.search import Aside
from callgate.workspace import refusals
from callgate.workspace.edits import diff, replace_once
from callgate.workspace.excerpts import MAX_LINES, Excerpt, excerpt, image_type, matching
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.matching import LineMatcher
from callgate.workspace.paths import readable, shown
from callgate.workspace.spill import show

MAX_IMAGE = 5 * 1024 * 1024
MAX_NAMES = 2_000
MAX_MATCHES = 100_000
_LARGE = 1024 * 1024
"""Bytes from which on a file is taken apart in a thread."""

_PATH = {
    "type": "string",
    "minLength": 1,
    "description": "Relative to the workspace, or absolute inside it.",
}


class ReadFile:
    definition = ToolDefinition(
        name="read_file",
        description=(
            "Read a text file, or look at an image (PNG, JPEG, GIF, WebP). Long files are cut,"
            " with a mark that says how to go on; use offset and limit for a part, or regex"
            " for the matching lines only."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "path": _PATH,
                "offset": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "First line to read, from 1.",
                },
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "description": f"How many lines to read at most; {MAX_LINES} by default.",
                },
                "regex": {
                    "type": "string",
                    "description": "Only the lines in which this is found, with their numbers.",
                },
            },
            "required": ["path"],
        },
        side_effects=SideEffects.READ,
        capabilities=frozenset({Capability.READ_ONLY}),
        path_params=("path",),
        kind="read",
        source="builtin",
    )

    def __init__(self) -> None:
        self._aside = Aside()

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        _check(context)
        path = input["path"]
        content = context.workspace_files.read_bytes(path)
        media_type = image_type(content)
        if media_type is not None:
            return _image(path, content, media_type)
        offset, limit, regex = input.get("offset", 1), input.get("limit"), input.get("regex")
        read = partial(_part, path, content, offset, limit, regex)
        quick = regex is None and len(content) < _LARGE
        part = read() if quick else await self._aside.run(context, read)
        return ToolOutput(
            content=[TextBlock(part.text)],
            metadata={"total_lines": part.total},
            truncated=part.truncated,
        )

    async def cancel(self) -> bool:
        return self._aside.stop()


class WriteFile:
    definition = ToolDefinition(
        name="write_file",
        description=(
            "Create a file or replace its whole content. Missing directories are made. To"
            " change a part of a file use patch_file."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "path": _PATH,
                "content": {"type": "string", "description": "The whole new content."},
            },
            "required": ["path", "content"],
        },
        side_effects=SideEffects.WRITE,
        capabilities=frozenset({Capability.WRITES_FILES}),
        path_params=("path",),
        kind="edit",
        source="builtin",
    )

    def preview(self, input: dict[str, Any], files: WorkspaceFiles) -> str:
        """The change that allowing the call would make."""
        path, content = input["path"], input["content"]
        try:
            if not files.exists(path):
                return diff("", content, readable(path)) or f"Create {shown(path)}, empty"
            old = files.read(path)
        except ToolError as error:
            return f"{error}; it would become:\n" + diff("", content, readable(path))
        return diff(old, content, readable(path)) or f"{shown(path)} stays as it is"

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        _check(context)
        path, content, files = input["path"], input["content"], context.workspace_files
        existed = files.exists(path)
        files.write(path, content)
        size = len(content.encode())
        done = "Replaced" if existed else "Created"
        return ToolOutput(
            content=[TextBlock(f"{done} {shown(path)} ({size:,} bytes)")],
            files_modified=[_called(files, path)],
            metadata={"created": not existed, "bytes": size},
        )

    async def cancel(self) -> bool:
        return False


class PatchFile:
    definition = ToolDefinition(
        name="patch_file",
        description=(
            "Replace a text in a file by another. The old text must occur exactly once, white"
            " space included; otherwise nothing is changed."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "path": _PATH,
                "old": {
                    "type": "string",
                    "minLength": 1,
                    "description": "The text to replace, with enough around it to be unique.",
                },
                "new": {"type": "string", "description": "What stands there afterwards."},
            },
            "required": ["path", "old", "new"],
        },
        side_effects=SideEffects.WRITE,
        capabilities=frozenset({Capability.WRITES_FILES}),
        path_params=("path",),
        kind="edit",
        aliases=("edit_file",),
        source="builtin",
    )

    def preview(self, input: dict[str, Any], files: WorkspaceFiles) -> str:
        """The change that allowing the call would make."""
        path = input["path"]
        try:
            old = files.read(path)
            new = replace_once(old, input["old"], input["new"])
        except ToolError as error:
            return f"Nothing would change: {error}"
        return diff(old, new, readable(path)) or f"{shown(path)} stays as it is"

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        _check(context)
        path, files = input["path"], context.workspace_files
        files.patch(path, input["old"], input["new"])
        return ToolOutput(
            content=[TextBlock(f"Patched {shown(path)}")],
            files_modified=[_called(files, path)],
        )

    async def cancel(self) -> bool:
        return False


class ListDir:
    definition = ToolDefinition(
        name="list_dir",
        description="List the names in a directory, sorted; directories end with a slash.",
        input_schema={"type": "object", "properties": {"path": {**_PATH, "default": "."}}},
        side_effects=SideEffects.READ,
        capabilities=frozenset({Capability.READ_ONLY}),
        path_params=("path",),
        kind="read",
        source="builtin",
    )

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        _check(context)
        names = _names(context.workspace_files, input.get("path", "."))
        listed = show(
            [readable(name) for name in names],
            MAX_NAMES,
            context.artifact,
            name="names.txt",
            what="names",
        )
        return ToolOutput(
            content=[TextBlock(listed.text if names else "(empty)")],
            value=names[:MAX_NAMES],
            metadata={"count": len(names)},
            truncated=listed.truncated,
        )

    async def cancel(self) -> bool:
        return False


class DeleteFile:
    definition = ToolDefinition(
        name="delete_file",
        description="Delete one file. Directories are refused; of a link only the link goes.",
        input_schema={"type": "object", "properties": {"path": _PATH}, "required": ["path"]},
        side_effects=SideEffects.WRITE,
        capabilities=frozenset({Capability.WRITES_FILES, Capability.DESTRUCTIVE}),
        path_params=("path",),
        kind="delete",
        source="builtin",
    )

    def preview(self, input: dict[str, Any], files: WorkspaceFiles) -> str:
        """What allowing the call would delete."""
        path = input["path"]
        if not isinstance(files, WorkspaceFileAPI):
            return f"Delete {shown(path)}"
        try:
            status = files.status(path)
        except ToolError as error:
            return f"Nothing would be deleted: {error}"
        if stat.S_ISLNK(status.st_mode):
            return f"Delete the link {shown(path)}; what it leads to stays"
        if stat.S_ISDIR(status.st_mode):
            return f"Nothing would be deleted: {shown(path)} is a directory"
        return f"Delete {shown(path)} ({status.st_size:,} bytes)"

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        _check(context)
        path, files = input["path"], context.workspace_files
        parent, _, name = path.rpartition("/")
        gone = _called(files, parent or ("/" if path.startswith("/") else "."), name)
        files.delete(path)
        return ToolOutput(
            content=[TextBlock(f"Deleted {shown(path)}")], files_modified=[gone]
        )

    async def cancel(self) -> bool:
        return False


def _check(context: ToolContext) -> None:
    if context.cancel_event.is_set():
        raise ToolCancelled


def _image(path: str, content: bytes, media_type: str) -> ToolOutput:
    if len(content) > MAX_IMAGE:
        raise refusals.too_large(path, MAX_IMAGE)
    data = base64.b64encode(content).decode()
    return ToolOutput(
        content=[ImageBlock(source=ImageSource(data=data), media_type=media_type)],
        metadata={"bytes": len(content)},
    )


def _text(path: str, content: bytes) -> str:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise refusals.not_text(path) from None
    if "\0" in text:
        raise refusals.not_text(path)
    return text


def _part(
    path: str,
    content: bytes,
    offset: int,
    limit: int | None,
    regex: str | None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Excerpt:
    text = _text(path, content)
    if regex is None:
        return excerpt(text, offset, limit)
    with LineMatcher(regex, should_stop=should_stop) as matcher:
        return matching(text, matcher.lines(content, MAX_MATCHES), offset, limit)


def _names(files: WorkspaceFiles, path: str) -> list[str]:
    if not isinstance(files, WorkspaceFileAPI):
        return files.list(path)
    entries = files.entries(path)
    return [entry.name + "/" * (entry.kind == "directory") for entry in entries]


def _called(files: WorkspaceFiles, path: str, name: str | None = None) -> str:
    """How to name what a path leads to, or a name in it, from the workspace."""
    if isinstance(files, WorkspaceFileAPI):
        path = files.called(files.locate(path))
    if name is None:
        return path
    return name if path == "." else f"{path.rstrip('/')}/{name}"
