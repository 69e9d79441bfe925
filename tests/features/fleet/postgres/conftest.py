"""A cluster that tests share, and one for each test that harms it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import postgres


@pytest.fixture(scope="session")
def cluster(database: postgres.Cluster) -> postgres.Cluster:
    """Nobody stops this one."""
    return database


@pytest.fixture
def own_cluster() -> Iterator[postgres.Cluster]:
    """To stop, kill and start again."""
    with postgres.running() as cluster:
        yield cluster


@pytest.fixture
def durable_cluster() -> Iterator[postgres.Cluster]:
    """As `own_cluster`, and what it commits is on the disk."""
    with postgres.running(durable=True) as cluster:
        yield cluster
