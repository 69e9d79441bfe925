"""What a call shows, as an editor shows it: text, pictures, changes of files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from callgate.core.content import ContentBlock, FileDiff, ImageBlock, ToolResultBlock
from callgate.core.text.characters import escape, is_seen
from callgate.protocol.acp.values import (
    Block,
    Diff,
    Image,
    Location,
    Shown,
    Text,
    ToolContent,
    ToolKind,
)
from callgate.protocol.results import as_text
from callgate.redaction.summaries import in_words
from callgate.runtime import Registered

LONGEST_TEXT = 512 * 1024
"""Characters of one text that an editor is sent; the model and the store have all of it."""
_LONGEST_TITLE = 200
_MOST_LOCATIONS = 50


def text(value: str) -> Text:
    """As one block: without halves of characters, which no line of JSON can carry."""
    if len(value) > LONGEST_TEXT:
        value = f"{value[:LONGEST_TEXT]}\n[{len(value) - LONGEST_TEXT:,} more characters]"
    return Text(text=sendable(value))


def sendable(value: str) -> str:
    return value.encode("utf-8", "replace").decode() if not value.isascii() else value


def iso(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="seconds")


def as_block(block: ContentBlock) -> Block:
    if isinstance(block, ImageBlock):
        if block.source.kind == "base64":
            return Image(data=block.source.data, mime_type=block.media_type)
        return text(f"[image: {block.source.data}]")
    return text(as_text(block))


def result_content(result: ToolResultBlock) -> list[ToolContent]:
    """What stands on the card of a call that has ended. A change says what its first words do,
    unless these are about a failure."""
    changes: list[ToolContent] = [*map(change, result.diffs)]
    blocks = result.content[1:] if changes and not result.is_error else result.content
    return [*changes, *(Shown(content=as_block(block)) for block in blocks)]


def change(diff: FileDiff) -> Diff:
    old = None if diff.old is None else sendable(diff.old)
    return Diff(path=sendable(diff.path), old_text=old, new_text=sendable(diff.new))


def kind_of(tool: Registered | None) -> ToolKind:
    return "other" if tool is None else tool.definition.kind


def title_of(name: str, arguments: Any) -> str:
    """One line: the tool and what it is to do, without secrets and with nothing unseen."""
    described = in_words(arguments) if isinstance(arguments, Mapping) else ""
    line = "".join(
        char if is_seen(char) else escape(char) for char in f"{name} {described}".strip()
    )
    if len(line) > _LONGEST_TITLE:  # the end of a command is where the surprise is
        half = _LONGEST_TITLE // 2
        line = f"{line[:half]} [... {len(line) - 2 * half:,} more characters ...] {line[-half:]}"
    return line


def session_title(title: str | None) -> str | None:
    """What a session is called, without what moves or hides text; None where nothing is left."""
    return "".join(filter(is_seen, title or "")).strip() or None


def locations_of(tool: Registered | None, arguments: Any, workspace: str) -> list[Location]:
    """The files that the arguments name, absolute."""
    if tool is None or not isinstance(arguments, Mapping):
        return []
    line = arguments.get("offset")
    named = [
        path
        for parameter in tool.path_params
        for path in _texts(arguments.get(parameter))
        if path and "\0" not in path
    ]
    first = line if type(line) is int and line > 0 and tool.definition.kind == "read" else None
    return [
        Location(path=sendable(os.path.normpath(os.path.join(workspace, path))), line=first)
        for path in named[:_MOST_LOCATIONS]
    ]


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Sequence):
        return [each for each in value if isinstance(each, str)]
    return []
