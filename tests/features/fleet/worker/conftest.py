"""A deployment for the tests that need no special one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.features.fleet.worker.deployments import Deployment, deployment


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Deployment]:
    """A server in mode write, without workers."""
    with deployment(tmp_path) as made:
        made.serve()
        yield made
