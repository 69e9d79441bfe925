"""Tools that other agents have and we do not: `agent_none` to `agent_execute`, by their class.

Nobody runs them here. A hook asks about a call of one (`surfaces.hooks`), and the agent runs it.
Rules name them by the agent's own name:

    [[policy.rules]]
    decision = "allow"
    tool = "agent_execute"
    arguments = { name = "mcp__github__get_*" }
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from callgate.core.effects import SideEffects
from callgate.core.errors import ToolExecutionError
from callgate.core.tools import ToolContext, ToolDefinition, ToolFactory, ToolOutput

TAG = "agent_hooks"
"""Of the sessions of agents with hooks: no other sees these tools."""
NAMES = tuple(f"agent_{effect.value}" for effect in SideEffects)


def factories() -> Iterator[ToolFactory]:
    for effect in SideEffects:
        yield partial(AgentTool, _definition(effect))


class AgentTool:
    def __init__(self, definition: ToolDefinition) -> None:
        self.definition = definition

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        raise ToolExecutionError("Only an agent runs its own tools.", reason="agent_only")

    async def cancel(self) -> bool:
        return False


def _definition(effect: SideEffects) -> ToolDefinition:
    return ToolDefinition(
        name=f"agent_{effect.value}",
        description=f"A tool of another agent, of class {effect.value}, which that agent runs.",
        input_schema={
            "type": "object",
            "properties": {
                "agent": {"type": "string"},
                "name": {"type": "string", "description": "As that agent calls it."},
                "input": {"type": "object", "additionalProperties": True},
                "paths": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["agent", "name", "input"],
        },
        side_effects=effect,
        requires_workspace=False,
        path_params=("paths",),
        required_tags=frozenset({TAG}),
        source="builtin",
    )
