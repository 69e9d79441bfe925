"""What the proxy is given to work with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

from callgate.core.commands import Command, Launcher
from callgate.core.sessions import Mode, Root, Session
from callgate.protocol.jsonrpc import Request, RpcError
from callgate.runtime import Runtime
from callgate.surfaces.live_sessions import LiveSessions


class AgentPlace(NamedTuple):
    """Where an agent's process works: sessions in other directories have another process."""

    workspace: str
    roots: tuple[Root, ...] = ()


class Launch(NamedTuple):
    """How the process of an agent is started."""

    launcher: Launcher
    command: Command
    hidden_paths: Callable[[str], tuple[str, ...]]
    """The paths in a text that exist, and that the sandbox around the agent hides."""


class Agent(Protocol):
    """An agent as the proxy speaks with it: a process of ours, or whoever comes next in a chain."""

    @property
    def place(self) -> AgentPlace: ...
    @property
    def runs_in(self) -> str:
        """Where it does what it does by itself, for the person who is asked about it."""
        ...

    @property
    def is_alive(self) -> bool: ...
    async def request(self, method: str, params: Any) -> Any:
        """What the agent answers. `RpcError` also where it has ended, with the reason."""
        ...

    def notify(self, method: str, params: Any) -> None: ...
    def failure(self) -> RpcError:
        """Why nothing more can be asked of it."""
        ...

    def kill(self, why: str) -> None: ...


class Agents(Protocol):
    """The agents of one proxy, by the place in which they work."""

    async def greet(self, params: Any) -> Any:
        """The first one's answer to `initialize`."""
        ...

    def logged_in(self, params: Any) -> None: ...
    async def at(self, place: AgentPlace) -> Agent: ...
    def every(self) -> list[Agent]: ...
    def usual(self) -> Agent:
        """For what names no session. Raises `RpcError` where none is left."""
        ...

    async def close(self) -> None: ...


Answer = Callable[[Agent, str, Any, Request], Awaitable[Any]]
Noted = Callable[[Agent, str, Any], None]
Ended = Callable[[Agent], None]


class Handlers(NamedTuple):
    """Who hears what agents say."""

    answer: Answer
    noted: Noted
    ended: Ended


class Dependencies(NamedTuple):
    runtime: Runtime
    sessions: LiveSessions
    mode: Mode
    """In which sessions begin."""
    name: str
    """What the agent is called in records, until it says it itself."""
    first_place: AgentPlace
    """Of the process that is greeted, before any session names a directory."""
    launch: Callable[[AgentPlace], Awaitable[Launch]]
    """Raises a `ToolError` where the agent cannot be started."""
    runs_in: str
    """What is around that process, for the person who is asked about what it does by itself."""
    grant_once: Callable[[Session, str, dict[str, Any]], None]
    """Let exactly this call of a session run once: a person or the policy has said yes to it."""
    refusal: Callable[[Session, str, dict[str, Any]], str | None]
    """Why the policy denies a call that the agent would run itself; None: it does not."""
    longest_arguments: int
    """Characters of arguments that a question may show."""
    start_timeout_s: float
    """For an agent to answer `initialize`."""
    cancel_patience_s: float
    """For an agent to end its turn after a cancel."""
    extensions: tuple[str, ...]
    """Patterns of the agent's extension methods that are passed to the editor."""
    close: Callable[[], Awaitable[None]]
    """Let go of the runtime."""
