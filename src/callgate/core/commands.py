"""Commands: the request to run one, the `Launcher` that starts it, and its outcome.

A tool never starts a process itself. It passes a `Command` to the `Launcher` in its context, which
applies the sandbox of the call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, cast, runtime_checkable

import msgspec

if TYPE_CHECKING:  # most commands need no event loop
    from asyncio import Future

GRACE_S = 5.0
"""Time between SIGTERM and SIGKILL when a command is stopped."""

Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], "Future[None] | None"]
"""Output callback. If it returns a future, reading pauses until that is done."""
CONNECT_HOST = "connect_host"
"""The tool whose calls are questions about connections. Only callgate calls it."""


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """A connection of a command to a host that is not on a list."""

    entry: str
    """The host as in a list of hosts: with its port, unless that is 80 or 443."""
    port: int
    address: str | None = None
    """Set if the host name resolves to an address in a private network."""
    program: str | None = None
    """The connecting program, if known."""


class ConnectionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a connection."""

    refusal: str = ""
    """Reason of the refusal; empty: the connection is approved."""
    once: bool = False
    """The approval does not cover later connections of the command."""


Approve = Callable[[Connection], Awaitable[ConnectionVerdict]]


class Warm(msgspec.Struct, frozen=True):
    """Start of a command without `exec`, in a process that has imported `callgate.host`."""

    arguments: tuple[str, ...]
    """Arguments of `python -m callgate.host`."""
    path: tuple[str, ...]
    """Directories to prepend to the default `sys.path`."""


class Preimages(msgspec.Struct, frozen=True, kw_only=True):
    """The directory that stores the files of a command as they were before its changes."""

    directory: str
    roots: tuple[str, ...]
    """Directories whose changes are stored."""
    max_file: int
    """Maximum size in bytes of a copy."""
    max_total: int
    key: bytes | None = None
    """Encrypts copies. It belongs to this command only."""
    excluded: tuple[str, ...] = ()
    """Names of directories whose files are not stored."""
    strict: bool = False
    """Whether changes of files that are not stored are refused."""
    tolerant: bool = False
    """Whether changes are permitted even if a full disk prevents the storing."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    """The whole environment, except for a mark that identifies the command's descendants."""
    stdin: int | None = None
    """A descriptor to pass on as standard input; None: no input."""
    lease: int | None = None
    """A descriptor whose copy stays open until all processes of the command have ended. The command
    itself does not receive it.
    """
    warm: Warm | None = None
    """For a Python host: it may be forked from a warm process, if one is available."""
    git_config: tuple[str, str] | None = None
    """The git directory of a repository, and git configuration for this repository only."""
    call: str | None = None
    """The id of its call in events, if it belongs to a call."""
    preimages: Preimages | None = None
    """None: the changes of the command are not stored."""
    discards_changes: bool = False
    """Whether its changes are reverted after its end, however it ends."""
    approve: Approve | None = None
    """Decides about hosts that the sandbox does not list; None: they are refused."""


class RuleMatch(msgspec.Struct, frozen=True):
    """A path that a rule names and that the rule did not match when the command started."""

    path: str
    decision: str
    """`deny` or `ask`."""


class LeftBehind(msgspec.Struct, frozen=True, kw_only=True):
    """Files that a command left and that some program executes later without a question.

    Paths are sorted and complete.
    """

    files: tuple[str, ...] = ()
    """Files with a protected name; a directory includes its contents."""
    git: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Configuration files and hooks of git, with the settings that may run programs."""
    disabled: tuple[str, ...] = ()
    """Git files that were renamed, so that git ignores them."""
    pipelines: tuple[str, ...] = ()
    """Files that a server executes after a push."""
    rebases: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Unfinished rebases of git, with the commands that continuing them runs."""
    refused: tuple[str, ...] = ()
    """Files that the sandbox did not allow the command to create or change."""
    unsearched: str = ""
    """Why the list may be incomplete; empty: it is complete."""

    def __bool__(self) -> bool:
        found = (self.files, self.git, self.pipelines, self.rebases, self.refused)
        return any((*found, self.unsearched))

    def lines(self) -> list[str]:
        """Return one line for each kind, with every path, for display to a person."""
        lines = []
        if self.refused:
            lines.append(
                f"not written: {_named(self.refused)}; programs execute such files later without "
                "a question: write them yourself, outside the sandbox"
            )
        if self.files:
            lines.append(
                "created or changed, and executed later without a question: "
                f"{_named(self.files)}; read before you open this directory with an editor, a "
                "shell or an agent"
            )
        for path, settings in self.git:
            names = f" ({', '.join(settings)})" if settings else ""
            effect = "renamed" if path in self.disabled else "NOT renamed, remove it"
            lines.append(
                f"git would run programs by {sendable(path)}{names}: {effect}"
                + (f" to {sendable(path)}{DISABLED}" if path in self.disabled else "")
            )
        if self.pipelines:
            lines.append(f"changed, and runs on a server after a push: {_named(self.pipelines)}")
        for path, commands in self.rebases:
            consequence = f"; continuing it runs: {_named(commands, '; ')}" if commands else ""
            lines.append(f"a rebase is unfinished: {sendable(path)}{consequence}")
        if self.unsearched:
            lines.append(f"files that are executed later may be missing here: {self.unsearched}")
        return lines

    def below(self, roots: tuple[str, ...]) -> LeftBehind:
        """Return a copy with paths relative to the first root that contains them."""

        def shown(path: str) -> str:
            root = next((r for r in roots if path.startswith(r.rstrip("/") + "/")), None)
            return path if root is None else path[len(root.rstrip("/")) + 1 :]

        return msgspec.structs.replace(
            self,
            files=tuple(map(shown, self.files)),
            git=tuple((shown(path), settings) for path, settings in self.git),
            disabled=tuple(map(shown, self.disabled)),
            pipelines=tuple(map(shown, self.pipelines)),
            rebases=tuple((shown(path), commands) for path, commands in self.rebases),
            refused=tuple(map(shown, self.refused)),
        )


DISABLED = ".disabled-by-callgate"
"""Suffix for a renamed git file, so that git ignores it."""


def sendable(path: str) -> str:
    """Return a path as valid text: undecodable bytes become `\\xNN`."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _named(paths: tuple[str, ...], separator: str = ", ") -> str:
    return separator.join(map(sendable, paths))


NOTHING_LEFT = LeftBehind()


class CommandChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Paths that a command changed, relative to the workspace. Sorted and complete."""

    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    unkept: tuple[tuple[str, str], ...] = ()
    """Changed paths that cannot be restored, each with the reason."""
    is_recorded: bool = True
    """False: the system did not report the changes, so none are listed."""
    discarded: int | None = None
    """Number of changed paths that were reverted after the end; None: none should be."""


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a command.

    If code and signal are None, its status is unknown, or it still runs.
    """

    code: int | None = None
    signal: int | None = None
    """The number of the signal that ended the leader, from any sender."""
    stopped: bool = False
    """`stop` was called before the leader ended."""
    ended: int = 0
    """Number of other processes that callgate ended."""
    survivors: int = 0
    """Processes that could not be ended: they belong to another user, or hang in the kernel."""
    limit: str | None = None
    """The key in `[sandbox.limits]` of the limit that the command exceeded, which ended it."""
    unseen: tuple[str, ...] = ()
    """Paths in its arguments and errors that exist, but are hidden in the sandbox."""
    git_settings: tuple[str, ...] = ()
    """Configuration files of a repository that the sandbox did not allow git to change."""
    blocked: tuple[str, ...] = ()
    """`host:port` of refused network destinations."""
    refusals: tuple[str, ...] = ()
    """Why hosts were not approved, each with its host name."""
    approved: tuple[str, ...] = ()
    """Hosts that were approved while the command ran."""
    reached: int = 0
    """Connections to permitted hosts; counted only if the hosts are listed."""
    changes: CommandChanges | None = None
    """None: the changes were not stored."""
    left: LeftBehind = NOTHING_LEFT
    rule_matches: tuple[RuleMatch, ...] = ()
    unsearched: str = ""
    """Why `rule_matches` may be incomplete."""


class Running(Protocol):
    """A started command. Leaving `async with` stops its remaining processes."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    async def wait(self) -> Exit:
        """Wait until all processes of the command have ended and its output has been read."""
        ...

    def stop(self, grace: float = GRACE_S) -> bool:
        """Stop the whole process tree: SIGTERM, and SIGKILL after `grace` seconds.

        Return False if all processes have ended. If called again, the shorter grace period counts.
        """
        ...


@runtime_checkable
class WatchesWrites(Protocol):
    """A command whose forbidden write attempts can be observed."""

    def watch_writes(self, report: Callable[[str], None]) -> None:
        """Report the path of the next attempt, before any later output of the command."""
        ...


_WATCHING: dict[type, bool] = {}
"""Whether the commands of a class can be watched. Cached: `isinstance` with a protocol is slow."""


def watch_writes(running: object, report: Callable[[str], None]) -> None:
    """Report the next forbidden write attempt of a command, if it can be observed."""
    kind = type(running)
    if kind not in _WATCHING:
        _WATCHING[kind] = isinstance(running, WatchesWrites)
    if _WATCHING[kind]:
        cast(WatchesWrites, running).watch_writes(report)


class Launcher(Protocol):
    async def start(self, command: Command, on_output: OnOutput) -> Running:
        """Start a command. Raises `OSError` if the system cannot start it."""
        ...
