"""One connection to an MCP server, over a local process or HTTP.

    open() -> negotiate (discover, else initialize) -> list the tools -> ready
    call() -> tools/call, with progress; requests of the server go to `asks`, with their call

The SDK's client lives in one dedicated task, and callers only wait. If the process ends, every
call in flight fails immediately.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from importlib.metadata import version
from typing import Any, TypeVar

import mcp_types as types
from mcp.client.client import Client
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import event_to_notification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict

from callgate.core.errors import ToolError, ToolRegistrationError
from callgate.core.tasks import start_task
from callgate.core.tools import ToolContext, ToolDefinition
from callgate.features.mcp.client.definitions import MOST_TOOLS, PINNED, names_of
from callgate.features.mcp.client.sdk_messages import Callbacks, plain, tap
from callgate.features.mcp.client.server_requests import Asks, Calling, current
from callgate.features.mcp.client.stdio import Link
from callgate.redaction.texts import redact
from callgate.sources.lifecycle import ReadOnlyCalls, ended
from callgate.sources.logs import ConnectionMessages, LifeLog
from callgate.sources.pins import LARGEST, fingerprint

MOST_PAGES = 100
LONGEST_PROGRESS = 1_000
"""Maximum length of a progress message, in characters."""
LONGEST_LAST = 300
"""Maximum quoted length of the last line that an ended process wrote, in characters."""
RELEARN_S = 30.0
"""Time limit for listing the tools again."""
SETTLE_S = 0.5
"""Time limit for detecting that a connection is closed."""
_CLOSED = "Connection closed"
"""Error message of the SDK for a closed connection."""
T = TypeVar("T")
# Python would print the SDK's tracebacks on the terminal if there were no handler.
logging.getLogger("mcp.client").addHandler(logging.NullHandler())
_IDENTITY = types.Implementation(name="callgate", version=version("callgate"))

Opened = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens a transport of the SDK."""


class Connection:
    def __init__(
        self,
        server: str,
        transport: Opened,
        roots: tuple[str, ...],
        log: LifeLog,
        *,
        asks: Asks | None = None,
        elicitation: bool = True,
        sampling: bool = False,
        messages: ConnectionMessages | None = None,
        relearned: Callable[[Connection], None] | None = None,
        distrust: Callable[[str], str] | None = None,
    ) -> None:
        """`relearned` is called when the server's tools have changed; `messages` logs each message.

        `distrust` quarantines a read-only process that tried to write, and returns what ends the
        quarantine.
        """
        self.server = server
        self.log = log
        self.tools: list[dict[str, Any]] = []
        """The tools of the present list, each with its pinned fields only."""
        self.prints: dict[str, str] = {}
        """Tool name -> fingerprint."""
        self.problem: str | None = None
        """Why the present list cannot be used."""
        self._transport = transport
        self._messages = messages
        self._on_relearned = relearned
        self._read_only_calls = None if distrust is None else ReadOnlyCalls(distrust)
        self._callbacks = Callbacks(server, roots, asks)
        self._elicitation = asks is not None and elicitation
        self._sampling = asks is not None and sampling
        self._client: Client | None = None
        self._closing = asyncio.Event()
        self._stale = asyncio.Event()
        """Set by a notification that the tools have changed."""
        self._relearned = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner: asyncio.Task[None] | None = None
        self.link: Link | None = None
        self.disconnected = asyncio.Event()
        """Set once no further request is possible."""
        self.quiet = asyncio.Event()
        """Set while no call runs."""
        self.quiet.set()

    # --- lifecycle ----------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect and list the tools, or raise the error. A cancelled caller must call `close`."""
        self._owner = start_task(self._live())
        await asyncio.shield(self._ready)

    async def close(self) -> None:
        self._closing.set()
        if self._owner is None:
            return
        if not self._ready.done():
            self._owner.cancel()
        await asyncio.wait({self._owner})
        if not self._ready.done():
            self._ready.cancel()

    def kill(self) -> None:
        """Stop the process without waiting."""
        self._closing.set()
        if self.link is not None:
            self.link.kill()

    @property
    def is_open(self) -> bool:
        return self._client is not None and not self.disconnected.is_set()

    async def is_lost(self, error: Exception) -> bool:
        """Return whether a request failed because the connection was lost.

        A server may send the same error code itself, so this checks the connection, not the code.
        """
        if _is_closed(error):
            try:
                async with asyncio.timeout(SETTLE_S):
                    await self.disconnected.wait()
            except TimeoutError:
                pass
        return not self.is_open

    @property
    def busy(self) -> int:
        return len(self._callbacks.calls)

    async def _live(self) -> None:
        try:
            async with self._entered() as client:
                self._client = client
                await self._learn(client)
                if not self._ready.done():
                    self._ready.set_result(None)
                await self._stay(client)
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(self._reason(_innermost(error)))
                self._ready.exception()  # marks it as retrieved: the waiting caller may be gone
            elif isinstance(error, asyncio.CancelledError):
                raise
            elif not self._closing.is_set():
                self.log.note(f"the connection was lost: {type(_innermost(error)).__name__}")
        finally:
            self._client = None
            self.disconnected.set()

    def _reason(self, error: BaseException) -> BaseException:
        """Return the error; for an ended process, its exit status and its last line."""
        if self.link is None or not _is_closed(error):
            return error
        last = self.log.last_words[:LONGEST_LAST]
        suffix = f"; its last line: {redact(last)}" if last else ""
        return ToolError(f"it {ended(self.link.exit)} before it answered{suffix}")

    @asynccontextmanager
    async def _entered(self) -> AsyncIterator[Client]:
        transport = self._transport()
        if isinstance(transport, Link):
            self.link = transport
            transport.ended = self.disconnected
        if self._messages is not None:
            transport = tap(transport, self._messages)
        async with Client(
            transport,
            client_info=_IDENTITY,
            cache=None,
            list_roots_callback=self._callbacks.list_roots,
            message_handler=self._notice,
            elicitation_callback=self._callbacks.fill if self._elicitation else None,
            sampling_callback=self._callbacks.sample if self._sampling else None,
        ) as client:
            # The SDK would match untrusted patterns with Python's backtracking `re` (ReDoS).
            # `tools.ResultSchema` checks the results instead.
            client.session.validate_tool_result = _unchecked  # type: ignore[method-assign]
            yield client

    async def _stay(self, client: Client) -> None:
        """Wait until the connection closes or the process ends, even with requests pending."""
        async with asyncio.TaskGroup() as group:
            beside = self._listen(client), self._keep_up(client)
            tasks = [group.create_task(each) for each in beside]
            waits = [group.create_task(each.wait()) for each in (self._closing, self.disconnected)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in (*tasks, *waits):
                each.cancel()

    async def _keep_up(self, client: Client) -> None:
        """List the tools again after each notification of a change."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            await self._relearn(client)

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes, which the modern protocol versions require."""
        capabilities = client.server_capabilities
        lists = (capabilities.tools, capabilities.resources, capabilities.prompts)
        tools, resources, prompts = (bool(each and each.list_changed) for each in lists)
        modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        if not modern or not (tools or resources or prompts):
            return
        try:
            async with client.listen(
                tools_list_changed=tools,
                resources_list_changed=resources,
                prompts_list_changed=prompts,
            ) as subscription:
                async for event in subscription:
                    await self._notice(event_to_notification(event, {}))
        except (MCPError, ListenNotSupportedError, SubscriptionLost, TimeoutError) as error:
            self.log.note(f"no notifications of changes: {type(error).__name__}")

    async def _notice(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._stale.set()
        self._callbacks.note(message)

    # --- tools ----------------------------------------------------------------------------------

    async def _learn(self, client: Client) -> None:
        if client.server_capabilities.tools is None:
            return
        tools: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += [_pinned(tool) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None or len(tools) > MOST_TOOLS:
                break
        names = names_of(tools, self.server)
        if sum(len(str(tool)) for tool in tools) > LARGEST:
            raise ToolRegistrationError(f"its tool definitions exceed {LARGEST} bytes")
        self.tools = tools
        self.prints = dict(zip(names, map(fingerprint, tools), strict=True))

    async def _relearn(self, client: Client) -> None:
        """Replace the list of tools. An unreadable list counts as changed."""
        try:
            async with asyncio.timeout(RELEARN_S):
                await self._learn(client)
            self.problem = None
        except (MCPError, ToolRegistrationError, ValueError, TimeoutError) as error:
            self.tools, self.prints = [], {}
            self.problem = str(error) or f"no new list within {RELEARN_S:g} s"
        self.log.note("its tools have changed" + (f": {self.problem}" if self.problem else ""))
        self._relearned.set()
        self._relearned.clear()
        if self._on_relearned is not None:
            self._on_relearned(self)

    async def relearned(self) -> None:
        """Wait until the tools are listed again."""
        await self._relearned.wait()

    @property
    def client(self) -> Client:
        if self._client is None:
            raise MCPError(code=types.CONNECTION_CLOSED, message=_CLOSED)
        return self._client

    def explain(self, text: str) -> str:
        """Return the sandbox refusals behind an error text; empty if there are none."""
        return "" if self.link is None else self.link.explain(text)

    # --- calls ----------------------------------------------------------------------------------

    def watched(
        self, definition: ToolDefinition, context: ToolContext
    ) -> AbstractContextManager[None]:
        """Return a context for one call that quarantines the server after a forbidden write."""
        calls = self._read_only_calls
        if self.link is None or calls is None:
            return nullcontext()
        return calls.serving(self.link, definition, context)

    async def call(
        self, tool: str, arguments: dict[str, Any], context: ToolContext
    ) -> types.CallToolResult:
        """Call a tool. Raises the SDK's errors. Cancelling notifies the server."""

        async def tell(
            progress: float, total: float | None = None, message: str | None = None
        ) -> None:
            fraction = min(max(progress / total, 0.0), 1.0) if total and total > 0 else None
            context.progress(None if message is None else message[:LONGEST_PROGRESS], fraction)

        meta: Any = None if context.trace is None else context.trace.carrier
        ask = self.client.call_tool
        return await self._for(
            context, lambda: ask(tool, arguments, progress_callback=tell, meta=meta)
        )

    async def beside(self) -> list[str]:
        """Return the extra features that the server has: resources, prompts, completions.

        Their lists are requested, because many servers declare features and have empty lists.
        """
        client, found = self.client, list[str]()
        capabilities = client.server_capabilities
        try:
            if capabilities.resources is not None and (
                (await client.list_resources()).resources
                or (await client.list_resource_templates()).resource_templates
            ):
                found.append("resources")
            if capabilities.prompts is not None and (await client.list_prompts()).prompts:
                found.append("prompts")
        except (MCPError, ValueError) as error:
            self.log.note(f"its resources and prompts cannot be listed: {error}")
        return [
            *found,
            *(["completions"] if found and capabilities.completions is not None else []),
        ]

    async def ask(self, name: str, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Send a request of `tools.extras`, named as in rules."""
        return await self._for(context, lambda: self._ask(name, arguments))

    async def _ask(self, name: str, arguments: dict[str, Any]) -> Any:
        client = self.client
        match name:
            case "resources/list":
                found = await client.list_resources(cursor=arguments.get("cursor"))
                shown = [] if "cursor" in arguments else await _templates(client)
                return _Listed.model_validate({**plain(found), "resourceTemplates": shown})
            case "resources/read":
                return await client.read_resource(arguments["uri"])
            case "prompts/list":
                return await client.list_prompts(cursor=arguments.get("cursor"))
            case "prompts/get":
                return await client.get_prompt(arguments["name"], arguments.get("arguments"))
        ref = (
            types.PromptReference(type="ref/prompt", name=arguments["prompt"])
            if "prompt" in arguments
            else types.ResourceTemplateReference(
                type="ref/resource", uri=arguments.get("template", "")
            )
        )
        argument = {"name": arguments["argument"], "value": arguments["value"]}
        return await client.complete(ref, argument, arguments.get("context"))

    async def _for(self, context: ToolContext, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a request in a dedicated task, which confines the SDK's cancel scopes."""
        calling, calls = Calling(context, contextvars.copy_context()), self._callbacks.calls
        calls.append(calling)
        self.quiet.clear()

        async def work() -> T:
            current.set(calling)
            return await ask()

        try:
            return await start_task(work())
        finally:
            calls.remove(calling)
            if not calls:
                self.quiet.set()


async def _unchecked(name: str, result: types.CallToolResult) -> None:
    """Replace the SDK's result check with nothing."""


async def _templates(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_resource_templates(cursor=cursor)
        found += map(plain, page.resource_templates)
        cursor = page.next_cursor
        if cursor is None or len(found) > MOST_TOOLS:
            break
    return found


class _Listed(BaseModel):
    """Resources and resource templates in one result."""

    model_config = ConfigDict(extra="allow")


def _pinned(tool: types.Tool) -> dict[str, Any]:
    fields = plain(tool)
    return {key: fields[key] for key in PINNED if key in fields}


def _innermost(error: BaseException) -> BaseException:
    """Unwrap exception groups: return the only member, or the first that is not a cancellation."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        return next((_innermost(each) for each in error.exceptions if not _is_noise(each)), error)
    return error


def _is_closed(error: BaseException) -> bool:
    closed = isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED
    return closed and str(error) == _CLOSED


def _is_noise(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError)
