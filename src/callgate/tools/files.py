"""Built-in file tools: read_file, write_file, patch_file, list_dir, delete_file.

They access the disk only through `context.workspace_files`, the workspace boundary. Text goes
through `context.environment`: if an editor offers its files, its unsaved buffers count.
"""

from __future__ import annotations

import base64
import stat
from collections.abc import Callable
from functools import partial
from typing import Any

from callgate.core.content import ContentBlock, FileDiff, ImageBlock, ImageSource, TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolCancelled, ToolError
from callgate.core.local.environment import Environment, WorkspaceFiles, off_loop
from callgate.core.tools import Preview, ToolContext, ToolDefinition, ToolOutput
from callgate.tools.changes import (
    Before,
    FilePath,
    before,
    before_on_disk,
    diffs,
    file_path_at,
    file_path_of,
    is_image_on_disk,
    is_missing,
    text_of,
)
from callgate.tools.search import Aside
from callgate.workspace import refusals
from callgate.workspace.excerpts import (
    MAX_LINES,
    Excerpt,
    diff,
    excerpt,
    excerpt_of_part,
    image_type,
    matching,
    replace_once,
    show,
)
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.paths import readable, shown

MAX_IMAGE = 5 * 1024 * 1024
MAX_NAMES = 2_000
MAX_MATCHES = 100_000
_SMALL = 64 * 1024
"""Characters up to which a change is compared on the event loop."""
_LARGE = 1024 * 1024
"""Size in bytes from which a file is processed in a thread."""

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
            " with a mark that tells how to continue; use offset and limit for a part, or regex"
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
                    "description": "Return the lines that match, with their numbers.",
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
        path, regex = input["path"], input.get("regex")
        environment = context.environment
        elsewhere = regex is None and not environment.reads_disk
        if elsewhere and not is_image_on_disk(environment.files, path):
            part = await self._from_editor(input, context)
        else:
            content = environment.files.read_bytes(path)
            media_type = image_type(content)
            if media_type is not None:
                return _image(path, content, media_type)
            offset, limit = input.get("offset", 1), input.get("limit")
            read = partial(_part, path, content, offset, limit, regex)
            inline = regex is None and len(content) < _LARGE
            part = read() if inline else await self._aside.run(context, read)
        return ToolOutput(
            content=[TextBlock(part.text)],
            metadata={} if part.total is None else {"total_lines": part.total},
            truncated=part.truncated,
        )

    async def _from_editor(self, input: dict[str, Any], context: ToolContext) -> Excerpt:
        offset, limit = input.get("offset"), input.get("limit")
        text = await context.environment.read_text(input["path"], line=offset, limit=limit)
        if len(text) < _LARGE:
            return excerpt_of_part(text, offset or 1, limit)
        return await self._aside.run(
            context, lambda should_stop: excerpt_of_part(text, offset or 1, limit)
        )

    async def cancel(self) -> bool:
        return self._aside.stop()


async def _diff(old: str, new: str, path: str) -> str:
    """Return the diff; large texts are compared in a thread."""
    if len(old) + len(new) <= _SMALL:
        return diff(old, new, path)
    return await off_loop(diff, old, new, path)


class WriteFile:
    definition = ToolDefinition(
        name="write_file",
        description=(
            "Create a file or replace its whole content. Missing directories are created. To"
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

    async def preview(self, input: dict[str, Any], environment: Environment) -> Preview:
        """Return the change that an approval would make."""
        path, content = input["path"], input["content"]
        old: str | None = None
        try:
            old = await environment.read_text(path)
        except ToolError as error:
            if not is_missing(environment, path, error):
                added = await _diff("", content, readable(path))
                return Preview(f"{error}; it would become:\n{added}")
        change = await _diff(old or "", content, readable(path))
        nothing = f"Create {shown(path)}, empty" if old is None else _as_it_is(path)
        return Preview(change or nothing, diffs(environment.files, path, old, content))

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        _check(context)
        path, content, environment = input["path"], input["content"], context.environment
        if environment.reads_disk and environment.writes_disk:
            return await off_loop(_write_on_disk, environment, path, content)
        found = await before(environment, path)
        remark = await environment.write_text(path, content)
        return _written(file_path_of(environment.files, path), path, content, found, remark)

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
                "new": {"type": "string", "description": "The text that replaces it."},
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

    async def preview(self, input: dict[str, Any], environment: Environment) -> Preview:
        """Return the change that an approval would make."""
        path = input["path"]
        try:
            old = await environment.read_text(path)
            new = replace_once(old, input["old"], input["new"])
        except ToolError as error:
            return Preview(f"Nothing would change: {error}")
        change = await _diff(old, new, readable(path))
        return Preview(change or _as_it_is(path), diffs(environment.files, path, old, new))

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        _check(context)
        path, environment = input["path"], context.environment
        done = await environment.edit_text(
            path, lambda text: replace_once(text, input["old"], input["new"])
        )
        file_path = file_path_of(environment.files, path)
        return ToolOutput(
            content=_content(f"Patched {shown(path)}", done.remark),
            files_modified=[file_path.called],
            diffs=FileDiff.of(file_path.absolute, done.old, done.new),
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
            unit="names",
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
        description="Delete one file. Directories are refused; a link is deleted, not its target.",
        input_schema={"type": "object", "properties": {"path": _PATH}, "required": ["path"]},
        side_effects=SideEffects.WRITE,
        capabilities=frozenset({Capability.WRITES_FILES, Capability.DESTRUCTIVE}),
        path_params=("path",),
        kind="delete",
        source="builtin",
    )

    def preview(self, input: dict[str, Any], environment: Environment) -> str:
        """Return the deletion that an approval would make."""
        path, files = input["path"], environment.files
        if not isinstance(files, WorkspaceFileAPI):
            return f"Delete {shown(path)}"
        try:
            status = files.status(path)
        except ToolError as error:
            return f"Nothing would be deleted: {error}"
        if stat.S_ISLNK(status.st_mode):
            return f"Delete the link {shown(path)}; its target stays"
        if stat.S_ISDIR(status.st_mode):
            return f"Nothing would be deleted: {shown(path)} is a directory"
        return f"Delete {shown(path)} ({status.st_size:,} bytes)"

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        _check(context)
        path, files = input["path"], context.workspace_files
        parent, _, name = path.rpartition("/")
        directory = file_path_of(files, parent or ("/" if path.startswith("/") else ".")).called
        deleted = name if directory == "." else f"{directory.rstrip('/')}/{name}"
        await off_loop(files.delete, path)
        return ToolOutput(content=[TextBlock(f"Deleted {shown(path)}")], files_modified=[deleted])

    async def cancel(self) -> bool:
        return False


def _check(context: ToolContext) -> None:
    if context.cancel_event.is_set():
        raise ToolCancelled


def _content(done: str, remark: str | None) -> list[ContentBlock]:
    return [TextBlock(done), *([] if remark is None else [TextBlock(f"[{remark}]")])]


def _as_it_is(path: str) -> str:
    return f"{shown(path)} stays as it is"


def _image(path: str, content: bytes, media_type: str) -> ToolOutput:
    if len(content) > MAX_IMAGE:
        raise refusals.too_large(path, MAX_IMAGE)
    data = base64.b64encode(content).decode()
    return ToolOutput(
        content=[ImageBlock(source=ImageSource(data=data), media_type=media_type)],
        metadata={"bytes": len(content)},
    )


def _part(
    path: str,
    content: bytes,
    offset: int,
    limit: int | None,
    regex: str | None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Excerpt:
    text = text_of(path, content)
    if regex is None:
        return excerpt(text, offset, limit)
    from callgate.workspace.search import LineMatcher  # lazy: with the first pattern  # noqa: PLC0415

    with LineMatcher(regex, should_stop=should_stop) as matcher:
        return matching(text, matcher.lines(content, MAX_MATCHES), offset, limit)


def _names(files: WorkspaceFiles, path: str) -> list[str]:
    if not isinstance(files, WorkspaceFileAPI):
        return files.list(path)
    entries = files.entries(path)
    return [entry.name + "/" * (entry.kind == "directory") for entry in entries]


def _write_on_disk(environment: Environment, path: str, content: str) -> ToolOutput:
    files, look = environment.files, partial(before_on_disk, environment, path)
    if isinstance(files, WorkspaceFileAPI):
        resolved, found = files.put(path, content, look)
        return _written(file_path_at(files, resolved), path, content, found or Before(False), None)
    found = look()
    files.write(path, content)
    return _written(file_path_of(files, path), path, content, found, None)


def _written(
    file_path: FilePath, path: str, content: str, found: Before, remark: str | None
) -> ToolOutput:
    size = len(content.encode())
    done = "Replaced" if found.existed else "Created"
    return ToolOutput(
        content=_content(f"{done} {shown(path)} ({size:,} bytes)", remark),
        files_modified=[file_path.called],
        metadata={"created": not found.existed, "bytes": size},
        diffs=FileDiff.of(file_path.absolute, found.text, content) if found.known else (),
    )
