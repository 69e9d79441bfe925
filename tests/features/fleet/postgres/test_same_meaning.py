"""Whatever is done to PostgreSQL, one after the other or at once, it answers as the memory does."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.core.budgets import SweepRows
from callgate.core.ops import Op
from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.store import PostgresStore
from tests.kernel.storage.test_same_meaning import BEGIN, OP, STEPS, Steps, compare, named, plain, said, state
from tests.memory_store import MemoryStore, Tables
from tests.postgres import Cluster

Both = list[tuple[list[Op[Any]], list[Op[Any]]]]


_few, _many = settings(max_examples=10), settings(max_examples=1_000)


@given(steps=STEPS)
@_few
def test_postgres_answers_as_the_memory_does(cluster: Cluster, steps: Steps) -> None:
    _alike(cluster, steps)


@pytest.mark.soak
@pytest.mark.timeout(1700)
@given(steps=STEPS)
@_many
def test_postgres_answers_as_the_memory_does_whatever_comes(cluster: Cluster, steps: Steps) -> None:
    _alike(cluster, steps)


def _alike(cluster: Cluster, steps: Steps) -> None:
    location = cluster.location()
    try:
        asyncio.run(compare(steps, lambda: PostgresStore.open(location)))
    finally:
        _drop(location)


_commit = st.lists(OP, min_size=1, max_size=2)


_at_once = st.lists(st.tuples(_commit, _commit), min_size=1, max_size=10)


@given(steps=_at_once)
@_few
def test_what_two_processes_do_at_once_is_done_in_one_order_or_the_other(cluster: Cluster, steps: Both) -> None:
    _in_one_order(cluster, steps)


@pytest.mark.soak
@pytest.mark.timeout(1700)
@given(steps=_at_once)
@_many
def test_what_two_processes_do_at_once_has_an_order_whatever_comes(cluster: Cluster, steps: Both) -> None:
    _in_one_order(cluster, steps)


def _in_one_order(cluster: Cluster, steps: Both) -> None:
    location = cluster.location()
    try:
        asyncio.run(_compare_concurrent(location, steps))
    finally:
        _drop(location)


def _drop(location: PostgresLocation) -> None:
    with psycopg.connect(location.url, autocommit=True) as db:
        db.execute(f"drop schema {location.schema} cascade")


async def _compare_concurrent(location: PostgresLocation, steps: Both) -> None:
    """The possible states of the memory are those that explain all answers until now."""
    async with await PostgresStore.open(location) as one, await PostgresStore.open(location) as two:
        stores = (one, two)
        owners = {f"own_{n}": store.owner for n, store in enumerate(stores)}
        possible = [Tables()]
        for both in [*([commit, commit] for commit in BEGIN), *steps]:
            waiting = [
                stores[n].commit(*(named(op, owners) for op in commit), SweepRows(most=1_000))
                for n, commit in enumerate(both)
            ]
            results = await asyncio.gather(*waiting, return_exceptions=True)
            answers = plain([said(each) for each in results], owners)
            explained = [
                tables
                for before in possible
                for order in ((0, 1), (1, 0))
                if (tables := await _explain(before, both, order, answers)) is not None
            ]
            assert explained, f"no order explains {answers}"
            possible = await _different(explained)
        found = plain(await state(one), owners)
        assert found in [plain(await state(_memory(tables)[0]), _owners()) for tables in possible]


def _owners() -> dict[str, str]:
    return {f"own_{n}": f"memory_{n}" for n in range(2)}


def _memory(tables: Tables) -> list[MemoryStore]:
    tables.living.clear()
    stores = [MemoryStore(tables) for _ in range(2)]
    tables.living.clear()
    for store, owner in zip(stores, _owners().values(), strict=True):
        store.owner = owner
        tables.living[owner] = store._hints
    return stores


async def _explain(before: Tables, both: Any, order: tuple[int, int], answers: Any) -> Tables | None:
    before.living.clear()
    tables = copy.deepcopy(before)
    stores = _memory(tables)
    results: list[Any] = [None, None]
    for n in order:
        ops = [named(op, _owners()) for op in both[n]]
        [results[n]] = await asyncio.gather(stores[n].commit(*ops, SweepRows(most=1_000)), return_exceptions=True)
    return tables if plain([said(each) for each in results], _owners()) == answers else None


async def _different(some: list[Tables]) -> list[Tables]:
    found: list[tuple[Any, Tables]] = []
    for tables in some:
        told = plain(await state(_memory(tables)[0]), _owners())
        if told not in [each for each, _ in found]:
            found.append((told, tables))
    return [tables for _, tables in found][:8]
