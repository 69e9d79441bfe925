"""All stores, so that each test of the contract runs on each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from callgate.features.fleet.postgres.store import PostgresStore
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.contract.stores import World
from tests.memory_store import MemoryStore, Tables


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world = World(_opener(request, tmp_path))
    yield world
    await world.close()


def _opener(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Awaitable[Any]]:
    if request.param == "sqlite":
        return lambda: SqliteStore.open(str(tmp_path / "home"))
    if request.param == "postgres":
        location = request.getfixturevalue("database").location()
        return lambda: PostgresStore.open(location)
    tables = Tables()

    async def open_memory() -> Any:
        return MemoryStore(tables)

    return open_memory


@pytest.fixture
async def store(world: World) -> Any:
    return await world.open()
