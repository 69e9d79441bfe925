"""Limits on concurrent calls: one per session, and one per tool.

Calls start in the order in which they arrive here, except that a call whose tool is at its
limit lets others pass. A call that waits for approval has not arrived yet, so it has no slot.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque

import msgspec

from callgate.dispatch.foreign_code import is_nested
from callgate.dispatch.running import RunningCall
from callgate.dispatch.tools.registry import Registered


class _Lane(msgspec.Struct, kw_only=True):
    running: int = 0
    by_tool: dict[str, int] = {}
    waiting: deque[tuple[str, int | None, asyncio.Future[None]]] = msgspec.field(
        default_factory=deque
    )


class Lanes:
    """The lanes of sessions that have calls; an idle session has none."""

    def __init__(self, cap: int) -> None:
        if cap < 1:
            raise ValueError("the concurrency cap must be at least 1")
        self._cap = cap
        self.by_session: defaultdict[str, _Lane] = defaultdict(_Lane)

    def enter(self, running: RunningCall, registered: Registered) -> asyncio.Future[None] | None:
        """Take a slot. Returns None if the call has it now or needs none, else a future that is
        done when the call gets it."""
        call, tool = running.call, registered.name
        if call.handover is not None and not call.handover.takes_slot:
            return None
        session_id = call.session.id
        if session_id in self.by_session and is_nested(session_id):
            return None  # the tool that makes this call has a slot already
        tool_cap, lane = registered.definition.max_concurrent, self.by_session[session_id]
        running.slot = (session_id, tool, tool_cap)
        if tool_cap is None and not lane.waiting and lane.running < self._cap:
            lane.running += 1
            return None
        if not lane.waiting and self._fits(lane, tool, tool_cap):
            self._take(lane, tool, tool_cap)
            return None
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.waiting.append((tool, tool_cap, ticket))
        self._admit(lane)
        return None if ticket.done() else ticket

    def release(self, session_id: str, tool: str, tool_cap: int | None) -> None:
        """Return the slot, and start the next waiting calls."""
        lane = self.by_session[session_id]
        lane.running -= 1
        if tool_cap is not None:
            lane.by_tool[tool] -= 1
        if lane.waiting:
            self._admit(lane)
        if not lane.running and not lane.waiting:
            del self.by_session[session_id]

    def _fits(self, lane: _Lane, tool: str, tool_cap: int | None) -> bool:
        if lane.running >= self._cap:
            return False
        return tool_cap is None or lane.by_tool.get(tool, 0) < tool_cap

    def _take(self, lane: _Lane, tool: str, tool_cap: int | None) -> None:
        lane.running += 1
        if tool_cap is not None:
            lane.by_tool[tool] = lane.by_tool.get(tool, 0) + 1

    def _admit(self, lane: _Lane) -> None:
        passed = []
        while lane.waiting and lane.running < self._cap:
            tool, tool_cap, ticket = lane.waiting.popleft()
            if ticket.done():  # cancelled while it waited: it never starts
                continue
            if self._fits(lane, tool, tool_cap):
                self._take(lane, tool, tool_cap)
                ticket.set_result(None)
            else:
                passed.append((tool, tool_cap, ticket))
        lane.waiting.extendleft(reversed(passed))
