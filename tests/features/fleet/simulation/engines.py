"""The engines under the simulation: the real meaning of ops, with owners that live as the simulation says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import psycopg

from callgate.core.ops import Op
from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.store import PostgresStore
from callgate.storage.encoding import encode_ops
from callgate.storage.sqlite.store import SqliteStore
from callgate.storage.threaded_store import Commit, Hints, apply_all
from tests.memory_store import MemoryStore, Tables

Ops = Sequence[Op[Any]]
Outcome = Any
"""What each op gave back, or an exception."""


class Engine(Protocol):
    store: Any
    """To read from."""

    async def commit(self, commits: Sequence[Ops]) -> list[Outcome]:
        """All in one batch, in this order."""
        ...

    def set_alive(self, owner: str, alive: bool) -> None: ...


class MemoryEngine:
    def __init__(self) -> None:
        self._tables = Tables()
        self.store = MemoryStore(self._tables)

    async def commit(self, commits: Sequence[Ops]) -> list[Outcome]:
        batch = [Commit(*encode_ops(ops), None) for ops in commits]
        outcomes, view = apply_all(batch, self._tables)
        self._tables.save(view)
        return [outcome for _, outcome in outcomes]

    def set_alive(self, owner: str, alive: bool) -> None:
        if alive:
            self._tables.living[owner] = Hints()
        else:
            self._tables.living.pop(owner, None)


class StoreEngine:
    """A real store that commits for all servers."""

    def __init__(self, store: Any) -> None:
        self.store = store

    async def commit(self, commits: Sequence[Ops]) -> list[Outcome]:
        return await asyncio.gather(*(self.store.commit(*ops) for ops in commits), return_exceptions=True)

    def set_alive(self, owner: str, alive: bool) -> None:
        raise NotImplementedError


class SqliteEngine(StoreEngine):
    def __init__(self, store: SqliteStore) -> None:
        super().__init__(store)
        self._living = {store.owner}
        store._owners.alive = self._living.__contains__  # type: ignore[method-assign]

    def set_alive(self, owner: str, alive: bool) -> None:
        (self._living.add if alive else self._living.discard)(owner)


class PostgresEngine(StoreEngine):
    def __init__(self, store: PostgresStore, db: psycopg.Connection[Any]) -> None:
        super().__init__(store)
        self._db = db
        self._table = f"{store.location.schema}.owners"

    def set_alive(self, owner: str, alive: bool) -> None:
        boot = f"(select boot from {self._table} where id = '{self.store.owner}')"
        self._db.execute(
            f"insert into {self._table} (id, key, locks, format, boot, beat_at) values (%s, 0, false, 1, {boot}, %s)"
            " on conflict (id) do update set beat_at = excluded.beat_at",
            (owner, "2200-01-01" if alive else "2000-01-01"),
        )


@asynccontextmanager
async def memory() -> AsyncIterator[Engine]:
    yield MemoryEngine()


@asynccontextmanager
async def sqlite(home: str) -> AsyncIterator[Engine]:
    async with await SqliteStore.open(home) as store:
        yield SqliteEngine(store)


@asynccontextmanager
async def postgres(location: PostgresLocation) -> AsyncIterator[Engine]:
    async with await PostgresStore.open(location) as store:
        await asyncio.to_thread(store._listener.wait_declared, 20)
        with psycopg.connect(location.url, autocommit=True) as db:
            yield PostgresEngine(store, db)
