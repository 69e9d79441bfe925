"""Claude Code behind a gate, by its SDK: two lines, marked (1) and (2).

    pip install 'callgate[claude-agent-sdk]'

It uses the model that the environment names (`ANTHROPIC_API_KEY`, `ANTHROPIC_BASE_URL`).
"""

from __future__ import annotations

import asyncio

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

from callgate import Confirmation, Gate
from callgate.adapters.claude_agent_sdk import gate_options


async def ask(question: Confirmation) -> bool:
    print(f"{question.tool} {question.arguments.get('command')}? yes")
    return True


async def main() -> None:
    async with Gate(tools=[], confirm=ask) as gate:  # (1)
        options = gate_options(gate, ClaudeAgentOptions(cwd="."))  # (2)
        async for message in query(prompt="Say hello with a command.", options=options):
            if isinstance(message, ResultMessage):
                print(message.result)


if __name__ == "__main__":
    asyncio.run(main())
