"""The Python host keeps the suite of all hosts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernel.packages import host_suite
from tests.kernel.packages.host_suite import Driver, Start
from tests.needs import needs

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


@pytest.mark.spec("S1-01", "S1-02", "S1-04", "S1-05", "S1-06", "S1-07", "S1-08", "S1-09", "S1-10")
@pytest.mark.spec("S1-12", "S1-13", "S1-14", "S1-15", "S1-16", "S1-19", "S1-21", "S1-23", "S1-24")
@pytest.mark.spec("S1-26", "S1-27", "S1-29", "S1-31", "S1-33", "S1-34", "S1-35", "S1-36", "S1-37")
@pytest.mark.spec("S1-39", "S1-43", "S1-44", "S1-45", "S1-47", "S1-49", "S1-51", "S1-52", "S1-53")
@pytest.mark.parametrize("scenario", host_suite.SCENARIOS, ids=lambda each: each.__name__)
def test_a_python_host_keeps_the_suite(scenario: Callable[[Start], None], start: Start) -> None:
    scenario(start)
