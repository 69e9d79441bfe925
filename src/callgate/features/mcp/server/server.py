"""The MCP server: handlers for all requests of the protocol.

    tools/list, call        the tools of the session, through the dispatcher; `tool_lists`
                            replaces a long list with a search
    resources/*, prompts/*  from the sources in `resources` and `local`
    logging, completion, subscriptions

A client's calls run in the session of that client, with the caller kind `mcp`. A client that
supports forms shows the questions for approval. The dashboard and the terminal can answer them as
well; the first answer counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import mcp_types as types
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from callgate.core.calls import CallerKind, ToolCall, ToolResult
from callgate.core.errors import ToolError
from callgate.core.events import COMPLETED, OUTPUT_DELTA, PROGRESS, Event
from callgate.core.ids import read_trace
from callgate.core.tasks import TaskSet
from callgate.core.version import __version__
from callgate.features.mcp.server import in_flight, tasks, tool_lists
from callgate.features.mcp.server.client_sessions import (
    ChangeNotices,
    ClientSession,
    ClientSessions,
    OpenForClient,
)
from callgate.features.mcp.server.in_flight import InFlightCalls, Readiness
from callgate.features.mcp.server.pending_requests import Context, Line, Long, PendingRequest
from callgate.features.mcp.server.resources import Here, Prompts, Resources, Typed, workspace_uri
from callgate.features.mcp.server.tasks import Tasks
from callgate.features.mcp.server.tool_lists import ToolSearch, page
from callgate.runtime import Registered, Runtime

_INSTRUCTIONS = """\
These tools work in a workspace behind callgate, which checks each call against the user's policy.
The error of a refused call names the rule: ask the user instead of trying to work around it."""
_MOST_COMPLETIONS = 100

_log = logging.getLogger("callgate.mcp")
T = TypeVar("T")


class Naming(NamedTuple):
    """The names and additional fields of the offered tools."""

    shown: Callable[[str], str | None] = str
    """Registered name -> name for clients; None: the tool is not offered."""
    meant: Callable[[str], str] = str
    """Name for clients -> registered name."""
    extra_fields: Callable[[str], Mapping[str, Any]] = lambda name: {}
    """Registered name -> additional fields of the tool for clients."""


AS_THEY_ARE = Naming()


class _Sdk(Server[Any]):
    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *args: Any, **more: Any
    ) -> InitializationOptions:
        says = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        return super().create_initialization_options(notification_options or says, *args, **more)


class McpServer:
    def __init__(
        self,
        runtime: Runtime,
        open_session: OpenForClient,
        *,
        resources: Sequence[Resources] = (),
        prompts: Sequence[Prompts] = (),
        naming: Naming = AS_THEY_ARE,
        elicits: bool = True,
        watches: bool = True,
        search_above: int = 0,
        instructions: str | None = _INSTRUCTIONS,
        readiness: Readiness | None = None,
    ) -> None:
        """Must be created in the event loop.

        `elicits`: clients receive questions. `watches`: clients may subscribe to resources. A
        client with more than `search_above` tools gets a search instead of the list; 0: always the
        list. Requests wait for `readiness`, if it is set.
        """
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._resources = resources
        self._prompts = prompts
        self._naming = naming
        self._watches = watches
        self._search = ToolSearch(search_above)
        self._working = TaskSet(_log, "work for an MCP client failed")
        self._in_flight = InFlightCalls(runtime, self._start_task, elicits=elicits)
        self._tasks = Tasks()
        self.client_sessions = ClientSessions(runtime, open_session, self._in_flight.confirm)
        self.changes = ChangeNotices(self.client_sessions, self._start_task)
        self.sdk = self._make(instructions, readiness)
        self._log = in_flight.ToolLog(self._in_flight.log)
        self._log.attach()
        self._unlisten = runtime.sessions.listen(self._heard)
        self._known = tuple(runtime.tools)
        self._unwatch = runtime.tools.listen(self._watch_tools)

    def _make(self, instructions: str | None, readiness: Readiness | None) -> Server[Any]:
        sdk = _Sdk(
            "callgate",
            version=__version__,
            instructions=instructions,
            get_tool_input_schema=self._input_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self.changes.listen,
            **self._beside(),
        )
        sdk.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._set_level)
        for method, answer in (
            ("tasks/get", self._get_task),
            ("tasks/update", self._update_task),
            ("tasks/cancel", self._cancel_task),
        ):
            sdk.add_request_handler(method, tasks.TaskParams, answer)
        sdk.extensions = {tasks.EXTENSION: {}}
        sdk.middleware[:] = (
            [] if readiness is None else [readiness]
        )  # without the SDK's default middleware: its trace spans are not collected
        return sdk

    def _beside(self) -> dict[str, Any]:
        """Return the handlers for resources and prompts. The SDK declares capabilities by them."""
        answers: dict[str, Any] = {}
        if self._resources:
            answers |= {
                "on_list_resources": self._list_resources,
                "on_list_resource_templates": self._list_templates,
                "on_read_resource": self._read_resource,
            }
        if self._resources and self._watches:
            answers |= {
                "on_subscribe_resource": self._subscribe,
                "on_unsubscribe_resource": self._unsubscribe,
            }
        if self._prompts:
            answers |= {"on_list_prompts": self._list_prompts, "on_get_prompt": self._get_prompt}
        return {**answers, "on_completion": self._complete} if answers else {}

    def exchange_of(self, call_id: str) -> PendingRequest[Any] | None:
        """Return the pending request of a call, for questions to its client."""
        return self._in_flight.of(call_id)

    def list_changed(self, kind: Literal["resources", "prompts"]) -> None:
        """Notify every client that a list has changed, if the server has such a list."""
        if kind == "resources" and self._resources:
            self.changes.resources()
        elif kind == "prompts" and self._prompts:
            self.changes.prompts()

    def log(self, call_id: str, line: Line) -> None:
        """Send a log line to the client of a call, if it wants this level."""
        self._in_flight.log(call_id, line)

    async def close(self) -> None:
        """Stop all requests. Idempotent."""
        self._unlisten()
        self._unwatch()
        self._log.detach()
        self.changes.close()
        self._in_flight.close()
        self._tasks.close()
        await self.client_sessions.close()
        await self._working.wait()

    # Tools.

    async def _list_tools(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        offered = self._runtime.tools.listed(self._visit(ctx).session)
        if self._search.replaces(offered):
            return types.ListToolsResult(tools=tool_lists.listed(offered))
        tools = list(self._shapes(offered).values())
        shown, more = page(tools, lambda each: each.name, _cursor(params))
        return types.ListToolsResult(tools=shown, next_cursor=more)

    def _shapes(self, tools: Sequence[Registered]) -> dict[str, types.Tool]:
        """Return the tools as a client sees them, by their registered names."""
        return {
            each.name: tool_lists.tool_of(each, name, self._naming.extra_fields(each.name))
            for each in tools
            if (name := self._naming.shown(each.name)) is not None
        }

    async def _call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        client_session, modern = self._visit(ctx), _is_modern(ctx)
        name, arguments = params.name, params.arguments or {}
        searches = self._searches(name, client_session)
        try:
            if searches and name == tool_lists.FIND:
                return await self._find_tools(client_session, arguments, modern=modern)
            if searches:
                name, arguments = tool_lists.named_call(arguments)
        except ToolError as error:
            return tool_lists.refusal(error, name, modern=modern)
        call = ToolCall(
            tool=self._naming.meant(name),
            arguments=arguments,
            session=client_session.session,
            caller=CallerKind.MCP,
            external_id=str(ctx.request_id),
            trace=read_trace(dict(ctx.meta or {})) if self._runtime.calls.is_traced else None,
        )

        def shape(result: ToolResult) -> dict[str, Any]:
            return tool_lists.result_of(result, name, modern=modern, was_searched=searches)

        patience_s = self._patience(ctx, call.tool)
        answer = await self._in_flight.attend(
            ctx, client_session, params, lambda: self._in_flight.begin(ctx, call), patience_s
        )
        match answer:
            case Long(pending):
                return self._tasks.add(client_session.key, pending, shape)
            case types.InputRequiredResult():
                return answer
        return shape(answer)

    def _searches(self, name: str, client_session: ClientSession) -> bool:
        """Return whether a name means `find_tools` or `call_tool`, not a tool of the session."""
        if self._search.schema_of(name) is None:
            return False
        session = client_session.session
        has_other = self._runtime.tools.find(name, session) is not None
        return not has_other or self._search.replaces(self._runtime.tools.listed(session))

    async def _find_tools(
        self, client_session: ClientSession, arguments: Mapping[str, Any], *, modern: bool
    ) -> dict[str, Any]:
        tools = self._runtime.tools.listed(client_session.session)
        answer = await self._search.find(arguments, self._shapes(tools), tools)
        return tool_lists.complete(answer, modern=modern)

    def _patience(self, ctx: Context, name: str) -> float | None:
        """Return the time until a call becomes a task; None: it never does."""
        tool = self._runtime.tools.find(name)
        tags = frozenset[str]() if tool is None else tool.definition.tags
        if tasks.REQUIRED in tags:
            tasks.ensure_wanted(ctx)
        if not tasks.wants_tasks(ctx):
            return None
        return 0.0 if tasks.TASK in tags else tasks.PATIENCE_S

    async def _get_task(self, ctx: Context, params: tasks.TaskParams) -> dict[str, Any]:
        tasks.ensure_named(ctx, params.task_id)
        return self._tasks.get(params.task_id, self._visit(ctx).key)

    async def _update_task(self, ctx: Context, params: tasks.TaskParams) -> dict[str, Any]:
        tasks.ensure_named(ctx, params.task_id)
        client_key = self._visit(ctx).key
        return self._tasks.update(params.task_id, client_key, params.input_responses)

    async def _cancel_task(self, ctx: Context, params: tasks.TaskParams) -> dict[str, Any]:
        tasks.ensure_named(ctx, params.task_id)
        return self._tasks.cancel(params.task_id, self._visit(ctx).key)

    # Resources.

    async def _list_resources(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        here = self._here(ctx, self._visit(ctx))
        found = [each for some in self._resources for each in await some.listed(here)]
        shown, more = page(found, lambda each: str(each.uri), _cursor(params))
        return types.ListResourcesResult(resources=shown, next_cursor=more)

    async def _list_templates(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        here = self._here(ctx, self._visit(ctx))
        found = [each for some in self._resources for each in await some.templates(here)]
        shown, more = page(found, lambda each: each.uri_template, _cursor(params))
        return types.ListResourceTemplatesResult(resource_templates=shown, next_cursor=more)

    async def _read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> Any:
        client_session = self._visit(ctx)
        uri = str(params.uri)

        async def work(pending: PendingRequest[Any]) -> types.ReadResourceResult:
            here = self._here(ctx, client_session, pending)
            for each in self._resources:
                if (contents := await each.read(uri, here)) is not None:
                    return types.ReadResourceResult(contents=list(contents))
            raise tool_lists.unknown_resource(uri, modern=_is_modern(ctx))

        return await self._in_flight.attend(
            ctx, client_session, params, lambda: PendingRequest(ctx, _plain(work, uri))
        )

    async def _subscribe(
        self, ctx: Context, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        self._visit(ctx).watched.add(str(params.uri))
        return types.EmptyResult()

    async def _unsubscribe(
        self, ctx: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        self._visit(ctx).watched.discard(str(params.uri))
        return types.EmptyResult()

    # Prompts, completion, logging.

    async def _list_prompts(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        here = self._here(ctx, self._visit(ctx))
        found = [each for some in self._prompts for each in await some.listed(here)]
        shown, more = page(found, lambda each: each.name, _cursor(params))
        return types.ListPromptsResult(prompts=shown, next_cursor=more)

    async def _get_prompt(self, ctx: Context, params: types.GetPromptRequestParams) -> Any:
        client_session = self._visit(ctx)

        async def work(pending: PendingRequest[Any]) -> types.GetPromptResult:
            here = self._here(ctx, client_session, pending)
            for each in self._prompts:
                found = await each.get(params.name, params.arguments or {}, here)
                if found is not None:
                    return found
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name[:200]}")

        return await self._in_flight.attend(
            ctx, client_session, params, lambda: PendingRequest(ctx, _plain(work))
        )

    async def _complete(
        self, ctx: Context, params: types.CompleteRequestParams
    ) -> types.CompleteResult:
        here = self._here(ctx, self._visit(ctx))
        found: list[str] = []
        given = params.context.arguments if params.context is not None else None
        typed = Typed(params.argument.name, params.argument.value, given or {})
        if isinstance(params.ref, types.ResourceTemplateReference):
            for source in self._resources:
                found += await source.complete(params.ref.uri, typed, here)
        else:
            for prompts in self._prompts:
                found += await prompts.complete(params.ref.name, typed, here)
        return types.CompleteResult(
            completion=types.Completion(
                values=found[:_MOST_COMPLETIONS],
                total=len(found),
                has_more=len(found) > _MOST_COMPLETIONS,
            )
        )

    async def _set_level(
        self, ctx: Context, params: types.SetLevelRequestParams
    ) -> types.EmptyResult:
        self._visit(ctx).level = params.level
        return types.EmptyResult()

    # Common to all requests.

    def _watch_tools(self) -> None:
        self._loop.call_soon_threadsafe(self._look_for_changes)  # combines concurrent changes

    def _look_for_changes(self) -> None:
        known, self._known = self._known, tuple(self._runtime.tools)
        if known != self._known:
            self.changes.tools()

    def _visit(self, ctx: Context) -> ClientSession:
        try:
            client_session = self.client_sessions.of(ctx)
        except ToolError as error:
            raise MCPError(types.INVALID_REQUEST, str(error), {"reason": error.reason}) from None
        for each in self.client_sessions.crowded():
            self._start_task(self.client_sessions.end(each.key))
        return client_session

    def _here(
        self,
        ctx: Context,
        client_session: ClientSession,
        pending: PendingRequest[Any] | None = None,
    ) -> Here:
        async def run(call: ToolCall) -> ToolResult:
            if pending is None:
                return await self._runtime.calls.run(call)
            return await self._in_flight.run(pending, call)

        return Here(client_session.session, run, pending)

    def _input_schema(self, name: str) -> dict[str, Any] | None:
        tool = self._runtime.tools.find(self._naming.meant(name))
        return self._search.schema_of(name) if tool is None else tool.definition.input_schema

    def _heard(self, event: Event) -> None:
        if event.type in (PROGRESS, OUTPUT_DELTA):
            self._in_flight.note(event)
        elif event.type == COMPLETED:
            for path in event.payload.get("files_modified") or ():
                self.changes.updated(workspace_uri(path))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._working.start(work)


def _plain(
    work: Callable[[PendingRequest[Any]], Coroutine[Any, Any, T]], uri: str | None = None
) -> Callable[[PendingRequest[Any]], Coroutine[Any, Any, T]]:
    """Convert the `ToolError`s of the work to protocol errors."""

    async def working(pending: PendingRequest[Any]) -> T:
        try:
            return await work(pending)
        except ToolError as error:
            raise tool_lists.error_of(error, uri) from None

    return working


def _cursor(params: types.PaginatedRequestParams | None) -> str | None:
    return None if params is None else params.cursor


def _is_modern(ctx: Context) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
