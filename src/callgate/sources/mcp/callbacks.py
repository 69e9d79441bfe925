"""What an MCP server asks back, in the SDK's words, and whose call it asks for."""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import urlsplit
from urllib.request import pathname2url

import mcp_types as types
import msgspec
from mcp.client.session import ClientRequestContext, IncomingMessage

from callgate.sources.mcp import asks as asking
from callgate.sources.mcp.asks import (
    Asks,
    Calling,
    Filled,
    Form,
    Logged,
    Refused,
    Sample,
    Turn,
    current,
)
from callgate.sources.mcp.outputs import plain

MOST_TURNS = 100
LONGEST_LINE = 8_000
"""Characters of a line of a server's log."""


class Callbacks:
    def __init__(self, server: str, roots: tuple[str, ...], asks: Asks | None) -> None:
        self._server = server
        self._roots = roots
        self._asks = asks
        self.calls: list[Calling] = []
        """Those under way."""

    def _calling(self) -> Calling:
        """The call for which the server asks: known by HTTP and in the newer generation, else
        the one that runs. Of calls of two sessions nobody can tell which one it is."""
        calling = current.get()
        if calling is not None:
            return calling
        if len({each.context.session_id for each in self.calls}) != 1:
            raise Refused("no call, or calls of several sessions, could have asked for this")
        return self.calls[-1]

    def note(self, message: IncomingMessage) -> None:
        """What a server tells without being asked. Whose call it is about may be unknown: then
        nobody hears of it."""
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
                with contextlib.suppress(Refused):
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
                raise Refused("only addresses of http and https are shown")
            filled: Filled = await self._asks.fill(self._server, form, self._calling())
        except Refused as refused:
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
        except Refused as refused:
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
                raise Refused("only text can be given to the model")
            turns.append(Turn(role=message["role"], text=block["text"]))
    if not turns or len(turns) > MOST_TURNS:
        raise Refused(f"1 to {MOST_TURNS} messages are taken")
    return Sample(
        turns=tuple(turns),
        system=params.get("systemPrompt") or "",
        max_tokens=max(1, min(int(params.get("maxTokens", 1_000)), 32_000)),
    )
