"""Counting what budgets limit: the same in every store, and exact however many count at once."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from callgate.core.budgets import (
    LEDGER,
    REMEMBERED,
    Amount,
    BudgetReceipt,
    Charge,
    Overrun,
    PruneSessions,
    ReturnBudget,
    UseBudget,
    ledger_kind,
    read_ledger,
)
from callgate.core.ops import DeleteSession, NewSession, PutEntry
from tests.kernel.contract.stores import World

SESSION, DAY = "session/s1", "day/local"


def charge(ledger: str = SESSION, calls: int | None = None, **more: Any) -> Charge:
    limits = {} if calls is None else {Amount.CALLS: calls}
    return Charge(ledger=ledger, limits=limits | more.pop("limits", {}), **more)


def use(call: str, *charges: Charge, **more: Any) -> UseBudget:
    return UseBudget(call=call, charges=charges, **more)


async def counter(store: Any, ledger: str = SESSION, tool: str = "") -> Any:
    (entry,) = await store.entries(ledger_kind(ledger))
    return read_ledger(entry.value).counters[tool]


async def test_a_call_is_counted_in_every_ledger_or_in_none(store: Any) -> None:
    both = charge(calls=9), charge(DAY, calls=1, day="2026-01-01")
    assert await store.commit(use("c1", *both)) == (BudgetReceipt(True),)
    passed = Overrun(ledger=DAY, tool="", amount=Amount.CALLS, used=1, limit=1)
    assert await store.commit(use("c2", *both)) == (BudgetReceipt(False, (passed,)),)
    assert ((await counter(store)).calls, (await counter(store, DAY)).calls) == (1, 1)


async def test_a_call_is_counted_once_however_often_it_is_told(store: Any) -> None:
    for _ in range(3):
        assert await store.commit(use("c1", charge(calls=1))) == (BudgetReceipt(True),)
    assert (await counter(store)).calls == 1
    for _ in range(2):
        await store.commit(ReturnBudget(call="c1", ledgers=(SESSION,)))
    assert (await counter(store)).calls == 0


async def test_what_is_returned_leaves_no_destination_of_its_own(store: Any) -> None:
    limits = {Amount.DESTINATIONS: 9}
    await store.commit(use("c1", charge(destinations=("a", "b"), bytes_out=5, limits=limits)))
    await store.commit(use("c2", charge(destinations=("b", "c"), bytes_out=7, limits=limits)))
    await store.commit(ReturnBudget(call="c1", ledgers=(SESSION,)))
    left = await counter(store)
    assert (left.calls, left.bytes_out, left.destinations) == (1, 7, {"b": 1, "c": 1})


async def test_a_later_day_begins_anew_and_an_earlier_one_counts_for_it(store: Any) -> None:
    for call, day in (("c1", "2026-01-01"), ("c2", "2026-01-02"), ("c3", "2026-01-01")):
        await store.commit(use(call, charge(DAY, day=day)))
    assert (await counter(store, DAY)).calls == 2


async def test_of_many_who_take_what_is_left_as_many_get_it_as_there_is(world: World) -> None:
    stores = [await world.open() for _ in range(3)]
    ops = [use(f"c{n}", charge(calls=7), charge(DAY, calls=9, day="2026-01-01")) for n in range(30)]
    receipts = await asyncio.gather(*(stores[n % 3].commit(op) for n, op in enumerate(ops)))
    assert sum(receipt.applied for (receipt,) in receipts) == 7
    assert ((await counter(stores[0])).calls, (await counter(stores[1], DAY)).calls) == (7, 7)


async def test_sessions_at_once_share_what_is_left_of_a_day(world: World) -> None:
    stores = [await world.open() for _ in range(3)]
    ops = [use(f"c{n}", charge(f"session/s{n % 3}"), charge(DAY, calls=11, day="2026-01-01")) for n in range(30)]
    receipts = await asyncio.gather(*(stores[n % 3].commit(op) for n, op in enumerate(ops)))
    assert sum(receipt.applied for (receipt,) in receipts) == 11


async def test_a_ledger_remembers_no_more_calls_than_it_needs(store: Any) -> None:
    for n in range(REMEMBERED + 20):
        await store.commit(use(f"c{n}", charge()))
    (entry,) = await store.entries(ledger_kind(SESSION))
    ledger = read_ledger(entry.value)
    assert (len(ledger.calls), ledger.counters[""].calls) == (REMEMBERED, REMEMBERED + 20)


async def test_what_is_no_ledger_is_refused_and_left(store: Any) -> None:
    await store.commit(PutEntry(kind=ledger_kind(SESSION), name=LEDGER, value="[]"))
    with pytest.raises(ValueError):
        await store.commit(use("c1", charge(calls=1)))
    (entry,) = await store.entries(ledger_kind(SESSION))
    assert entry.value == "[]"


@pytest.mark.parametrize("way", ["delete", "prune"])
async def test_the_ledger_of_a_session_goes_with_it(store: Any, way: str) -> None:
    await store.commit(NewSession(session="s1", workspace="/", at=1.0))
    await store.commit(use("c1", charge(calls=1)))
    op: Any = DeleteSession(session="s1")
    if way == "prune":
        op = PruneSessions(before=time.time(), most=10)
    await store.commit(op)
    assert [*await store.entries(ledger_kind(SESSION))] == []
