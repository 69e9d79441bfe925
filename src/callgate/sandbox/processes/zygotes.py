"""The runtime's end of a zygote: hosts in Python without the start of a Python.

    runtime ==lifeline==> zygote --fork--> broker --fork--> keeper --fork--> host
       +=======================lifeline=====+

A zygote (`callgate.host.zygote`) has imported what a host needs. For each host it forks a
broker, which has a lifeline of its own and is told by it, like any broker, what to put around
what. So a host from here has the same keeper, the same jail and the same end as one that is
started cold. The zygote itself is told nothing: it has nothing of one host to pass to another.
Only what a fork cannot draw anew is the same in all of them: Python's seed for hashes, and where
in memory things lie.

What cannot be had this way is started cold: where another program has to build the jail, and
where the zygote does not work. A host from here is in no control group: its keeper measures it.
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
from callgate.sandbox.allowed_hosts import AllowedHost
from callgate.sandbox.launch import Command
from callgate.sandbox.orders import Order
from callgate.sandbox.plans import Plan
from callgate.sandbox.processes import ordering
from callgate.sandbox.processes.broker_client import (
    BrokeredProcess,
    BrokerLauncher,
    BrokerProcess,
    RestrictionFailed,
)

BOOT = (
    "import sys; from importlib import util; own = sys.path[:]; sys.path += sys.argv[3:]; "
    "spec = util.spec_from_file_location('callgate', sys.argv[2]); "
    "package = sys.modules['callgate'] = util.module_from_spec(spec); "
    "spec.loader.exec_module(package); "
    "from callgate.host import zygote; sys.path[:] = own; zygote.serve(int(sys.argv[1]))"
)
"""With the modules that we have, but without our path in what every host finds as its own.

Our path may name a workspace, in which commands leave files, and nothing is around a zygote:
so the package is the one that runs here, and what Python brings itself comes before the rest."""
_PACKAGE = os.path.join(PACKAGE_DIRECTORY, "__init__.py")
PATIENCE_S = 10.0
"""How long a host may take to be forked, the first one with all that has to be imported."""
MOST = 4
MOST_FAILURES = 3

_AT_START = ("HOME", "LANG", "LANGUAGE", "GLIBC_TUNABLES")
_ALL_AT_START = ("PYTHON", "LC_", "LD_", "MALLOC_")


def read_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a Python reads before it runs anything, so that a fork comes too late
    for them; without those for its path, which can be had later."""
    return {
        name: value
        for name, value in environ.items()
        if name in _AT_START or (name.startswith(_ALL_AT_START) and name != "PYTHONPATH")
    }


class Zygotes:
    """Those of one runtime: one for each environment in which a Python may have to start."""

    def __init__(self, python: str = sys.executable) -> None:
        self._python = python
        self._all: dict[tuple[tuple[str, str], ...], Zygote] = {}

    def prepare(self, environ: Mapping[str, str]) -> None:
        """From now on have one for hosts in such an environment.

        Nothing is around a zygote, so it starts with no variable that we have not started with:
        with some of them another's code could get into it.
        """
        key = _key(environ)
        ours = all(os.environ.get(name) == value for name, value in key)
        if ours and key not in self._all and len(self._all) < MOST:
            zygote = self._all[key] = Zygote(read_at_start(environ), self._python)
            zygote.prepare()

    def suiting(self, command: Command) -> Zygote | None:
        """The one that a command can come from: it may, and would read at its start what that
        one has read."""
        found = None if command.warm is None else self._all.get(_key(command.env))
        return found if found is not None and found.works else None

    def close(self) -> None:
        for zygote in self._all.values():
            zygote.close()


def _key(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(read_at_start(environ).items()))


class Zygote(BrokerProcess):
    """Started by `prepare` or when first needed, replaced if it is gone, closed with us."""

    def __init__(self, environ: dict[str, str], python: str = sys.executable) -> None:
        """`environ` is all that it has: what it has, every host from it could read."""
        super().__init__(python)
        self._environ = environ
        self._brokers: set[BrokerProcess] = set()
        self._failures = 0

    @property
    def works(self) -> bool:
        return self._failures < MOST_FAILURES

    def prepare(self) -> None:
        """Start it, if that can be done, so that it is warm when it is first needed."""
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
        hosts: tuple[AllowedHost, ...] = (),
        most_output: int | None = None,
        lease: int | None = None,
    ) -> BrokeredProcess:
        """Start a command in a forked broker that serves this order alone."""
        try:
            broker = await self._fork()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    process = await broker.start(order, on_output, stdin, hosts, most_output, lease)
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
            self._process.kill()  # it may still be importing, and has nothing to lose
        super()._drop()


class _Forked(BrokerProcess):
    """A broker that a zygote forked; it cannot be had again."""

    def __init__(self, lifeline: socket.socket) -> None:
        super().__init__()
        self._lifeline = lifeline

    def _connect(self) -> socket.socket:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _is_gone(error: OSError) -> bool:
    """Whether there was no broker to take an order, or none that had a keeper for it."""
    if isinstance(error, RestrictionFailed):
        return error.step == "keeper"
    return isinstance(error, ConnectionError | TimeoutError)


class WarmLauncher(BrokerLauncher):
    """Starts hosts in Python from a zygote, where that makes no difference but in time."""

    def __init__(
        self,
        process: BrokerProcess,
        zygotes: Zygotes,
        plan: Plan | None,
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
        hosts = () if self._plan is None else self._plan.jail.hosts
        try:
            output = ordering.most_output(command, self._plan)
            return await zygote.start(order, on_output, command.stdin, hosts, output, command.lease)
        except OSError as error:
            if not _is_gone(error):
                raise
        return await super().start(command, on_output)

    def _is_built_here(self) -> bool:
        """Whether what is around the command is made by its keeper alone."""
        return self._plan is None or "bubblewrap" not in self._plan.backends
