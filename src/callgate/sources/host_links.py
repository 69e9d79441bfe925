"""One host process: requests go to its stdin, and each has one outcome.

Requests in flight to a peer that speaks host_v1, and a limit of concurrent calls.

Each request has one outcome. The peer is a host on pipes or a remote worker. An answer without a
request in flight is ignored, and a caller that stopped waiting receives nothing.

    ask(params)  ->  Returned, or a `HostError` with the reason
                     events during the request -> `on_event`, requests of the host -> `on_ask`

If the process ends, every request in flight fails within a moment. Its effects are unknown, so no
request is repeated.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from callgate.core.commands import Command, Exit, Launcher, Running, Stream, watch_writes
from callgate.core.errors import ToolError, ToolExecutionError
from callgate.core.tasks import TaskSet
from callgate.protocol.host_v1 import frames, values
from callgate.protocol.host_v1.frames import Passed
from callgate.protocol.host_v1.lines import Fault
from callgate.protocol.host_v1.runtime import Broken, Received, RuntimeWire
from callgate.redaction.frame_log import FrameLog
from callgate.sources.lifecycle import ended
from callgate.sources.logs import LifeLog

OnEvent = Callable[[frames.Event], asyncio.Future[None] | None]
"""Takes an event. Returns a future if its reader has fallen behind, done when it has caught up."""
OnAsk = Callable[[frames.OfRuntime], Awaitable[Any]]
Outcome = asyncio.Future[frames.Returned]


class HostError(Exception):
    """The reason for which a request has no value."""


class HostRefused(HostError):
    """The peer answered with a failure."""

    def __init__(self, failure: frames.Failure) -> None:
        super().__init__(f"{failure.type}: {failure.detail}")
        self.failure = failure


class InvalidAnswer(HostError):
    """The peer's answer violates the protocol."""


class Pending(NamedTuple):
    outcome: Outcome
    on_event: OnEvent | None
    on_ask: OnAsk | None
    is_call: bool


class PendingRequests:
    """The requests in flight of one connection, by id."""

    def __init__(self, wire: RuntimeWire) -> None:
        self._wire = wire
        self._ids = itertools.count(1)
        self._pending: dict[str, Pending] = {}
        self.drain: asyncio.Future[None] | None = None
        """The last future that an `on_event` returned."""

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def calls(self) -> int:
        return sum(each.is_call for each in self._pending.values())

    def next_id(self) -> str:
        return str(next(self._ids))

    def add(
        self,
        id: str,
        on_event: OnEvent | None = None,
        on_ask: OnAsk | None = None,
        *,
        is_call: bool = False,
    ) -> Outcome:
        outcome = new_outcome()
        self._pending[id] = Pending(outcome, on_event, on_ask, is_call)
        return outcome

    def find(self, id: str) -> Pending | None:
        return self._pending.get(id)

    def await_again(self, id: str) -> Outcome | None:
        """Return a new outcome for a request whose first was cancelled; None if it has ended."""
        pending = self._pending.get(id)
        if pending is None:
            return None
        outcome = new_outcome()
        self._pending[id] = pending._replace(outcome=outcome)
        return outcome

    def abandon(self, id: str) -> None:
        """Stop waiting for a request. Idempotent."""
        pending = self._pending.pop(id, None)
        if pending is not None:
            self._wire.abandon(id)
            pending.outcome.cancel()

    def take(self, received: Received) -> bool:
        """Handle a message about a request; return False for any other message."""
        match received:
            case frames.Returned():
                self._settle(received.id, received)
            case frames.Failed():
                if received.id is not None:
                    self._settle(received.id, HostRefused(received.error))
            case frames.Emitted():
                pending = self._pending.get(received.id)
                if pending is not None and pending.on_event is not None:
                    self.drain = pending.on_event(received.event) or self.drain
            case Broken():
                problem = f"its answer is invalid ({received.why})"
                self._settle(received.id, InvalidAnswer(problem))
            case _:
                return False
        return True

    def _settle(self, id: str, outcome: frames.Returned | HostError) -> None:
        pending = self._pending.pop(id, None)
        if pending is None or pending.outcome.done():
            return
        if isinstance(outcome, HostError):
            pending.outcome.set_exception(outcome)
        else:
            pending.outcome.set_result(outcome)

    def fail_all(self, error: HostError) -> list[Outcome]:
        """Fail all requests in flight at the end of the connection. Returns their outcomes."""
        pending, self._pending = self._pending, {}
        open = [each.outcome for each in pending.values() if not each.outcome.done()]
        for each in open:
            each.set_exception(error)
        return open


def new_outcome() -> Outcome:
    return asyncio.get_running_loop().create_future()


class Slots:
    """A semaphore that needs no coroutine while a slot is free."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    def acquire(self) -> asyncio.Future[None] | None:
        """Take a slot. Returns None if one was free, else a ticket for `until`."""
        if self._free:
            self._free -= 1
            return None
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(ticket)
        return ticket

    async def until(self, ticket: asyncio.Future[None]) -> None:
        """Wait for a slot. A cancelled waiter has none."""
        try:
            await ticket
        except BaseException:
            if ticket.done() and not ticket.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Pass the slot to the longest waiter."""
        while self._waiting:
            ticket = self._waiting.popleft()
            if not ticket.done():
                ticket.set_result(None)
                return
        self._free += 1


LEAVE_S = 2.0
"""Time from the end of its stdin to SIGTERM."""
TERM_S = 3.0
"""Time from SIGTERM to SIGKILL."""
MOST_UNREAD = 1024 * 1024
"""Bytes of unread answers, beyond which the host gets no further answer."""


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
        """Done when reading may continue: the only request in flight has a slow reader."""
        self._running: Running | None = None
        self._stdin: int | None = None
        self._buffer = bytearray()
        """Data to send at the end of this event loop iteration."""
        self._unsent = bytearray()
        """Data that the pipe did not accept."""
        self._serving = asyncio.Lock()
        self._room = asyncio.Event()
        """Set while the host reads the answers to its own requests."""
        self._room.set()
        self._tasks = TaskSet()
        self._leaving: asyncio.TimerHandle | None = None
        self._retired = False
        self.exit: Exit | None = None
        """The exit of the process; None while it runs."""

    async def start(self, launcher: Launcher, command: Command) -> None:
        """Start the process. Raises `OSError`, or a `ToolError` if the start is refused."""
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
        """Report its next forbidden write attempt, if the sandbox can detect it."""
        watch_writes(self._running, report)

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def reaches_back(self) -> bool:
        """Whether the host may send requests to callgate."""
        return bool(self._wire.agreed)

    def ask(
        self, params: frames.OfHost, on_event: OnEvent | None = None, on_ask: OnAsk | None = None
    ) -> tuple[str, Outcome]:
        """Send a request. Returns its id and its outcome. Raises `Unsendable` if it is too large
        for a line."""
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
        """Stop waiting for a request."""
        self._read_on()
        self._requests.abandon(id)
        self._end_if_done()

    def await_again(self, id: str) -> Outcome | None:
        """Return a new outcome for a request whose first was cancelled; None if it has ended."""
        return self._requests.await_again(id)

    def retire(self) -> None:
        """End it as soon as no request is in flight."""
        self._retired = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._retired and not self._requests:
            self.end()

    def end(self, leave_s: float = LEAVE_S) -> None:
        """Close its stdin; if it does not exit then, it is terminated."""
        self._flush()
        self._hang_up()
        if self._running is not None and self.exit is None and self._leaving is None:
            stop = self._running.stop
            self._leaving = asyncio.get_running_loop().call_later(leave_s, stop, TERM_S)

    def kill(self) -> None:
        """Kill it immediately, with its child processes."""
        self._hang_up()
        if self._running is not None:
            self._running.stop(0.0)

    async def ended(self) -> None:
        """Wait for the end of the process and of its tasks."""
        if self._running is not None:
            await self._running.wait()
        await self._tasks.wait()

    # --- out ---------------------------------------------------------------------------------

    def _send_soon(self, data: bytes) -> None:
        """Send data at the end of this event loop iteration. If several requests are in flight,
        one write for all of them is cheaper, and the host is busy anyway."""
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
            except OSError:  # the host closed its stdin: it ends soon, or violates the protocol
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
            self._log.note(f"stopped: too many lines are not messages ({self._wire.hopeless})")
            self.kill()
        drain, self._requests.drain = self._requests.drain, None
        # A slow reader of one call must not delay the other calls in flight.
        self._drain = drain if len(self._requests) == 1 else None
        return self._drain

    def _read_on(self) -> None:
        """Continue reading without waiting for a slow reader."""
        if self._drain is not None and not self._drain.done():
            self._drain.set_result(None)
        self._drain = None

    def _take(self, received: Received) -> None:
        if isinstance(received, Broken):
            self._log.note(f"an invalid answer ({received.why}): {received.shown}")
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
                self._log.note(f"ignored ({received.why}): {received.shown}")

    async def _serve(self, request: frames.Request[Any]) -> None:
        """Answer a request of the host during one of its calls, in order. The next
        answer waits until the host has read the earlier ones, which bounds the memory."""
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
            answer = frames.Failed(id=request.id, error=values.to_failure(error))
        except Exception as error:  # for example a missing file, or one that is not text
            failed = ToolExecutionError(str(error), reason=type(error).__name__)
            answer = frames.Failed(id=request.id, error=values.to_failure(failed))
        if self._stdin is not None:
            self._send(self._wire.encode(answer))

    # --- its end -----------------------------------------------------------------------------

    async def _await_end(self, running: Running) -> None:
        self.exit = await running.wait()
        self._hang_up()
        self._wire.drop()
        if self._leaving is not None:
            self._leaving.cancel()
        self._on_end(self.exit)  # before `fail_all`: it checks the requests in flight
        self._requests.fail_all(HostExited(self.exit))

    def _spawn(self, work: Any) -> None:
        self._tasks.start(work)
