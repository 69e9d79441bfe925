"""Two instances for all tests of a process: one that asks, one that may do everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernel.cli.running import not_within_a_call
from tests.kernel.client.instances import Served, serving


@pytest.fixture(scope="session", autouse=True)
def _not_within_a_call() -> None:
    not_within_a_call()


@pytest.fixture(scope="session")
def asking() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture(scope="session")
def working() -> Iterator[Served]:
    with serving("--mode", "write") as served:
        yield served
