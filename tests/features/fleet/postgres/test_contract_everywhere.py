"""The whole contract on every installed version of PostgreSQL, and behind a pooler."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from callgate.features.fleet.postgres import POLLING, PostgresLocation
from callgate.features.fleet.postgres.store import PostgresStore
from tests import postgres
from tests.kernel.contract.stores import World
from tests.kernel.contract.test_pruning import *  # noqa: F403
from tests.kernel.contract.test_stores import *  # noqa: F403
from tests.needs import missing
from tests.pgbouncer import pooling

pytestmark = pytest.mark.soak
POOLED = {"pooled": None, "pooled, polling": POLLING}
PLACES = [*POOLED, *map(str, postgres.installations())]


class Place:
    """Where stores are opened."""

    def __init__(self, cluster: postgres.Cluster, pooler: str | None, listen_url: str | None) -> None:
        self._cluster = cluster
        self._pooler = pooler
        self._listen_url = listen_url

    def location(self) -> PostgresLocation:
        own = self._cluster.location()
        if self._pooler is None:
            return own
        return PostgresLocation(url=self._pooler, listen_url=self._listen_url or own.url, schema=own.schema)


@pytest.fixture(params=PLACES, scope="module")
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    is_pooled = request.param in POOLED
    if is_pooled and (reason := missing("pgbouncer")):
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(postgres.running(None if is_pooled else int(request.param)))
        pooler = stack.enter_context(pooling(cluster)) if is_pooled else None
        yield Place(cluster, pooler, POOLED.get(request.param))


@pytest.fixture
async def world(place: Place) -> AsyncIterator[World]:
    location = place.location()
    world = World(lambda: PostgresStore.open(location))
    yield world
    await world.close()


@pytest.fixture
async def store(world: World) -> Any:
    return await world.open()
