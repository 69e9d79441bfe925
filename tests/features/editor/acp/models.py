"""A language model on loopback that plays to each conversation what its test wrote for it.

    play = models.play(Says(calls=[Asks("read_file", {"path": "a"})]), Says("Done."))
    await talk.prompt(f"look {play}")

A prompt names its play (`#p7#`); each request of that conversation gets the next reply. So one
agent serves many tests at a time, and a test sees what its model was told: `play.requests`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.models_server import Asks, Fails, Says, stream

LIMIT_S = 60.0

__all__ = ["Asks", "Fails", "Held", "Models", "Play", "Says", "texts"]


class Held:
    """A reply that waits to be let go; `asked` is set when the model has been asked for it."""

    def __init__(self, reply: Says) -> None:
        self.reply = reply
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.left = asyncio.Event()
        """Set when the agent gave up before it was let go."""

    async def reached(self) -> None:
        await asyncio.wait_for(self.asked.wait(), LIMIT_S)

    async def dropped(self) -> None:
        await asyncio.wait_for(self.left.wait(), LIMIT_S)


Step = Says | Fails | Held


class Play:
    def __init__(self, key: str, steps: tuple[Step, ...]) -> None:
        self._key = key
        self.steps = list(steps)
        self.requests: list[dict[str, Any]] = []

    def __str__(self) -> str:
        return f"#{self._key}#"

    def next(self, request: dict[str, Any]) -> Step:
        self.requests.append(request)
        if len(self.requests) > len(self.steps):
            return Fails(400, {"type": "error", "error": {"type": "invalid_request_error", "message": "no more"}})
        return self.steps[len(self.requests) - 1]

    def told(self, number: int = -1) -> str:
        """What the last message of a request said, as text."""
        return texts(self.requests[number]["messages"][-1])


class Models:
    def __init__(self) -> None:
        self._plays: dict[str, Play] = {}
        self.url = ""

    def play(self, *steps: Step) -> Play:
        key = f"p{len(self._plays)}"
        made = self._plays[key] = Play(key, steps)
        return made

    def _of(self, request: dict[str, Any]) -> Play | None:
        """The play that was named last in what the user said."""
        for message in reversed(request["messages"]):
            if message["role"] == "user":
                named = re.findall(r"#(p\d+)#", texts(message, results=False))
                if named:
                    return self._plays.get(named[-1])
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                size = int(re.findall(r"(?i)content-length: *(\d+)", head)[0])
                request = json.loads(await reader.readexactly(size))
                play = self._of(request)
                step: Step = Fails(400, {"error": {"message": "no play"}}) if play is None else play.next(request)
                await _answer(step, head.split(" ")[1], request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _answer(
    step: Step, target: str, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    if isinstance(step, Held):
        step.asked.set()
        going = asyncio.ensure_future(step.go.wait())
        leaving = asyncio.ensure_future(reader.read(1))
        await asyncio.wait({going, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not going.done():
            going.cancel()
            step.left.set()
            raise ConnectionError
        leaving.cancel()
        await asyncio.wait({leaving})
        step = step.reply
    if isinstance(step, Fails):
        status, kind, body = step.status, "application/json", json.dumps(step.body).encode()
    else:
        status, kind, body = 200, "text/event-stream", stream(step, target, request)
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


def texts(message: dict[str, Any], *, results: bool = True) -> str:
    """The texts of a message, those of its tool results with them, one a line."""
    content = message["content"]
    if isinstance(content, str):
        return content
    found = []
    for block in content:
        if block["type"] == "text":
            found.append(block["text"])
        elif block["type"] == "tool_result" and results:
            found.append(texts(block))
    return "\n".join(found)


@asynccontextmanager
async def served() -> AsyncIterator[Models]:
    models = Models()
    connected: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connected.add(task)
        task.add_done_callback(connected.discard)
        try:
            await models._serve(reader, writer)
        except asyncio.CancelledError:
            pass

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=64 * 1024 * 1024)
    models.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield models
    finally:
        server.close()
        for task in list(connected):
            task.cancel()
        await asyncio.gather(*connected, return_exceptions=True)
