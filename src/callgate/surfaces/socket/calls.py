"""The calls of one connection: so many at once, the others wait their turn.

    taken -> running, up to `MOST_AT_ONCE`          -> answered once, when it ends,
          -> waiting, in the order they came           is given up, or the peer goes

A call that never waits is answered where it was taken, without a task or a turn of the loop.
A peer that sends faster than its calls end is not read any more (`is_full`) until it has room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from callgate.core.calls import ToolCall
from callgate.core.errors import ToolCancelled, ToolError
from callgate.core.results import ToolResult
from callgate.runtime import Runtime

MOST_AT_ONCE = 64
MOST_WAITING = 1_024
_MOST_WAITING_BYTES = 16 * 1024 * 1024
"""Bytes of calls that wait for others before no more are read."""


class Host(Protocol):
    """What calls need of the server."""

    runtime: Runtime

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]: ...


class Calls:
    def __init__(self, host: Host, answer: Callable[[str, ToolResult], None]) -> None:
        self._host = host
        self._runtime = host.runtime
        self._answer = answer
        self._running: dict[str, str] = {}
        """By request id: our id of the call ..."""
        self._requests: dict[str, str] = {}
        """... and the other way round, of those that have begun."""
        self._waiting: dict[str, ToolCall] = {}
        self._waiting_bytes = 0
        """Bytes that came since calls have to wait."""
        self._cancelled: set[str] = set()
        """The ids of running calls that are being stopped."""
        self._closed: ToolError | None = None

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        many = len(self._waiting) >= MOST_WAITING
        return many or (self.waits and self._waiting_bytes > _MOST_WAITING_BYTES)

    def is_full_with(self, received: int) -> bool:
        """Count bytes that came while calls wait."""
        self._waiting_bytes += received
        return self.is_full

    def request_of(self, call_id: str) -> str | None:
        """Of a call that has begun and is not answered."""
        return self._requests.get(call_id)

    def take(self, request_id: str, call: ToolCall) -> None:
        if len(self._running) < MOST_AT_ONCE:
            self._running[request_id] = call.id
            self._begin(request_id, call)
        else:
            self._waiting[request_id] = call

    def refuse(self, request_id: str, call: ToolCall, error: ToolError) -> None:
        self._answer(request_id, self._runtime.refuse(call, error))

    def cancel(self, request_id: str) -> None:
        call = self._waiting.pop(request_id, None)
        if call is not None:
            self._forget_bytes()
            self.refuse(request_id, call, ToolCancelled())
            return
        call_id = self._running.get(request_id)
        if call_id is not None and call_id not in self._cancelled:
            self._cancelled.add(call_id)
            self._host.start_task(self._runtime.cancel(call_id))

    def close(self, error: ToolError) -> None:
        """Nothing more begins. What waits is refused; what runs is stopped by others."""
        self._closed = error
        waiting, self._waiting = self._waiting, {}
        for request_id, call in waiting.items():
            self.refuse(request_id, call, error)

    def give_up_all(self, error: ToolError) -> None:
        """Answer the calls whose end does not come; when it comes, nobody is told again."""
        for request_id, call_id in list(self._running.items()):
            if self._end(request_id, call_id):
                self._answer(request_id, self._runtime.give_up(call_id, error))

    def _forget_bytes(self) -> None:
        if not self._waiting:
            self._waiting_bytes = 0

    def _begin(self, request_id: str, call: ToolCall) -> None:
        if self._closed is not None:  # it was closed before it began
            self.refuse(request_id, call, self._closed)
            return
        self._requests[call.id] = request_id
        try:
            begun = self._runtime.begin(call)
        except BaseException as error:
            self._end(request_id, call.id)
            if not isinstance(error, asyncio.CancelledError):  # which says that nobody waits
                raise
        else:
            if isinstance(begun, ToolResult):
                if self._end(request_id, call.id):
                    self._answer(request_id, begun)
            else:
                self._host.start_task(self._finish(request_id, call.id, begun))

    async def _finish(
        self, request_id: str, call_id: str, begun: Coroutine[Any, Any, ToolResult]
    ) -> None:
        is_asked = False
        try:
            result = await begun
        finally:
            is_asked = self._end(request_id, call_id)
        if is_asked:
            self._answer(request_id, result)

    def _end(self, request_id: str, call_id: str) -> bool:
        """Whether this call was still to be answered; its request id may be another's by now."""
        self._requests.pop(call_id, None)
        if self._running.get(request_id) != call_id:
            return False
        del self._running[request_id]
        if self._cancelled:
            self._cancelled.discard(call_id)
        if self._waiting:
            following = next(iter(self._waiting))
            call = self._waiting.pop(following)
            self._running[following] = call.id
            # In another turn of the loop: many may wait, and none of them for anything.
            asyncio.get_running_loop().call_soon(self._begin, following, call)
            self._forget_bytes()
        return True
