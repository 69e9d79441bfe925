"""Where a call reads and writes: the disk behind the wall, or an editor's view of it.

    tool -> context.environment -> WorkspaceFiles                  the local one
                                -> wall and guard -> TextFiles     where an editor offers its own

An editor knows what is in its buffers and not yet on the disk. `Offered` is what one client
lends to a session; everything that it does not offer is done here.
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
    """For the result, where it was not done as one would think."""


class Environment(Protocol):
    @property
    def files(self) -> WorkspaceFiles:
        """Always the local ones."""
        ...

    @property
    def reads_disk(self) -> bool:
        """Whether what is read is what the local files say."""
        ...

    @property
    def writes_disk(self) -> bool:
        """Whether what is written goes to the local files at once."""
        ...

    async def read_text(
        self, path: str, *, line: int | None = None, limit: int | None = None
    ) -> str:
        """A text from a line on, which counts from 1, and at most so many lines of it."""
        ...

    async def write_text(self, path: str, content: str) -> str | None:
        """Create or replace a file. A remark for the result, if there is one to make."""
        ...

    async def edit_text(self, path: str, change: Callable[[str], str]) -> Edited:
        """Put what `change` makes of a text in its place; nobody else writes meanwhile."""
        ...


class TextFiles(Protocol):
    """The text files of an editor, with what was typed and not yet saved. Paths are absolute.

    `FileNotFoundError`: the editor does not have it. Any other failure is a `ToolError`.
    """

    @property
    def reads(self) -> bool: ...
    @property
    def writes(self) -> bool: ...
    async def read(self, path: str, line: int | None, limit: int | None) -> str: ...
    async def write(self, path: str, content: str) -> None: ...


class Offered(NamedTuple):
    """What a client offers to one session."""

    files: TextFiles | None = None
    terminals: Launcher | None = None
    """Starts commands in terminals of the client."""


class LocalEnvironment:
    """The disk, through the files of a workspace."""

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
            self.files.patch(path, old, new)  # refused if it is no longer what was read
        else:
            self.files.write(path, new)
        return Edited(old, new)


async def off_loop_surely(work: Callable[[], T]) -> T:
    """The same, and it is done also where the caller is cancelled: what cannot be had again."""
    try:
        return await off_loop(work)
    except asyncio.CancelledError:  # it had not begun
        work()
        raise


async def off_loop(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do work that waits for the disk in a thread, with the context variables of the caller.

    Whoever is cancelled before the work has begun is cancelled, and nothing is done. Work that
    has begun is waited for, whatever happens: so a tool reports what it did although its call was
    stopped, and its caller is answered meanwhile.
    """
    from callgate.core.disk.threads import submit  # lazy: with the first write  # noqa: PLC0415

    job = submit(partial(work, *args, **kwargs))
    while not job.done:
        try:
            await job.wait()
        except asyncio.CancelledError:
            if job.cancel():
                raise
    return job.result()


def lines_from(text: str, line: int | None, limit: int | None) -> str:
    """Some lines of a text, exactly as they stand there; only a line feed ends one."""
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
