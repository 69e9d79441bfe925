"""What a call costs, as a number of function calls: no other load on the machine can change it."""

from __future__ import annotations

import copy
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from benchmarks.cases import CASES
from callgate import Gate, tool
from callgate.audit import log as audit_log
from callgate.config import policies
from callgate.core import ids

MOST = 96
"""Python's and C's, for one call with a reader, the audit log and the store. It may only fall."""
MOST_WITH_ADDRESS = 135
"""The same for 2 KB of nested data with an e-mail address."""


@tool(side_effects="none")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def count(work: Callable[[], Awaitable[Any]]) -> int:
    seen = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        await work()
    finally:
        sys.setprofile(None)
    return seen - 2  # `work`, and the end of the profile


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is done because time has passed."""
    monkeypatch.setattr(ids, "time_ns", lambda: 0)
    monkeypatch.setattr(policies, "LOOK_EVERY_S", float("inf"))
    monkeypatch.setattr(audit_log, "_LOOK_EVERY_S", float("inf"))


@pytest.mark.usefixtures("no_clock")
async def test_a_call_without_effects_makes_few_function_calls(home: Path, tmp_path: Path) -> None:
    async with Gate(tmp_path, [add]) as gate:
        events = gate.events()
        for _ in range(5):
            assert (await gate.call("add", {"a": 19, "b": 23})).value == 42
        counts = [await count(lambda: gate.call("add", {"a": 19, "b": 23})) for _ in range(20)]
        events.close()
    assert min(counts) <= MOST, counts


@pytest.mark.usefixtures("no_clock")
async def test_an_address_in_nested_arguments_costs_few_function_calls(home: Path, tmp_path: Path) -> None:
    order = copy.deepcopy(CASES["order"].arguments)
    order["order"]["remarks"].append("Write to ada@example.com.")
    async with Gate(tmp_path, [tool(CASES["order"].function, side_effects="none")]) as gate:
        events = gate.events()
        for _ in range(5):
            assert (await gate.call("count_pieces", order)).value == CASES["order"].expected
        counts = [await count(lambda: gate.call("count_pieces", order)) for _ in range(20)]
        events.close()
    assert min(counts) <= MOST_WITH_ADDRESS, counts
