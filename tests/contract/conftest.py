"""Both stores, so that each test of the contract runs on each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate.storage.sqlite.store import SqliteStore
from tests.contract.stores import World
from tests.memory_store import MemoryStore, Tables


@pytest.fixture(params=["memory", "sqlite"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    tables = Tables()

    async def open_memory() -> Any:
        return MemoryStore(tables)

    async def open_sqlite() -> Any:
        return await SqliteStore.open(str(tmp_path / "home"))

    world = World(open_memory if request.param == "memory" else open_sqlite)
    yield world
    await world.close()


@pytest.fixture
async def store(world: World) -> Any:
    return await world.open()
