"""A server on loopback that answers as a test wants it to, byte by byte.

async with WebServer() as server:
    server.pages["/a"] = page("<p>Hi", "text/html")
    await fetch(server.url("/a"))
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Got:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader


Answer = Callable[[Got, asyncio.StreamWriter], Awaitable[None]]


def page(body: bytes | str, content_type: str | None = "text/html", status: int = 200, **headers: str) -> Answer:
    data = body.encode() if isinstance(body, str) else body
    said = {"Content-Length": str(len(data)), **{name.replace("_", "-"): text for name, text in headers.items()}}
    if content_type is not None:
        said["Content-Type"] = content_type

    async def answer(got: Got, out: asyncio.StreamWriter) -> None:
        out.write(_head(status, said) + (b"" if got.method == "HEAD" else data))

    return answer


def redirect(where: str, status: int = 302) -> Answer:
    return page(b"", None, status, Location=where)


def jsoned(value: Any, status: int = 200) -> Answer:
    return page(json.dumps(value), "application/json", status)


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [
        f"HTTP/1.1 {status} Whatever",
        *(f"{name}: {text}" for name, text in headers.items()),
        "Connection: close",
        "",
        "",
    ]
    return "\r\n".join(lines).encode("latin-1")


@dataclass
class WebServer:
    pages: dict[str, Answer] = field(default_factory=dict)
    got: list[Got] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self.asked = asyncio.Event()
        self.left = asyncio.Event()
        """Set when somebody went away before the answer was complete."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    @property
    def paths(self) -> list[str]:
        return [each.path for each in self.got]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *rest = head.strip().split("\r\n")
            headers = {name.lower(): text for name, _, text in (line.partition(": ") for line in rest)}
            method, path, _ = first.split(" ")
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            got = Got(method, path, headers, body, reader)
            self.got.append(got)
            self.asked.set()
            await self.pages.get(path.partition("?")[0], page("no such page", "text/plain", 404))(got, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            self.left.set()
        finally:
            writer.close()


async def endless(got: Got, out: asyncio.StreamWriter) -> None:
    """A gigabyte, for whoever takes it."""
    out.write(_head(200, {"Content-Type": "text/plain"}))
    for _ in range(1024):
        out.write(b"a line of text\n" * 69_905)
        await out.drain()


def silent(after: bytes = b"") -> Answer:
    """Begins, and never goes on; ends when its reader goes away."""

    async def answer(got: Got, out: asyncio.StreamWriter) -> None:
        out.write(_head(200, {"Content-Type": "text/plain", "Content-Length": "1000"}) + after)
        await out.drain()
        assert await got.reader.read(1) == b""
        raise OSError

    return answer
