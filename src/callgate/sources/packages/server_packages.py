"""MCP servers that are packages: fetched in a step and a sandbox of its own, then only run.

    npx NAME  ->  is it there as it was fetched?  --no-->  fetch: the network, one empty directory,
                        |                                         and the package manager's settings
                        yes                                       no workspace, no home
                        v
              the server: its packages read-only, a cache of its own, what `[mcp.NAME]` gives it

Scripts that packages run when they are installed run in the fetching step. Versions stay what they
were when they were first fetched, until `callgate mcp update`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from callgate.core.commands import Command, Exit, Launcher
from callgate.core.errors import ToolError
from callgate.core.sessions import Mode, Root, Session
from callgate.core.task_sets import start_task
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox
from callgate.sandbox import tool_chains
from callgate.sandbox.jails import Network
from callgate.sandbox.profiles import Profile
from callgate.sources.lifecycle import ended
from callgate.sources.logs import LifeLog
from callgate.sources.packages import environment, managers, package_commands, trees
from callgate.sources.packages.installations import Installation, InstallRecord
from callgate.sources.packages.package_commands import PackageCommand

Tell = Callable[[str], None]
"""What a person should know while they wait."""
_TELL_EVERY_S = 5.0
_LEAST_PAUSE_S = 0.2
"""Between two looks at how much was fetched."""


class Program(NamedTuple):
    """What is started, and what it sees beside what other servers see."""

    argv: tuple[str, ...]
    env: dict[str, str]
    revealed: tuple[Root, ...] = ()


class _Fetch(NamedTuple):
    command: PackageCommand
    env: Mapping[str, str]
    """Of the server."""
    log: LifeLog
    private: tuple[str, ...]


class FetchLimits(NamedTuple):
    seconds: float
    bytes: int


class ServerPackages:
    """Those of one server."""

    def __init__(
        self,
        home: str,
        name: str,
        limits: FetchLimits,
        sandbox: Sandbox,
        tell: Tell | None = None,
    ) -> None:
        self._name = name
        self._limits = limits
        self._sandbox = sandbox
        self._tell = tell
        self._installation = Installation(home, name)
        self._fetching = asyncio.Lock()
        self._taken = 0
        """Bytes on the disk of what is being fetched, when it was last measured."""

    async def program(
        self, argv: tuple[str, ...], env: Mapping[str, str], log: LifeLog, private: Sequence[str]
    ) -> Program:
        """What a command stands for; its packages are fetched if they are not there, by a
        step that sees nothing of the `private` directories. Raises a `ToolError` or OSError."""
        if not package_commands.is_runner(argv):
            return Program(argv, dict(env))
        cache = self._installation.cache
        private_env = {**env, **environment.private_caches(cache)}
        command = package_commands.parse(argv)
        if command is None:
            return Program(argv, private_env, (Root(cache, writable=True),))
        async with self._fetching:
            directory = await self._ready(_Fetch(command, env, log, tuple(private)))
        programs = managers.program_directory(command, directory)
        private_env["PATH"] = os.pathsep.join(filter(None, (programs, env.get("PATH", ""))))
        program = (managers.program_of(command, directory), *command.arguments)
        return Program(program, private_env, (Root(directory), Root(cache, writable=True)))

    async def update(
        self, argv: tuple[str, ...], env: Mapping[str, str], log: LifeLog, private: Sequence[str]
    ) -> tuple[dict[str, str], dict[str, str]] | None:
        """Fetch the newest that the command means: the versions before, and those now. None where
        its packages are not fetched by us."""
        command = package_commands.parse(argv)
        if command is None:
            return None
        before = self._installation.record
        async with self._fetching:
            after = await self._fetch(_Fetch(command, env, log, tuple(private)), {})
        return {} if before is None else before.versions, after.versions

    async def _ready(self, fetch: _Fetch) -> str:
        record = self._installation.record
        locks: dict[str, str] = {}
        if record is not None and record.key == fetch.command.key:
            if await asyncio.to_thread(self._is_as_fetched, record):
                return self._installation.directory(record)
            locks = record.locks
            fetch.log.note("its packages are gone, or were changed: they are fetched again")
        return self._installation.directory(await self._fetch(fetch, locks))

    def _is_as_fetched(self, record: InstallRecord) -> bool:
        directory = self._installation.directory(record)
        try:
            self._installation.hold(directory)
            return trees.fingerprint(directory) == record.fingerprint
        except (OSError, ToolError):
            return False

    # --- fetching -----------------------------------------------------------------------------

    async def _fetch(self, fetch: _Fetch, locks: Mapping[str, str]) -> InstallRecord:
        """With `locks` the versions that they name."""
        command, log = fetch.command, fetch.log
        with self._installation.fetching() as directory:
            downloads = os.path.join(directory, "downloads")
            os.mkdir(downloads, 0o700)
            managers.prepare(command, directory, locks)
            async with self._progress(command, log):
                try:
                    async with asyncio.timeout(self._limits.seconds):
                        await self._measured(
                            self._install(fetch, directory, locked=bool(locks)), directory
                        )
                except TimeoutError:
                    raise ToolError(
                        f"its packages were not fetched within {self._limits.seconds:g} s"
                        " (fetch_timeout_s)"
                    ) from None
            record = await asyncio.to_thread(_describe, command, directory)
            self._installation.write(record)
            self._say(f"fetched {_listed(command, record)}", log)
            return record

    async def _install(self, fetch: _Fetch, directory: str, *, locked: bool) -> None:
        command, log = fetch.command, fetch.log
        user_home = self._sandbox.surroundings.home
        # The server's own variables are not for whoever wrote a package that it needs.
        environ = environment.fetching_environment(
            command.manager, {**os.environ, **fetch.env}, user_home, f"{directory}/downloads"
        )
        for argv in managers.steps(command, directory, locked=locked):
            launcher = await self._launcher(fetch, argv, directory, environ)
            exit = await _run(launcher, Command(argv=argv, cwd=directory, env=environ), log)
            if exit.code != 0:
                program = os.path.basename(argv[0])
                raise ToolError(
                    f"its packages could not be fetched: {program} {ended(exit)}{_reason(log)}"
                )

    async def _measured(self, work: Coroutine[Any, Any, None], directory: str) -> None:
        """Do the work, and end it once the directory takes more than it may."""
        working = start_task(work)
        try:
            while not working.done():
                began = time.monotonic()
                await self._ensure_small(directory)
                pause = max(_LEAST_PAUSE_S, time.monotonic() - began)
                await asyncio.wait({working}, timeout=pause)
            await working
            await self._ensure_small(directory)
        finally:
            working.cancel()
            await asyncio.wait({working})

    async def _ensure_small(self, directory: str) -> None:
        try:
            taken = self._taken = await asyncio.to_thread(trees.disk_usage, directory)
        except ToolError as error:
            raise ToolError(f"its packages cannot be measured: {error.message}") from None
        most = self._limits.bytes
        if taken > most:
            raise ToolError(
                f"its packages take more than {most:,} bytes on the disk (fetch_max_bytes)"
            )

    async def _launcher(
        self,
        fetch: _Fetch,
        argv: tuple[str, ...],
        directory: str,
        environ: Mapping[str, str],
    ) -> Launcher:
        await self._sandbox.ready()
        around = self._sandbox.surroundings
        settings = environment.configuration(fetch.command.manager, environ, around.home)
        tools = tool_chains.of_program(argv[:1], directory, environ, around.home)
        profile = None if around.profile is None else Profile.WORKSPACE
        enclosure = Enclosure(
            profile,
            Network.ALL,
            revealed=(Root(directory, writable=True), *map(Root, settings)),
            private=fetch.private,
        )
        session = Session(workspace=directory, mode=Mode.WRITE, extra_roots=tuple(map(Root, tools)))
        return self._sandbox.launcher(enclosure, session)

    @asynccontextmanager
    async def _progress(self, command: PackageCommand, log: LifeLog) -> AsyncIterator[None]:
        """Say that it is under way, and how far."""
        packages = ", ".join(command.packages)
        most = f"{self._limits.seconds:g} s, {self._limits.bytes / 1e6:.0f} MB"
        self._say(f"fetching {packages} (at most {most})", log)
        began = time.monotonic()

        async def tell() -> None:
            while True:
                await asyncio.sleep(_TELL_EVERY_S)
                seconds = time.monotonic() - began
                self._say(f"still fetching: {seconds:.0f} s, {self._taken / 1e6:.0f} MB", log)

        telling = start_task(tell())
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.wait([telling])

    def _say(self, text: str, log: LifeLog) -> None:
        log.note(text)
        if self._tell is not None:
            self._tell(f"MCP server {self._name}: {text}")


async def _run(launcher: Launcher, command: Command, log: LifeLog) -> Exit:
    try:
        running = await launcher.start(command, lambda _, data: log.add(data))
    except FileNotFoundError:
        raise ToolError(f"{command.argv[0]}, which fetches its packages, is not there") from None
    async with running:
        return await running.wait()


def _reason(log: LifeLog) -> str:
    """The last that a package manager said, unless it only names its own log."""
    lines = [line for line in log.tail.splitlines() if line.strip() and "complete log" not in line]
    return f": {lines[-1].strip()[:300]}" if lines else ""


def _describe(command: PackageCommand, directory: str) -> InstallRecord:
    """Raises a `ToolError` where what was fetched cannot be used."""
    from callgate.sandbox.dry_runs.copies import (  # lazy: only where something was fetched  # noqa: PLC0415
        remove_tree,
    )

    remove_tree(os.path.join(directory, "downloads"))
    managers.program_of(command, directory)
    try:
        return InstallRecord(
            key=command.key,
            directory=os.path.basename(directory),
            fingerprint=trees.fingerprint(directory),
            versions=managers.versions(command, directory),
            locks=managers.locks(command, directory),
        )
    except (OSError, msgspec.MsgspecError) as error:
        raise ToolError(f"what was fetched cannot be read: {error}") from None


def _listed(command: PackageCommand, record: InstallRecord) -> str:
    found = record.versions
    named = [name for name in found if any(name in each for each in command.packages)]
    count = "1 package" if len(found) == 1 else f"{len(found)} packages"
    return ", ".join([count, *(f"{name} {found[name]}" for name in named)])
