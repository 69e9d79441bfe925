"""A command of an agent, run here in our sandbox: the agent runs a ticket in its place.

    allowed -> ticket -> the agent runs `HOME/hooks/AGENT/run TICKET` -> redeemed, once
                                                       -> our shell tool -> output, exit code

A ticket stands for the one call that was approved, with those arguments. It is random, it counts
once, and it ends with the call.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import msgspec

from callgate.core.content import TextBlock
from callgate.core.errors import ToolCancelled, ToolError
from callgate.core.tools import ToolContext, ToolDefinition, ToolFactory, ToolOutput

_MOST = 256


class Redeemed(msgspec.Struct, frozen=True):
    """What the agent's process prints, and how it ends."""

    text: str
    exit_code: int


class SandboxedCall:
    """One command that waits for its ticket."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ticket = secrets.token_urlsafe(32)
        self.started: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.redeemed: asyncio.Future[None] = loop.create_future()
        self.output: asyncio.Future[Redeemed] = loop.create_future()

    def wrap(self, factory: ToolFactory) -> ToolFactory:
        return lambda: SandboxedTool(self, factory)


class Tickets:
    """Those that were given out and not redeemed."""

    def __init__(self) -> None:
        self._calls: dict[str, SandboxedCall] = {}

    def add(self, call: SandboxedCall) -> None:
        while len(self._calls) >= _MOST:
            del self._calls[next(iter(self._calls))]
        self._calls[call.ticket] = call

    def withdraw(self, call: SandboxedCall) -> None:
        self._calls.pop(call.ticket, None)

    async def redeem(self, ticket: str) -> Redeemed | None:
        """Run the call of a ticket; None where it stands for none."""
        call = self._calls.pop(ticket, None)
        if call is None or call.redeemed.done():
            return None
        call.redeemed.set_result(None)
        return await asyncio.shield(call.output)


class SandboxedTool:
    def __init__(self, call: SandboxedCall, factory: ToolFactory) -> None:
        self._call = call
        self._inner = factory()
        self._running = False
        if hasattr(self._inner, "preview"):
            self.preview = self._inner.preview

    @property
    def definition(self) -> ToolDefinition:
        return self._inner.definition

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        call = self._call
        call.started.set_result(input)
        text, code = "The command did not run.", 1
        try:
            await call.redeemed
            self._running = True
            output = await self._inner.execute(input, context)
            text = "".join(block.text for block in output.content if isinstance(block, TextBlock))
            found = output.value.get("exit_code") if isinstance(output.value, dict) else None
            code = found if isinstance(found, int) and 0 <= found < 256 else int(not output.success)
            return output
        except ToolError as error:
            text = f"callgate: {error}"
            raise
        finally:
            if not call.output.done():
                call.output.set_result(Redeemed(text, code))

    async def cancel(self) -> bool:
        if self._running:
            return await self._inner.cancel()
        if not self._call.redeemed.done():
            self._call.redeemed.set_exception(
                ToolCancelled("The agent did not run the command.", reason="not_redeemed")
            )
        return True
