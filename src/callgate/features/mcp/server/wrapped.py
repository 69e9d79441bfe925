"""MCP server of `callgate mcp wrap`: one upstream server, with policy and audit log in between."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import ToolError
from callgate.core.sessions import Session
from callgate.core.tasks import start_task
from callgate.core.texts import visible_lines
from callgate.features.mcp.client.definitions import readable, readable_schema, rule_name
from callgate.features.mcp.client.fetches import NOT_FETCHED
from callgate.features.mcp.client.server_requests import (
    Asks,
    Calling,
    Changed,
    DispatchedAsks,
    Filled,
    Form,
    Logged,
    Sample,
    Sampled,
    ServerRequestRefused,
)
from callgate.features.mcp.client.server_tools import McpTools, name_server
from callgate.features.mcp.client.servers import ServerLocation
from callgate.features.mcp.server.in_flight import LEVELS, Readiness
from callgate.features.mcp.server.pending_requests import Line, PendingRequest
from callgate.features.mcp.server.resources import Contents, Here, Typed, value_of
from callgate.features.mcp.server.server import McpServer, Naming
from callgate.features.mcp.settings import McpTable
from callgate.features.mcp.wiring import make_wrapped
from callgate.instance.wiring.runtime import Wired

_MOST_PAGES = 20
_UNKNOWN = (types.INVALID_PARAMS, -32002)
"""Error codes for an unknown resource or prompt."""

M = TypeVar("M", bound=BaseModel)


class _ServerRequests:
    def __init__(self, server: str, has: Collection[str]) -> None:
        """`has`: the requests that the server supports, named as in rules."""
        self._server = server
        self._has = has

    async def _ask(
        self, request: str, arguments: dict[str, Any], here: Here
    ) -> dict[str, Any] | None:
        """Send a request. None if the server does not support it or the object is unknown."""
        if request not in self._has:
            return None
        call = ToolCall(
            tool=rule_name(self._server, request),
            arguments=arguments,
            session=here.session,
            caller=CallerKind.MCP,
        )
        result = await here.run(call)
        if result.error is not None and result.error.detail_fields.get("code") in _UNKNOWN:
            return None
        answer: dict[str, Any] = value_of(result)
        return answer

    async def _all(self, request: str, key: str, kind: type[M], here: Here) -> list[M]:
        found: list[M] = []
        cursor: dict[str, Any] = {}
        for _ in range(_MOST_PAGES):
            answer = await self._ask(request, cursor, here)
            if answer is None:
                break
            found += [kind.model_validate(each) for each in answer.get(key, ())]
            if not answer.get("nextCursor"):
                break
            cursor = {"cursor": answer["nextCursor"]}
        return found

    async def _complete(self, of: dict[str, Any], typed: Typed, here: Here) -> Sequence[str]:
        params = {**of, "argument": typed.name, "value": typed.value}
        if typed.given:
            params["context"] = dict(typed.given)
        answer = await self._ask("completion", params, here) or {}
        return [str(each) for each in answer.get("completion", {}).get("values", ())]


class WrappedResources(_ServerRequests):
    async def listed(self, here: Here) -> Sequence[types.Resource]:
        return await self._all("resources/list", "resources", types.Resource, here)

    async def templates(self, here: Here) -> Sequence[types.ResourceTemplate]:
        answer = await self._ask("resources/list", {}, here) or {}
        found = answer.get("resourceTemplates", ())
        return [types.ResourceTemplate.model_validate(each) for each in found]

    async def read(self, uri: str, here: Here) -> Sequence[Contents] | None:
        answer = await self._ask("resources/read", {"uri": uri}, here)
        return None if answer is None else types.ReadResourceResult.model_validate(answer).contents

    async def complete(self, template: str, typed: Typed, here: Here) -> Sequence[str]:
        return await self._complete({"template": template}, typed, here)


class WrappedPrompts(_ServerRequests):
    async def listed(self, here: Here) -> Sequence[types.Prompt]:
        return await self._all("prompts/list", "prompts", types.Prompt, here)

    async def get(
        self, name: str, arguments: Mapping[str, str], here: Here
    ) -> types.GetPromptResult | None:
        params = {"name": name, "arguments": dict(arguments)}
        answer = await self._ask("prompts/get", params, here)
        return None if answer is None else types.GetPromptResult.model_validate(answer)

    async def complete(self, prompt: str, typed: Typed, here: Here) -> Sequence[str]:
        return await self._complete({"prompt": prompt}, typed, here)


def extra_fields(entry: Mapping[str, Any], *, trusted: bool) -> dict[str, Any]:
    """Return the fields of the server's tool that callgate's definition lacks.

    They are its title, its output schema and, if the server is trusted, its annotations.
    """
    hints = entry.get("annotations", {})
    extra: dict[str, Any] = {"annotations": dict(hints) if trusted else {}}
    for names, into in ((entry, extra), (hints, extra["annotations"])):
        if "title" in names:
            into["title"] = readable(names["title"])
    if "outputSchema" in entry:
        extra["outputSchema"] = readable_schema(entry["outputSchema"])
    return extra


class ClientAsks:
    """Implements `Asks` with the client of the call."""

    def __init__(self, otherwise: Asks) -> None:
        self._otherwise = otherwise
        self.server: McpServer | None = None
        """The server for callgate's clients; set once it is created."""

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
            raise ServerRequestRefused("the client's model returned no text")
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
        raise ServerRequestRefused(str(error)) from None


def _request(server: str, form: Form) -> types.ElicitRequest:
    """Return the form with the server's name, so that it cannot look like a callgate question."""
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


class Problem(NamedTuple):
    text: str
    says_what_to_do: bool


class WrappedServer:
    """Context manager of one upstream server. Entering starts a server that is not pinned yet."""

    def __init__(
        self,
        wired: Wired,
        session: Session,
        name: str,
        table: McpTable,
        look: str,
        *,
        elicits: bool,
    ) -> None:
        """`look` is the command that approves the server's tools."""
        self._name = name
        self._session = session
        self._registry = wired.registry
        self._trusted = table.trusted
        self._readiness = Readiness()
        asks = ClientAsks(DispatchedAsks(wired.runtime.calls.run, self._registry, wired.open_model))
        self._servers = make_wrapped(
            wired.home, name, table, wired.sandbox, asks, look, self._report
        )
        self._tools = McpTools(self._servers, self._registry)
        self._schemas: dict[str, Mapping[str, Any]] = {}
        self._meant: dict[str, str] = {}
        """Name on the server -> registered name."""
        self._shown: dict[str, str] = {}
        self._requests: list[str] = []
        """Supported requests other than tool calls, named as in rules."""
        self._failure: Problem | None = None
        self._opening: asyncio.Task[None] | None = None
        doubt = self._servers.doubt(name)
        self.doubt = None if doubt is None else doubt.problem
        self._is_new = doubt is None and name in self._servers.unknown()
        if doubt is None and not self._is_new:
            self._offer()
        self.server = self._make(wired, elicits=elicits)
        asks.server = self.server

    async def __aenter__(self) -> Self:
        if self._is_new:
            self._opening = start_task(self._open())
        else:
            self._readiness.done()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        await self._servers.close()

    async def problem(self) -> Problem | None:
        """Return why the server cannot be used, or None. Waits for the start if no client came."""
        if self._opening is not None and not self._readiness.is_used:
            await asyncio.wait({self._opening})
        return self._failure

    async def _open(self) -> None:
        """Start a new server, and pin its definitions (trust on first use)."""
        location = ServerLocation(self._session.workspace, self._session.extra_roots)
        try:
            pinned = await self._servers.ask(self._name, location)
        except ToolError as error:
            self._failure = Problem(str(error), error.reason == NOT_FETCHED)
            text = name_server(self._name, str(error))
            if self._readiness.is_used:
                say(f"error (host_unavailable): {visible(text)}")
            self._readiness.fail(text)
            return
        self._servers.pin_first(self._name, pinned)
        self._offer()
        self._readiness.done()

    def _offer(self) -> None:
        """Offer the pinned tools."""
        self._registry.add(self._tools)
        # If two tools get the same registered name, only one is registered.
        registered = {
            each.aliases[0].partition("/")[2]: each.name
            for each in self._servers.definitions(self._name)
            if self._registry.find(each.aliases[0]) is not None
        }
        for entry in self._tools.entries():
            if entry.problem is not None:
                say(f"MCP server {self._name}: {entry.problem}")
        pinned = self._servers.pinned(self._name)
        assert pinned is not None
        self._schemas.update({each["name"]: each for each in pinned.schemas})
        self._requests += [each for each in registered if each not in self._schemas]
        self._meant.update({each: registered[each] for each in registered if each in self._schemas})
        self._shown.update({name: each for each, name in self._meant.items()})

    def _make(self, wired: Wired, *, elicits: bool) -> McpServer:
        def has(request: str) -> bool:
            return self._is_new or request in self._requests

        resources = WrappedResources(self._name, self._requests)
        prompts = WrappedPrompts(self._name, self._requests)
        return McpServer(
            wired.runtime,
            lambda wish: self._session,
            resources=[resources] if has("resources/list") else [],
            prompts=[prompts] if has("prompts/list") else [],
            naming=Naming(
                self._shown.get, lambda each: self._meant.get(each, ""), self._extra_fields
            ),
            instructions=None,
            elicits=elicits,
            watches=False,
            readiness=self._readiness,
        )

    def _extra_fields(self, registered: str) -> dict[str, Any]:
        schema = self._schemas[self._shown[registered]]
        return extra_fields(schema, trusted=self._trusted)

    def _report(self, text: str) -> None:
        say(text)
        self._readiness.tell(text)
