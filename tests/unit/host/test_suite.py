"""The Python host keeps the suite of all hosts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.needs import needs
from tests.unit.packages import host_suite
from tests.unit.packages.host_suite import Driver, Start

PROVES = {"test_a_python_host_keeps_the_suite": host_suite.PROVEN}

PLUGINS = Path(host_suite.__file__).parent / "plugins"

pytestmark = needs("linux")


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Driver] = []

    def start(plugin: str) -> Driver:
        argv = [sys.executable, "-m", "callgate.host", str(PLUGINS / f"{plugin}.py")]
        started.append(Driver(argv))
        return started[-1]

    yield start
    for driver in started:
        driver.leave()


@pytest.mark.parametrize("scenario", host_suite.SCENARIOS, ids=lambda each: each.__name__)
def test_a_python_host_keeps_the_suite(scenario: Callable[[Start], None], start: Start) -> None:
    scenario(start)
