"""An agent on the Python SDK of the protocol, `agent-client-protocol`, that only greets."""

from __future__ import annotations

import asyncio
from typing import Any

from acp import PROTOCOL_VERSION, Agent, InitializeResponse, run_agent
from acp.schema import AgentCapabilities, Implementation


class Greeter(Agent):
    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(load_session=True),
            agent_info=Implementation(name="sdk", title="sdk", version="1"),
        )


if __name__ == "__main__":
    asyncio.run(run_agent(Greeter()))
