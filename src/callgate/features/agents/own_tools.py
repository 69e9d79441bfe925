"""Placeholders for the tools of third-party agents: `agent_none` to `agent_execute`, by effect.

callgate never runs them. A hook submits a call for a decision (`hooks/`), and the agent runs it.
Rules match the agent's name of the tool:

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
from callgate.dispatch.tools.sources import AGENT_HOOKS

NAMES = tuple(f"agent_{effect.value}" for effect in SideEffects)


def factories() -> Iterator[ToolFactory]:
    for effect in SideEffects:
        yield partial(AgentTool, _definition(effect))


class AgentTool:
    def __init__(self, definition: ToolDefinition) -> None:
        self.definition = definition

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        raise ToolExecutionError(
            "callgate cannot run the tool of an agent: only the agent can.", reason="agent_only"
        )

    async def cancel(self) -> bool:
        return False


def _definition(effect: SideEffects) -> ToolDefinition:
    return ToolDefinition(
        name=f"agent_{effect.value}",
        description=f"A tool with effect {effect.value} that a third-party agent runs.",
        input_schema={
            "type": "object",
            "properties": {
                "agent": {"type": "string"},
                "name": {"type": "string", "description": "Name of the tool in that agent."},
                "input": {"type": "object", "additionalProperties": True},
                "paths": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["agent", "name", "input"],
        },
        side_effects=effect,
        requires_workspace=False,
        path_params=("paths",),
        required_tags=frozenset({AGENT_HOOKS}),
        source="builtin",
    )
