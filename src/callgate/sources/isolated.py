"""Sync functions in separate processes, where a timeout or a cancellation ends them.

    Isolates.of(function)    the same tool, run in another process; or the function itself, if
                             another process cannot import its module

Each process runs one call at a time. Each module has a few processes, which start on demand and
stay. A process has the same module, environment and rights as the author's function: its purpose
is termination, not containment.
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
from callgate.sources.host_tools import call
from callgate.sources.hosts import Host, HostCall, HostSettings

MOST = 4
"""Maximum processes of one module."""
_HIDDEN = "CALLGATE_"


class Isolates:
    def __init__(self, launcher: Callable[[], Launcher]) -> None:
        self._launcher = launcher
        self._pools: dict[str, _Pool] = {}

    def of(self, factory: ToolFactory) -> ToolFactory:
        """Return the factory of the tool, isolated if possible."""
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
        """End the process, the only way to end a sync function."""
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
        """Take a process for one call: the most recently used, or a new one."""
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
    """Return the module or file from which another process imports a function; None if it has
    none."""
    function = factory.function
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or "<locals>" in function.__qualname__:
        return None
    if factory not in vars(module).values():
        return None
    top = module.__name__.partition(".")[0]
    if PathFinder.find_spec(top) is not None:
        return module.__name__
    file = getattr(module, "__file__", None)  # a module that was loaded from a file by path
    return file if file is not None and file.endswith(".py") else None
