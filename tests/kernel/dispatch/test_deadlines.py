"""Time limits under one timer: each passes when it is due, and none for a call that has ended."""

from __future__ import annotations

import asyncio
from time import perf_counter

from callgate.dispatch.running import Deadlines


class Limit:
    def __init__(self, seconds: float, expired: list[str], name: str) -> None:
        self.ends_at = perf_counter() + seconds
        self.over = asyncio.Event()
        self._expired, self._name = expired, name

    def expire(self) -> None:
        assert perf_counter() >= self.ends_at
        self._expired.append(self._name)
        self.over.set()


async def test_limits_pass_in_their_own_order_and_not_before_their_time() -> None:
    deadlines, expired = Deadlines(), list[str]()
    late, soon, struck = Limit(0.05, expired, "late"), Limit(0.01, expired, "soon"), Limit(0.02, expired, "struck")
    for each in (late, soon, struck):
        deadlines.note(each)
    deadlines.strike(struck)
    deadlines.strike(struck)
    async with asyncio.timeout(60):
        await late.over.wait()
    assert expired == ["soon", "late"]


async def test_a_limit_that_is_noted_when_another_passes_is_kept() -> None:
    deadlines, expired = Deadlines(), list[str]()
    second = Limit(0.02, expired, "second")

    class Noting(Limit):
        def expire(self) -> None:
            super().expire()
            deadlines.note(second)

    deadlines.note(Noting(0.0, expired, "first"))
    async with asyncio.timeout(60):
        await second.over.wait()
    assert expired == ["first", "second"]


async def test_closed_deadlines_leave_no_timer_behind() -> None:
    deadlines, expired = Deadlines(), list[str]()
    closed, other = Limit(0.0, expired, "closed"), Limit(0.01, expired, "other")
    deadlines.note(closed)
    deadlines.close()
    deadlines.note(other)
    async with asyncio.timeout(60):
        await other.over.wait()
    assert expired == ["other"]
