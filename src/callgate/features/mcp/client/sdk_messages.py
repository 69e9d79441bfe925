"""Conversions for the MCP SDK: tool results, server requests, and a transport that logs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import pathname2url

import mcp_types as types
import msgspec
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.shared.message import SessionMessage

from callgate.core.content import ContentBlock, ImageBlock, ImageSource, TextBlock
from callgate.core.tools import ToolOutput
from callgate.features.mcp.client import server_requests as asking
from callgate.features.mcp.client.server_requests import (
    Asks,
    Calling,
    Filled,
    Form,
    Logged,
    Sample,
    ServerRequestRefused,
    Turn,
    current,
)
from callgate.protocol.provider_shapes import MCP_CONTENT
from callgate.sources.logs import ConnectionMessages, Direction

_IMAGES = "image/"
_OURS = ({"type", "text"}, {"type", "data", "mimeType"})
"""Keys of content blocks that callgate's own blocks represent completely."""


def to_output(result: types.CallToolResult) -> ToolOutput:
    """Convert a result. Structured content becomes the value, and the text if there is no other."""
    structured = result.structured_content
    content = [block for each in result.content for block in _blocks(each)]
    if not content and structured is not None:
        content = [TextBlock(msgspec.json.encode(structured).decode())]
    return ToolOutput(
        content=content,
        success=not result.is_error,
        metadata=_as_it_is(result.content),
        value=msgspec.UNSET if structured is None else structured,
    )


def _as_it_is(content: list[types.ContentBlock]) -> dict[str, Any]:
    """Return the original blocks for MCP clients, if callgate's blocks lose part of them.

    Examples are audio, resources and annotations such as the audience.
    """
    blocks = [plain(each) for each in content]
    if all(each.keys() in _OURS for each in blocks):
        return {}
    return {MCP_CONTENT: blocks}


def _blocks(block: types.ContentBlock) -> Iterator[ContentBlock]:
    match block:
        case types.TextContent():
            yield TextBlock(block.text)
        case types.ImageContent():
            yield ImageBlock(source=ImageSource(data=block.data), media_type=block.mime_type)
        case types.AudioContent():
            yield TextBlock(f"[audio, {block.mime_type}, {_size(block.data)} bytes]")
        case types.ResourceLink():
            named = f"{block.title or block.name}: " if block.name else ""
            yield TextBlock(f"{named}{block.uri}")
        case types.EmbeddedResource():
            yield from to_blocks(block.resource)


def to_blocks(
    resource: types.TextResourceContents | types.BlobResourceContents,
) -> Iterator[ContentBlock]:
    """Convert the contents of a resource."""
    if isinstance(resource, types.TextResourceContents):
        yield TextBlock(resource.text)
        return
    kind = resource.mime_type or "application/octet-stream"
    if kind.startswith(_IMAGES):
        yield ImageBlock(source=ImageSource(data=resource.blob), media_type=kind)
    else:
        yield TextBlock(f"[{resource.uri}, {kind}, {_size(resource.blob)} bytes]")


def _size(data: str) -> int:
    """Return the decoded size of base64 data."""
    return len(data) * 3 // 4 - data[-2:].count("=")


def plain(value: Any) -> Any:
    """Return a value of the SDK as JSON data."""
    return value.model_dump(by_alias=True, mode="json", exclude_none=True)


MOST_TURNS = 100
LONGEST_LINE = 8_000
"""Maximum length of a log line of a server, in characters."""


class Callbacks:
    def __init__(self, server: str, roots: tuple[str, ...], asks: Asks | None) -> None:
        self._server = server
        self._roots = roots
        self._asks = asks
        self.calls: list[Calling] = []
        """Calls in flight."""

    def _calling(self) -> Calling:
        """Return the call that a server's request belongs to.

        HTTP and the modern protocol versions identify it. Otherwise it is the last running call,
        unless calls of several sessions are running. Raises `ServerRequestRefused`
        if it is ambiguous.
        """
        calling = current.get()
        if calling is not None:
            return calling
        if len({each.context.session_id for each in self.calls}) != 1:
            raise ServerRequestRefused(
                "the request does not belong to a call of exactly one session"
            )
        return self.calls[-1]

    def note(self, message: IncomingMessage) -> None:
        """Forward a notification. A log message is dropped if its call is unknown."""
        if self._asks is None:
            return
        match message:
            case types.ResourceListChangedNotification():
                self._asks.changed("resources")
            case types.PromptListChangedNotification():
                self._asks.changed("prompts")
            case types.LoggingMessageNotification(params=params):
                data = params.data
                text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
                line = Logged(level=params.level, logger=params.logger, text=text[:LONGEST_LINE])
                with contextlib.suppress(ServerRequestRefused):
                    self._asks.logged(line, self._calling())

    async def list_roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        uris = [f"file://{pathname2url(each)}" for each in self._roots]
        return types.ListRootsResult.model_validate({"roots": [{"uri": uri} for uri in uris]})

    async def fill(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        assert self._asks is not None
        fields = plain(params)
        form = Form(
            message=str(fields.get("message", "")),
            schema=fields.get("requestedSchema") or {},
            url=fields.get("url"),
        )
        try:
            if form.url is not None and urlsplit(form.url).scheme not in ("http", "https"):
                raise ServerRequestRefused("only http and https URLs are supported")
            filled: Filled = await self._asks.fill(self._server, form, self._calling())
        except ServerRequestRefused as refused:
            return types.ErrorData(code=types.INVALID_REQUEST, message=str(refused))
        return types.ElicitResult.model_validate(
            {"action": filled.action, "content": filled.content}
        )

    async def sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        assert self._asks is not None
        try:
            sample = _read_sample(plain(params))
            sampled: asking.Sampled = await self._asks.sample(self._server, sample, self._calling())
        except ServerRequestRefused as refused:
            return types.ErrorData(code=-1, message=str(refused))
        return types.CreateMessageResult(
            role="assistant",
            content=types.TextContent(type="text", text=sampled.text),
            model=sampled.model,
            stop_reason=sampled.stop,
        )


def _read_sample(params: dict[str, Any]) -> Sample:
    turns: list[Turn] = []
    for message in params.get("messages", [])[: MOST_TURNS + 1]:
        content = message["content"]
        for block in content if isinstance(content, list) else [content]:
            if block.get("type") != "text":
                raise ServerRequestRefused("only text messages are supported")
            turns.append(Turn(role=message["role"], text=block["text"]))
    if not turns or len(turns) > MOST_TURNS:
        raise ServerRequestRefused(f"the number of messages must be 1 to {MOST_TURNS}")
    return Sample(
        turns=tuple(turns),
        system=params.get("systemPrompt") or "",
        max_tokens=max(1, min(int(params.get("maxTokens", 1_000)), 32_000)),
    )


Incoming = SessionMessage | Exception
"""An item that the SDK reads from a transport."""


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
            except ValueError:  # a lone surrogate: the SDK refuses it as well
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
        """The context of the last received message, which the SDK reads here."""
        return getattr(self._stream, "last_context", None)


class _WriteTap(_Tap):
    async def send(self, item: SessionMessage, /) -> None:
        self._add("sent", item)
        await self._stream.send(item)
