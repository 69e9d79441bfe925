"""What starts commands on this machine. Loaded with the first of them: most calls start none."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re

import msgspec

from callgate.core.commands import (
    Command,
    Exit,
    Launcher,
    LeftBehind,
    OnOutput,
    Running,
    Stream,
)
from callgate.core.directories import make_private_directory
from callgate.core.errors import ToolPermissionDenied
from callgate.dispatch.commands.path_search import Matches
from callgate.dispatch.commands.rule_launchers import RuleLauncher, Search
from callgate.dispatch.commands.wrapped_running import WrappedRunning
from callgate.dispatch.raw_open import our_own
from callgate.sandbox import machines, sight
from callgate.sandbox.jails import Jail, is_below
from callgate.sandbox.leases import Leases
from callgate.sandbox.masks import with_masks
from callgate.sandbox.plans import Backend, Bubblewrap, Plan, choose
from callgate.sandbox.processes.broker_client import (
    BrokeredProcess,
    BrokerLauncher,
    BrokerProcess,
    RestrictionFailed,
)
from callgate.sandbox.processes.zygotes import WarmLauncher, Zygotes
from callgate.workspace.executed_later import now, take_stock
from callgate.workspace.git import submodules

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
        """What this machine can do."""
        return machines.look_now()

    async def look(self) -> tuple[Backend, ...]:
        return await machines.look(self.broker)

    def bare(self) -> WarmLauncher:
        """With nothing around the commands."""
        return WarmLauncher(self.broker, self.zygotes, None)

    def jailed(
        self, plan: Plan, backends: tuple[Backend, ...], home: str, *, searches: bool = True
    ) -> Jailed:
        """`searches`: look for files that are executed later, when a command has ended."""
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
    ) -> Launcher:
        """The same with all taken out of its jail, if it has one, that a search finds when a
        command starts."""
        if not isinstance(launcher, Jailed):
            return launcher
        jail = launcher.plan.jail

        def without(matches: Matches) -> Jailed:
            less = with_masks(jail, matches.hidden, matches.read_only)
            return self.jailed(choose(less, backends), backends, home)

        return RuleLauncher(search, without, report=report)

    def close(self) -> None:
        self.zygotes.close()
        self.broker.close()


class _Errors:
    """Passes output on, and keeps the end of what a command wrote as errors."""

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
    """A command that says what it left to be executed later, and, if it fails, what it named and
    could not see. `began`: when it started (`executed_later.now`)."""

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
    """Search a jail after its command ended. Not in this context: the tool that runs opens none
    of these files."""
    names = jail.names
    roots = () if names is None else tuple(r for r in names.roots if r in jail.writable)
    loop = asyncio.get_running_loop()
    return loop.run_in_executor(None, take_stock, roots, began, jail.protected, jail.writable)


def _report(searched: asyncio.Future[LeftBehind]) -> None:
    """Of a host or server, whose end nobody waits for: for the log."""
    if searched.cancelled() or searched.exception() is not None:
        return
    for line in searched.result().lines():
        _log.warning("a host, server or agent has ended: %s", line)


def _git_settings(errors: str, roots: tuple[str, ...]) -> tuple[str, ...]:
    """What git says that it could not write, as it is named below its root."""
    found = dict.fromkeys(match[1] for match in _UNWRITTEN.finditer(errors))
    named = (
        next((os.path.relpath(path, each) for each in roots if is_below(path, each)), path)
        for path in found
    )
    return tuple(itertools.islice(named, _MOST_NAMED))


def _with_submodules(command: Command, roots: tuple[str, ...]) -> Command:
    """The same, for one that speaks of submodules, with what its repository declares of them."""
    if not any("submodule" in each for each in command.argv):
        return command
    for root in roots:
        repository = submodules.repository_of(command.cwd, root)
        if repository is not None and (text := submodules.declared(repository)):
            return msgspec.structs.replace(command, git_config=(f"{repository}/.git", text))
    return command


class Jailed:
    """Starts commands in a jail, and says so if it is the jail that fails."""

    def __init__(
        self,
        launcher: BrokerLauncher,
        plan: Plan,
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
        if self._own_tmp:  # what these name is not in there
            env = {name: value for name, value in command.env.items() if name not in _TEMPORARY}
            command = msgspec.structs.replace(command, env=env)
        make_private_directory(self._home)  # or there is nothing to hide yet
        try:
            began = now()
            jail = self.plan.jail
            if command.stdin is not None:  # a host or server: nobody reads a result of it
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
                f"The sandbox could not be made: {error.strerror}.", reason="sandbox_failed"
            ) from error

    async def _start(self, command: Command, on_output: OnOutput) -> BrokeredProcess:
        """Where it may change files, no other program opens them by their names meanwhile."""
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
