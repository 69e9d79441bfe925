"""Microsoft's agent governance toolkit: its MCP gateway with the policy that it ships.

`MCPGateway(GovernancePolicy())` is its default: a budget of calls, patterns of dangerous
arguments, and a scan of every response, which blocks what it takes for an injection. A blocked
response is one that the model does not see, but the tool has run. With `sensitive` every tool
with effects also needs its approval, which a person gives.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from safety.contestants.ports import Reply, World
from safety.people import PersonKind, Reader
from safety.values import Call

_AGENT = "agent"


class GovernanceToolkit(msgspec.Struct, frozen=True):
    name: str
    title: str
    sensitive: bool = False
    person_kind: PersonKind = "reader"

    def missing(self) -> str | None:
        there = importlib.util.find_spec("agent_os")
        return None if there else "agent-governance-toolkit-core is not installed"

    @asynccontextmanager
    async def open(self, world: World, prompt: str, person: Reader) -> AsyncIterator[ToolkitDoor]:
        yield ToolkitDoor(world, _gateway(world, person, self.sensitive))


class ToolkitDoor:
    def __init__(self, world: World, gateway: Any) -> None:
        self._world = world
        self._gateway = gateway

    async def call(self, call: Call) -> Reply:
        arguments = dict(call.arguments)
        allowed, why = self._gateway.intercept_tool_call(_AGENT, call.tool, arguments)
        if not allowed:
            return Reply(ran=False, text=why)
        text = (await self._world.run(call)).text
        decision = self._gateway.intercept_tool_response(_AGENT, call.tool, text)
        if decision.allowed:
            return Reply(ran=True, text=decision.content)
        return Reply(ran=True, text=decision.reason, withheld=True)


def _gateway(world: World, person: Reader, sensitive: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its own former name
        from agent_os.integrations.base import GovernancePolicy  # lazy: not in every environment
        from agent_os.mcp_gateway import ApprovalStatus, MCPGateway

    logging.getLogger("agent_os").setLevel(logging.CRITICAL)
    with_effects = [each.name for each in world.definitions if each.effect.has_effects]

    def approve(agent: str, tool: str, arguments: dict[str, Any]) -> Any:
        allowed = person.allows(tool, arguments, "a sensitive tool")
        return ApprovalStatus.APPROVED if allowed else ApprovalStatus.DENIED

    return MCPGateway(
        GovernancePolicy(),
        sensitive_tools=with_effects if sensitive else None,
        approval_callback=approve if sensitive else None,
    )
