"""A Unix socket that takes the events of hooks, and nothing else.

    {"v": 1, "agent": "codex", "token": "...", "phase": "pre", "size": N}\\n EVENT
                                                                  callgate-hook LENGTH\\n ANSWER
    {"v": 1, "agent": "codex", "token": "...", "ticket": "..."}\\n  callgate-run CODE LENGTH\\n TEXT

It lies in a directory of its own, so that the hooks of an agent inside a sandbox can reach it
while all else in our home is masked. Whoever has no token of that agent is not answered.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from callgate.config.agents.settings_files import AGENTS, token_file
from callgate.core.task_sets import TaskSet
from callgate.protocol.hooks.dialects import MAX_EVENT
from callgate.surfaces.hooks.sandboxed import Tickets

_log = logging.getLogger("callgate.hooks")
_UNREADABLE = (asyncio.IncompleteReadError, asyncio.LimitOverrunError)
_LONGEST_HEADER = 4096
_READ_S = 20.0
"""How long a hook may take to say what it wants."""
_CLOSE_S = 2.0
_MOST = 64
"""Connections at once; the next ones wait."""


def is_token(home: str, agent: str, token: str) -> bool:
    """Whether a token is the one of this agent's hook."""
    if agent not in AGENTS:
        return False
    try:
        with open(token_file(home, agent), encoding="ascii") as file:
            known = file.read(256).strip()
    except (OSError, UnicodeError):
        return False
    return len(known) >= 32 and hmac.compare_digest(known.encode(), token.encode())


class Service(Protocol):
    """Answers the events of hooks."""

    @property
    def tickets(self) -> Tickets: ...
    async def submit(
        self,
        agent: str,
        data: bytes,
        gone: Awaitable[Any] | None = None,
        phase: str | None = None,
    ) -> bytes: ...


class HookListener:
    def __init__(
        self,
        service: Service,
        home: str,
        listening: socket.socket,
        accepts: Callable[[socket.socket], bool] = lambda connection: True,
    ) -> None:
        """`accepts`: whether the process at the other end may submit events here."""
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
            _log.warning("a hook of another agent's process is not answered")
            connection.close()
            return
        self._connections.start(self._serve(connection))

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=_LONGEST_HEADER)
        try:
            async with self._slots:
                await self._answer(reader, writer)
        except (OSError, TimeoutError, *_UNREADABLE, ValueError) as error:
            _log.warning("a hook was not answered: %s", error or type(error).__name__)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
                agent, data, reader.read(1), None if phase is None else str(phase)
            )
            writer.write(b"callgate-hook %d\n" % len(answer) + answer)
        await writer.drain()

    def _agent(self, header: Any) -> str | None:
        """Whose hook it is; None where it does not show the token of one."""
        if not isinstance(header, dict) or header.get("v") != 1:
            return None
        agent, token = header.get("agent"), header.get("token")
        if not isinstance(agent, str) or not isinstance(token, str):
            return None
        return agent if is_token(self._home, agent, token) else None

    async def close(self) -> None:
        """A hook that still waits gets no answer, and refuses."""
        self._connections.cancel()
        await self._connections.wait(_CLOSE_S)


def _header(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("its header is not JSON") from None


async def _event(reader: asyncio.StreamReader, size: object) -> bytes:
    """The event that follows the header. What is too large is not read: it is refused in the
    agent's form, as one byte more than there may be."""
    if not isinstance(size, int) or size < 0:
        raise ValueError("the size of the event is missing")
    if size > MAX_EVENT:
        return b" " * (MAX_EVENT + 1)
    return await reader.readexactly(size)
