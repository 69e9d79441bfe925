"""The context of one execution of a tool, created from its call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from callgate.core.calls import ToolCall
from callgate.core.commands import Launcher
from callgate.core.local.environment import Environment, off_loop
from callgate.core.sessions import Mode
from callgate.core.tools import ToolContext, ToolOutput
from callgate.dispatch.call_files import CallFiles, Report
from callgate.dispatch.environments import Environments
from callgate.dispatch.running import RunningCall
from callgate.dispatch.subjects import Subject
from callgate.workspace.files import WorkspaceFileAPI

if TYPE_CHECKING:
    from callgate.core.traces import TraceContext

_MOST_UNCONFIRMED = 64
"""Events that a thread publishes before it waits for the event loop to process them."""


class CallContext(ToolContext):
    """A `ToolContext` with lazy parts, because most tools use few of them."""

    __slots__ = (
        "_artifacts",
        "_call",
        "_call_files",
        "_environments",
        "_has_published",
        "_report",
        "_running",
        "_subject",
        "_unconfirmed",
        "diagnostics",
    )

    def __init__(
        self,
        running: RunningCall,
        subject: Subject,
        report: Report,
        files: CallFiles,
        environments: Environments,
        launcher: Launcher | None = None,
        trace: TraceContext | None = None,
    ) -> None:
        call = running.call
        session = call.session
        self.session_id = session.id
        self.scope = call.scope
        self.turn_id = call.turn_id
        self.tool_use_id = call.tool_use_id or call.id
        self.workspace_path = session.workspace
        self._cancel_event = self._logger = self._files = self._environment = None
        self._launcher, self.trace = launcher, trace
        self._call, self._subject, self._report, self._call_files = call, subject, report, files
        self._environments, self._running = environments, running
        self._has_published = False
        self._unconfirmed = 0
        """Events that a tool's own thread published since it last waited for the event loop."""
        self.diagnostics: dict[str, None] | None = None
        """Diagnostics about the call, from its environment."""
        self._artifacts: list[str] | None = None
        """Artifacts of the call that it waits for: until they are synced, if the tool has effects,
        or until they are shared, if several servers share artifacts."""

    @property
    def call(self) -> ToolCall:
        """The call that this context serves."""
        return self._call

    @property
    def answer_scope(self) -> str | None:
        """The scope of the answer that just approved the call; None: no approver answered."""
        return self._running.answer_scope

    @property
    def may_write(self) -> bool:
        mode = self._call.session.mode
        return self._subject.tool.has_effects and mode not in (Mode.NONE, Mode.READ)

    def _open_files(self) -> WorkspaceFileAPI:
        return self._call_files.open(self._call, self._subject, self._publish)

    def _open_environment(self) -> Environment:
        files = self.workspace_files
        assert isinstance(files, WorkspaceFileAPI)
        return self._environments.open(self._call.session, files, self._diagnose)

    def _diagnose(self, message: str) -> None:
        self.diagnostics = {**(self.diagnostics or {}), message: None}

    def diagnosed(self, output: ToolOutput) -> ToolOutput:
        """Add the diagnostics of the call to the metadata of its output."""
        if self.diagnostics:
            listed = output.metadata.get("diagnostics")
            others = listed if isinstance(listed, list | tuple) else ()
            diagnostics = [*others, *self.diagnostics]
            output.metadata = {**output.metadata, "diagnostics": diagnostics}
        return output

    def _artifact(self, name: str) -> str | None:
        path = self._call_files.artifact(self._call, name)
        if path is not None and (
            self._subject.tool.has_effects or self._call_files.share is not None
        ):
            self._artifacts = [*(self._artifacts or ()), path]
        return path

    async def artifacts_synced(self) -> None:
        """Wait until the artifacts of the call are synced to disk, and shared with other servers
        if there are any."""
        if self._artifacts is not None:
            await off_loop(self._call_files.sync_artifacts, self._artifacts)
            if self._call_files.share is not None:
                await self._call_files.share(self.session_id, self._artifacts)

    def share_artifacts(self) -> None:
        """Share the artifacts of the call in the background."""
        self._call_files.share_later(self.session_id, self._artifacts or ())

    def backpressure(self) -> asyncio.Future[None] | None:
        """Return the future that a producer of output waits for; None: it may continue. All
        producers of the call share the future. A stop of the call resolves it."""
        pressure, running = self._call.backpressure, self._running
        if pressure is None or not self._has_published or running.stop is not None:
            return None
        if running.drain is None or running.drain.done():
            running.drain = pressure.wait()
        return running.drain

    def _publish(self, event_type: str, payload: Mapping[str, Any]) -> None:
        self._has_published = True
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        loop = self._running.task.get_loop()
        if here is loop:
            self._report(event_type, payload)
        else:  # a tool's own thread
            loop.call_soon_threadsafe(self._report, event_type, payload)
            self._unconfirmed += 1
            pressure = self._call.backpressure
            if pressure is not None and (pressure.is_on or self._unconfirmed > _MOST_UNCONFIRMED):
                self._wait_in_thread(loop, pressure.patience_s)

    def _wait_in_thread(self, loop: asyncio.AbstractEventLoop, patience_s: float) -> None:
        """Wait for the future of `backpressure` in a tool's own thread."""
        released = threading.Event()

        def watch() -> None:
            drain = self.backpressure()
            if drain is None:
                released.set()
            else:
                drain.add_done_callback(lambda _: released.set())

        self._unconfirmed = 0
        loop.call_soon_threadsafe(watch)  # runs after the events that were published before
        released.wait(patience_s)
