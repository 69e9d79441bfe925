"""Processes that make calls with effects and are killed: `test_lives` starts them.

    python -m tests.kernel.gate.lives ROLE HOME WORKSPACE

They speak in lines of JSON on stdout; a line is written when its call was answered.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from typing import Any

from callgate import Gate, ToolContext, tool
from callgate.events import log


def say(**what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")  # one write: a kill tears no line


@tool(side_effects="write")
async def mark(n: int, context: ToolContext) -> str:
    """Leave a mark that no kill takes away."""
    beside = os.path.join(os.path.dirname(context.workspace_path), "marks")
    file = os.open(beside, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{context.tool_use_id}\n".encode())
    finally:
        os.close(file)
    await asyncio.sleep(0.001 * (n % 3))
    return "marked"


@tool(side_effects="none")
async def think(n: int) -> int:
    """Leave no mark. Every third takes a while, so that a kill may hit it."""
    if n % 3 == 0:
        await asyncio.sleep(0.005 * (n % 9))
    if n % 7 == 0:
        raise ValueError("no thought")
    return n


async def work(home: str, workspace: str, *names: str) -> None:
    async with Gate(workspace=workspace, tools=[mark, think], home=home, mode="write") as gate:

        async def call_on() -> None:
            for n in range(10_000):
                for name in names:
                    result = await gate.call(name, {"n": n})
                    say(call=result.call_id, ok=result.ok, tool=name)

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(call_on())


def be_killed_again_and_again(home: str, workspace: str, *names: str) -> None:
    """For each line on stdin, a fresh process that works until it is killed."""
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(work(home, workspace, *names))
        say(born=child)
        os.waitpid(child, 0)
        say(died=child)


async def ask_in_a_turn(home: str, workspace: str) -> None:
    """Ask about a call of a turn, where nobody answers."""
    async with Gate(workspace=workspace, tools=[mark], home=home, title="asks") as gate:
        async with gate.turn("mark it"):
            await _ask(gate)


async def ask_directly(home: str, workspace: str) -> None:
    """Ask about a direct call; whoever is asked never answers."""

    async def wait(question: Any) -> bool:
        await asyncio.Event().wait()
        return False

    async with Gate(workspace=workspace, tools=[mark], home=home, confirm=wait) as gate:
        await _ask(gate)


async def think_and_die(home: str, workspace: str) -> None:
    """Get answers to calls without effects, and be gone before the loop goes round."""
    async with Gate(workspace=workspace, tools=[think], home=home) as gate:
        for n in (1, 2, 7, "no number"):
            result = await gate.call("think", {"n": n})
            say(call=result.call_id, ok=result.ok, session=gate.session.id)
        os.kill(os.getpid(), signal.SIGKILL)


async def hold(home: str, workspace: str) -> None:
    """Make a call without effects for each line on stdin, whose events wait for a reader."""
    log.HOLD_S = log.CHECKPOINT_S = 1e9
    async with Gate(workspace=workspace, tools=[think], home=home) as gate:
        await gate.call("think", {"n": 1})
        await gate._wired.log.flush()
        say(session=gate.session.id)
        while await asyncio.to_thread(sys.stdin.readline):
            result = await gate.call("think", {"n": 1})
            say(call=result.call_id, held=gate._wired.log._is_holding)


async def hang(home: str, workspace: str) -> None:
    """Begin a call without effects that never ends."""

    @tool(side_effects="none")
    async def wonder() -> None:
        """Never come to an end."""
        await asyncio.Event().wait()

    async with Gate(workspace=workspace, tools=[wonder], home=home) as gate:
        call = asyncio.create_task(gate.call("wonder", {}))
        async for event in gate.runtime.sessions.events(types=["tool.called"]):
            await gate._wired.log.flush()
            say(session=gate.session.id, call=event.payload["call_id"])
            break
        await call


async def _ask(gate: Gate) -> None:
    events = gate.runtime.sessions.events(types=["tool.confirmation_requested"])
    call = asyncio.create_task(gate.call("mark", {"n": 0}))
    async for event in events:
        say(session=gate.session.id, question=event.payload["confirmation_request_id"])
        break
    result = await call
    say(ok=result.ok, by=None if result.error is None else result.error.reason)


ROLES: dict[str, Any] = {
    "killed": be_killed_again_and_again,
    "die": lambda *args: asyncio.run(think_and_die(*args)),
    "hold": lambda *args: asyncio.run(hold(*args)),
    "hang": lambda *args: asyncio.run(hang(*args)),
    "turn": lambda *args: asyncio.run(ask_in_a_turn(*args)),
    "direct": lambda *args: asyncio.run(ask_directly(*args)),
}

if __name__ == "__main__":
    logging.disable()
    ROLES[sys.argv[1]](*sys.argv[2:])
