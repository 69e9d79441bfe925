"""What every test of tools needs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support import Bench


@pytest.fixture(autouse=True)
async def _logs_are_closed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A loop that is closed still waits for its threads, and many tools use some: a log that
    begins to write just then would leave a task behind that nobody ever runs."""
    benches: list[Bench] = []
    make = Bench.__init__

    def remembered(bench: Bench, *given: Any, **named: Any) -> None:
        make(bench, *given, **named)
        benches.append(bench)

    monkeypatch.setattr(Bench, "__init__", remembered)
    yield
    for bench in benches:
        await bench.log.close()
