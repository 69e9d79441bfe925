"""Content of a text file before and after a call, on disk or in an editor."""

from __future__ import annotations

import os
from typing import NamedTuple

from callgate.core.content import LARGEST_DIFF, FileDiff
from callgate.core.errors import ToolError, ToolExecutionError
from callgate.core.local.environment import Environment, WorkspaceFiles
from callgate.core.sessions import ResolvedPath
from callgate.workspace import refusals
from callgate.workspace.excerpts import image_type
from callgate.workspace.files import WorkspaceFileAPI

MISSING = "file_not_found"
_HEAD = 16
"""Bytes that identify an image."""


def is_image_on_disk(files: WorkspaceFiles, path: str) -> bool:
    """Whether the file on disk is an image. A missing file may still be open in an editor."""
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
    """Old content of a file that will be written."""

    existed: bool
    text: str | None = None
    known: bool = True
    """False: it is not text, or too long for a diff."""


async def before(environment: Environment, path: str) -> Before:
    """Return the content that a write to a path will replace."""
    if environment.reads_disk:
        return before_on_disk(environment, path)
    try:
        return Before(True, await environment.read_text(path))
    except ToolError as error:
        return _unread(environment, path, error)


def before_on_disk(environment: Environment, path: str) -> Before:
    """Return the content on disk that a write to a path will replace."""
    try:
        content = _head(environment.files, path, LARGEST_DIFF + 1)
        if len(content) > LARGEST_DIFF:
            return Before(True, known=False)
        return Before(True, text_of(path, content))
    except ToolError as error:
        return _unread(environment, path, error)


def _unread(environment: Environment, path: str, error: ToolError) -> Before:
    """Handle an unreadable file, which may still be replaced."""
    if is_missing(environment, path, error):
        return Before(False)
    return Before(environment.files.exists(path), known=False)


def is_missing(environment: Environment, path: str, error: ToolError) -> bool:
    """Whether an unreadable file does not exist. Some editors do not report that: if they cannot
    read it and it is not on the disk, it does not exist."""
    failed = isinstance(error, ToolExecutionError) and not environment.reads_disk
    return error.reason == MISSING or (failed and not environment.files.exists(path))


class FilePath(NamedTuple):
    """The names of a path."""

    called: str
    """Path in the workspace, or absolute in another root."""
    absolute: str


def file_path_of(files: WorkspaceFiles, path: str) -> FilePath:
    """Return the names of a path after all links."""
    if isinstance(files, WorkspaceFileAPI):
        return file_path_at(files, files.locate(path))
    return FilePath(path, os.path.abspath(os.path.join(files.workspace_root, path)))


def file_path_at(files: WorkspaceFileAPI, resolved: ResolvedPath) -> FilePath:
    return FilePath(files.called(resolved), files.absolute(resolved))


def diffs(files: WorkspaceFiles, path: str, old: str | None, new: str) -> tuple[FileDiff, ...]:
    """Return the change of one file, if it has a diff; `old` None: the file is new."""
    return FileDiff.of(file_path_of(files, path).absolute, old, new)


def text_of(path: str, content: bytes) -> str:
    """Decode a text file. Raises a `ToolError` if it is not text."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise refusals.not_text(path) from None
    if "\0" in text:
        raise refusals.not_text(path)
    return text
