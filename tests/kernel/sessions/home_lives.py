"""Processes of several homes that share one store, and are killed: `test_homes` starts them.

    python -m tests.kernel.sessions.home_lives ROLE HOME WORKSPACE

They speak in lines of JSON on stdout.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import Any

from callgate import Gate, ToolContext, tool
from tests.kernel.gate.lives import be_killed_again_and_again, hang, mark, say, think


async def answer_and_die(home: str, workspace: str) -> None:
    """Be gone once a call without effects, whose start is in the store, has been answered."""

    @tool(side_effects="none")
    async def look(context: ToolContext) -> str:
        """Have the start of this call on the disk."""
        await gate._wired.log.flush()
        return "looked"

    async with Gate(workspace=workspace, tools=[look], home=home) as gate:
        result = await gate.call("look", {})
        say(session=gate.session.id, call=result.call_id, ok=result.ok)
        os.kill(os.getpid(), signal.SIGKILL)


async def write_and_hang(home: str, workspace: str) -> None:
    """Begin a call with effects that never ends."""

    @tool(side_effects="write")
    async def alter(context: ToolContext) -> None:
        """Never come to an end."""
        say(session=context.session_id, call=context.tool_use_id)
        await asyncio.Event().wait()

    async with Gate(workspace=workspace, tools=[alter], home=home, mode="write") as gate:
        await gate.call("alter", {})


async def finish_and_die(home: str, workspace: str) -> None:
    """Be gone once a call with effects was answered: its record is still in the outbox."""
    async with Gate(workspace=workspace, tools=[mark], home=home, mode="write") as gate:
        result = await gate.call("mark", {"n": 0})
        say(session=gate.session.id, call=result.call_id, ok=result.ok)
        os.kill(os.getpid(), signal.SIGKILL)


async def recover(home: str, workspace: str) -> None:
    """For each line on stdin, look once after those who are gone, as a server does at its start."""
    say(ready=True)
    for _ in sys.stdin:
        async with Gate(workspace=workspace, tools=[think], home=home) as gate:
            await gate._wired.log.store()
        say(looked=True)


async def follow(home: str, workspace: str) -> None:
    """Follow the shared store as a server does; for each line on stdin, call a tool once."""
    async with Gate(workspace=workspace, tools=[mark], home=home, mode="write") as gate:
        assert gate._wired.sharing is not None
        following = asyncio.create_task(gate._wired.sharing.follow())
        say(ready=True)
        while await asyncio.to_thread(sys.stdin.readline):
            result = await gate.call("mark", {"n": 0})
            say(ok=result.ok, error=None if result.error is None else result.error.error_class)
        following.cancel()


ROLES: dict[str, Any] = {
    "follow": follow,
    "answered": answer_and_die,
    "finished": finish_and_die,
    "writing": write_and_hang,
    "hang": hang,
    "recover": recover,
}

if __name__ == "__main__":
    logging.disable()
    if sys.argv[1] == "killed":
        be_killed_again_and_again(*sys.argv[2:])
    else:
        asyncio.run(ROLES[sys.argv[1]](*sys.argv[2:]))
