"""A dispatcher without a gate: register a tool, dispatch a block, and follow every event."""

from __future__ import annotations

import asyncio
import tempfile

from callgate import Event, Session, ToolDispatcher, ToolUseBlock, tool


@tool(side_effects="none")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        async with ToolDispatcher(home=home) as dispatcher:
            dispatcher.register(add)
            session = Session(workspace=home)

            def show(event: Event) -> None:
                print(event.type, event.payload["tool_use_id"])

            unsubscribe = dispatcher.subscribe(show, session.id)
            use = ToolUseBlock("use_1", "add", {"a": 1, "b": 2})
            block = await dispatcher.dispatch(use, session)
            print(block.content)
            unsubscribe()

            with dispatcher.events(types=["tool.failed", "tool.input_invalid"]) as failures:
                await dispatcher.dispatch(ToolUseBlock("use_2", "add", {"a": "one"}), session)
                async for failure in failures:
                    print(failure)
                    break


if __name__ == "__main__":
    asyncio.run(main())
