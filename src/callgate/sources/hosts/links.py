"""One host process: requests go to its stdin, and each has one outcome.

    ask(params)  ->  Returned, or a `HostError` that says why not
                     what it streams meanwhile -> `on_event`, what it asks for -> `on_ask`

Whatever happens to the process, every request under way has its outcome within a moment: what
it was doing when it died is not known, so nothing is asked again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import msgspec

from callgate.core.commands import Command, Exit, Launcher, Running, Stream, watch_writes
from callgate.core.errors import ToolError, ToolExecutionError
from callgate.core.task_sets import TaskSet
from callgate.protocol.host_v1 import failures, frames
from callgate.protocol.host_v1.excerpts import Passed
from callgate.protocol.host_v1.requests import Fault
from callgate.protocol.host_v1.runtime import Broken, Received, RuntimeWire
from callgate.redaction.frame_log import FrameLog
from callgate.sources.hosts.in_flight import (
    HostError,
    OnAsk,
    OnEvent,
    Outcome,
    PendingRequests,
    new_outcome,
)
from callgate.sources.lifecycle import ended
from callgate.sources.logs import LifeLog

LEAVE_S = 2.0
"""Between the end of its stdin and SIGTERM ..."""
TERM_S = 3.0
"""... and from there to SIGKILL."""
MOST_UNREAD = 1024 * 1024
"""Bytes of answers that a host may leave unread before it gets another."""


class HostExited(HostError):
    """The host ended before it answered."""

    def __init__(self, exit: Exit) -> None:
        super().__init__(f"it {ended(exit)}")
        self.exit = exit


class Link:
    def __init__(self, log: LifeLog, on_end: Callable[[Exit], None] = lambda exit: None) -> None:
        self._log = log
        self._on_end = on_end
        self._frames = FrameLog("callgate.hosts")
        self._wire = RuntimeWire()
        self._requests = PendingRequests(self._wire)
        self._drain: asyncio.Future[None] | None = None
        """Until when nothing is read, because the one call under way has a slow reader."""
        self._running: Running | None = None
        self._stdin: int | None = None
        self._buffer = bytearray()
        """What is sent at the end of this turn of the loop."""
        self._unsent = bytearray()
        """What the pipe did not take."""
        self._serving = asyncio.Lock()
        self._room = asyncio.Event()
        """Set while the host reads what it asked for."""
        self._room.set()
        self._tasks = TaskSet()
        self._leaving: asyncio.TimerHandle | None = None
        self._retired = False
        self.exit: Exit | None = None
        """How it ended."""

    async def start(self, launcher: Launcher, command: Command) -> None:
        """Start the process. Raises OSError, and `ToolError` where it may not be started."""
        theirs, ours = os.pipe()
        os.set_blocking(ours, False)
        try:
            command = msgspec.structs.replace(command, stdin=theirs)
            self._running = await launcher.start(command, self._hear)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._stdin = ours
        self._spawn(self._await_end(self._running))

    def watch_writes(self, report: Callable[[str], None]) -> None:
        """Tell of its next attempt to write where it may not, if that can be seen."""
        watch_writes(self._running, report)

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def reaches_back(self) -> bool:
        """Whether there is something that the host may ask of us."""
        return bool(self._wire.agreed)

    def ask(
        self, params: frames.OfHost, on_event: OnEvent | None = None, on_ask: OnAsk | None = None
    ) -> tuple[str, Outcome]:
        """Send a request: its id, and its outcome. `Unsendable` where it does not fit a line."""
        id = self._requests.next_id()
        if self.exit is not None or self._stdin is None:
            outcome = new_outcome()
            outcome.set_exception(HostExited(self.exit or Exit()))
            return id, outcome
        data = self._wire.encode(frames.ask(id, params))
        outcome = self._requests.add(id, on_event, on_ask)
        self._read_on()
        if len(self._requests) > 1:
            self._send_soon(data)
        else:
            self._send(data)
        return id, outcome

    def abandon(self, id: str) -> None:
        """Wait no longer for a request."""
        self._read_on()
        self._requests.abandon(id)
        self._end_if_done()

    def await_again(self, id: str) -> Outcome | None:
        """Another outcome for a request whose first was cancelled; None if it is over."""
        return self._requests.await_again(id)

    def retire(self) -> None:
        """End it as soon as nothing is under way."""
        self._retired = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._retired and not self._requests:
            self.end()

    def end(self, leave_s: float = LEAVE_S) -> None:
        """Let it go: its stdin ends, and if it does not end by that, it is ended."""
        self._flush()
        self._hang_up()
        if self._running is not None and self.exit is None and self._leaving is None:
            stop = self._running.stop
            self._leaving = asyncio.get_running_loop().call_later(leave_s, stop, TERM_S)

    def kill(self) -> None:
        """End it and all that it started, now."""
        self._hang_up()
        if self._running is not None:
            self._running.stop(0.0)

    async def ended(self) -> None:
        """Wait until nothing of it is left."""
        if self._running is not None:
            await self._running.wait()
        await self._tasks.wait()

    # --- out ---------------------------------------------------------------------------------

    def _send_soon(self, data: bytes) -> None:
        """Send it together with what else comes in this turn of the loop: where several are
        under way the host has something to do, and each write would cost as much as them all."""
        if not self._buffer:
            asyncio.get_running_loop().call_soon(self._flush)
        self._buffer += data

    def _flush(self) -> None:
        if self._buffer:
            self._send(b"")

    def _send(self, data: bytes) -> None:
        if self._buffer:
            data = bytes(self._buffer) + data
            self._buffer.clear()
        if self._stdin is None:
            return
        self._frames.sent(data)
        if not self._unsent:
            try:
                sent = os.write(self._stdin, data)
            except BlockingIOError:
                sent = 0
            except OSError:  # it closed its stdin: its end is near, or it is none of ours
                self._hang_up()
                return
            if sent == len(data):
                return
            data = data[sent:]
            asyncio.get_running_loop().add_writer(self._stdin, self._send_rest)
        self._unsent += data
        if len(self._unsent) > MOST_UNREAD:
            self._room.clear()

    def _send_rest(self) -> None:
        assert self._stdin is not None
        try:
            del self._unsent[: os.write(self._stdin, self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._hang_up()
            return
        if len(self._unsent) <= MOST_UNREAD:
            self._room.set()
        if not self._unsent:
            asyncio.get_running_loop().remove_writer(self._stdin)

    def _hang_up(self) -> None:
        if self._stdin is not None:
            asyncio.get_running_loop().remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = None
            self._unsent.clear()
            self._room.set()

    # --- in ----------------------------------------------------------------------------------

    def _hear(self, stream: Stream, data: bytes) -> asyncio.Future[None] | None:
        if stream == "stderr":
            self._log.add(data)
            return None
        self._frames.received(data)
        for received in self._wire.receive(data):
            self._take(received)
        if self._wire.hopeless is not None and self._stdin is not None:
            self._log.note(f"ended: it says too much that means nothing ({self._wire.hopeless})")
            self.kill()
        drain, self._requests.drain = self._requests.drain, None
        self._drain = drain if len(self._requests) == 1 else None  # others are not held up
        return self._drain

    def _read_on(self) -> None:
        """Wait for no reader any more."""
        if self._drain is not None and not self._drain.done():
            self._drain.set_result(None)
        self._drain = None

    def _take(self, received: Received) -> None:
        if isinstance(received, Broken):
            self._log.note(f"an answer that cannot be taken ({received.why}): {received.shown}")
        if self._requests.take(received):
            self._end_if_done()
        match received:
            case frames.Request():
                self._spawn(self._serve(received))
            case Fault():
                self._send(self._wire.encode(received))
            case Broken(why="version"):
                self.kill()
            case Passed():
                self._log.note(f"passed over ({received.why}): {received.shown}")

    async def _serve(self, request: frames.Request[Any]) -> None:
        """Answer what a host asks for one of its calls, in its order, and not before it has read
        what it was answered: however much it asks for, memory is bounded."""
        async with self._serving:
            await self._room.wait()
            await self._answer(request)

    async def _answer(self, request: frames.Request[Any]) -> None:
        pending = self._requests.find(request.params.call)
        answer: frames.Answer
        try:
            if pending is None or pending.on_ask is None:
                raise ToolError("That call is not running.")
            value = await pending.on_ask(request.params)
            answer = frames.Returned(id=request.id, result=frames.Result(value=value))
        except ToolError as error:
            answer = frames.Failed(id=request.id, error=failures.to_failure(error))
        except Exception as error:  # a file that is not there, text that is none
            failed = ToolExecutionError(str(error), reason=type(error).__name__)
            answer = frames.Failed(id=request.id, error=failures.to_failure(failed))
        if self._stdin is not None:
            self._send(self._wire.encode(answer))

    # --- its end -----------------------------------------------------------------------------

    async def _await_end(self, running: Running) -> None:
        self.exit = await running.wait()
        self._hang_up()
        self._wire.drop()
        if self._leaving is not None:
            self._leaving.cancel()
        self._on_end(self.exit)  # sees what was under way
        self._requests.fail_all(HostExited(self.exit))

    def _spawn(self, work: Any) -> None:
        self._tasks.start(work)
