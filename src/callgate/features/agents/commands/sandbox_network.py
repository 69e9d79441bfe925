"""`callgate sandbox` with access to some hosts: the program's output passes through callgate.

    listed hosts   the proxy and the runtime's connector make the connections
    `ask`          the same, and each other host waits for an answer: at the terminal, in the inbox,
                   in the dashboard, or by `callgate confirmations`

A question at the terminal stops the program's output until its answer, so that the program cannot
write over it. For the same reason the program gets a terminal as its input only for reading.
"""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from callgate.cli.embedded import open_runtime
from callgate.cli.ui.confirmation_prompt import asker
from callgate.cli.ui.terminal import say
from callgate.cli.ui.tty import open_tty
from callgate.cli.ui.visible import visible
from callgate.core.calls import ToolCall
from callgate.core.commands import CONNECT_HOST, Command, Exit, Launcher, Stream
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Confirmer
from callgate.sandbox.jails import Jail
from callgate.sandbox.plans import SandboxPlan, choose


class Output:
    """The program's output, which waits while a question is on the terminal."""

    def __init__(self) -> None:
        self._questions = 0
        self._released: asyncio.Future[None] | None = None
        self._waiting: list[tuple[Stream, bytes]] = []

    def show(self, stream: Stream, data: bytes) -> asyncio.Future[None] | None:
        if self._released is not None:
            self._waiting.append((stream, data))
            return self._released
        target = sys.stdout if stream == "stdout" else sys.stderr
        target.buffer.write(data)
        target.buffer.flush()
        return None

    async def behind(self, confirmer: Confirmer, question: Confirmation) -> Answer | bool | str:
        """Ask a question while the output waits."""
        self._questions += 1
        if self._released is None:
            self._released = asyncio.get_running_loop().create_future()
        try:
            return await confirmer(question)
        finally:
            self._questions -= 1
            if not self._questions:
                self.flush()

    def flush(self) -> None:
        released, self._released = self._released, None
        waiting, self._waiting = self._waiting, []
        for stream, data in waiting:
            self.show(stream, data)
        if released is not None:
            released.set_result(None)


async def run_with_hosts(
    around: Sandbox, jail: Jail, command: Command, options: Namespace, *, asks: bool
) -> tuple[SandboxPlan, Exit]:
    """Run the program with access to the jail's hosts. `asks`: other hosts need approval."""
    await around.ready()
    plan = choose(jail, around.backends, around.surroundings.require)
    for line in plan.grades:
        say(f"callgate: sandbox: {line}")
    home = around.surroundings.callgate_home
    launcher = around.launchers.jailed(plan, around.backends, home, searches=False)
    output = Output()
    if not asks:
        return plan, await _run(launcher, command, output)
    async with _asking(launcher, command, options, output) as asking:
        return plan, await _run(asking, command, output)


async def _run(launcher: Launcher, command: Command, output: Output) -> Exit:
    with_stdin = msgspec.structs.replace(command, stdin=_input())
    async with await launcher.start(with_stdin, output.show) as running:
        return await running.wait()


def _input() -> int:
    """Return our input for the program. A terminal can be read and not written to."""
    if not os.isatty(0):
        return os.dup(0)
    try:
        return os.open(os.ttyname(0), os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


@asynccontextmanager
async def _asking(
    launcher: Launcher, command: Command, options: Namespace, output: Output
) -> AsyncIterator[Launcher]:
    """Yield a launcher whose programs request approval for hosts in a runtime of this process."""
    given = Namespace(**{"debug": False, "mode": None, **vars(options)})
    wired, session = open_runtime(given, audit=True, meant=CONNECT_HOST)
    try:
        confirmer: Confirmer = _wait_for_others
        if (tty := open_tty()) is not None:
            call = ToolCall(tool=CONNECT_HOST, arguments={}, session=session)
            confirmer = partial(output.behind, asker(wired, call, tty))
        with wired.runtime.permission.attach(confirmer):
            name = os.path.basename(command.argv[0])
            assert wired.sandbox.approving is not None
            yield wired.sandbox.approving(launcher, session, name)
    finally:
        await wired.close()


async def _wait_for_others(question: Confirmation) -> Answer:
    """Announce a question, and leave the answer to other clients, which cancel this wait."""
    host = visible(str(question.arguments.get("host")))
    say(f"callgate: {host} waits for approval: callgate confirmations allow {question.id}")
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    return await answer
