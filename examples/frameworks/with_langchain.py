"""A langchain agent behind a gate: two lines, marked (1) and (2).

    pip install 'callgate[langchain]'

The model here is a script, so that the example runs anywhere; put a real one in its place.
"""

from __future__ import annotations

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from callgate import Answer, Confirmation, Gate, Outcome
from callgate.adapters.langchain import GateMiddleware


@tool
def send_mail(to: str, subject: str | None = None) -> str:
    """Send a mail."""
    return f"sent to {to}"


class ScriptedModel(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **more: Any) -> ScriptedModel:
        return self

    def _generate(self, messages: list[Any], *args: Any, **more: Any) -> ChatResult:
        if isinstance(messages[-1], ToolMessage):
            reply = AIMessage(messages[-1].content)
        else:
            call = {"name": "send_mail", "args": {"to": "ann@example.org"}, "id": "c1"}
            reply = AIMessage("", tool_calls=[{**call, "type": "tool_call"}])
        return ChatResult(generations=[ChatGeneration(message=reply)])


async def ask(question: Confirmation) -> Answer:
    print(f"{question.tool} {dict(question.arguments)}? no")
    return Answer(decision=Outcome.DENY, reason="Not before noon.")


async def main() -> None:
    async with Gate(tools=[], confirm=ask) as gate:  # (1)
        guard = GateMiddleware(gate, effects={"send_mail": "network"})  # (2)
        agent = create_agent(ScriptedModel(), [send_mail], middleware=[guard])
        prompt = {"role": "user", "content": "write to ann@example.org"}
        print((await agent.ainvoke({"messages": [prompt]}))["messages"][-1].content)


if __name__ == "__main__":
    asyncio.run(main())
