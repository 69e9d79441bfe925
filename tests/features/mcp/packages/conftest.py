from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.features.mcp.packages.registries import Registry, serving
from tests.features.mcp.packages.worlds import World


@pytest.fixture
def world() -> Iterator[World]:
    base = Path(tempfile.mkdtemp(prefix="callgate-", dir="/var/tmp"))
    yield World(base)
    shutil.rmtree(base)


@pytest.fixture
def registry(world: World) -> Iterator[Registry]:
    with serving(world.workspace) as registry:
        world.set_up(registry)
        yield registry
