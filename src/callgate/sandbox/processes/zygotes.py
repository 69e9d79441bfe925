"""The runtime's end of a zygote: Python hosts without the start time of Python.

    runtime ==lifeline==> zygote --fork--> broker --fork--> keeper --fork--> host
       +=======================lifeline=====+

A zygote (`callgate.host.zygote`) has imported the modules of a host. For each host it forks a
broker, which has a separate lifeline and receives the order, as any broker does. The host
has the same keeper, jail and end as one after a cold start. The zygote itself receives no data, so
it cannot leak any between hosts. The hosts share only what a fork cannot renew: Python's hash seed,
and memory addresses.

A host gets a cold start if another program has to build its jail, or if the zygote fails. A host
from a zygote is in no control group: its keeper measures it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import sys
from collections.abc import Mapping

from callgate.core.commands import OnOutput
from callgate.core.version import PACKAGE_DIRECTORY
from callgate.sandbox.host_approvals import HostApprovals
from callgate.sandbox.orders import Order
from callgate.sandbox.plans import Command, SandboxPlan
from callgate.sandbox.processes import ordering
from callgate.sandbox.processes.broker_client import (
    BrokeredProcess,
    BrokerLauncher,
    BrokerProcess,
    RestrictionFailed,
    approvals_of,
)

BOOT = (
    "import sys; from importlib import util; own = sys.path[:]; sys.path += sys.argv[3:]; "
    "spec = util.spec_from_file_location('callgate', sys.argv[2]); "
    "package = sys.modules['callgate'] = util.module_from_spec(spec); "
    "spec.loader.exec_module(package); "
    "from callgate.host import zygote; sys.path[:] = own; zygote.serve(int(sys.argv[1]))"
)
"""Loads our modules, but without our path among the modules of a host.

Our path may name a workspace, in which commands leave files, and a zygote is not sandboxed. The
package is therefore loaded from its own file, and Python's own modules come first."""
_PACKAGE = os.path.join(PACKAGE_DIRECTORY, "__init__.py")
PATIENCE_S = 10.0
"""Time limit of a fork, which includes all imports for the first one."""
MOST = 4
MOST_FAILURES = 3

_AT_START = ("HOME", "LANG", "LANGUAGE", "GLIBC_TUNABLES")
_ALL_AT_START = ("PYTHON", "LC_", "LD_", "MALLOC_")


def read_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Python reads at its start, so that a fork cannot apply them. The
    variable for its path is not one, because it can be applied later."""
    return {
        name: value
        for name, value in environ.items()
        if name in _AT_START or (name.startswith(_ALL_AT_START) and name != "PYTHONPATH")
    }


class Zygotes:
    """The zygotes of one runtime: one for each initial environment."""

    def __init__(self, python: str = sys.executable) -> None:
        self._python = python
        self._all: dict[tuple[tuple[str, str], ...], Zygote] = {}

    def prepare(self, environ: Mapping[str, str]) -> None:
        """Start a zygote for hosts with such an environment.

        A zygote is not sandboxed, so it may only have variables that callgate itself has. Others
        could load foreign code into it.
        """
        key = _key(environ)
        ours = all(os.environ.get(name) == value for name, value in key)
        if ours and key not in self._all and len(self._all) < MOST:
            zygote = self._all[key] = Zygote(read_at_start(environ), self._python)
            zygote.prepare()

    def suiting(self, command: Command) -> Zygote | None:
        """Return the zygote for a command; None if it needs a cold start. The environments must
        agree in the variables that Python reads at its start."""
        found = None if command.warm is None else self._all.get(_key(command.env))
        return found if found is not None and found.works else None

    def close(self) -> None:
        for zygote in self._all.values():
            zygote.close()


def _key(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(read_at_start(environ).items()))


class Zygote(BrokerProcess):
    """Started by `prepare` or on first use, replaced if it is gone, closed with us."""

    def __init__(self, environ: dict[str, str], python: str = sys.executable) -> None:
        """`environ` is its whole environment, which every host from it can read."""
        super().__init__(python)
        self._environ = environ
        self._brokers: set[BrokerProcess] = set()
        self._failures = 0

    @property
    def works(self) -> bool:
        return self._failures < MOST_FAILURES

    def prepare(self) -> None:
        """Start it if possible, so that it is warm at its first use."""
        if self._lifeline is None:
            with contextlib.suppress(OSError):
                self._connect()

    def close(self) -> None:
        for broker in list(self._brokers):
            broker.close()
        super().close()

    async def start(
        self,
        order: Order,
        on_output: OnOutput,
        stdin: int | None = None,
        approvals: HostApprovals | None = None,
        most_output: int | None = None,
        lease: int | None = None,
    ) -> BrokeredProcess:
        """Start a command in a forked broker that serves this order alone."""
        try:
            broker = await self._fork()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    process = await broker.start(
                        order, on_output, stdin, approvals, most_output, lease
                    )
            except BaseException:
                self._forget(broker)
                raise
        except OSError as error:
            if _is_gone(error):
                self._failures += 1
            if isinstance(error, TimeoutError):
                self._drop()
            raise
        self._failures = 0
        process.then(lambda: self._forget(broker))
        return process

    async def _fork(self) -> BrokerProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                await self._send(b"+", [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        broker = _Forked(ours)
        self._brokers.add(broker)
        return broker

    def _forget(self, broker: BrokerProcess) -> None:
        self._brokers.discard(broker)
        broker.close()

    def _program(self, lifeline: int) -> list[str]:
        path = map(os.path.abspath, sys.path)
        return [self._python, "-P", "-c", BOOT, str(lifeline), _PACKAGE, *path]

    def _environment(self) -> dict[str, str]:
        return self._environ

    def _drop(self) -> None:
        if self._process is not None:
            self._process.kill()  # it may still be importing, and has no state to lose
        super()._drop()


class _Forked(BrokerProcess):
    """A broker that a zygote forked; it cannot be restarted."""

    def __init__(self, lifeline: socket.socket) -> None:
        super().__init__()
        self._lifeline = lifeline

    def _connect(self) -> socket.socket:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _is_gone(error: OSError) -> bool:
    """Whether the broker, or its keeper, was gone before the order."""
    if isinstance(error, RestrictionFailed):
        return error.step == "keeper"
    return isinstance(error, ConnectionError | TimeoutError)


class WarmLauncher(BrokerLauncher):
    """Starts Python hosts from a zygote, if only their start time differs."""

    def __init__(
        self,
        process: BrokerProcess,
        zygotes: Zygotes,
        plan: SandboxPlan | None,
        *,
        bwrap: str | None = None,
    ) -> None:
        super().__init__(process, plan, bwrap=bwrap)
        self._zygotes = zygotes

    async def start(self, command: Command, on_output: OnOutput) -> BrokeredProcess:
        zygote = self._zygotes.suiting(command) if self._is_built_here() else None
        if zygote is None or command.warm is None:
            return await super().start(command, on_output)
        order = ordering.order(command, self._plan)
        order["warm"] = (
            [os.fsencode(each) for each in command.warm.arguments],
            [os.fsencode(each) for each in command.warm.path],
        )
        approvals = approvals_of(command, self._plan)
        try:
            output = ordering.most_output(command, self._plan)
            return await zygote.start(
                order, on_output, command.stdin, approvals, output, command.lease
            )
        except OSError as error:
            if not _is_gone(error):
                raise
        return await super().start(command, on_output)

    def _is_built_here(self) -> bool:
        """Whether the keeper alone builds the sandbox of the command."""
        return self._plan is None or "bubblewrap" not in self._plan.backends
