"""`custom`, a tool that some models were taught: a table.

The others are not told of it, because the tools themselves do the same.
"""

from __future__ import annotations

from types import ModuleType

from callgate.core.effects import SideEffects
from callgate.core.tools import ToolDefinition
from callgate.tools.loading import Row

CUSTOM: tuple[Row, ...] = (
    Row(
        ToolDefinition(
            name="custom",
            description="Call the tool of that name with these parameters.",
            input_schema={
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 1, "maxLength": 128},
                    "parameters": {"type": "object", "additionalProperties": True},
                },
                "required": ["name"],
            },
            # It has no effect of its own: the call that it makes is judged by itself.
            side_effects=SideEffects.NONE,
            requires_workspace=False,
            path_params=(),
            argument_aliases={"arguments": "parameters", "input": "parameters"},
            timeout_s=3_600.0,  # the other tool's own limit holds
            source="builtin",
        ),
        lambda: _custom().call,
    ),
)


def _custom() -> ModuleType:
    from callgate.tools import custom  # lazy: with the first call  # noqa: PLC0415

    return custom
