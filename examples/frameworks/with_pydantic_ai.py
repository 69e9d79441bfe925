"""A pydantic-ai agent behind a gate: two lines, marked (1) and (2).

    pip install 'callgate[pydantic-ai]'

The model here is a script, so that the example runs anywhere; put a real one in its place.
"""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from callgate import Confirmation, Gate
from callgate.adapters.pydantic_ai import GateCapability


def send_mail(to: str, subject: str | None = None) -> str:
    """Send a mail."""
    return f"sent to {to}"


def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if len(messages) == 1:
        return ModelResponse([ToolCallPart("send_mail", {"to": "ann@example.org"})])
    return ModelResponse([TextPart(str(messages[-1].parts[0].content))])


async def ask(question: Confirmation) -> bool:
    print(f"{question.tool} {dict(question.arguments)}? yes")
    return True


async def main() -> None:
    async with Gate(tools=[], confirm=ask) as gate:  # (1)
        guard = GateCapability(gate, effects={"send_mail": "network"})  # (2)
        agent = Agent(FunctionModel(script), tools=[send_mail], capabilities=[guard])
        print((await agent.run("write to ann@example.org")).output)


if __name__ == "__main__":
    asyncio.run(main())
