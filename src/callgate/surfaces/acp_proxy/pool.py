"""The processes of one agent: one for each place in which sessions work.

    greet   the first process; what it answers is what the editor is told
    at      the process of a place: one that runs, or a new one that is greeted like the first

A sandbox is made for one workspace, so a session in another directory gets another process.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from callgate.core.errors import ToolError
from callgate.protocol.jsonrpc import INTERNAL_ERROR, RpcError
from callgate.surfaces.acp_proxy.agents import AgentProcess
from callgate.surfaces.acp_proxy.dependencies import Agent, AgentPlace, Dependencies, Handlers

MOST_PROCESSES = 16


class AgentPool:
    """`dependencies.Agents` for processes of ours."""

    def __init__(self, dependencies: Dependencies, handlers: Handlers) -> None:
        self._dependencies = dependencies
        self._handlers = handlers
        self._agents: dict[AgentPlace, AgentProcess] = {}
        self._starting = asyncio.Lock()
        self._greeting: Any = None
        self._login: Any = None
        self._first: AgentProcess | None = None

    async def greet(self, params: Any) -> Any:
        """Start the first process; its answer to the greeting."""
        self._greeting = params
        self._first, answer = await self._start(self._dependencies.first_place)
        return answer

    def logged_in(self, params: Any) -> None:
        """The agent has taken this sign-in: those that are started later are signed in, too."""
        self._login = params

    async def at(self, place: AgentPlace) -> Agent:
        async with self._starting:
            for known in (place, self._dependencies.first_place):
                agent = self._agents.get(known)
                if agent is not None and agent.is_alive and _holds(known, place):
                    return agent
            if sum(each.is_alive for each in self._agents.values()) >= MOST_PROCESSES:
                message = f"{MOST_PROCESSES} agents are at work in other directories"
                raise RpcError(INTERNAL_ERROR, message)
            agent, _ = await self._start(place)
            if self._login is not None:
                await agent.request("authenticate", self._login)
            return agent

    def every(self) -> list[Agent]:
        return [each for each in self._agents.values() if each.is_alive]

    def usual(self) -> Agent:
        first = self._first
        if first is not None and first.is_alive:
            return first
        for other in self.every():
            return other
        raise RpcError(INTERNAL_ERROR, "the agent has ended") if first is None else first.failure()

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._agents.values()))

    async def _start(self, place: AgentPlace) -> tuple[AgentProcess, Any]:
        agent = AgentProcess(place, self._dependencies.runs_in, self._handlers)
        try:
            await agent.start(await self._dependencies.launch(place))
        except ToolError as error:
            raise RpcError(INTERNAL_ERROR, error.message, {"reason": "agent_start"}) from error
        self._agents[place] = agent
        limit_s = self._dependencies.start_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return agent, await agent.request("initialize", self._greeting)
        except TimeoutError:
            agent.kill(f"it did not answer initialize within {limit_s:g} s")
            raise agent.failure() from None
        except BaseException:
            agent.kill("its greeting failed")
            raise


def _holds(known: AgentPlace, wanted: AgentPlace) -> bool:
    """Whether a process that works in one place can work in another: it lies within, and needs
    no other directories."""
    if known == wanted:
        return True
    inside = os.path.commonpath([known.workspace, wanted.workspace]) == known.workspace
    return inside and set(wanted.roots) <= set(known.roots)
