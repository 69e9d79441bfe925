"""Servers in processes of their own, on one store."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.servers.clusters import Cluster


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.soak), "postgres"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    base = Path(tempfile.mkdtemp(prefix="cg"))  # short enough for a socket
    is_file = request.param == "sqlite"
    made = Cluster(base, None if is_file else request.getfixturevalue("database").location())
    try:
        yield made
    finally:
        await made.close()
        shutil.rmtree(base, ignore_errors=True)
