"""Results as the frames that answer calls, each in the way in which its request wants it."""

from __future__ import annotations

from msgspec import structs

from callgate.core.pacing.backpressure import dropped_events
from callgate.core.results import Diagnostic, ToolResult
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.results import envelope, uncut


class Replies:
    def __init__(self) -> None:
        self._uncut: set[str] = set()
        """The requests in flight whose result is wanted whole."""
        self._notes: dict[str, Diagnostic] = {}
        """By request in flight: what is to be said beside its result."""

    def expect(self, request: frames.ToolCall, note: Diagnostic | None) -> None:
        if request.whole:
            self._uncut.add(request.request_id)
        if note is not None:
            self._notes[request.request_id] = note

    def of(self, request_id: str, result: ToolResult, dropped: int = 0) -> frames.ToolResult:
        """The frame for the result of a request, which is then forgotten. `dropped`: how many of
        its events were not sent."""
        note = self._notes.pop(request_id, None) if self._notes else None
        if note is not None:
            result = structs.replace(result, diagnostics=(*result.diagnostics, note))
        if dropped:
            note = Diagnostic(dropped_events(dropped))
            result = structs.replace(result, diagnostics=(*result.diagnostics, note))
        if request_id in self._uncut:
            self._uncut.discard(request_id)
            return uncut(request_id, result)
        return frames.ToolResult(request_id=request_id, result=envelope(result))
