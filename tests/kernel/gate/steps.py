"""Processes that are killed before the n-th thing they do to the disk: `test_killed_steps` starts them.

    python -m tests.kernel.gate.steps    one line of JSON on stdin a process: [role, home, workspace, n]

Each says on stdout what its calls were answered, and last how many steps it made, if it was not
killed; a line with `died` follows.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import sys
import threading
from typing import Any

from callgate import Gate, tool
from callgate.audit.log import AuditLog
from callgate.sessions.recovery import needs_recovery, recover
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.gate.lives import mark, say
from tests.kernel.storage.disks import Disk

_CALLS = ("open", "write", "pwrite", "fsync", "rename", "replace", "link", "unlink", "ftruncate", "truncate")


class Steps(Disk):
    """What SQLite and Python do to a home, counted together."""

    def __init__(self, home: str, nth: int) -> None:
        super().__init__(for_all=True)
        self.count = 0
        self._home = home
        self._nth = nth
        self._guard = threading.Lock()
        for name in _CALLS:
            setattr(os, name, self._counted(getattr(os, name)))
        fcntl.flock = self._counted(fcntl.flock)

    def meet(self, operation: str) -> None:
        if operation == "read":
            return
        with self._guard:
            self.count += 1
            if self.count == self._nth:
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()

    def _counted(self, real: Any) -> Any:
        def act(what: Any, *more: Any, **named: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fsdecode(what)
            if path.startswith(self._home):
                self.meet("write")
            return real(what, *more, **named)

        return act


@tool(side_effects="none")
async def think(n: int) -> int:
    """Have no effect. 2 takes longer than events wait for the store, 3 is no thought."""
    if n == 2:
        await asyncio.sleep(0.06)
    if n == 3:
        raise ValueError("no thought")
    return n


@tool(side_effects="none")
async def wonder() -> None:
    """Never come to an end."""
    await asyncio.Event().wait()


async def live(home: str, workspace: str) -> None:
    """Calls of all kinds: with and without effects, refused, failed, asked about and cut off."""

    async def never(question: Any) -> bool:
        await asyncio.Event().wait()
        return False

    async with Gate(workspace=workspace, tools=[mark, think, wonder], home=home, mode="write", confirm=never) as gate:

        async def call(name: str, **arguments: Any) -> None:
            result = await gate.call(name, arguments)
            say(call=result.call_id, ok=result.ok, tool=name)

        await call("think", n=1)
        await call("mark", n=1)
        await call("think", n="no number")
        cut = [asyncio.create_task(call("wonder")), asyncio.create_task(call("shell", command="make"))]
        await asyncio.gather(call("mark", n=2), call("think", n=2), call("think", n=3), call("missing"))
        for each in cut:
            each.cancel()
        await asyncio.wait(cut)
        await call("mark", n=4)
        await call("think", n=5)


async def close_what_is_open(home: str, workspace: str) -> None:
    audit = AuditLog(os.path.join(home, "audit.jsonl"))
    run = os.path.join(home, "run")
    async with await SqliteStore.open(home) as store:
        if await needs_recovery(store, run):
            assert await recover(store, audit, run)
    audit.close()


ROLES = {"live": live, "recover": close_what_is_open}


def main() -> None:
    for line in sys.stdin:
        role, home, workspace, nth = json.loads(line)
        child = os.fork()
        if child == 0:
            steps = Steps(home, nth)
            asyncio.run(ROLES[role](home, workspace))
            say(steps=steps.count)
            os._exit(0)
        os.waitpid(child, 0)
        say(died=child)


if __name__ == "__main__":
    logging.disable()
    main()
