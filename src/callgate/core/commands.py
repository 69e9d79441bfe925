"""A command line on its way to becoming processes: what is asked for, and who can start it.

A tool never starts a process itself. It hands a `Command` to the `Launcher` in its context,
which knows what must be around the commands of this call.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, cast, runtime_checkable

import msgspec

if TYPE_CHECKING:  # most commands need no event loop
    from asyncio import Future

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL when someone stops a command."""

Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], "Future[None] | None"]
"""Takes output. Where it returns a future, no more is read before that is done."""


class Warm(msgspec.Struct, frozen=True):
    """How a process that has imported `callgate.host` becomes a command without an `exec`."""

    arguments: tuple[str, ...]
    """As for `python -m callgate.host`."""
    path: tuple[str, ...]
    """What stands in `sys.path` before that which every process of ours has."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    """All that it sees, beside the mark by which its descendants are found again."""
    stdin: int | None = None
    """A descriptor of ours that is passed on; without, there is nothing to read."""
    lease: int | None = None
    """A descriptor of which a copy stays open until nothing of the command is left; the command
    itself does not have it."""
    warm: Warm | None = None
    """For a host in Python: it may be forked from a warm process, if one can be had."""
    git_config: tuple[str, str] | None = None
    """The directory of a repository's own, and configuration that git has for this one alone."""
    call: str | None = None
    """The id by which the events know the call that it belongs to, where it belongs to one."""


class RuleMatch(msgspec.Struct, frozen=True):
    """A path that a rule speaks of, and did not yet match when the command started."""

    path: str
    decision: str
    """`deny` or `ask`."""


class LeftBehind(msgspec.Struct, frozen=True, kw_only=True):
    """Files that a command left and that some program executes later without a question. Paths are
    sorted and complete."""

    files: tuple[str, ...] = ()
    """Under a protected name; a directory stands for all in it."""
    git: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Configuration files and hooks of git, with the settings that may run programs."""
    disabled: tuple[str, ...] = ()
    """Those of git that were renamed, so that git does not read them."""
    pipelines: tuple[str, ...] = ()
    """Files that a server executes after a push."""
    rebases: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Unfinished rebases of git, with the commands that continuing them runs."""
    refused: tuple[str, ...] = ()
    """Files that the sandbox did not let it create or change."""
    unsearched: str = ""
    """Why there may be more; empty: there are none."""

    def __bool__(self) -> bool:
        found = (self.files, self.git, self.pipelines, self.rebases, self.refused)
        return any((*found, self.unsearched))

    def lines(self) -> list[str]:
        """For a person, one line for each kind, with every path."""
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
            lines.append(f"a rebase is left unfinished: {sendable(path)}{consequence}")
        if self.unsearched:
            lines.append(f"files that are executed later may be missing here: {self.unsearched}")
        return lines

    def below(self, roots: tuple[str, ...]) -> LeftBehind:
        """The same with paths relative to the first root that they are in."""

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
"""Added to the name of a file of git's that git is not to read."""


def sendable(path: str) -> str:
    """A path from the disk as text that can be sent: bytes that are no text as `\\xNN`."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _named(paths: tuple[str, ...], separator: str = ", ") -> str:
    return separator.join(map(sendable, paths))


NOTHING_LEFT = LeftBehind()


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. Neither code nor signal: someone else took its status, or it runs."""

    code: int | None = None
    signal: int | None = None
    """The number of the signal that ended the leader, whoever sent it."""
    stopped: bool = False
    """`stop` was called before the leader had ended by itself."""
    ended: int = 0
    """Processes beside the leader that were ended by us."""
    survivors: int = 0
    """Processes that could not be ended: another user's, or stuck in the kernel."""
    limit: str | None = None
    """The key in `[sandbox.limits]` of what it took too much of, and was ended for."""
    unseen: tuple[str, ...] = ()
    """Paths in its words and errors that are there, but not for a command in the sandbox."""
    git_settings: tuple[str, ...] = ()
    """Files of a repository's configuration that git could not change for it."""
    blocked: tuple[str, ...] = ()
    """`host:port` of what it asked for in the network and may not reach."""
    reached: int = 0
    """Connections to hosts that it may reach; counted only where they are named."""
    left: LeftBehind = NOTHING_LEFT
    rule_matches: tuple[RuleMatch, ...] = ()
    unsearched: str = ""
    """Why there may be more of these."""


class Running(Protocol):
    """A command that was started. Leaving `async with` stops what still runs."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    async def wait(self) -> Exit:
        """Wait until nothing of the command runs any more and its output has been read."""
        ...

    def stop(self, grace: float = GRACE_S) -> bool:
        """Begin to end the whole tree: SIGTERM, and SIGKILL after `grace` seconds.

        False if nothing is left to end. Of several graces the shortest counts.
        """
        ...


@runtime_checkable
class WatchesWrites(Protocol):
    """A command of which attempts to write where it may not can be seen."""

    def watch_writes(self, report: Callable[[str], None]) -> None:
        """Tell of the next one, with its path: before anything that the command says after it."""
        ...


_WATCHING: dict[type, bool] = {}
"""Whether the commands of a class can be watched: to look at a protocol's members is slow."""


def watch_writes(running: object, report: Callable[[str], None]) -> None:
    """Hear of the next attempt of a command to write where it may not, if that can be seen."""
    kind = type(running)
    if kind not in _WATCHING:
        _WATCHING[kind] = isinstance(running, WatchesWrites)
    if _WATCHING[kind]:
        cast(WatchesWrites, running).watch_writes(report)


class Launcher(Protocol):
    async def start(self, command: Command, on_output: OnOutput) -> Running:
        """Start it. Raises OSError if the system cannot."""
        ...
