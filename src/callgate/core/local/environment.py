"""Access of a call to files and terminals: on the local disk, or through an editor.

    tool -> context.environment -> WorkspaceFiles                          local files
                                -> workspace boundary and guard -> TextFiles      files of an editor

An editor has buffers with unsaved changes. `Offered` lists the resources that a client provides to
a session; for all others callgate uses local ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from callgate.core.commands import Launcher

P = ParamSpec("P")
T = TypeVar("T")


class WorkspaceFiles(Protocol):
    """The files of the session's workspace; `workspace.files` implements it."""

    @property
    def workspace_root(self) -> str: ...
    def read(self, path: str) -> str: ...
    def read_bytes(self, path: str) -> bytes: ...
    def write(self, path: str, content: str) -> None: ...
    def write_bytes(self, path: str, content: bytes) -> None: ...
    def append(self, path: str, content: str) -> None: ...
    def exists(self, path: str) -> bool: ...
    def list(self, path: str) -> list[str]: ...
    def delete(self, path: str) -> None: ...
    def patch(self, path: str, old: str, new: str) -> None: ...


class Edited(NamedTuple):
    old: str
    new: str
    remark: str | None = None
    """For the result, if the edit was not made in the usual way."""


class Environment(Protocol):
    @property
    def files(self) -> WorkspaceFiles:
        """The local files, in any environment."""
        ...

    @property
    def reads_disk(self) -> bool:
        """Whether reads return the content of the local files."""
        ...

    @property
    def writes_disk(self) -> bool:
        """Whether writes change the local files immediately."""
        ...

    async def read_text(
        self, path: str, *, line: int | None = None, limit: int | None = None
    ) -> str:
        """Return at most `limit` lines of a text, from `line` on, which counts from 1."""
        ...

    async def write_text(self, path: str, content: str) -> str | None:
        """Create or replace a file. Return a remark for the result, or None."""
        ...

    async def edit_text(self, path: str, change: Callable[[str], str]) -> Edited:
        """Replace a text by the result of `change`, without interference from other writers."""
        ...


class TextFiles(Protocol):
    """The text files of an editor, including unsaved changes. Paths are absolute.

    `FileNotFoundError`: the editor does not have the file. Any other failure is a `ToolError`.
    """

    @property
    def reads(self) -> bool: ...
    @property
    def writes(self) -> bool: ...
    async def read(self, path: str, line: int | None, limit: int | None) -> str: ...
    async def write(self, path: str, content: str) -> None: ...


class Offered(NamedTuple):
    """Resources that a client provides to one session."""

    files: TextFiles | None = None
    terminals: Launcher | None = None
    """Starts commands in terminals of the client."""


class LocalEnvironment:
    """The local disk, through the files of a workspace."""

    __slots__ = ("files",)

    reads_disk = True
    writes_disk = True

    def __init__(self, files: WorkspaceFiles) -> None:
        self.files = files

    async def read_text(
        self, path: str, *, line: int | None = None, limit: int | None = None
    ) -> str:
        return lines_from(self.files.read(path), line, limit)

    async def write_text(self, path: str, content: str) -> str | None:
        await off_loop(self.files.write, path, content)
        return None

    async def edit_text(self, path: str, change: Callable[[str], str]) -> Edited:
        return await off_loop(self._edit, path, change)

    def _edit(self, path: str, change: Callable[[str], str]) -> Edited:
        old = self.files.read(path)
        new = change(old)
        if old:
            self.files.patch(path, old, new)  # refused if the file has changed since the read
        else:
            self.files.write(path, new)
        return Edited(old, new)


async def off_loop_surely(work: Callable[[], T]) -> T:
    """Like `off_loop`, but do the work even if the caller is cancelled: it cannot be repeated."""
    try:
        return await off_loop(work)
    except asyncio.CancelledError:  # the work had not begun
        work()
        raise


async def off_loop(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run work that waits for the disk in a thread, with the context variables of the caller.

    If the caller is cancelled before the work begins, nothing is done. The function always waits
    for work that has begun. So a tool reports its changes although its call was cancelled, and the
    caller of the call gets its answer earlier.
    """
    from callgate.core.local.disk_threads import submit  # lazy: with the first write  # noqa: PLC0415

    job = submit(partial(work, *args, **kwargs))
    while not job.done:
        try:
            await job.wait()
        except asyncio.CancelledError:
            if job.cancel():
                raise
    return job.result()


def lines_from(text: str, line: int | None, limit: int | None) -> str:
    """Return some lines of a text, unchanged; only a line feed ends a line."""
    start = 0
    for _ in range((line or 1) - 1):
        start = text.find("\n", start) + 1
        if start == 0:
            return ""
    if limit is None:
        return text[start:]
    end = start
    for _ in range(limit):
        end = text.find("\n", end) + 1
        if end == 0:
            return text[start:]
    return text[start:end]
