"""The Node host keeps the suite of all hosts, and passes its own tests."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.needs import needs
from tests.unit.packages import host_suite
from tests.unit.packages.host_suite import Driver, Start

PROVES = {
    "test_a_node_host_keeps_the_suite": host_suite.PROVEN,
    "test_the_hosts_own_tests_pass": ("S1-02", "S1-06", "S1-07", "S1-12", "S1-13", "S1-14", "S1-52", "S1-53"),
}

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


@pytest.mark.parametrize("scenario", host_suite.SCENARIOS, ids=lambda each: each.__name__)
def test_a_node_host_keeps_the_suite(scenario: Callable[[Start], None], start: Start) -> None:
    scenario(start)


def test_the_hosts_own_tests_pass() -> None:
    files = sorted(map(str, (PACKAGE / "test").glob("*.test.mjs")))
    ended = subprocess.run(
        ["node", "--test", *files], capture_output=True, text=True, timeout=110,
        env={name: value for name, value in os.environ.items() if name != "NODE_TEST_CONTEXT"},
    )  # fmt: skip
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
