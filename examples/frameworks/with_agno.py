"""An Agno agent behind a gate: two lines, marked (1) and (2).

    pip install 'callgate[agno]'

The model here is a script, so that the example runs anywhere; put a real one in its place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from agno.agent import Agent
from agno.models.base import Model
from agno.models.response import ModelResponse

from callgate import Confirmation, Gate
from callgate.adapters.agno import gate_hooks


def send_mail(to: str, subject: str | None = None) -> str:
    """Send a mail."""
    return f"sent to {to}"


@dataclass
class ScriptedModel(Model):
    id: str = "scripted"

    def invoke(self, messages: list[Any], *args: Any, **more: Any) -> ModelResponse:
        if messages[-1].role == "tool":
            return ModelResponse(role="assistant", content=messages[-1].content)
        function = {"name": "send_mail", "arguments": json.dumps({"to": "ann@example.org"})}
        call = {"id": "c1", "type": "function", "function": function}
        return ModelResponse(role="assistant", tool_calls=[call])

    async def ainvoke(self, *args: Any, **more: Any) -> Any:
        raise NotImplementedError

    invoke_stream = ainvoke_stream = _parse_provider_response = ainvoke
    _parse_provider_response_delta = ainvoke


async def ask(question: Confirmation) -> bool:
    print(f"{question.tool} {dict(question.arguments)}? yes")
    return True


def main() -> None:
    """Run without an event loop; `async with Gate(...)` and `arun` work in one."""
    with Gate(tools=[], confirm=ask) as gate:  # (1)
        hooks = gate_hooks(gate, effects={"send_mail": "network"})  # (2)
        agent = Agent(model=ScriptedModel(), tools=[send_mail], tool_hooks=hooks, telemetry=False)
        print(agent.run("write to ann@example.org").content)


if __name__ == "__main__":
    main()
