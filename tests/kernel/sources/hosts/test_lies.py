"""What a host says of its tools is hostile input: it is taken, or refused by one error."""

from __future__ import annotations

import random
from typing import Any

import pytest

from callgate.core.effects import SideEffects
from callgate.core.errors import ToolRegistrationError
from callgate.core.tools import ToolDefinition, ToolOutput
from callgate.dispatch.tools.registry import Registry
from callgate.protocol.host_v1.values import read_schemas
from callgate.sources.host_tools import definition_of

KEYS = (
    "type",
    "enum",
    "const",
    "required",
    "properties",
    "items",
    "format",
    "pattern",
    "minimum",
    "multipleOf",
    "minLength",
    "maxItems",
    "uniqueItems",
    "additionalProperties",
    "description",
    "default",
    "$ref",
    "$id",
)
LEAVES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    2**63,
    "",
    "string",
    "object",
    "array",
    "^(",
    "\0",
    [],
    {},
    ["string", 3],
    [{}],
    [None],
    {"a": 1},
    {"path": True},
    {"path": []},
    {"type": 1},
    {"type": [{}]},
    {"items": []},
    "file:///etc/passwd",
)
NAMES = ("path", "file", "a", "dir_path")


class Plain:
    """A tool that only has a definition."""

    def __init__(self, definition: ToolDefinition) -> None:
        self.definition = definition

    async def execute(self, input: dict[str, Any], context: Any) -> ToolOutput:
        raise AssertionError

    async def cancel(self) -> bool:
        return False


def lie(random: random.Random, depth: int = 0) -> Any:
    kind = random.random()
    if depth > 3 or kind < 0.5:
        return random.choice(LEAVES)
    if kind < 0.9:
        names = KEYS if kind < 0.75 else NAMES
        return {random.choice(names): lie(random, depth + 1) for _ in range(random.randint(0, 4))}
    return [lie(random, depth + 1) for _ in range(random.randint(0, 3))]


def is_taken(entry: dict[str, Any]) -> bool:
    try:
        (schema,) = read_schemas([entry], "h")
        definition = definition_of(schema, effect=SideEffects.NONE, effects={}, trusted=True)
        Registry().register(lambda: Plain(definition))
    except ToolRegistrationError:
        return False
    return True


@pytest.mark.parametrize("seed", range(4))
def test_a_lie_about_arguments_is_refused_and_never_breaks_us(seed: int) -> None:
    dice = random.Random(seed)
    taken = 0
    for _ in range(1_500):
        properties = {dice.choice(NAMES): lie(dice) for _ in range(dice.randint(0, 3))}
        schema = {"type": "object", "properties": properties, **{dice.choice(KEYS): lie(dice)}}
        taken += is_taken({"name": "t", "description": "d", "input_schema": schema})
    assert 0 < taken < 1_500


@pytest.mark.parametrize("value", LEAVES)
@pytest.mark.parametrize("key", ["name", "description", "input_schema", "function", "x-capabilities", "type"])
def test_a_lie_about_a_tool_is_refused_and_never_breaks_us(key: str, value: Any) -> None:
    entry = {"name": "t", "description": "d", "input_schema": {"type": "object"}, key: value}
    is_taken(entry)
    assert not is_taken({**entry, "name": "Not A Name"})
