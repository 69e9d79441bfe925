"""An instance for the tests that need no special one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.features.web.instances import Instance, serving


@pytest.fixture
async def instance(home: Path, tmp_path: Path) -> AsyncIterator[Instance]:
    async with serving(home, tmp_path / "ws") as made:
        yield made
