"""One conversation with an MCP server: by a process of ours, or by HTTP.

    open() -> negotiate (discover, else initialize) -> list the tools -> ready
    call() -> tools/call, with progress; what it asks back goes to `asks`, for the right call

The SDK's client lives in a task of its own, from its first to its last moment; whoever calls
only waits. When the process dies, every call under way is answered at once.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any, TypeVar
from urllib.request import pathname2url

import mcp_types as types
from mcp.client.client import Client
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from callgate.core.errors import ToolRegistrationError
from callgate.core.tools import ToolContext
from callgate.sources.hosts.logs import HostLog
from callgate.sources.hosts.pins import LARGEST, fingerprint
from callgate.sources.mcp import asks as asking
from callgate.sources.mcp.asks import Asks, Calling, Filled, Form, Refused, Sample, Turn, current
from callgate.sources.mcp.definitions import MOST_TOOLS, PINNED, names_of
from callgate.sources.mcp.links import Link
from callgate.sources.mcp.outputs import plain

MOST_PAGES = 100
MOST_TURNS = 100
LONGEST_PROGRESS = 1_000
"""Characters of what a server says of its progress."""
SETTLE_S = 0.5
"""How long a connection that is closed may take to be found out as such."""
_CLOSED = "Connection closed"
"""The SDK's words for it."""
T = TypeVar("T")
_IDENTITY = types.Implementation(name="callgate", version=version("callgate"))

Opened = Callable[[], AbstractAsyncContextManager[Any]]
"""Makes a transport of the SDK."""


class Connection:
    def __init__(
        self,
        server: str,
        transport: Opened,
        roots: tuple[str, ...],
        log: HostLog,
        *,
        asks: Asks | None = None,
        elicitation: bool = True,
        sampling: bool = False,
    ) -> None:
        self.server = server
        self.log = log
        self.tools: list[dict[str, Any]] = []
        """As the server lists them now, of each what is pinned."""
        self.prints: dict[str, str] = {}
        """The fingerprint of each."""
        self.problem: str | None = None
        """Why what it lists cannot be used."""
        self._transport = transport
        self._roots = roots
        self._asks = asks
        self._elicitation, self._sampling = elicitation, sampling
        self._client: Client | None = None
        self._calls: list[Calling] = []
        self._leave = asyncio.Event()
        self._stale = asyncio.Event()
        """It said that its tools have changed."""
        self._relearned = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner: asyncio.Task[None] | None = None
        self.link: Link | None = None
        self.gone = asyncio.Event()
        """Nothing can be asked of it any more."""
        self.quiet = asyncio.Event()
        """Set while no call runs."""
        self.quiet.set()

    # --- its life -----------------------------------------------------------------------------

    async def open(self) -> None:
        """Raises what went wrong. Whoever gives up waiting closes it."""
        self._owner = asyncio.get_running_loop().create_task(self._live())
        await asyncio.shield(self._ready)

    async def close(self) -> None:
        self._leave.set()
        if self._owner is None:
            return
        if not self._ready.done():
            self._owner.cancel()
        await asyncio.wait({self._owner})
        if not self._ready.done():
            self._ready.cancel()

    def kill(self) -> None:
        """End it without being polite."""
        self._leave.set()
        if self.link is not None:
            self.link.kill()

    @property
    def is_open(self) -> bool:
        return self._client is not None and not self.gone.is_set()

    async def is_lost(self, error: Exception) -> bool:
        """Whether a request failed because there is no connection any more. A server may well
        use the code of that itself, so what counts is what becomes of the connection."""
        closed = isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED
        if closed and str(error) == _CLOSED:
            try:
                async with asyncio.timeout(SETTLE_S):
                    await self.gone.wait()
            except TimeoutError:
                pass
        return not self.is_open

    @property
    def busy(self) -> int:
        return len(self._calls)

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
                self._ready.set_exception(_innermost(error))
                self._ready.exception()  # whoever waited may be gone
            elif isinstance(error, asyncio.CancelledError):
                raise
            elif not self._leave.is_set():
                self.log.note(f"the connection was lost: {type(_innermost(error)).__name__}")
        finally:
            self._client = None
            self.gone.set()

    @asynccontextmanager
    async def _entered(self) -> AsyncIterator[Client]:
        transport = self._transport()
        if isinstance(transport, Link):
            self.link = transport
            transport.ended = self.gone
        async with Client(
            transport,
            client_info=_IDENTITY,
            cache=None,
            list_roots_callback=self._list_roots,
            message_handler=self._notice,
            elicitation_callback=self._fill if self._asks and self._elicitation else None,
            sampling_callback=self._sample if self._asks and self._sampling else None,
        ) as client:
            yield client

    async def _stay(self, client: Client) -> None:
        """Until we leave, or the process has ended; look at the tools again when they change."""
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(self._listen(client))
            while True:
                events = (self._leave, self._stale, self.gone)
                waits = [group.create_task(each.wait()) for each in events]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for each in waits:
                    each.cancel()
                if self._leave.is_set() or self.gone.is_set():
                    break
                self._stale.clear()
                await self._relearn(client)
            listening.cancel()

    async def _listen(self, client: Client) -> None:
        """In the newer generation a client asks to be told of changes."""
        tools = client.server_capabilities.tools
        modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        if not modern or tools is None or not tools.list_changed:
            return
        try:
            async with client.listen(tools_list_changed=True) as subscription:
                async for _ in subscription:
                    self._stale.set()
        except (MCPError, ListenNotSupportedError, SubscriptionLost, TimeoutError) as error:
            self.log.note(f"it does not tell of changes: {type(error).__name__}")

    async def _notice(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._stale.set()

    # --- what it has ----------------------------------------------------------------------------

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
            raise ToolRegistrationError(f"it says more than {LARGEST} bytes of its tools")
        self.tools = tools
        self.prints = dict(zip(names, map(fingerprint, tools), strict=True))

    async def _relearn(self, client: Client) -> None:
        """What it lists now counts; what cannot be read counts as changed."""
        try:
            await self._learn(client)
            self.problem = None
        except (MCPError, ToolRegistrationError, ValueError) as error:
            self.tools, self.prints = [], {}
            self.problem = str(error)
        self.log.note("its tools have changed" + (f": {self.problem}" if self.problem else ""))
        self._relearned.set()
        self._relearned.clear()

    async def relearned(self) -> None:
        """Wait until it was looked at again what it lists."""
        await self._relearned.wait()

    @property
    def client(self) -> Client:
        if self._client is None:
            raise MCPError(code=types.CONNECTION_CLOSED, message=_CLOSED)
        return self._client

    # --- calls ----------------------------------------------------------------------------------

    async def call(
        self, tool: str, arguments: dict[str, Any], context: ToolContext
    ) -> types.CallToolResult:
        """Raises `MCPError` and what else the SDK raises. A cancellation tells the server."""

        async def tell(
            progress: float, total: float | None = None, message: str | None = None
        ) -> None:
            fraction = min(max(progress / total, 0.0), 1.0) if total and total > 0 else None
            context.progress(None if message is None else message[:LONGEST_PROGRESS], fraction)

        return await self._for(
            context, lambda: self.client.call_tool(tool, arguments, progress_callback=tell)
        )

    async def read(self, uri: str, context: ToolContext) -> types.ReadResourceResult:
        return await self._for(context, lambda: self.client.read_resource(uri))

    async def prompt(
        self, name: str, arguments: dict[str, str], context: ToolContext
    ) -> types.GetPromptResult:
        return await self._for(context, lambda: self.client.get_prompt(name, arguments))

    async def _for(
        self, context: ToolContext, ask: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """In a task of its own: the SDK's scopes stay in it, wherever the caller's task goes."""
        calling = Calling(context, contextvars.copy_context())
        self._calls.append(calling)
        self.quiet.clear()

        async def work() -> T:
            current.set(calling)
            return await ask()

        try:
            return await asyncio.get_running_loop().create_task(work())
        finally:
            self._calls.remove(calling)
            if not self._calls:
                self.quiet.set()

    def _whose(self) -> Calling:
        """The call for which the server asks: known by HTTP and in the newer generation, else
        the one that runs. Of calls of two sessions nobody can tell which one it is."""
        calling = current.get()
        if calling is not None:
            return calling
        if len({each.context.session_id for each in self._calls}) != 1:
            raise Refused("no call, or calls of several sessions, could have asked for this")
        return self._calls[-1]

    async def _list_roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        uris = [f"file://{pathname2url(each)}" for each in self._roots]
        return types.ListRootsResult.model_validate({"roots": [{"uri": uri} for uri in uris]})

    async def _fill(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        assert self._asks is not None
        said = plain(params)
        form = Form(
            message=str(said.get("message", "")),
            schema=said.get("requestedSchema") or {},
            url=said.get("url"),
        )
        try:
            filled: Filled = await self._asks.fill(self.server, form, self._whose())
        except Refused as refused:
            return types.ErrorData(code=types.INVALID_REQUEST, message=str(refused))
        return types.ElicitResult.model_validate(
            {"action": filled.action, "content": filled.content}
        )

    async def _sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        assert self._asks is not None
        try:
            sample = _read_sample(plain(params))
            sampled: asking.Sampled = await self._asks.sample(self.server, sample, self._whose())
        except Refused as refused:
            return types.ErrorData(code=-1, message=str(refused))
        return types.CreateMessageResult(
            role="assistant",
            content=types.TextContent(type="text", text=sampled.text),
            model=sampled.model,
            stop_reason=sampled.stop,
        )


def _read_sample(said: dict[str, Any]) -> Sample:
    turns: list[Turn] = []
    for message in said.get("messages", [])[: MOST_TURNS + 1]:
        content = message["content"]
        for block in content if isinstance(content, list) else [content]:
            if block.get("type") != "text":
                raise Refused("only text can be given to the model")
            turns.append(Turn(role=message["role"], text=block["text"]))
    if not turns or len(turns) > MOST_TURNS:
        raise Refused(f"1 to {MOST_TURNS} messages are taken")
    return Sample(
        turns=tuple(turns),
        system=said.get("systemPrompt") or "",
        max_tokens=max(1, min(int(said.get("maxTokens", 1_000)), 32_000)),
    )


def _pinned(tool: types.Tool) -> dict[str, Any]:
    said = plain(tool)
    return {key: said[key] for key in PINNED if key in said}


def _innermost(error: BaseException) -> BaseException:
    """What is in a group of one, in which task groups wrap what they are told."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        return next(
            (_innermost(each) for each in error.exceptions if not _is_noise(each)), error
        )
    return error


def _is_noise(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError)
