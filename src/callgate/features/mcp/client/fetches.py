"""One run of a package manager in a separate sandbox: its progress, its result, its errors."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from callgate.core.commands import Command, Exit, Launcher
from callgate.core.errors import ToolError
from callgate.core.sessions import Mode, Root, Session
from callgate.core.tasks import start_task
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox
from callgate.features.mcp.client import directories, package_commands
from callgate.features.mcp.client.directories import InstallRecord
from callgate.features.mcp.client.manager_settings import (
    ManagerSettings,
    StepSettings,
    manager_settings,
)
from callgate.features.mcp.client.package_commands import Manager, PackageCommand
from callgate.sandbox import sight
from callgate.sandbox.jails import Network
from callgate.sandbox.profiles import Profile
from callgate.sources.lifecycle import ended
from callgate.sources.logs import LifeLog

NOT_FETCHED = "mcp_fetch"
"""`reason` of the error of a failed fetch."""
_LONGEST_LINE = 8_192
_LONGEST_REASON = 300
_MOST_LINES = 200
"""Number of last lines that are searched for the reason."""
_ANSWERS = re.compile(
    r"npm http (?:fetch|cache) (?:(?:GET|HEAD) ?(?:[23]\d\d)?\b|\S+@https?://)(?!.* failed with )"
)
"""npm's line about one received file, from a registry or the cache."""
_RETRIED = re.compile(r" attempt \d+ failed with |^WARNING: Retrying ")
_PREFIXES = (
    "npm error",
    "npm ERR!",
    "npm http fetch",
    "network ",
    "error: ",
    "ERROR: ",
    "cause: ",
)
"""Prefixes of lines that carry no information."""
_BROKEN = " after connection broken by "
_BARE = re.compile(r"^(?:code|errno|syscall|path)\b|complete log")


class _Kind(NamedTuple):
    found: re.Pattern[str]
    is_final: bool
    """Whether the first such line ends the fetch."""
    advice: str


_CA_FILES = {
    "npm": "cafile=/path/to/ca.pem in ~/.npmrc, or NODE_EXTRA_CA_CERTS=/path/to/ca.pem",
    "uv": "SSL_CERT_FILE=/path/to/ca.pem, or system-certs = true in ~/.config/uv/uv.toml",
    "pip": "cert = /path/to/ca.pem in ~/.config/pip/pip.conf, or PIP_CERT=/path/to/ca.pem",
}
_PROXIES = {
    "npm": "https-proxy= in ~/.npmrc, or HTTPS_PROXY",
    "uv": "HTTPS_PROXY",
    "pip": "proxy = in ~/.config/pip/pip.conf, or HTTPS_PROXY",
}
_LOGINS = {
    "npm": "~/.npmrc (npm login)",
    "uv": "the index address in ~/.config/uv/uv.toml, or UV_INDEX_NAME_PASSWORD",
    "pip": "the index address in ~/.config/pip/pip.conf",
}
_REGISTRIES = {
    "npm": "registry= in ~/.npmrc",
    "uv": "[[index]] in ~/.config/uv/uv.toml",
    "pip": "index-url = in ~/.config/pip/pip.conf",
}
_KINDS = (
    _Kind(
        re.compile(
            r"SELF_SIGNED|UNABLE_TO_(?:GET|VERIFY)|\bCERT_[A-Z_]+|ERR_TLS_|[Cc]ertificate.verify.failed"
            r"|CERTIFICATE_VERIFY_FAILED|invalid peer certificate|self-signed certificate"
        ),
        True,
        "{manager} does not trust the certificate of the registry: name its authority with {ca}.",
    ),
    _Kind(
        re.compile(
            r"\bE?407\b|EINVALIDPROXY|tunnel error|Cannot connect to proxy|ERR_INVALID_PROXY"
        ),
        True,
        "The proxy refused the connection: check {proxy}.",
    ),
    _Kind(
        re.compile(r"\bE40[13]\b|\b40[13] (?:Unauthorized|Forbidden)|lack of valid authentication"),
        False,
        "The registry requires a login: add it to {login}.",
    ),
    _Kind(
        re.compile(r"\bENOTFOUND\b|Name or service not known|No address associated with hostname"),
        True,
        "The host of the registry has no address: check {registry}, and the proxy ({proxy}).",
    ),
    _Kind(
        re.compile(
            r"\bE(?:CONNREFUSED|CONNRESET|TIMEDOUT|HOSTUNREACH|NETUNREACH|AI_AGAIN)\b|EIDLETIMEOUT"
            r"|[Cc]onnection refused|[Cc]onnection reset|timed out|Temporary failure in name"
            r"|unreachable|dns error"
        ),
        False,
        "The registry cannot be reached: check the network, {registry} and {proxy}.",
    ),
    _Kind(re.compile(r"\bENOSPC\b|No space left"), True, "The disk is full: free some space."),
    _Kind(
        re.compile(
            r"\bE404\b|404 Not Found|was not found in the package registry|\bETARGET\b"
            r"|No matching (?:version|distribution)"
        ),
        False,
        "Check the name and the version of the package.",
    ),
)


class FetchOutput:
    def __init__(self, manager: Manager, log: LifeLog, covered: Callable[[str], str]) -> None:
        self._manager: Manager = manager
        self._log = log
        self._covered = covered
        self._begun = b""
        self._lines: list[str] = []
        self._answers = 0
        self._doing = ""
        self.hopeless = asyncio.Event()

    def feed(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        self._begun = self._begun[-_LONGEST_LINE:]
        for line in lines:
            self._take(self._covered(line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip()))

    def close(self) -> None:
        """Process a last line without a newline."""
        if self._begun:
            self.feed(b"\n")

    @property
    def progress(self) -> str:
        """The present step or the number of received files, in a few words."""
        if self._doing or not self._answers:
            return self._doing or "no response yet"
        return f"responses: {self._answers}"

    def problem(self, ending: str) -> str:
        """Return why the fetch failed and what to do. `ending` describes the program's exit."""
        for kind in _KINDS:
            lines = [line for line in self._lines if kind.found.search(line)]
            if lines:
                names = {
                    "manager": self._manager,
                    "ca": _CA_FILES[self._manager],
                    "proxy": _PROXIES[self._manager],
                    "login": _LOGINS[self._manager],
                    "registry": _REGISTRIES[self._manager],
                }
                return f"{_best(lines)}. {kind.advice.format(**names)}"
        informative = [line for line in self._lines if not _BARE.search(_tidied(line))]
        errors = [line for line in informative if re.match(r"npm error|error|ERROR", line)]
        last = _tidied((errors or informative or [""])[-1])
        return f"{ending}: {last}" if last else ending

    def _take(self, line: str) -> None:
        if _ANSWERS.match(line):
            self._answers += 1
            self._doing = ""
            return
        self._log.add(f"{line}\n".encode())
        if not line.strip():
            return
        self._lines = [*self._lines[1 - _MOST_LINES :], line]
        self._doing = _tidied(line)[:80]
        if _RETRIED.search(line) and any(k.is_final and k.found.search(line) for k in _KINDS):
            self.hopeless.set()


def _best(lines: list[str]) -> str:
    """Return the most informative line: not a bare error code, not a failed attempt."""
    plain = [line for line in lines if not _BARE.search(_tidied(line))]
    ended = [line for line in plain if not _RETRIED.search(line)]
    return _tidied((ended or plain or lines)[0])


def _tidied(line: str) -> str:
    text = line.strip().rpartition(_BROKEN)[2]
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix).strip()
    return text.rstrip(".")[:_LONGEST_REASON]


_TELL_EVERY_S = 5.0
_LEAST_PAUSE_S = 0.2
"""Minimum pause between two measurements of the disk usage."""


class FetchLimits(NamedTuple):
    seconds: float
    bytes: int


class FetchOrder(NamedTuple):
    """The packages to fetch and the environment of the fetch."""

    command: PackageCommand
    environ: dict[str, str]
    log: LifeLog
    private: tuple[str, ...]
    """The workspace and the other roots, which are hidden from the fetch."""


class PackageFetch:
    """One run of a package manager."""

    def __init__(
        self,
        order: FetchOrder,
        directory: str,
        limits: FetchLimits,
        sandbox: Sandbox,
        say: Callable[[str], None],
    ) -> None:
        """`say` receives progress messages for the user."""
        self._order = order
        self._directory = directory
        self._limits = limits
        self._sandbox = sandbox
        self._say = say
        self._taken = 0
        """Disk usage at the last measurement, in bytes."""
        downloads = os.path.join(directory, "downloads")
        os.mkdir(downloads, 0o700)
        self._settings: ManagerSettings = manager_settings(
            order.command.manager,
            order.environ,
            sandbox.surroundings.home,
            downloads,
            order.private,
        )
        self._output = FetchOutput(order.command.manager, order.log, self._settings.covered)

    async def run(self, *, locked: bool) -> InstallRecord:
        """Fetch the packages; with `locked`, the versions of the lock files in the directory.

        Raises `ToolError` with reason `NOT_FETCHED`.
        """
        for setting in self._settings.ignored:
            self._say(f"ignored: {setting} is in the workspace or relative")
        try:
            async with self._progress(), asyncio.timeout(self._limits.seconds):
                await self._measured(self._install(locked=locked))
            return await asyncio.to_thread(_describe, self._order.command, self._directory)
        except TimeoutError:
            problem = f"its packages were not fetched within {self._limits.seconds:g} s"
            seen = self._output.problem("")
            raise ToolError(
                f"{problem} (fetch_timeout_s){f': {seen}' if seen else ''}", reason=NOT_FETCHED
            ) from None
        except ToolError as error:
            raise ToolError(error.message, reason=NOT_FETCHED) from None

    async def _install(self, *, locked: bool) -> None:
        command = self._order.command
        for argv in package_commands.steps(command, self._directory, locked=locked):
            await self._run(argv, self._settings.step)
        scripts = await asyncio.to_thread(package_commands.script_step, command, self._directory)
        if scripts is not None:
            await self._run(scripts, self._settings.script_step())

    async def _run(self, argv: tuple[str, ...], step: StepSettings) -> None:
        launcher = await self._launcher(argv, step)
        command = Command(argv=argv, cwd=self._directory, env=step.env)
        exit = await _run(launcher, command, self._output)
        self._output.close()
        if exit is None or exit.code != 0:
            program = os.path.basename(argv[0])
            ending = f"{program} {'was stopped' if exit is None else ended(exit)}"
            raise ToolError(f"its packages were not fetched: {self._output.problem(ending)}")

    async def _launcher(self, argv: tuple[str, ...], step: StepSettings) -> Launcher:
        await self._sandbox.ready()
        around, directory = self._sandbox.surroundings, self._directory
        tools = sight.of_program(argv[:1], directory, step.env, around.home)
        enclosure = Enclosure(
            None if around.profile is None else Profile.WORKSPACE,
            Network.ALL,
            services=self._settings.services,
            revealed=(Root(directory, writable=True), *map(Root, step.files)),
            private=self._order.private,
        )
        session = Session(workspace=directory, mode=Mode.WRITE, extra_roots=tuple(map(Root, tools)))
        return self._sandbox.launcher(enclosure, session)

    # --- limits and progress ----------------------------------------------------------------------

    async def _measured(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work, and cancel it once the directory exceeds its size limit."""
        working = start_task(work)
        try:
            while not working.done():
                began = time.monotonic()
                await self._ensure_small()
                pause = max(_LEAST_PAUSE_S, time.monotonic() - began)
                await asyncio.wait({working}, timeout=pause)
            await working
            await self._ensure_small()
        finally:
            working.cancel()
            await asyncio.wait({working})

    async def _ensure_small(self) -> None:
        try:
            taken = self._taken = await asyncio.to_thread(directories.disk_usage, self._directory)
        except ToolError as error:
            raise ToolError(f"its packages cannot be measured: {error.message}") from None
        most = self._limits.bytes
        if taken > most:
            raise ToolError(f"its packages exceed {most:,} bytes of disk space (fetch_max_bytes)")

    @asynccontextmanager
    async def _progress(self) -> AsyncIterator[None]:
        """Report the start and the progress."""
        packages = ", ".join(self._order.command.packages)
        most = f"{self._limits.seconds:g} s, {self._limits.bytes / 1e6:.0f} MB"
        self._say(f"fetching {packages} with {self._order.command.manager} (at most {most})")
        began = time.monotonic()

        async def tell() -> None:
            while True:
                await asyncio.sleep(_TELL_EVERY_S)
                seconds, size = time.monotonic() - began, self._taken / 1e6
                self._say(f"{seconds:.0f} s, {size:.1f} MB on the disk; {self._output.progress}")

        telling = start_task(tell())
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.wait([telling])


async def _run(launcher: Launcher, command: Command, output: FetchOutput) -> Exit | None:
    """Run a step. Return None if its output showed that it cannot succeed."""
    try:
        running = await launcher.start(command, lambda _, data: output.feed(data))
    except FileNotFoundError:
        program = os.path.basename(command.argv[0])
        raise ToolError(f"{program} is not installed, which is needed for its packages") from None
    async with running:
        waiting, hopeless = start_task(running.wait()), start_task(output.hopeless.wait())
        try:
            await asyncio.wait({waiting, hopeless}, return_when=asyncio.FIRST_COMPLETED)
            return await waiting if waiting.done() else None
        finally:
            for each in (waiting, hopeless):
                each.cancel()
            await asyncio.wait({waiting, hopeless})


def _describe(command: PackageCommand, directory: str) -> InstallRecord:
    """Return the record of an installation. Raises `ToolError` if it cannot be used."""
    from callgate.sandbox.dry_runs.manifests import (  # lazy: only where something was fetched  # noqa: PLC0415
        remove_tree,
    )

    remove_tree(os.path.join(directory, "downloads"))
    package_commands.program_of(command, directory)
    try:
        return InstallRecord(
            key=command.key,
            directory=os.path.basename(directory),
            fingerprint=directories.fingerprint(directory),
            versions=package_commands.versions(command, directory),
            locks=package_commands.locks(command, directory),
        )
    except (OSError, msgspec.MsgspecError) as error:
        raise ToolError(f"the fetched packages cannot be read: {error}") from None
