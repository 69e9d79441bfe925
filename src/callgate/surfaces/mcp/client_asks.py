"""What a wrapped server asks while a call of it runs, to the client behind the call.

A form of the server is shown by the client, under the server's name; a prompt goes to the
client's own model. Where the client can do neither, it is asked here as for any other server.
"""

from __future__ import annotations

import secrets

import mcp_types as types
from mcp.shared.exceptions import MCPError

from callgate.core.errors import ToolError
from callgate.sessions.markdown import visible_lines
from callgate.sources.mcp.asks import (
    Asks,
    Calling,
    Changed,
    Filled,
    Form,
    Logged,
    Refused,
    Sample,
    Sampled,
)
from callgate.surfaces.mcp.logs import LEVELS
from callgate.surfaces.mcp.notifications import Line
from callgate.surfaces.mcp.pending_requests import PendingRequest
from callgate.surfaces.mcp.server import McpServer


class ClientAsks:
    """`sources.mcp.asks.Asks` by the client of the call."""

    def __init__(self, otherwise: Asks) -> None:
        self._otherwise = otherwise
        self.server: McpServer | None = None
        """Whose clients are asked; set once there is one."""

    async def fill(self, server: str, form: Form, calling: Calling) -> Filled:
        pending = self._pending(calling)
        if pending is None or not _can_show(pending, form):
            return await self._otherwise.fill(server, form, calling)
        result = await _ask(pending, _request(server, form))
        assert isinstance(result, types.ElicitResult)
        content = None if result.content is None else dict(result.content)
        return Filled(action=result.action, content=content)

    async def sample(self, server: str, sample: Sample, calling: Calling) -> Sampled:
        pending = self._pending(calling)
        if pending is None or not pending.can(types.CreateMessageRequest):
            return await self._otherwise.sample(server, sample, calling)
        result = await _ask(pending, _prompt(sample))
        content = getattr(result, "content", None)
        if not isinstance(result, types.CreateMessageResult) or not isinstance(
            content, types.TextContent
        ):
            raise Refused("the client's model gave no text")
        return Sampled(text=content.text, model=result.model, stop=result.stop_reason or "endTurn")

    def logged(self, line: Logged, calling: Calling) -> None:
        if self.server is not None and line.level in LEVELS:
            shown = Line(LEVELS[LEVELS.index(line.level)], line.logger, visible_lines(line.text))
            self.server.log(calling.context.tool_use_id, shown)

    def changed(self, changed_list: Changed) -> None:
        if self.server is not None:
            self.server.list_changed(changed_list)

    def _pending(self, calling: Calling) -> PendingRequest[object] | None:
        if self.server is None:
            return None
        return self.server.exchange_of(calling.context.tool_use_id)


def _can_show(pending: PendingRequest[object], form: Form) -> bool:
    if form.url is None:
        return pending.shows_forms
    elicitation = None if pending.capabilities is None else pending.capabilities.elicitation
    return elicitation is not None and elicitation.url is not None


async def _ask(pending: PendingRequest[object], request: types.InputRequest) -> types.InputResponse:
    name = secrets.token_hex(8)
    try:
        return (await pending.ask({name: request}))[name]
    except (MCPError, ToolError) as error:
        raise Refused(str(error)) from None


def _request(server: str, form: Form) -> types.ElicitRequest:
    """Under the name of the server, so that it cannot pass for a question of ours."""
    message = f"The MCP server {server} asks: {visible_lines(form.message)}"
    if form.url is None:
        params = types.ElicitRequestFormParams(message=message, requested_schema=form.schema)
        return types.ElicitRequest(params=params)
    return types.ElicitRequest(
        params=types.ElicitRequestURLParams(
            message=message, url=form.url, elicitation_id=secrets.token_hex(16)
        )
    )


def _prompt(sample: Sample) -> types.CreateMessageRequest:
    messages = [
        types.SamplingMessage.model_validate(
            {"role": each.role, "content": {"type": "text", "text": each.text}}
        )
        for each in sample.turns
    ]
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(
            messages=messages,
            system_prompt=sample.system or None,
            max_tokens=sample.max_tokens,
        )
    )
