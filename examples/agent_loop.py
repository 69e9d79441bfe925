"""callgate inside an agent loop you already have: two lines, marked (1) and (2).

The model is a script, so the example runs anywhere; replace it with your provider's client.
The messages have Anthropic's format; "openai" and "openai-responses" work too.
"""

from __future__ import annotations

import asyncio
from typing import Any

from callgate import Gate, tool


@tool(side_effects="none")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class ScriptedModel:
    """Model that requests two sums concurrently, then reports the results."""

    async def create(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        assert [each["name"] for each in tools] == ["add"]
        if len(messages) == 1:
            uses = [("a", {"a": 20, "b": 22}), ("b", {"a": 1, "b": "two"})]
            return [{"type": "tool_use", "id": i, "name": "add", "input": x} for i, x in uses]
        results = messages[-1]["content"]
        return [{"type": "text", "text": " / ".join(r["content"][0]["text"] for r in results)}]


async def main() -> None:
    model = ScriptedModel()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "add things"}]
    async with Gate(tools=[add]) as gate:
        while True:
            reply = await model.create(messages, tools=gate.definitions("anthropic"))  # (1)
            messages.append({"role": "assistant", "content": reply})
            results = await gate.respond(reply, "anthropic")  # (2)
            if not results:
                print(reply[0]["text"])
                return
            messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    asyncio.run(main())
