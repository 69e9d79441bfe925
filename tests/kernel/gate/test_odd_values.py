"""Values that JSON cannot hold end a call with a clear result, wherever a program puts them.

The fields of a `ToolOutput` that a tool builds itself are opaque to the dispatcher (seed 004, 3.3): a
caller in Python gets them as they are. Events and audit lines are JSON all the same.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callgate import Gate, ToolContext, error_result, ok_result, tool
from callgate.audit.reading import newest_first
from callgate.core.calls import ToolResult
from callgate.core.content import JsonBlock, TextBlock
from callgate.core.errors import ToolCancelled, ToolErrorClass, ToolExecutionError, ToolValidationError
from callgate.core.tools import ToolOutput


class _Count(int):
    pass


class _Size(enum.IntEnum):
    LARGE = 10**5000


class _Unreadable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def _deep(levels: int = 100_000) -> Any:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def _loop() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


ODD: dict[str, Callable[[], Any]] = {
    "401 digits": lambda: 10**400,
    "4,301 digits": lambda: 10**4300,
    "a negative integer": lambda: -(10**5000),
    "an integer subclass": lambda: _Count(10**5000),
    "an enumeration": lambda: _Size.LARGE,
    "a key": lambda: {10**5000: 1},
    "nested": lambda: [{"a": [10**5000]}],
    "nan": lambda: float("nan"),
    "infinity": lambda: {"x": float("-inf")},
    "deep": _deep,
    "a loop": _loop,
    "a surrogate": lambda: "\ud800",
    "a surrogate key": lambda: {"\udc80": 1},
    "an object": object,
    "an object without a text": _Unreadable,
    "a complex number": lambda: 1 + 2j,
}


@tool(side_effects="none")
def take(x: Any) -> str:
    """Take anything."""
    return "taken"


@tool(side_effects="none")
async def give(how: str, what: str, context: ToolContext) -> Any:
    """Give an odd value back."""
    value = ODD[what]()
    match how:
        case "value":
            return value
        case "ok":
            return ok_result(value)
        case "meta":
            return ok_result(1, meta={"m": value})
        case "details":
            return error_result("It failed.", details={"d": value})
        case "output value":
            return ToolOutput(content=[TextBlock("a")], value=value)
        case "output metadata":
            return ToolOutput(content=[TextBlock("a")], metadata={"m": value, "display": {"d": value}})
        case "output details":
            return ToolOutput(content=[TextBlock("a")], success=False, metadata={"details": {"d": value}})
        case "block":
            return ToolOutput(content=[JsonBlock(value)])
        case "text":
            return ToolOutput(content=[TextBlock(value)])
        case "progress":
            context.progress({"p": value})
        case "raised":
            raise ToolExecutionError("It failed.", details={"d": value}, reason="known")
        case "message":
            raise ToolExecutionError(value)
        case "invalid":
            raise ToolValidationError("Wrong.", validation_errors=[value], details={"d": value})
        case "cancelled":
            raise ToolCancelled(details={"d": value})
    return None


WAYS = (
    "value, ok, meta, details, output value, output metadata, output details, block, text, progress,"
    " raised, message, invalid, cancelled"
).split(", ")


CHECKED = frozenset({"value", "ok", "meta", "details"})
"""Ways in which `@tool` promises JSON."""


@pytest.mark.parametrize("what", ODD)
async def test_an_odd_argument_is_invalid_input(tmp_path: Path, what: str) -> None:
    async with Gate(tmp_path, home=tmp_path / "home", tools=[take]) as gate:
        for arguments in ({"x": ODD[what]()}, {"x": [ODD[what]()]}):
            result = await gate.call("take", arguments)
            assert result.error is not None
            assert result.error.error_class is ToolErrorClass.VALIDATION_ERROR
            assert "set_int_max_str_digits" not in result.error.message
        lines = list(newest_first(tmp_path / "home" / "audit.jsonl"))
        assert len(lines) == 2


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("how", WAYS)
async def test_an_odd_value_of_a_tool_ends_the_call_with_a_result(tmp_path: Path, what: str, how: str) -> None:
    async with Gate(tmp_path, home=tmp_path / "home", tools=[give]) as gate:
        result = await gate.call("give", {"how": how, "what": what})
        assert isinstance(result, ToolResult)
        if how in CHECKED:
            msgspec.json.decode(msgspec.json.encode(result))
        after = await gate.call("give", {"how": "none", "what": what})
        assert after.ok
        await gate._wired.log.flush()
        events = list(await (await gate._wired.log.store()).read_events(gate.session.id))
    ended = [each for each in events if each.type in ("tool.completed", "tool.failed", "tool.input_invalid")]
    assert len(ended) == 2
    msgspec.json.decode(msgspec.json.encode(events))
    assert len(list(newest_first(tmp_path / "home" / "audit.jsonl"))) == 2
