"""What the clients of sessions offer of their own, and a call's way to it.

    path -> wall, guard, rules -> absolute path -> editor -> text
                                                     | it does not have the file
                                                     +-> the disk; a write says so

Nothing reaches an editor that would be refused here. Any other failure of the editor is the
failure of the tool: what is on the disk may be older than what the person sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from callgate.core.commands import Launcher
from callgate.core.environment import (
    Edited,
    Environment,
    LocalEnvironment,
    Offered,
    TextFiles,
    WorkspaceFiles,
)
from callgate.core.errors import ToolValidationError
from callgate.core.sessions import Session
from callgate.workspace import refusals
from callgate.workspace.files import WorkspaceFileAPI

WRITTEN_ON_DISK = "not in the editor: written on disk"


class Environments:
    """Which session's client offers what."""

    def __init__(self, *, delegate_terminal: bool = True) -> None:
        self._delegate_terminal = delegate_terminal
        self._offers: dict[str, tuple[Offered, asyncio.Lock]] = {}

    def offer(self, session_id: str, offered: Offered) -> None:
        """From now on calls of a session use this, in place of what was offered before."""
        self._offers[session_id] = offered, asyncio.Lock()

    def withdraw(self, session_id: str) -> None:
        self._offers.pop(session_id, None)

    def of(self, session: Session) -> Offered | None:
        """What a session's client offers; a sub-agent uses that of the session it works for."""
        found = self._find(session)
        return None if found is None else found[0]

    def terminals(self, session: Session) -> Launcher | None:
        """Where commands of a session may run, if its client and the settings want it so."""
        if not self._delegate_terminal or not self._offers:
            return None
        offered = self.of(session)
        return None if offered is None else offered.terminals

    def open(self, session: Session, files: WorkspaceFileAPI) -> Environment:
        """The environment of one call, whose files judge every path."""
        found = self._find(session)
        if found is None or found[0].files is None:
            return LocalEnvironment(files)
        return EditorEnvironment(files, found[0].files, found[1])

    def _find(self, session: Session) -> tuple[Offered, asyncio.Lock] | None:
        if not self._offers:
            return None
        found = self._offers.get(session.id)
        if found is None and session.parent is not None:
            found = self._offers.get(session.parent)
        return found


class EditorEnvironment:
    """An editor's text files behind the wall around a workspace."""

    __slots__ = ("_editor", "_files", "_local", "_writing")

    def __init__(self, files: WorkspaceFileAPI, editor: TextFiles, writing: asyncio.Lock) -> None:
        """`writing` is held by whoever writes: an editor knows no way to edit a text at once."""
        self._files = files
        self._editor = editor
        self._writing = writing
        self._local = LocalEnvironment(files)

    @property
    def files(self) -> WorkspaceFiles:
        return self._files

    @property
    def reads_disk(self) -> bool:
        return not self._editor.reads

    @property
    def writes_disk(self) -> bool:
        return not self._editor.writes

    async def read_text(
        self, path: str, *, line: int | None = None, limit: int | None = None
    ) -> str:
        place = self._files.judged(path, "read") if self._editor.reads else None
        if place is not None:
            try:
                text = await self._editor.read(self._files.absolute(place), line, limit)
            except FileNotFoundError:
                pass
            else:
                _ensure_text(text, path)
                return text
        return await self._local.read_text(path, line=line, limit=limit)

    async def write_text(self, path: str, content: str) -> str | None:
        async with self._writing:
            return await self._write(path, content)

    async def edit_text(self, path: str, change: Callable[[str], str]) -> Edited:
        if not self._editor.writes:  # its buffer would not know of one change when the next comes
            return await self._local.edit_text(path, change)
        async with self._writing:
            self._files.judged(path, "read", "write")  # before the editor is asked for anything
            old = await self.read_text(path)
            new = change(old)
            return Edited(old, new, await self._write(path, new))

    async def _write(self, path: str, content: str) -> str | None:
        place = self._files.judged(path, "write") if self._editor.writes else None
        if place is None:
            return await self._local.write_text(path, content)
        try:
            content.encode()
        except UnicodeEncodeError:
            raise ToolValidationError("The content is not valid Unicode") from None
        try:
            await self._editor.write(self._files.absolute(place), content)
        except FileNotFoundError:
            await self._local.write_text(path, content)
            return WRITTEN_ON_DISK
        return None


def _ensure_text(text: str, path: str) -> None:
    """What an editor says is text need not be one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refusals.not_text(path) from None
    if "\0" in text:
        raise refusals.not_text(path)
