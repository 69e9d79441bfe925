"""`callgate host check -- COMMAND...`: check that a program conforms to the host protocol.

    start -> init -> each of `PROBES` -> optional methods -> --call -> the end of stdin

The protocol requires three methods, and a host that has them passes. The other checks are
recommended: they make mistakes easier to find and a host easier to use. A host that exits or stops
answering is restarted for the next check. The program runs without a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from argparse import Namespace
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from callgate.cli.arguments import read_arguments
from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.hosts.conversation import HostConversation, HostLost, Notes, Unmet, describe
from callgate.cli.hosts.probes import OPTIONAL, PROBES, Subject, init, optional, returned
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import Cell, Column, print_rows
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible_text
from callgate.core.commands import Command
from callgate.core.content import TextBlock
from callgate.core.errors import ToolError, ToolErrorClass
from callgate.protocol import strict_json
from callgate.protocol.host_v1 import frames
from callgate.protocol.host_v1.frames import excerpt
from callgate.protocol.host_v1.values import to_output
from callgate.sandbox.plans import without_secrets_keys
from callgate.sandbox.processes.broker_client import BrokerLauncher, BrokerProcess

EXIT_S = 2.0
"""Time limit for the exit after the end of stdin; a runtime then terminates the host."""


class Level(StrEnum):
    OK = "ok"
    FAILED = "FAILED"
    """A required check failed."""
    RECOMMENDED = "recommended"
    """A recommended check failed; the host works without it."""
    NOT_OFFERED = "not offered"
    """The host lacks an optional method, which is not a problem."""
    SKIPPED = "skipped"
    """The check could not run, because the host does not start."""


_COLOURS = {
    Level.OK: "green",
    Level.FAILED: "red",
    Level.RECOMMENDED: "yellow",
    Level.NOT_OFFERED: "dim",
    Level.SKIPPED: "yellow",
}
REQUIRED = frozenset({"init", "tools", "call"})
"""The checks of `init`, `get_tool_schemas` and `execute_tool`."""


class Finding(NamedTuple):
    check: str
    level: Level
    seen: str

    @classmethod
    def unmet(cls, check: str, seen: str) -> Finding:
        return cls(check, Level.FAILED if check in REQUIRED else Level.RECOMMENDED, seen)


def check(options: Namespace) -> int:
    if not options.words:
        raise CliError("no command was given: callgate host check -- COMMAND ...")
    command = Command(
        argv=tuple(options.words), cwd=os.getcwd(), env=without_secrets_keys(os.environ)
    )
    notes = Notes()
    examined = _Examination(command, _config(options.config), options, notes)
    findings = asyncio.run(examined.run())
    conforms = not any(each.level is Level.FAILED for each in findings)
    if options.json:
        checks = [{**each._asdict(), "required": each.check in REQUIRED} for each in findings]
        print_json({"ok": conforms, "checks": checks, "stderr": notes.log.tail})
        return OK if conforms else FAILED
    headings = (Column("level", least=11), Column("check", least=24), Column("seen"))
    rows = [(Cell(each.level, _COLOURS[each.level]), each.check, each.seen) for each in findings]
    print_rows(headings, rows)
    advised = sum(each.level is Level.RECOMMENDED for each in findings)
    if conforms and advised:
        say(f"the host conforms to the protocol; {advised} recommended checks did not pass")
    if not conforms and notes.log.tail:
        say("the last lines of its stderr:")
        say(visible_text(notes.log.tail))
    return OK if conforms else FAILED


def _config(given: str | None) -> dict[str, Any]:
    try:
        config = {} if given is None else strict_json.loads(given)
    except strict_json.StrictJsonError as error:
        raise CliError(f"--config is not JSON: {error}") from None
    if type(config) is not dict:
        raise CliError("--config must be a JSON object")
    return config


class _Examination:
    def __init__(
        self, command: Command, config: dict[str, Any], options: Namespace, notes: Notes
    ) -> None:
        self._command = command
        self._config = config
        self._timeout_s: float = options.timeout
        self._call: list[str] | None = options.call
        self._notes = notes
        self._broker = BrokerProcess()
        self._host: Subject | None = None
        """None if no host runs."""
        self._findings: list[Finding] = []

    async def run(self) -> list[Finding]:
        try:
            host = await self._start()
            await self._examine(host)
        finally:
            if self._host is not None:
                await self._host.conversation.end()
            self._broker.close()
        return self._findings

    async def _examine(self, host: Subject) -> None:
        await self._judge("init", lambda: init(host))
        begun = self._findings[-1].level is Level.OK
        for name, probe in PROBES.items():
            await self._ask(name, probe, begun)
        for method in OPTIONAL:
            await self._ask(method, partial(optional, method=method), begun)
        if self._call is not None:
            await self._ask("call", self._execute, begun)
            await self._ask("unknown tool", _unknown_tool, begun)
        if begun or self._host is not None:
            await self._judge("stdin ends", self._close_stdin)
        self._seen("stdout", self._notes.noise, "only frames", "not a frame")
        self._seen("one answer", self._notes.strays, "each request has one", "not requested")

    async def _start(self) -> Subject:
        conversation = HostConversation(self._notes, self._timeout_s)
        try:
            await conversation.start(BrokerLauncher(self._broker, None), self._command)
        except OSError as error:
            raise CliError(
                f"{self._command.argv[0]} cannot be started: {error.strerror or error}",
                error_class=ToolErrorClass.NOT_FOUND,
                reason="not_started",
            ) from error
        self._host = Subject(conversation, self._config)
        return self._host

    async def _ask(
        self, name: str, probe: Callable[[Subject], Awaitable[str | None]], begun: bool
    ) -> None:
        if not begun:
            self._findings.append(Finding(name, Level.SKIPPED, "init failed"))
            return

        async def run_probe() -> str | None:
            host = self._host or await self._again()
            return await probe(host)

        await self._judge(name, run_probe)

    async def _again(self) -> Subject:
        """Restart the host after its process was lost."""
        host = await self._start()
        try:
            await init(host)
        except Unmet as unmet:
            raise HostLost(f"it could not be started again: {unmet}") from None
        with contextlib.suppress(Unmet):  # the check "tools" has reported it
            await PROBES["tools"](host)
        return host

    async def _judge(self, name: str, work: Callable[[], Awaitable[str | None]]) -> None:
        try:
            seen = await work()
        except Unmet as unmet:
            self._findings.append(Finding.unmet(name, str(unmet)))
            if isinstance(unmet, HostLost) and self._host is not None:
                await self._host.conversation.end()
                self._host = None
            return
        level = Level.NOT_OFFERED if seen is None else Level.OK
        self._findings.append(Finding(name, level, seen or ""))

    async def _execute(self, host: Subject) -> str:
        assert self._call is not None
        tool, *words = self._call
        described = {each.name: each for each in host.tools}
        if tool not in described:
            raise Unmet(f"it describes no tool {excerpt(tool)}")
        try:
            arguments = read_arguments(words, None, described[tool].input_schema)
        except ToolError as error:
            raise CliError(str(error)) from None
        params = frames.ExecuteTool(tool_name=tool, arguments=arguments, state=host.state)
        output = to_output(returned(await host.ask(params)).value)
        shown = " ".join(each.text for each in output.content if isinstance(each, TextBlock))
        if not output.success:
            raise Unmet(f"{excerpt(tool)} failed: {excerpt(shown)}")
        return excerpt(shown)

    async def _close_stdin(self) -> str:
        host = self._host or await self._again()
        return describe(await host.conversation.close_stdin(EXIT_S))

    def _seen(self, name: str, noted: list[str], good: str, bad: str) -> None:
        if noted:
            more = f" (and {len(noted) - 1} more)" if len(noted) > 1 else ""
            self._findings.append(Finding.unmet(name, f"{bad}: {noted[0]}{more}"))
        else:
            self._findings.append(Finding(name, Level.OK, good))


async def _unknown_tool(host: Subject) -> str:
    """Request an unknown tool. Runs only with --call, because a faulty host could run a tool."""
    answer = await host.ask(frames.ExecuteTool(tool_name="no_such_tool", state=host.state))
    if isinstance(answer, frames.Failed):
        return excerpt(answer.error.type)
    if to_output(answer.result.value).success:
        raise Unmet("it ran no_such_tool, which it does not describe")
    return "refused"
