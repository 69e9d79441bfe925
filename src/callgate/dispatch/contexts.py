"""What one execution of a tool may use, made from the call it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from callgate.core.calls import ToolCall
from callgate.core.tools import ToolContext
from callgate.dispatch.authorize import Subject
from callgate.dispatch.journal import Journal
from callgate.dispatch.wall import Wall
from callgate.workspace.files import WorkspaceFileAPI


class CallContext(ToolContext):
    """A `ToolContext` that looks things up when they are asked for: most tools ask for few."""

    __slots__ = ("_call", "_journal", "_loop", "_subject", "_wall")

    def __init__(self, call: ToolCall, subject: Subject, journal: Journal, wall: Wall) -> None:
        session = call.session
        self.session_id = session.id
        self.turn_id = call.turn_id
        self.tool_use_id = journal.shown_id
        self.workspace_path = session.workspace
        self._cancel_event = self._logger = self._files = None
        self._call, self._subject, self._journal, self._wall = call, subject, journal, wall
        self._loop = asyncio.get_running_loop()

    def _open_files(self) -> WorkspaceFileAPI:
        return self._wall.open(self._call, self._subject.tool.name, self._subject.checked.arguments)

    def _artifact(self, name: str) -> str | None:
        return self._wall.artifact(self._call, name)

    def _publish(self, event_type: str, payload: Mapping[str, Any]) -> None:
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            self._journal.published(event_type, payload)
        else:  # a tool's own thread
            self._loop.call_soon_threadsafe(self._journal.published, event_type, payload)
