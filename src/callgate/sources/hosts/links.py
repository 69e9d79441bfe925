"""One host process: requests go to its stdin, and each has one outcome.

    ask(params)  ->  Returned, or a `HostError` that says why not
                     what it streams meanwhile -> `on_event`, what it asks for -> `on_ask`

Whatever happens to the process, every request under way has its outcome within a moment: what
it was doing when it died is not known, so nothing is asked again.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from callgate.core.commands import Command, Exit, Launcher, Running, Stream, watch_writes
from callgate.core.errors import ToolError, ToolExecutionError
from callgate.core.task_sets import TaskSet
from callgate.protocol.host_v1 import failures, frames
from callgate.protocol.host_v1.excerpts import Passed
from callgate.protocol.host_v1.requests import Fault
from callgate.protocol.host_v1.runtime import Broken, Received, RuntimeWire
from callgate.redaction.frame_log import FrameLog
from callgate.sources.lifecycle import ended
from callgate.sources.logs import LifeLog

OnEvent = Callable[[frames.Event], None]
OnAsk = Callable[[frames.OfRuntime], Awaitable[Any]]

LEAVE_S = 2.0
"""Between the end of its stdin and SIGTERM ..."""
TERM_S = 3.0
"""... and from there to SIGKILL."""
MOST_UNREAD = 1024 * 1024
"""Bytes of answers that a host may leave unread before it gets another."""


class HostError(Exception):
    """Why a request has no value."""


class Refused(HostError):
    """The host answered that it failed."""

    def __init__(self, failure: frames.Failure) -> None:
        super().__init__(f"{failure.type}: {failure.detail}")
        self.failure = failure


class InvalidAnswer(HostError):
    """The host answered in a way that no answer may have."""


class HostExited(HostError):
    """The host ended before it answered."""

    def __init__(self, exit: Exit) -> None:
        super().__init__(f"it {ended(exit)}")
        self.exit = exit


class _Pending(NamedTuple):
    outcome: asyncio.Future[frames.Returned]
    on_event: OnEvent | None
    on_ask: OnAsk | None


class Link:
    def __init__(self, log: LifeLog, on_end: Callable[[Exit], None] = lambda exit: None) -> None:
        self._log = log
        self._on_end = on_end
        self._frames = FrameLog("callgate.hosts")
        self._wire = RuntimeWire()
        self._ids = itertools.count(1)
        self._pending: dict[str, _Pending] = {}
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
        return len(self._pending)

    @property
    def reaches_back(self) -> bool:
        """Whether there is something that the host may ask of us."""
        return bool(self._wire.agreed)

    def ask(
        self, params: frames.OfHost, on_event: OnEvent | None = None, on_ask: OnAsk | None = None
    ) -> tuple[str, asyncio.Future[frames.Returned]]:
        """Send a request: its id, and its outcome. `Unsendable` where it does not fit a line."""
        id = str(next(self._ids))
        outcome: asyncio.Future[frames.Returned] = asyncio.get_running_loop().create_future()
        if self.exit is not None or self._stdin is None:
            outcome.set_exception(HostExited(self.exit or Exit()))
            return id, outcome
        data = self._wire.encode(frames.ask(id, params))
        self._pending[id] = _Pending(outcome, on_event, on_ask)
        if len(self._pending) > 1:
            self._send_soon(data)
        else:
            self._send(data)
        return id, outcome

    def abandon(self, id: str) -> None:
        """Wait no longer for a request."""
        pending = self._pending.pop(id, None)
        if pending is not None:
            self._wire.abandon(id)
            pending.outcome.cancel()
        self._end_if_done()

    def await_again(self, id: str) -> asyncio.Future[frames.Returned] | None:
        """Another outcome for a request whose first was cancelled; None if it is over."""
        pending = self._pending.get(id)
        if pending is None:
            return None
        outcome: asyncio.Future[frames.Returned] = asyncio.get_running_loop().create_future()
        self._pending[id] = pending._replace(outcome=outcome)
        return outcome

    def retire(self) -> None:
        """End it as soon as nothing is under way."""
        self._retired = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._retired and not self._pending:
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

    def _hear(self, stream: Stream, data: bytes) -> None:
        if stream == "stderr":
            self._log.add(data)
            return
        self._frames.received(data)
        for received in self._wire.receive(data):
            self._take(received)
        if self._wire.hopeless is not None and self._stdin is not None:
            self._log.note(f"ended: it says too much that means nothing ({self._wire.hopeless})")
            self.kill()

    def _take(self, received: Received) -> None:
        match received:
            case frames.Returned():
                self._settle(received.id, received)
            case frames.Failed():
                if received.id is not None:
                    self._settle(received.id, Refused(received.error))
            case frames.Emitted():
                pending = self._pending.get(received.id)
                if pending is not None and pending.on_event is not None:
                    pending.on_event(received.event)
            case frames.Request():
                self._spawn(self._serve(received))
            case Fault():
                self._send(self._wire.encode(received))
            case Broken():
                self._log.note(f"an answer that cannot be taken ({received.why}): {received.shown}")
                self._settle(
                    received.id, InvalidAnswer(f"its answer cannot be taken ({received.why})")
                )
                if received.why == "version":
                    self.kill()
            case Passed():
                self._log.note(f"passed over ({received.why}): {received.shown}")

    def _settle(self, id: str, outcome: frames.Returned | HostError) -> None:
        pending = self._pending.pop(id, None)
        self._end_if_done()
        if pending is None or pending.outcome.done():
            return
        if isinstance(outcome, HostError):
            pending.outcome.set_exception(outcome)
        else:
            pending.outcome.set_result(outcome)

    async def _serve(self, request: frames.Request[Any]) -> None:
        """Answer what a host asks for one of its calls, in its order, and not before it has read
        what it was answered: however much it asks for, memory is bounded."""
        async with self._serving:
            await self._room.wait()
            await self._answer(request)

    async def _answer(self, request: frames.Request[Any]) -> None:
        pending = self._pending.get(request.params.call)
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
        pending, self._pending = self._pending, {}
        for each in pending.values():
            if not each.outcome.done():
                each.outcome.set_exception(HostExited(self.exit))

    def _spawn(self, work: Any) -> None:
        self._tasks.start(work)
