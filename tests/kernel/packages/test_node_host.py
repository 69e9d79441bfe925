"""The Node host keeps the suite of all hosts, and passes its own tests."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernel.packages import host_suite
from tests.kernel.packages.host_suite import Driver, Start
from tests.needs import needs

PACKAGE = Path(__file__).parents[3] / "packages" / "tool-host-node"
PLUGINS = Path(__file__).parent / "plugins"
LONGEST = 200
"""Lines of one module."""
WIDEST = 100

pytestmark = needs("node", "linux")


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Driver] = []

    def start(plugin: str) -> Driver:
        argv = ["node", str(PACKAGE / "host.mjs"), str(PLUGINS / f"{plugin}.mjs")]
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
def test_a_node_host_keeps_the_suite(scenario: Callable[[Start], None], start: Start) -> None:
    scenario(start)


@pytest.mark.spec("S1-02", "S1-06", "S1-07", "S1-12", "S1-13", "S1-14", "S1-52", "S1-53")
def test_the_hosts_own_tests_pass() -> None:
    files = sorted(map(str, (PACKAGE / "test").glob("*.test.mjs")))
    ended = subprocess.run(
        ["node", "--test", *files],
        capture_output=True,
        text=True,
        timeout=110,
        env={name: value for name, value in os.environ.items() if name != "NODE_TEST_CONTEXT"},
    )
    assert ended.returncode == 0, ended.stdout
    assert len(files) == 3


def test_the_host_is_small_modules_that_need_no_other_package() -> None:
    scripts = [path for path in PACKAGE.rglob("*.mjs") if path.parent.name != "test"]
    assert PACKAGE / "host.mjs" in scripts
    for script in scripts:
        lines = script.read_text().split("\n")
        assert len(lines) - 1 <= LONGEST
        assert [line for line in lines if len(line) > WIDEST] == []
        imported = [line.split('"')[1] for line in lines if line.startswith("import ")]
        assert [name for name in imported if not name.startswith(("node:", "./"))] == []
    about = json.loads((PACKAGE / "package.json").read_text())
    assert not {"dependencies", "devDependencies", "peerDependencies"} & set(about)
