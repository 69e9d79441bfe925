"""An agent of openai-agents behind a gate: two lines, marked (1) and (2).

    pip install 'callgate[openai-agents]'

The model here is a script, so that the example runs anywhere; put a real one in its place.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from callgate import Answer, Confirmation, Gate, Outcome
from callgate.adapters.openai_agents import guarded_agent


@function_tool
def send_mail(to: str, subject: str | None = None) -> str:
    """Send a mail."""
    return f"sent to {to}"


class ScriptedModel(Model):
    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **more: Any
    ) -> Any:
        last = input[-1] if isinstance(input, list) else {}
        if last.get("type") == "function_call_output":
            text = ResponseOutputText(annotations=[], text=last["output"], type="output_text")
            reply: Any = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            arguments = json.dumps({"to": "ann@example.org", "subject": None})
            reply = ResponseFunctionToolCall(
                arguments=arguments, call_id="c1", name="send_mail", type="function_call"
            )
        return ModelResponse(output=[reply], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **more: Any) -> Any:
        raise NotImplementedError


async def ask(question: Confirmation) -> Answer:
    edited = {**question.arguments, "to": "bob@example.org"}
    print(f"{question.tool} {dict(question.arguments)}? yes, but to {edited['to']}")
    return Answer(decision=Outcome.ALLOW, arguments=edited)


async def main() -> None:
    agent = Agent("mails", tools=[send_mail], model=ScriptedModel())
    async with Gate(tools=[], confirm=ask) as gate:  # (1)
        agent = guarded_agent(agent, gate, effects={"send_mail": "network"})  # (2)
        config = RunConfig(tracing_disabled=True)
        result = await Runner.run(agent, "write to ann@example.org", run_config=config)
        print(result.final_output)


if __name__ == "__main__":
    asyncio.run(main())
