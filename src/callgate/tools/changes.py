"""A text file as it was before a call and as it is after it, on the disk or in an editor."""

from __future__ import annotations

import os
from typing import NamedTuple

from callgate.core.content import LARGEST_DIFF, FileDiff
from callgate.core.environment import Environment, WorkspaceFiles
from callgate.core.errors import ToolError, ToolExecutionError
from callgate.core.resolved_paths import ResolvedPath
from callgate.workspace import refusals
from callgate.workspace.excerpts import image_type
from callgate.workspace.files import WorkspaceFileAPI

MISSING = "file_not_found"
_HEAD = 16
"""Bytes that tell an image."""


def is_image_on_disk(files: WorkspaceFiles, path: str) -> bool:
    """Whether there is an image on the disk; what is not there may be in an editor still."""
    try:
        return image_type(_head(files, path, _HEAD)) is not None
    except ToolError as error:
        if error.reason != MISSING:
            raise
        return False


def _head(files: WorkspaceFiles, path: str, most: int) -> bytes:
    if isinstance(files, WorkspaceFileAPI):
        return files.head(path, most)
    return files.read_bytes(path)[:most]


class Before(NamedTuple):
    """What stood where a file is to be written."""

    existed: bool
    text: str | None = None
    known: bool = True
    """False: it is no text, or too long to be shown."""


async def before(environment: Environment, path: str) -> Before:
    """What a write to a path will replace."""
    if environment.reads_disk:
        return before_on_disk(environment, path)
    try:
        return Before(True, await environment.read_text(path))
    except ToolError as error:
        return _unread(environment, path, error)


def before_on_disk(environment: Environment, path: str) -> Before:
    """The same where it is read from the disk."""
    try:
        content = _head(environment.files, path, LARGEST_DIFF + 1)
        if len(content) > LARGEST_DIFF:
            return Before(True, known=False)
        return Before(True, text_of(path, content))
    except ToolError as error:
        return _unread(environment, path, error)


def _unread(environment: Environment, path: str, error: ToolError) -> Before:
    """What cannot be read may still be replaced."""
    if is_missing(environment, path, error):
        return Before(False)
    return Before(environment.files.exists(path), known=False)


def is_missing(environment: Environment, path: str, error: ToolError) -> bool:
    """Whether a file that cannot be read is not there. Not every editor says so: what it fails
    to read and is not on the disk either is nowhere."""
    failed = isinstance(error, ToolExecutionError) and not environment.reads_disk
    return error.reason == MISSING or (failed and not environment.files.exists(path))


class Place(NamedTuple):
    """How a place is named."""

    called: str
    """From the workspace, or absolute where it lies in another root."""
    absolute: str


def place_of(files: WorkspaceFiles, path: str) -> Place:
    """Where a path leads."""
    if isinstance(files, WorkspaceFileAPI):
        return place_at(files, files.locate(path))
    return Place(path, os.path.abspath(os.path.join(files.workspace_root, path)))


def place_at(files: WorkspaceFileAPI, resolved: ResolvedPath) -> Place:
    return Place(files.called(resolved), files.absolute(resolved))


def diffs(files: WorkspaceFiles, path: str, old: str | None, new: str) -> tuple[FileDiff, ...]:
    """The change of one file, if it can be shown; `old` None: there was none."""
    return FileDiff.of(place_of(files, path).absolute, old, new)


def text_of(path: str, content: bytes) -> str:
    """Raises where it is none."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise refusals.not_text(path) from None
    if "\0" in text:
        raise refusals.not_text(path)
    return text
