"""`update_plan`: what an agent means to do, step by step, for whoever watches.

The list is always the whole one: the newest stands for all before it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from callgate.core.content import TextBlock
from callgate.core.effects import SideEffects
from callgate.core.events import PLANNED
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput

UPDATE_PLAN = "update_plan"
MOST_ENTRIES = 100
LONGEST_ENTRY = 500
_PRIORITIES = ("high", "medium", "low")
_STATUSES = ("pending", "in_progress", "completed")


class UpdatePlan:
    definition = ToolDefinition(
        name=UPDATE_PLAN,
        description=(
            "Show the user your plan for work of several steps, and how far you are: always the"
            " whole list. Keep one entry in progress, and say when one is completed."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "entries": {
                    "type": "array",
                    "maxItems": MOST_ENTRIES,
                    "items": {
                        "type": "object",
                        "properties": {
                            "content": {
                                "type": "string",
                                "minLength": 1,
                                "maxLength": LONGEST_ENTRY,
                            },
                            "priority": {
                                "type": "string",
                                "enum": list(_PRIORITIES),
                                "default": "medium",
                            },
                            "status": {"type": "string", "enum": list(_STATUSES)},
                        },
                        "required": ["content", "status"],
                        "additionalProperties": False,
                    },
                },
            },
            "required": ["entries"],
            "additionalProperties": False,
        },
        side_effects=SideEffects.NONE,
        requires_workspace=False,
        kind="think",
        source="builtin",
        hidden_from_workers=True,  # nobody watches them
    )

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        entries = [
            {
                "content": entry["content"],
                "priority": entry.get("priority", "medium"),
                "status": entry["status"],
            }
            for entry in input["entries"]
        ]
        context.publish(PLANNED, {"entries": entries})
        count = Counter(entry["status"] for entry in entries)
        counts = ", ".join(f"{count[each]} {each}" for each in _STATUSES)
        return ToolOutput(content=[TextBlock(f"The plan is shown: {counts}.")])

    async def cancel(self) -> bool:
        return False
