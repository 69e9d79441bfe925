"""What the record of a call costs: two events, a line of the audit log, and the look for secrets."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from callgate import Gate, tool

PACKAGE = os.sep + "callgate" + os.sep
RECORDING = tuple(
    PACKAGE + each.replace("/", os.sep)
    for each in ("events/", "audit/", "redaction/", "dispatch/journal", "dispatch/call_records", "dispatch/tool_output")
)


@tool(side_effects="none")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(side_effects="none")
async def shout(words: list[str]) -> str:
    """Say it louder."""
    return "LOUD"


def recording(count: Callable[[], None]) -> Callable[[FrameType, str, Any], None]:
    """Tells of each function that is called from, or is, one of those that record."""

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call") and any(each in frame.f_code.co_filename for each in RECORDING):
            count()

    return profile


@pytest.mark.parametrize(
    ("name", "arguments", "most"),
    [("add", {"a": 19, "b": 23}, 56), ("shout", {"words": ["white", "sea green", "brick red"] * 20}, 58)],
)
async def test_a_plain_call_is_recorded_in_few_function_calls(
    name: str, arguments: dict[str, Any], most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.audit.log._LOOK_EVERY_S", float("inf"))  # however slow the machine is
    async with Gate(workspace=tmp_path, tools=[add, shout], home=tmp_path / "home") as gate:
        reader = gate.events()
        for _ in range(3):
            assert (await gate.call(name, arguments)).ok
        calls = []
        sys.setprofile(recording(lambda: calls.append(1)))
        try:
            for _ in range(10):
                await gate.call(name, arguments)
        finally:
            sys.setprofile(None)
        reader.close()
    assert len(calls) / 10 <= most
