"""A transport of the SDK, whose messages are also written down: same interface, nothing changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self

from mcp.shared.message import SessionMessage

from callgate.sources.message_log import ConnectionMessages, Direction

Incoming = SessionMessage | Exception
"""What the SDK reads from a transport."""


@asynccontextmanager
async def tap(
    transport: AbstractAsyncContextManager[Any], messages: ConnectionMessages
) -> AsyncIterator[tuple[_ReadTap, _WriteTap]]:
    async with transport as streams:
        incoming, outgoing, *_ = streams
        yield _ReadTap(incoming, messages), _WriteTap(outgoing, messages)


class _Tap:
    def __init__(self, stream: Any, messages: ConnectionMessages) -> None:
        self._stream = stream
        self._messages = messages

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        suppressed: bool | None = await self._stream.__aexit__(*error)
        return suppressed

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _add(self, direction: Direction, item: object) -> None:
        if isinstance(item, SessionMessage):
            message = item.message
            try:
                data = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
            except ValueError:  # a lone surrogate: the SDK refuses it, too
                data = b""
            self._messages.add(direction, message, data)


class _ReadTap(_Tap):
    async def receive(self) -> Incoming:
        item: Incoming = await self._stream.receive()
        self._add("received", item)
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Incoming:
        item: Incoming = await self._stream.__anext__()
        self._add("received", item)
        return item

    @property
    def last_context(self) -> Any:
        """The SDK looks here for the context in which a message came in."""
        return getattr(self._stream, "last_context", None)


class _WriteTap(_Tap):
    async def send(self, item: SessionMessage, /) -> None:
        self._add("sent", item)
        await self._stream.send(item)
