"""A page on this machine to which a browser comes back after a login elsewhere.

It listens on 127.0.0.1, answers one visitor who knows the state, and is gone.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Self
from urllib.parse import parse_qs, urlsplit

from callgate.core.task_sets import TaskSet

_LONGEST = 16 * 1024
_VISIT_S = 10.0
_MOST_SILENT = 32
"""Visitors who have not said what they want; one more, and the oldest is sent away."""
_PAGE = "<!doctype html><meta charset=utf-8><title>callgate</title><p>{} You can close this page."


class Loopback:
    """`async with Loopback() as back:` send the browser off with `back.address` and
    `back.state`, then `await back.visit(seconds)`."""

    def __init__(
        self, port: int | None = None, *, path: str = "/", state: str | None = None
    ) -> None:
        """`state` where whoever sends the browser off has chosen one."""
        self._port = port or 0
        self._path = path
        self.state = secrets.token_urlsafe(24) if state is None else state

    async def __aenter__(self) -> Self:
        """`OSError` where the port is taken, or none."""
        self._query: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self._tasks = TaskSet()
        self._silent: dict[asyncio.StreamWriter, None] = {}
        """The oldest first."""
        try:
            self._server = await asyncio.start_server(
                self._serve, "127.0.0.1", self._port, limit=_LONGEST
            )
        except OverflowError as error:
            raise OSError(str(error)) from None
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for writer in self._silent:
            writer.transport.abort()
        await self._tasks.wait()  # the page is still on its way
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{self._path}"

    async def visit(self, seconds: float) -> dict[str, str]:
        """What the visitor brought. `TimeoutError` where nobody came."""
        async with asyncio.timeout(seconds):
            return await self._query

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._silent[writer] = None
        if len(self._silent) > _MOST_SILENT:
            next(iter(self._silent)).transport.abort()
        try:
            async with asyncio.timeout(_VISIT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                self._silent.pop(writer, None)
                status, text = self._take(head)
                page = _PAGE.format(text).encode()
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nConnection: close\r\n"
                    f"Referrer-Policy: no-referrer\r\nContent-Length: {len(page)}\r\n\r\n".encode()
                    + page
                )
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._silent.pop(writer, None)
            writer.close()

    def _take(self, head: bytes) -> tuple[str, str]:
        """Whoever does not know the state is not whom we wait for."""
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        url = urlsplit(words[1] if len(words) == 3 and words[0] == "GET" else "")
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        known = secrets.compare_digest(query.get("state", "").encode(), self.state.encode())
        if url.path != self._path or not known or self._query.done():
            return "404 Not Found", "There is nothing here."
        self._query.set_result(query)
        return "200 OK", "The login was refused." if "error" in query else "You are logged in."
