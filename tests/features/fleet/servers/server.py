"""One server in a process of its own, with tools that say in a file what they did: for the tests beside it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import callgate
from callgate import ToolContext, tool
from callgate.features.fleet import carrying

HERE = Path(os.environ["SERVERS_TEST"])
LOG = HERE / "done.log"


def note(text: str) -> None:
    with LOG.open("a") as log:
        log.write(f"{os.getpid()} {text}\n")


@tool(side_effects="write", requires_workspace=False)
async def put(what: str) -> str:
    """Put something down: asked about in mode ask."""
    note(f"put {what}")
    return f"put {what}"


@tool(side_effects="none")
async def show(what: str = "") -> str:
    """Give it back, and by which process."""
    return f"{what} {os.getpid()}"


@tool(side_effects="write", requires_workspace=False)
async def hold(name: str, context: ToolContext) -> str:
    """Begin, and end when a file says so, or when it is cancelled."""
    return await held(name, context)


@tool(side_effects="none")
async def wait(name: str, context: ToolContext) -> str:
    """The same without an effect."""
    return await held(name, context)


async def held(name: str, context: ToolContext) -> str:
    note(f"begin {name}")
    try:
        while not context.cancel_event.is_set():
            if (HERE / "go").exists():
                note(f"end {name}")
                return name
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note(f"cancelled {name}")
        raise
    note(f"cancelled {name}")
    return "cancelled"


async def main(socket: str) -> None:
    async with callgate.serve(
        [HERE / "ws"],
        tools=[put, show, hold, wait],
        socket=socket,
        http=os.environ.get("SERVERS_HTTP", "127.0.0.1:0"),
        label=os.path.basename(socket),
    ) as instance:
        print(instance.pid, instance.url, instance.token, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def set_clock(ahead_s: float) -> None:
    """Let the clock of this process be wrong."""
    right = time.time
    time.time = lambda: right() + ahead_s


def set_patience(limit_s: float) -> None:
    """How long another server may be silent until it is asked, and how long that may take."""
    carrying._SILENT_S = carrying._HEALTH_S = limit_s


if __name__ == "__main__":
    set_clock(float(os.environ.get("SERVERS_AHEAD", "0")))
    set_patience(float(os.environ.get("SERVERS_PATIENCE", carrying._SILENT_S)))
    asyncio.run(main(sys.argv[1]))
