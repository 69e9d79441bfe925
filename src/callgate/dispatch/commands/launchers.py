"""Launchers that start the commands of calls on this machine.

Loaded with the first command, because most calls start none. `RuleLauncher` finds the files that
path rules match before a command starts, so that the jail excludes them. It searches again
afterwards and reports new matches, because a jail cannot hide files that do not exist yet.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from callgate.core.calls import ToolCall
from callgate.core.commands import (
    GRACE_S,
    Command,
    Exit,
    Launcher,
    LeftBehind,
    OnOutput,
    RuleMatch,
    Running,
    Stream,
)
from callgate.core.errors import ToolPermissionDenied
from callgate.core.ids import TraceContext, call_trace
from callgate.core.local.disk import make_private_directory
from callgate.dispatch.commands.path_search import Matches, PathRuleUnkept
from callgate.dispatch.foreign_code import our_own
from callgate.sandbox import machines, sight
from callgate.sandbox.jails import Guarantee, Jail, is_below, with_masks
from callgate.sandbox.leases import Leases
from callgate.sandbox.plans import Backend, Bubblewrap, SandboxPlan, choose
from callgate.sandbox.processes.broker_client import (
    BrokeredProcess,
    BrokerLauncher,
    BrokerProcess,
    RestrictionFailed,
)
from callgate.sandbox.processes.zygotes import WarmLauncher, Zygotes
from callgate.workspace import protected_places
from callgate.workspace.executed_later import now, take_stock


class TracedLauncher(msgspec.Struct, frozen=True):
    """A launcher that adds the trace context to the environment of commands."""

    around: Launcher
    trace: TraceContext

    async def start(self, command: Command, on_output: OnOutput) -> Running:
        variables = {name.upper(): value for name, value in self.trace.carrier.items()}
        env = {**command.env, **variables}
        return await self.around.start(msgspec.structs.replace(command, env=env), on_output)


def trace_call(
    ratio: float, call: ToolCall, launcher: Launcher | None
) -> tuple[TraceContext, Launcher | None]:
    """Return the trace context of a call, and a launcher that passes it on to commands. `ratio`:
    see `call_trace`."""
    trace = call_trace(call.id, call.trace, ratio)
    return trace, None if launcher is None else TracedLauncher(launcher, trace)


class WrappedRunning:
    """Base of wrappers around a `Running`."""

    def __init__(self, running: Running) -> None:
        self._running = running

    async def __aenter__(self) -> Self:
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._running.__aexit__(kind, error, traceback)

    async def wait(self) -> Exit:
        return await self._running.wait()

    def stop(self, grace: float = GRACE_S) -> bool:
        return self._running.stop(grace)


Search = Callable[[], Matches]
"""Blocks. Raises `PathRuleUnkept`."""


class RuleLauncher:
    def __init__(
        self,
        search: Search,
        without: Callable[[Matches], Launcher],
        *,
        report: bool,
        plan: SandboxPlan | None = None,
    ) -> None:
        """`without` returns the launcher of a jail without the matches. `report`: search again
        after the end, to report new matches. `plan`: the plan of a jail with the matches."""
        self._search = search
        self._without = without
        self._report = report
        self.plan = plan

    async def start(self, command: Command, on_output: OnOutput) -> Running:
        before = await _in_thread(self._search)
        running = await self._without(before).start(command, on_output)
        return _Reporting(running, self._search, before) if self._report else running


class _Reporting(WrappedRunning):
    """A command whose exit reports the paths that match a rule since its start."""

    def __init__(self, running: Running, search: Search, before: Matches) -> None:
        super().__init__(running)
        self._search = search
        self._before = before

    async def wait(self) -> Exit:
        ended = await self._running.wait()
        try:
            after = await _in_thread(self._search)
        except PathRuleUnkept as error:
            return msgspec.structs.replace(ended, unsearched=error.message)
        matches = tuple(
            RuleMatch(each.shown, each.rule.rule.decision.value)
            for each in after.later(self._before)
        )
        return msgspec.structs.replace(ended, rule_matches=matches)


async def _in_thread(search: Search) -> Matches:
    """Search in a thread, without this context: the search is not an open of the running tool."""
    return await asyncio.get_running_loop().run_in_executor(None, search)


_log = logging.getLogger(__name__)

_MOST_ERRORS = 16 * 1024
_UNWRITTEN = re.compile(
    r"^error: could not (?:lock|write) config file ([^\n]{1,1000}): "
    r"(?:Device or resource busy|Read-only file system|Permission denied|Operation not permitted)$",
    re.MULTILINE,
)
_MOST_NAMED = 4
_TEMPORARY = ("TMPDIR", "TMP", "TEMP")


class Launchers:
    """The broker and the zygotes of a runtime, and launchers that use them."""

    def __init__(self, leases: Leases | None) -> None:
        self._leases = leases
        self.broker = BrokerProcess()
        self.zygotes = Zygotes()

    def look_now(self) -> tuple[Backend, ...]:
        """Return the sandbox backends of this machine. Blocks."""
        return machines.look_now()

    async def look(self) -> tuple[Backend, ...]:
        return await machines.look(self.broker)

    def bare(self) -> WarmLauncher:
        """Return a launcher of commands without a sandbox."""
        return WarmLauncher(self.broker, self.zygotes, None)

    def jailed(
        self, plan: SandboxPlan, backends: tuple[Backend, ...], home: str, *, searches: bool = True
    ) -> Jailed:
        """Return a launcher of commands in a jail. `searches`: look for files that other programs
        execute later, after a command has ended."""
        bwrap = next((each.path for each in backends if isinstance(each, Bubblewrap)), None)
        launcher = WarmLauncher(self.broker, self.zygotes, plan, bwrap=bwrap)
        return Jailed(launcher, plan, home, self._leases, searches=searches)

    def with_rules(
        self,
        launcher: Launcher,
        backends: tuple[Backend, ...],
        home: str,
        search: Search,
        report: bool,
        require: tuple[Guarantee, ...] = (),
    ) -> Launcher:
        """Return a launcher that searches before each start, and excludes the matches from its
        jail. A launcher without a jail is returned unchanged."""
        if not isinstance(launcher, Jailed):
            return launcher
        jail = launcher.plan.jail

        def without(matches: Matches) -> Jailed:
            less = with_masks(jail, matches.hidden, matches.read_only)
            return self.jailed(choose(less, backends, require), backends, home)

        return RuleLauncher(search, without, report=report, plan=launcher.plan)

    def close(self) -> None:
        self.zygotes.close()
        self.broker.close()


class _Errors:
    """Passes output on, and stores the end of stderr."""

    def __init__(self, on_output: OnOutput) -> None:
        self._on_output = on_output
        self._tail = b""

    def add(self, stream: Stream, data: bytes) -> asyncio.Future[None] | None:
        if stream == "stderr":
            self._tail = (self._tail + data)[-_MOST_ERRORS:]
        return self._on_output(stream, data)

    def __str__(self) -> str:
        return self._tail.decode(errors="replace")


class _Explained(WrappedRunning):
    """A command whose exit reports files that other programs execute later and, after a failure,
    hidden paths that the command named. `began`: its start (`executed_later.now`)."""

    def __init__(
        self, running: Running, jail: Jail, command: Command, errors: _Errors, began: int
    ) -> None:
        super().__init__(running)
        self._jail = jail
        self._command = command
        self._errors = errors
        self._began = began
        self._left: asyncio.Future[LeftBehind] | None = None

    async def wait(self) -> Exit:
        ended = await self._running.wait()
        if self._left is None:
            self._left = _search(self._jail, self._began)
        left = await asyncio.shield(self._left)
        left = msgspec.structs.replace(left, refused=ended.left.refused)
        ended = msgspec.structs.replace(ended, left=left.below(self._jail.writable))
        if ended.code == 0 and not str(self._errors):
            return ended
        text = "\n".join((*self._command.argv, str(self._errors)))
        home = self._command.env.get("HOME", "")
        return msgspec.structs.replace(
            ended,
            unseen=sight.unseen(self._jail, home, text),
            git_settings=_git_settings(str(self._errors), self._jail.writable),
        )


def _search(jail: Jail, began: int) -> asyncio.Future[LeftBehind]:
    """Search a jail after its command ended. The thread does not inherit this context, so that the
    opens are not attributed to the running tool."""
    names = jail.names
    roots = () if names is None else tuple(r for r in names.roots if r in jail.writable)
    loop = asyncio.get_running_loop()
    return loop.run_in_executor(None, take_stock, roots, began, jail.protected, jail.writable)


def _report(searched: asyncio.Future[LeftBehind]) -> None:
    """Log the findings for a host or server, whose exit has no reader."""
    if searched.cancelled() or searched.exception() is not None:
        return
    for line in searched.result().lines():
        _log.warning("a host, server or agent has ended: %s", line)


def _git_settings(errors: str, roots: tuple[str, ...]) -> tuple[str, ...]:
    """Return the configuration files that git could not write, relative to their root."""
    found = dict.fromkeys(match[1] for match in _UNWRITTEN.finditer(errors))
    named = (
        next((os.path.relpath(path, each) for each in roots if is_below(path, each)), path)
        for path in found
    )
    return tuple(itertools.islice(named, _MOST_NAMED))


def _with_submodules(command: Command, roots: tuple[str, ...]) -> Command:
    """Return a command about submodules with the git configuration of its repository."""
    if not any("submodule" in each for each in command.argv):
        return command
    for root in roots:
        repository = protected_places.repository_of(command.cwd, root)
        if repository is not None and (text := protected_places.declared(repository)):
            return msgspec.structs.replace(command, git_config=(f"{repository}/.git", text))
    return command


class Jailed:
    """Starts commands in a jail, and reports a failure of the jail itself."""

    def __init__(
        self,
        launcher: BrokerLauncher,
        plan: SandboxPlan,
        home: str,
        leases: Leases | None,
        *,
        searches: bool = True,
    ) -> None:
        self._launcher = launcher
        self._searches = searches
        self.plan = plan
        self._home = home
        self._writable = plan.jail.writable
        self._leases = leases
        self._own_tmp = plan.jail.fresh_tmp

    async def start(self, command: Command, on_output: OnOutput) -> Running:
        if self._own_tmp:  # the directories in these variables do not exist in the jail
            env = {name: value for name, value in command.env.items() if name not in _TEMPORARY}
            command = msgspec.structs.replace(command, env=env)
        make_private_directory(self._home)  # the jail can only hide an existing directory
        try:
            began = now()
            jail = self.plan.jail
            if command.stdin is not None:  # a host or server: its exit has no reader
                lasting = await self._start(command, on_output)
                if self._searches:
                    lasting.then(lambda: _search(jail, began).add_done_callback(_report))
                return lasting
            command = _with_submodules(command, self._writable)
            errors = _Errors(on_output)
            running = await self._start(command, errors.add)
            return _Explained(running, jail, command, errors, began)
        except RestrictionFailed as error:
            raise ToolPermissionDenied(
                f"The sandbox could not be created: {error.strerror}.", reason="sandbox_failed"
            ) from error

    async def _start(self, command: Command, on_output: OnOutput) -> BrokeredProcess:
        """Start a command. While it may change files, a lease prevents opens by path in other
        programs."""
        if self._leases is None or not self._writable:
            return await self._launcher.start(command, on_output)
        with our_own():
            lease = await self._leases.write(self._writable)
        try:
            command = msgspec.structs.replace(command, lease=lease)
            started = await self._launcher.start(command, on_output)
        except BaseException:
            os.close(lease)
            raise
        started.then(lambda: os.close(lease))
        return started
