"""A tool as a class with a complete definition: one file, no change in the core."""

from __future__ import annotations

import asyncio
from typing import Any

from callgate import (
    Gate,
    SideEffects,
    TextBlock,
    ToolCancelled,
    ToolContext,
    ToolDefinition,
    ToolOutput,
)


class Countdown:
    """Tool that counts down tick by tick and stops immediately when it is cancelled."""

    definition = ToolDefinition(
        name="countdown",
        description="Count down from a number, ten ticks a second.",
        input_schema={
            "type": "object",
            "properties": {"start": {"type": "integer", "minimum": 1, "maximum": 100}},
            "required": ["start"],
        },
        side_effects=SideEffects.NONE,
        requires_workspace=False,
        timeout_s=30,
    )

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        start = input["start"]
        for left in range(start, 0, -1):
            context.progress(f"{left} to go", 1 - left / start)
            await asyncio.sleep(0.1)
            if context.cancel_event.is_set():
                raise ToolCancelled(f"stopped at {left}")
        return ToolOutput(content=[TextBlock("lift-off")])

    async def cancel(self) -> bool:
        return True  # checks cancel_event ten times a second


async def main() -> None:
    async with Gate(tools=[Countdown]) as gate:
        print((await gate.call("countdown", {"start": 3})).text)
        call = asyncio.create_task(gate.call("countdown", {"start": 100}))
        with gate.events(types=["tool.progress"]) as progress:
            async for _ in progress:
                break
        await gate.cancel()
        result = await call
        print(result.ok, result.error.error_class if result.error else None)


if __name__ == "__main__":
    asyncio.run(main())
