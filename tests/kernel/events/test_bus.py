"""The event stream: nobody waits for a reader, and no reader is left in the dark."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from callgate.core.events import Event
from callgate.core.ids import ulid
from callgate.events.bus import Bus, Gap
from tests.function_calls import count_function_calls


def event(n: int = 0, session: str = "s1", type: str = "tool.called") -> Event:
    return Event(id=ulid(), timestamp=0.0, session_id=session, type=type, actor="system", payload={"n": n})


async def read(reader: Any, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(60):
        async for item in reader:
            found.append(item.payload["n"] if isinstance(item, Event) else item)
            if len(found) == count:
                break
    return found


async def test_every_reader_gets_every_event_in_order() -> None:
    bus = Bus()
    with bus.subscribe() as first, bus.subscribe() as second:
        for n in range(5):
            bus.emit(event(n))
        assert await read(first, 5) == await read(second, 5) == [0, 1, 2, 3, 4]


async def test_a_reader_may_ask_for_one_session_and_some_types() -> None:
    bus = Bus()
    with bus.subscribe(session_id="s2", types=["tool.failed"]) as reader:
        bus.emit(event(1))
        bus.emit(event(2, "s2"))
        bus.emit(event(3, "s2", "tool.failed"))
        assert await read(reader, 1) == [3]


@pytest.mark.spec("T47")
async def test_a_slow_reader_is_told_of_its_gap_and_others_notice_nothing() -> None:
    bus = Bus()
    with bus.subscribe(bound=3) as slow, bus.subscribe() as quick:
        for n in range(10):
            bus.emit(event(n))
        assert await read(slow, 4) == [0, 1, 2, Gap(7)]
        bus.emit(event(10))
        assert await read(slow, 1) == [10]
        assert await read(quick, 11) == list(range(11))


async def test_the_gap_stands_where_the_events_are_missing() -> None:
    bus = Bus()
    with bus.subscribe(bound=2) as reader:
        iterator = aiter(reader)
        for n in range(4):
            bus.emit(event(n))
        first = await anext(iterator)
        bus.emit(event(4))
        rest = [await anext(iterator) for _ in range(3)]
        assert first.payload["n"] == 0
        assert [r.payload["n"] if isinstance(r, Event) else r for r in rest] == [1, Gap(2), 4]


@pytest.mark.spec("S4-78")
async def test_a_broken_listener_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    bus, heard = Bus(), []

    def broken(each: Event) -> None:
        raise RuntimeError("listener")

    bus.listen(broken)
    stop = bus.listen(lambda each: heard.append(each.payload["n"]))
    with caplog.at_level(logging.ERROR, "callgate.events"), bus.subscribe() as reader:
        bus.emit(event(1))
        assert await read(reader, 1) == [1]
    stop()
    bus.emit(event(2))
    assert heard == [1]


async def test_a_reader_that_leaves_is_forgotten_and_its_iteration_ends() -> None:
    bus = Bus()
    reader = bus.subscribe()
    bus.emit(event(1))
    reader.close()
    bus.emit(event(2))
    assert [item.payload["n"] async for item in reader] == [1]
    assert not bus._readers


async def test_a_waiting_reader_wakes_when_something_happens() -> None:
    bus = Bus()
    with bus.subscribe() as reader:
        waiting = asyncio.create_task(read(reader, 1))
        await asyncio.sleep(0)
        bus.emit(event(7))
        assert await waiting == [7]


async def test_an_event_reaches_a_reader_in_few_function_calls() -> None:
    bus, one = Bus(), event()
    with bus.subscribe(), bus.subscribe(session_id="s2"):
        assert count_function_calls(lambda: bus.emit(one)) <= 4  # with the one that is counted


async def test_a_reader_that_waits_is_woken_once_for_many_events() -> None:
    bus = Bus()
    with bus.subscribe() as reader:
        reading = asyncio.create_task(read(reader, 3))
        while reader._waiter is None:
            await asyncio.sleep(0)
        for n in range(3):
            bus.emit(event(n))
        assert await reading == [0, 1, 2]
