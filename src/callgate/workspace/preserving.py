"""Undo for files that another program changes: preserve their old content before the change.

preserving -> old content read, with the refusals of our own changes
              the other program works
exit       -> the new content is compared, and each change is added to the history
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from callgate.core.content import FileDiff
from callgate.core.errors import ToolError
from callgate.core.local.environment import off_loop, off_loop_surely
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.noting import Standing


class Preserved:
    """The files of one change by another program."""

    def __init__(self, before: dict[str, Standing | None]) -> None:
        self.before = before
        """The old content by path."""
        self.diffs: tuple[FileDiff, ...] = ()
        """The changes of text files, after the other program has ended."""

    def discard(self) -> None:
        """Add nothing to the history: the files are changed by callgate itself."""
        self.before.clear()

    def record(self, files: WorkspaceFileAPI) -> None:
        """Add the changes of the other program to the history. Blocks."""
        for path, before in self.before.items():
            try:
                after = files.note_made(path, before)
            except ToolError:
                continue  # the present file cannot be undone
            old, new = _text(before), _text(after)
            if new is not None and (old is not None or before is None):
                self.diffs += FileDiff.of(files.absolute(files.locate(path)), old, new)


@asynccontextmanager
async def preserving(files: WorkspaceFileAPI, paths: Iterable[str]) -> AsyncIterator[Preserved]:
    """Preserve the content of files while another program changes them."""
    preserved = Preserved(await off_loop(lambda: {path: files.standing(path) for path in paths}))
    try:
        yield preserved
    finally:
        if preserved.before:
            await off_loop_surely(lambda: preserved.record(files))


def _text(standing: Standing | None) -> str | None:
    if standing is None or standing.kind != "file" or standing.content is None:
        return None
    try:
        return standing.content.decode()
    except UnicodeDecodeError:
        return None
