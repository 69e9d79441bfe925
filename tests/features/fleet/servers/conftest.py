"""Servers in processes of their own, on one store."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from callgate.features.fleet.postgres import PostgresLocation
from tests.features.fleet.servers.clusters import Cluster, StandingCluster
from tests.postgres import Cluster as Database

ENGINES = [pytest.param("sqlite", marks=pytest.mark.soak), "postgres"]


def _make_base() -> Path:
    return Path(tempfile.mkdtemp(prefix="cg"))  # short enough for a socket


@asynccontextmanager
async def _own(location: PostgresLocation | None) -> AsyncIterator[Cluster]:
    base = _make_base()
    made = Cluster(base, location)
    try:
        yield made
    finally:
        await made.close()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(params=ENGINES)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """Servers of this test alone."""
    is_file = request.param == "sqlite"
    async with _own(None if is_file else request.getfixturevalue("database").location()) as made:
        yield made


@pytest.fixture(scope="session")
def _standing_cluster(database: Database) -> Iterator[StandingCluster]:
    base = _make_base()
    made = StandingCluster(base, database.location())
    try:
        yield made
    finally:
        asyncio.run(made.close())
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(params=ENGINES)
async def standing(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """For a test that stops no server, changes no settings and counts nothing of other tests."""
    if request.param == "sqlite":
        async with _own(None) as made:
            yield made
        return
    shared: StandingCluster = request.getfixturevalue("_standing_cluster")
    yield shared
    await shared.end_test()
