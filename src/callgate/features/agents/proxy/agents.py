"""The processes of an agent behind the proxy, one for each location of its sessions.

stdin  <- Peer            stdout -> Peer
stderr -> proxy's stderr  its end -> every request in flight fails with the reason
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import shutil
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from callgate.core.commands import Command, Exit, Launcher, Running, Stream
from callgate.core.errors import ToolError
from callgate.core.sessions import Mode, Root, Session
from callgate.core.tasks import start_task
from callgate.features.chat.live_sessions import LiveSessions
from callgate.features.editor.peer import EditorPeer, PeerGone
from callgate.protocol.jsonrpc import INTERNAL_ERROR, Request, RpcError, shown
from callgate.redaction.texts import redact
from callgate.runtime import Runtime
from callgate.socket.descriptors import Output


class AgentLocation(NamedTuple):
    """Directories of an agent's process. Sessions in other directories use another process."""

    workspace: str
    roots: tuple[Root, ...] = ()


class Launch(NamedTuple):
    """The launcher and the command of an agent's process."""

    launcher: Launcher
    command: Command
    hidden_paths: Callable[[str], tuple[str, ...]]
    """Returns the existing paths in a text that the agent's sandbox hides."""


class ProxiedAgent(Protocol):
    """An agent for the proxy: a process that it started, or the successor in a proxy chain."""

    @property
    def location(self) -> AgentLocation: ...
    @property
    def runs_in(self) -> str:
        """Location of the agent's own work, for approvers."""
        ...

    @property
    def is_alive(self) -> bool: ...
    async def request(self, method: str, params: Any) -> Any:
        """Return the agent's answer. Raises `RpcError`, also if the agent has ended."""
        ...

    def notify(self, method: str, params: Any) -> None: ...
    def failure(self) -> RpcError:
        """Return the error for requests after the agent's end."""
        ...

    def kill(self, why: str) -> None: ...


class Agents(Protocol):
    """The agents of one proxy, by their location."""

    async def greet(self, params: Any) -> Any:
        """Return the first agent's answer to `initialize`."""
        ...

    def logged_in(self, params: Any) -> None: ...
    async def at(self, location: AgentLocation) -> ProxiedAgent: ...
    def every(self) -> list[ProxiedAgent]: ...
    def usual(self) -> ProxiedAgent:
        """Return the agent for messages without a session. Raises `RpcError` if all have ended."""
        ...

    async def close(self) -> None: ...


Answer = Callable[[ProxiedAgent, str, Any, Request], Awaitable[Any]]
Noted = Callable[[ProxiedAgent, str, Any], None]
Ended = Callable[[ProxiedAgent], None]


class Handlers(NamedTuple):
    """Callbacks for requests, notifications and the end of agents."""

    answer: Answer
    noted: Noted
    ended: Ended


class Dependencies(NamedTuple):
    runtime: Runtime
    sessions: LiveSessions
    mode: Mode
    """Initial mode of sessions."""
    name: str
    """The agent's name in records, until the agent declares one."""
    first_location: AgentLocation
    """Location of the first process, before any session names a directory."""
    launch: Callable[[AgentLocation], Awaitable[Launch]]
    """Raises `ToolError` if the agent cannot be started."""
    runs_in: str
    """Location and sandbox of the agent's own work, for approvers."""
    grant_once: Callable[[Session, str, dict[str, Any]], None]
    """Allows exactly this call of a session once, after a person or the policy has approved it."""
    refusal: Callable[[Session, str, dict[str, Any]], str | None]
    """Returns why the policy denies a call that the agent would run itself, or None."""
    longest_arguments: int
    """Maximum length of the arguments in a question, in characters."""
    start_timeout_s: float
    """Time limit for the answer to `initialize`."""
    cancel_patience_s: float
    """Time limit for the end of a turn after a cancel."""
    extensions: tuple[str, ...]
    """Patterns of the agent's extension methods that are forwarded to the editor."""
    close: Callable[[], Awaitable[None]]
    """Closes the runtime."""


LEAVE_S = 5.0
"""Time limit for an agent to exit after its stdin is closed."""
TERM_S = 3.0
_MOST_WAITING = 20_000
"""Maximum number of unprocessed messages; an agent that sends more is stopped."""
_MOST_NOISE = 10_000
"""Number of lines without a message that stops an agent."""
_TAIL = 4_096
_PIPE = 512
"""Bytes that a writable pipe always accepts (PIPE_BUF)."""
_LONGEST_WHY = 300
_SHOW = "Give the agent access with --readable DIR, or move the file into the workspace."

_log = logging.getLogger("callgate.acp")


class AgentProcess:
    """Implements `ProxiedAgent` with a process that the proxy started."""

    def __init__(self, location: AgentLocation, runs_in: str, handlers: Handlers) -> None:
        self.location, self.runs_in = location, runs_in
        self._handlers = handlers
        self.exit: Exit | None = None
        """Exit status, once the process has ended."""
        self.gave_up: str | None = None
        """Why the proxy stopped the process, or None."""
        self._transport: asyncio.WriteTransport | None = None
        self._running: Running | None = None
        self._watching: asyncio.Task[None] | None = None
        self._errors = bytearray()
        self._hidden_paths: Callable[[str], tuple[str, ...]] = lambda text: ()
        self.peer = EditorPeer(
            self._write,
            lambda method, params, request: handlers.answer(self, method, params, request),
            lambda method, params: handlers.noted(self, method, params),
            on_gone=self._unread,
            ignores_noise=True,
        )

    @property
    def is_alive(self) -> bool:
        return self._running is not None and self.exit is None and self.gave_up is None

    async def start(self, launch: Launch) -> None:
        """Start the process. Raises `ToolError`."""
        self._hidden_paths = launch.hidden_paths
        theirs, ours = os.pipe()
        try:
            with_stdin = msgspec.structs.replace(launch.command, stdin=theirs)
            self._running = await launch.launcher.start(with_stdin, self._hear)
        except OSError as error:
            os.close(ours)
            raise _not_started(launch, error) from error
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._watching = start_task(self._await_end(self._running))
        os.set_blocking(ours, False)
        pipe = os.fdopen(ours, "wb", buffering=0)
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_write_pipe(lambda: Output(self.peer), pipe)

    async def request(self, method: str, params: Any) -> Any:
        """Return the agent's answer. Raises `RpcError`, also if the agent has ended."""
        try:
            return await self.peer.request(method, params)
        except PeerGone:
            if self._watching is not None:
                await asyncio.wait([self._watching], timeout=TERM_S)
            raise self.failure() from None

    def notify(self, method: str, params: Any) -> None:
        self.peer.notify(method, params)

    def failure(self) -> RpcError:
        """Return the error for requests after the process's end."""
        return RpcError(INTERNAL_ERROR, self._end_text(), {"reason": "agent_ended"})

    def kill(self, why: str) -> None:
        """Stop the process and its children immediately."""
        if self.gave_up is None:
            self.gave_up = why
        if self._running is not None:
            self._running.stop(0.0)

    async def close(self) -> None:
        """Close stdin, and stop the process if it does not exit."""
        self.peer.unheard()
        self._close_stdin()
        running, watching = self._running, self._watching
        if running is None or watching is None:
            return
        timer = asyncio.get_running_loop().call_later(LEAVE_S, running.stop, TERM_S)
        try:
            await asyncio.shield(watching)
        except asyncio.CancelledError:
            running.stop(0.0)
            raise
        finally:
            timer.cancel()

    def _close_stdin(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _hear(self, stream: Stream, data: bytes) -> None:
        if stream == "stderr":
            self._errors = (self._errors + data)[-_TAIL:]
            _pass_on(data)
            return
        self.peer.feed(data)
        if self.peer.backlog > _MOST_WAITING:
            self.kill("it sends messages faster than callgate processes them")
        elif self.peer.invalid > _MOST_NOISE:
            self.kill("it sent too many lines that are not protocol messages")

    def _unread(self) -> None:
        if self.exit is not None or self._running is None:
            return
        if self._transport is not None and self._transport.is_closing():  # it is about to exit
            asyncio.get_running_loop().call_later(LEAVE_S, self._running.stop, TERM_S)
        else:
            self.kill("it does not read its messages")

    async def _await_end(self, running: Running) -> None:
        self.exit = await running.wait()
        self.peer.unheard()
        self.peer.lost()
        self._close_stdin()
        _log.info("agent: %s", self._end_text())
        self._handlers.ended(self)

    def _end_text(self) -> str:
        if self.gave_up is not None:
            return f"the agent was stopped: {self.gave_up}"
        ended = self.exit
        if ended is None:
            return "the agent has disconnected"
        how = f"exit code {ended.code}" if ended.signal is None else f"signal {ended.signal}"
        errors = self._errors.decode("utf-8", "replace").strip()
        lines = errors.splitlines()
        detail = f": {shown(redact(lines[-1]), _LONGEST_WHY)}" if lines else ""
        text = f"the agent has ended ({how}){detail}"
        hidden = self._hidden_paths(errors) if ended.code != 0 else ()
        return f"{text}. {_hides(', '.join(hidden))}" if hidden else text


def _pass_on(data: bytes) -> None:
    """Write an agent's stderr to the proxy's stderr, which the editor shows."""
    ready = select.poll()
    ready.register(2, select.POLLOUT)
    for start in range(0, len(data), _PIPE):
        try:
            if not ready.poll(0):  # the editor does not read it: the rest is dropped
                return
            os.write(2, data[start : start + _PIPE])
        except OSError:
            return


def _not_started(launch: Launch, error: OSError) -> ToolError:
    program, env = launch.command.argv[0], launch.command.env
    path = shutil.which(program, path=env.get("PATH"))
    problem = f"The agent {shown(program)!r} cannot be started"
    if path is None:
        return ToolError(
            f"{problem}: the program does not exist. Install it, or use its full path."
        )
    if launch.hidden_paths(path):
        return ToolError(f"{problem}. {_hides(shown(path, 200))}")
    if not isinstance(error, FileNotFoundError):
        return ToolError(f"{problem}: {error.strerror or error}.")
    return ToolError(
        f"{problem}: the agent's sandbox hides {shown(path, 200)} or the program that runs it."
        f" {_SHOW}"
    )


def _hides(paths: str) -> str:
    return f"The agent's sandbox hides {paths}. {_SHOW}"


MOST_PROCESSES = 16


class AgentPool:
    """Implements `Agents` with processes that the proxy starts."""

    def __init__(self, dependencies: Dependencies, handlers: Handlers) -> None:
        self._dependencies = dependencies
        self._handlers = handlers
        self._agents: dict[AgentLocation, AgentProcess] = {}
        self._starting = asyncio.Lock()
        self._greeting: Any = None
        self._login: Any = None
        self._first: AgentProcess | None = None

    async def greet(self, params: Any) -> Any:
        """Start the first process, and return its answer to `initialize`."""
        self._greeting = params
        self._first, answer = await self._start(self._dependencies.first_location)
        return answer

    def logged_in(self, params: Any) -> None:
        """Store an accepted login, for processes that are started later."""
        self._login = params

    async def at(self, location: AgentLocation) -> ProxiedAgent:
        async with self._starting:
            for known in (location, self._dependencies.first_location):
                agent = self._agents.get(known)
                if agent is not None and agent.is_alive and _holds(known, location):
                    return agent
            if sum(each.is_alive for each in self._agents.values()) >= MOST_PROCESSES:
                message = (
                    f"{MOST_PROCESSES} agents are running in other directories: close a session"
                )
                raise RpcError(INTERNAL_ERROR, message)
            agent, _ = await self._start(location)
            if self._login is not None:
                await agent.request("authenticate", self._login)
            return agent

    def every(self) -> list[ProxiedAgent]:
        return [each for each in self._agents.values() if each.is_alive]

    def usual(self) -> ProxiedAgent:
        first = self._first
        if first is not None and first.is_alive:
            return first
        for other in self.every():
            return other
        raise RpcError(INTERNAL_ERROR, "the agent has ended") if first is None else first.failure()

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._agents.values()))

    async def _start(self, location: AgentLocation) -> tuple[AgentProcess, Any]:
        agent = AgentProcess(location, self._dependencies.runs_in, self._handlers)
        try:
            await agent.start(await self._dependencies.launch(location))
        except ToolError as error:
            raise RpcError(INTERNAL_ERROR, error.message, {"reason": "agent_start"}) from error
        self._agents[location] = agent
        limit_s = self._dependencies.start_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return agent, await agent.request("initialize", self._greeting)
        except TimeoutError:
            agent.kill(f"it did not answer initialize within {limit_s:g} s")
            raise agent.failure() from None
        except BaseException:
            agent.kill("its initialization failed")
            raise


def _holds(known: AgentLocation, wanted: AgentLocation) -> bool:
    """Return whether a process in one location can serve another.

    The other workspace must be inside its workspace, without additional directories.
    """
    if known == wanted:
        return True
    inside = os.path.commonpath([known.workspace, wanted.workspace]) == known.workspace
    return inside and set(wanted.roots) <= set(known.roots)
