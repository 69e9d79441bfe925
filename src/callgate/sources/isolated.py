"""Sync functions run in processes of their own, where a timeout or a cancel really ends them.

    Isolates.of(function)    the same tool, run elsewhere; or the function itself, where its
                             module cannot be imported by another process

One call at a time in each process; a few processes for each module, started when they are
needed and kept. The author's function, its module and its environment are the same there:
this is about ending it, not about mistrusting it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any

from callgate.core.commands import Launcher
from callgate.core.tools import ToolContext, ToolDefinition, ToolFactory, ToolOutput
from callgate.protocol.host_v1 import values
from callgate.sources.functions import ToolFunction
from callgate.sources.hosts.calls import call
from callgate.sources.hosts.hosts import Host, HostCall, HostSettings

MOST = 4
"""Processes of one module."""
_HIDDEN = "CALLGATE_"


class Isolates:
    def __init__(self, launcher: Callable[[], Launcher]) -> None:
        self._launcher = launcher
        self._pools: dict[str, _Pool] = {}

    def of(self, factory: ToolFactory) -> ToolFactory:
        """The factory of the tool as it is to run."""
        if not isinstance(factory, ToolFunction) or factory.is_async or factory.isolate is False:
            return factory
        spec = where(factory)
        if spec is None:
            return factory
        pool = self._pools.get(spec)
        if pool is None:
            pool = self._pools[spec] = _Pool(spec, self._launcher)
        return lambda: IsolatedTool(pool, factory.definition)

    async def close(self) -> None:
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))


class IsolatedTool:
    """One call of a function in another process."""

    stoppable = True

    def __init__(self, pool: _Pool, definition: ToolDefinition) -> None:
        self._pool = pool
        self._definition = definition
        self._host: Host | None = None
        self._host_call: HostCall | None = None

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        host = self._host = await self._pool.take()
        try:
            value = await call(
                host, self._definition.name, input, context, self._remember, trusted=True
            )
        finally:
            self._pool.give(host)
        return values.to_output(value, trusted=True)

    def _remember(self, host_call: HostCall) -> None:
        self._host_call = host_call

    async def cancel(self) -> bool:
        """Nothing of ours can end a function but the end of its process."""
        if self._host_call is None or self._host is None:
            return False
        self._host.kill(self._host_call)
        return True


class _Pool:
    def __init__(self, spec: str, launcher: Callable[[], Launcher]) -> None:
        self._spec, self._launcher = spec, launcher
        self._idle: list[Host] = []
        self._all: list[Host] = []
        self._free = asyncio.Semaphore(MOST)

    async def take(self) -> Host:
        """A process for one call; the last that was used is the warmest."""
        await self._free.acquire()
        if self._idle:
            return self._idle.pop()
        host = Host(self._settings(), self._launcher)
        self._all.append(host)
        return host

    def give(self, host: Host) -> None:
        self._idle.append(host)
        self._free.release()

    async def close(self) -> None:
        await asyncio.gather(*(host.close() for host in self._all))

    def _settings(self) -> HostSettings:
        env = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
        env["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        command = (sys.executable, "-P", "-m", "callgate.host", self._spec)
        name = f"python {self._spec}"
        return HostSettings(name=name, command=command, cwd=os.getcwd(), env=env, max_in_flight=1)


def where(factory: ToolFunction[..., Any]) -> str | None:
    """What another process has to import to find a function; None if it cannot."""
    function = factory.function
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or "<locals>" in function.__qualname__:
        return None
    if factory not in vars(module).values():
        return None
    top = module.__name__.partition(".")[0]
    if PathFinder.find_spec(top) is not None:
        return module.__name__
    file = getattr(module, "__file__", None)  # one that was loaded from a file by its path
    return file if file is not None and file.endswith(".py") else None
