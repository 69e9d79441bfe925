"""Slots of a host: never more than there are, in the order of asking, and none is lost."""

from __future__ import annotations

import asyncio

from callgate.sources.host_links import Slots


async def test_who_finds_no_slot_gets_one_in_the_order_of_asking() -> None:
    slots, ran = Slots(1), list[int]()
    assert slots.acquire() is None

    async def wait(number: int) -> None:
        ticket = slots.acquire()
        assert ticket is not None
        await slots.until(ticket)
        ran.append(number)
        slots.release()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(wait(number))
        await asyncio.sleep(0)
        assert ran == []
        slots.release()
    assert ran == [0, 1, 2, 3, 4]
    assert slots.acquire() is None


async def test_a_slot_is_not_lost_with_who_is_cancelled_before_or_after_getting_it() -> None:
    slots = Slots(1)
    assert slots.acquire() is None
    tickets = [slots.acquire(), slots.acquire(), slots.acquire()]
    waiting = [asyncio.ensure_future(slots.until(each)) for each in tickets if each is not None]
    await asyncio.sleep(0)
    waiting[0].cancel()  # before
    await asyncio.sleep(0)
    slots.release()
    waiting[1].cancel()  # after it was given, before it knows
    async with asyncio.timeout(60):
        await waiting[2]
    assert [each.cancelled() for each in waiting] == [True, True, False]
    assert slots.acquire() is not None
    slots.release()
