"""The Unix socket for hook events of agents, and its service in an instance.

    {"v": 1, "agent": "codex", "token": "...", "phase": "pre", "size": N}\\n EVENT
                                                                  callgate-hook LENGTH\\n ANSWER
    {"v": 1, "agent": "codex", "token": "...", "ticket": "..."}\\n  callgate-run CODE LENGTH\\n TEXT

    listening socket --first connection--> service, listener --close--> release of running calls

The socket has a separate directory, so that hooks in a sandbox can reach it while the rest of
callgate's home is masked. A client without the token of its agent gets no answer.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

from callgate.core.local.disk import make_private_directory
from callgate.core.tasks import TaskSet
from callgate.features.agents.hooks import hook_switches
from callgate.features.agents.hooks.events import MAX_EVENT
from callgate.features.agents.hooks.prompts import Peer, Sender, hook_programs, peer_of
from callgate.features.agents.known import KNOWN, hooked, sockets_directory, token_file
from callgate.features.agents.settings import AgentsSettings, HooksTable
from callgate.instance.instance import Draining, Service
from callgate.instance.startup import ServedDirectories
from callgate.instance.wiring.runtime import Wired

if TYPE_CHECKING:
    from callgate.features.agents.hooks.agent_calls import Tickets
    from callgate.features.agents.hooks.service import HookService


_log = logging.getLogger("callgate.hooks")
_UNREADABLE = (asyncio.IncompleteReadError, asyncio.LimitOverrunError)
_LONGEST_HEADER = 4096
_READ_S = 20.0
"""Time limit for reading a request."""
_CLOSE_S = 2.0
_MOST = 64
"""Maximum number of concurrent connections; further ones wait."""


def is_token(home: str, agent: str, token: str) -> bool:
    """Return whether the token of the agent's hook matches."""
    if agent not in hooked():
        return False
    try:
        with open(token_file(home, agent), encoding="ascii") as file:
            known = file.read(256).strip()
    except (OSError, UnicodeError):
        return False
    return len(known) >= 32 and hmac.compare_digest(known.encode(), token.encode())


class Answering(Protocol):
    """Answers the events of hooks."""

    @property
    def tickets(self) -> Tickets: ...
    async def submit(
        self,
        agent: str,
        data: bytes,
        disconnected: Callable[[], Awaitable[Any]] | None = None,
        phase: str | None = None,
        sender: Sender | None = None,
    ) -> bytes: ...


class HookListener:
    def __init__(
        self,
        service: Answering,
        home: str,
        listening: socket.socket,
        accepts: Callable[[socket.socket], bool] = lambda connection: True,
    ) -> None:
        """`accepts` returns whether the peer process may submit events."""
        self._service = service
        self._home = home
        self._listening = listening
        self._accepts = accepts
        self._connections = TaskSet(_log, "a connection of a hook met a defect")
        self._slots = asyncio.Semaphore(_MOST)

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return
        if not self._accepts(connection):
            _log.warning("refused the hook of another agent's process")
            connection.close()
            return
        self._connections.start(self._serve(connection))

    async def _serve(self, connection: socket.socket) -> None:
        sender = partial(self._find_sender, connection)
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=_LONGEST_HEADER)
        try:
            async with self._slots:
                await self._answer(reader, writer, sender)
        except (OSError, TimeoutError, *_UNREADABLE, ValueError) as error:
            _log.warning("a hook was not answered: %s", error or type(error).__name__)
        finally:
            writer.close()

    def _find_sender(self, connection: socket.socket, agent: str) -> Peer | None:
        return peer_of(connection, hook_programs(self._home, agent))

    async def _answer(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        find_sender: Callable[[str], Peer | None],
    ) -> None:
        async with asyncio.timeout(_READ_S):
            header = _header(await reader.readuntil(b"\n"))
            agent = self._agent(header)
            if agent is None:
                return
            ticket = header.get("ticket")
            data = b"" if isinstance(ticket, str) else await _event(reader, header.get("size"))
        if isinstance(ticket, str):
            redeemed = await self._service.tickets.redeem(ticket)
            if redeemed is not None:
                text = redeemed.text.encode("utf-8", "replace")
                writer.write(b"callgate-run %d %d\n" % (redeemed.exit_code, len(text)) + text)
        else:
            phase = header.get("phase")
            answer = await self._service.submit(
                agent,
                data,
                partial(reader.read, 1),
                None if phase is None else str(phase),
                partial(find_sender, agent),
            )
            writer.write(b"callgate-hook %d\n" % len(answer) + answer)
        await writer.drain()

    def _agent(self, header: Any) -> str | None:
        """Return the agent of a request; None without a valid token."""
        if not isinstance(header, dict) or header.get("v") != 1:
            return None
        agent, token = header.get("agent"), header.get("token")
        if not isinstance(agent, str) or not isinstance(token, str):
            return None
        return agent if is_token(self._home, agent, token) else None

    async def close(self) -> None:
        """Close all connections. A waiting hook gets no answer, so it refuses the call."""
        self._connections.cancel()
        await self._connections.wait(_CLOSE_S)


def _header(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("its header is not JSON") from None


async def _event(reader: asyncio.StreamReader, size: object) -> bytes:
    """Read the event after the header.

    An event that is too large is not read. The result is then a placeholder beyond the limit, which
    the service refuses in the agent's format.
    """
    if not isinstance(size, int) or size < 0:
        raise ValueError("the size of the event is missing")
    if size > MAX_EVENT:
        return b" " * (MAX_EVENT + 1)
    return await reader.readexactly(size)


_BACKLOG = 64


def bind(home: str) -> socket.socket:
    """Return the listening socket of an instance. Raises `OSError`."""
    directory = sockets_directory(home)
    make_private_directory(directory)
    _reap(directory)
    return bind_in(directory)


def bind_in(directory: str) -> socket.socket:
    """Return a listening socket in an existing directory. Raises `OSError`."""
    name = f"{os.getpid()}.sock"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.setblocking(False)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:  # by descriptor: the path of a socket has at most 107 bytes
        listening.bind(f"/proc/self/fd/{fd}/{name}")
        os.chmod(os.path.join(directory, name), 0o600)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    finally:
        os.close(fd)
    return listening


def release(home: str, listening: socket.socket) -> None:
    """Close the listening socket and remove its file. Idempotent."""
    listening.close()
    try:
        os.unlink(os.path.join(sockets_directory(home), f"{os.getpid()}.sock"))
    except OSError:
        pass


def _reap(directory: str) -> None:
    """Remove the sockets of ended processes, and an old one with this process's id."""
    for name in os.listdir(directory):
        pid = name.partition(".")[0]
        if pid == str(os.getpid()) or not os.path.exists(f"/proc/{pid}"):
            os.unlink(os.path.join(directory, name))


class AgentHooks(Service):
    def __init__(self, wired: Wired, directories: ServedDirectories, draining: Draining) -> None:
        self._wired = wired
        self._directories = directories
        self._draining = draining
        self._listening: socket.socket | None = None
        self._listener: HookListener | None = None
        directories.on_first_session(partial(_warn, wired.home.path))

    @cached_property
    def service(self) -> HookService:
        from callgate.features.agents.hooks.service import HookService  # lazy: few have hooks  # noqa: PLC0415

        return HookService(
            self._wired.runtime,
            self._directories.open_session,
            self._wired.home.path,
            self._settings,
            lambda: self._draining.has_begun,
            lambda: getattr(self._wired.settings.table("web"), "allow", []),
        )

    def _settings(self) -> HooksTable:
        self._wired.policies.refresh()
        return self._wired.settings.of(AgentsSettings).hooks

    def start(self, closing: AsyncExitStack) -> None:
        """Begin to listen. If this fails, the hooks refuse every call."""
        closing.push_async_callback(self.close)
        try:
            self._listening = bind(self._wired.home.path)
        except OSError as error:
            _log.error("the socket for agents' hooks cannot be opened: %s", error)
            return
        asyncio.get_running_loop().add_reader(self._listening, self._come)

    def _come(self) -> None:
        # lazy: as above

        assert self._listening is not None
        asyncio.get_running_loop().remove_reader(self._listening)
        self._listener = HookListener(self.service, self._wired.home.path, self._listening)
        self._listener.start()

    async def close(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            release(self._wired.home.path, self._listening)
        if "service" in self.__dict__:
            await self.service.close()
        if self._listener is not None:
            await self._listener.close()


def _warn(home: str, directory: str) -> None:
    """Warn about settings in a directory that turn an agent's hooks off."""
    for agent in hooked():
        if os.path.exists(token_file(home, agent)):
            for switch in hook_switches.in_files(agent, directory, home):
                _log.warning(
                    "%s: %s would run calls that callgate does not see",
                    switch,
                    KNOWN[agent].label,
                )
