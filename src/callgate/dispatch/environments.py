"""Files and terminals that clients of sessions offer, and the context of one execution.

    path -> wall, guard, rules -> lease -> wall, guard, rules -> absolute path -> editor -> text
                                    |                                               |
                                    | a sandboxed process could change the path     | not there
                                    +-----------------------------------------------+--> the disk

An editor receives only paths that are allowed here. It follows links, so a request needs a lease
(`sandbox.leases`): no sandboxed process can change the target of the path, and none that could
starts before the editor has answered. Any other failure of the editor is a failure of the tool,
because the file on disk may be older than the editor's text.

The context of one execution of a tool, created from its call.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from callgate.core.calls import ToolCall
from callgate.core.commands import Launcher
from callgate.core.errors import ToolValidationError
from callgate.core.local.environment import (
    Edited,
    Environment,
    LocalEnvironment,
    Offered,
    TextFiles,
    WorkspaceFiles,
    off_loop,
)
from callgate.core.sessions import Mode, Session
from callgate.core.tasks import TaskSet
from callgate.core.tools import ToolContext, ToolOutput
from callgate.dispatch.call_files import CallFiles, Report
from callgate.dispatch.foreign_code import our_own
from callgate.dispatch.running import RunningCall
from callgate.dispatch.subjects import Subject
from callgate.sandbox.leases import Leases
from callgate.workspace import refusals
from callgate.workspace.files import Access, WorkspaceFileAPI

if TYPE_CHECKING:
    from callgate.core.ids import TraceContext


WRITTEN_ON_DISK = "not in the editor: written on disk"
LEADS_ELSEWHERE = (
    "the file on disk was used, not the editor: a running sandboxed process could redirect the"
    " path to another file"
)

UNANSWERED_S = 30.0
"""Time limit for an editor's answer after its caller was cancelled."""

T = TypeVar("T")
Ask = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]
"""Sends a request to an editor and returns its answer."""


class Environments:
    """Offers of clients, by session."""

    def __init__(self, *, delegate_terminal: bool = True, leases: Leases | None = None) -> None:
        """Without `leases` there are no sandboxed processes."""
        self._delegate_terminal = delegate_terminal
        self._leases = leases
        self._unanswered = TaskSet()
        self._offered: dict[str, tuple[Offered, asyncio.Lock]] = {}

    def offer(self, session_id: str, offered: Offered) -> None:
        """Set the offer of a session's client, in place of an earlier one."""
        self._offered[session_id] = offered, asyncio.Lock()

    def withdraw(self, session_id: str) -> None:
        self._offered.pop(session_id, None)

    def of(self, session: Session) -> Offered | None:
        """Return the offer for a session; a sub-agent uses its parent's."""
        found = self._find(session)
        return None if found is None else found[0]

    def terminals(self, session: Session) -> Launcher | None:
        """Return the client's terminals for commands of a session, if client and settings allow
        them."""
        if not self._delegate_terminal or not self._offered:
            return None
        offered = self.of(session)
        return None if offered is None else offered.terminals

    def open(
        self,
        session: Session,
        files: WorkspaceFileAPI,
        diagnose: Callable[[str], None] = lambda message: None,
    ) -> Environment:
        """Return the environment of one call, whose `files` check every path. `diagnose` receives
        a message when a file of the editor is read or written on disk instead."""
        found = self._find(session)
        if found is None or found[0].files is None:
            return LocalEnvironment(files)
        return EditorEnvironment(files, found[0].files, found[1], self, diagnose)

    @contextmanager
    def lease(self, path: str) -> Iterator[Ask | None]:
        """Yield a function that sends requests to the editor, while no sandboxed process can
        redirect `path`; None if one could."""
        if self._leases is None:
            yield _ask
            return
        with our_own():
            lease = self._leases.reserve(path)
        if lease is None:
            yield None
            return
        try:
            yield partial(self._ask_leased, lease)
        finally:
            os.close(lease)

    async def _ask_leased(self, lease: int, request: Coroutine[Any, Any, T]) -> T:
        """Send a request under a lease. The editor may open the file even after the caller was
        cancelled, so the lease lasts until it has answered."""
        copy = os.dup(lease)
        task = self._unanswered.start(request)
        task.add_done_callback(lambda _: os.close(copy))
        task.add_done_callback(_answered)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(UNANSWERED_S, task.cancel)
            raise

    def _find(self, session: Session) -> tuple[Offered, asyncio.Lock] | None:
        if not self._offered:
            return None
        found = self._offered.get(session.id)
        if found is None and session.parent is not None:
            found = self._offered.get(session.parent)
        return found


def _answered(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # mark as retrieved: the waiting call receives it


class EditorEnvironment:
    """An editor's text files behind the workspace boundary."""

    __slots__ = ("_diagnose", "_editor", "_environments", "_files", "_local", "_writing")

    def __init__(
        self,
        files: WorkspaceFileAPI,
        editor: TextFiles,
        writing: asyncio.Lock,
        environments: Environments,
        diagnose: Callable[[str], None],
    ) -> None:
        """`writing` is the lock of all writers, because an editor has no atomic edit request."""
        self._environments = environments
        self._diagnose = diagnose
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
        if self._editor.reads:
            with self._delegated(path, "read") as editor:
                if editor is not None:
                    try:
                        return await editor.read(path, line, limit)
                    except FileNotFoundError:
                        pass
        return await self._local.read_text(path, line=line, limit=limit)

    async def write_text(self, path: str, content: str) -> str | None:
        async with self._writing:
            if not self._editor.writes:
                return await self._local.write_text(path, content)
            with self._delegated(path, "write") as editor:
                return await self._write(editor, path, content)

    async def edit_text(self, path: str, change: Callable[[str], str]) -> Edited:
        if not self._editor.writes:  # the editor's buffer would miss a change before the next one
            return await self._local.edit_text(path, change)
        async with self._writing:
            with self._delegated(path, "read", "write") as editor:
                if editor is None:
                    done = await self._local.edit_text(path, change)
                    return done._replace(remark=WRITTEN_ON_DISK)
                old = await self.read_text(path)
                new = change(old)
                return Edited(old, new, await self._write(editor, path, new))

    @contextmanager
    def _delegated(self, path: str, *access: Access) -> Iterator[_EditorFile | None]:
        """Yield the editor's file at a path, with a lease on the path; None: use the file on
        disk."""
        resolved = self._files.judged(path, *access)
        if resolved is None:
            yield None
            return
        absolute = self._files.absolute(resolved)
        with self._environments.lease(absolute) as ask:
            # Check again: the path may have changed before the lease.
            if ask is not None and self._files.judged(path, *access) == resolved:
                yield _EditorFile(self._editor, absolute, ask)
            else:
                self._diagnose(LEADS_ELSEWHERE)
                yield None

    async def _write(self, editor: _EditorFile | None, path: str, content: str) -> str | None:
        try:
            content.encode()
        except UnicodeEncodeError:
            raise ToolValidationError("The content is not valid Unicode") from None
        if editor is not None:
            try:
                await editor.write(content)
                return None
            except FileNotFoundError:
                pass
        await self._local.write_text(path, content)
        return WRITTEN_ON_DISK


class _EditorFile(NamedTuple):
    """One file of an editor, by its checked path."""

    editor: TextFiles
    absolute: str
    ask: Ask

    async def read(self, path: str, line: int | None, limit: int | None) -> str:
        text: str = await self.ask(self.editor.read(self.absolute, line, limit))
        _ensure_text(text, path)
        return text

    async def write(self, content: str) -> None:
        await self.ask(self.editor.write(self.absolute, content))


async def _ask(request: Coroutine[Any, Any, T]) -> T:
    return await request


def _ensure_text(text: str, path: str) -> None:
    """Refuse an editor's answer that is not text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refusals.not_text(path) from None
    if "\0" in text:
        raise refusals.not_text(path)


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
