"""MCP server over a runtime: its tools, files, transcripts and skills; also over HTTP.

MCP over HTTP: `/mcp` on an instance's port, with the same access checks as all other routes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import mcp_types as types
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCMessage
from starlette.types import Receive, Scope, Send

from callgate.core.content import TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolExecutionError, ToolPermissionDenied
from callgate.core.events import Event
from callgate.core.sessions import Mode, Session
from callgate.core.stored import StoredMessage
from callgate.core.stores import SessionNotFound, StoreError
from callgate.core.tasks import start_task
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.features.mcp.server import resources, stdio
from callgate.features.mcp.server.client_sessions import (
    SESSION_HEADER,
    OpenForClient,
    Wish,
    session_key,
)
from callgate.features.mcp.server.resources import (
    TAG,
    Contents,
    Here,
    Prompts,
    Typed,
    WorkspaceResources,
    call_for,
    value_of,
)
from callgate.features.mcp.server.server import McpServer
from callgate.instance.watchdog import watch_runtime
from callgate.instance.wiring.runtime import Wired
from callgate.runtime import Runtime
from callgate.sessions.ordering import read_numbered
from callgate.sessions.transcripts import transcript
from callgate.sources.skills import Skills, SkillUnreadable, UnknownSkill

_SCHEME = "transcript:///"
_TEMPLATE = "transcript:///{session}"
_MOST_LISTED = 50
_MOST_EVENTS = 10_000
_NOT_THERE = "session_not_found"


class ReadTranscript:
    definition = ToolDefinition(
        name="read_transcript",
        description="Read the transcript of a session of this workspace.",
        input_schema={
            "type": "object",
            "properties": {"session": {"type": "string", "minLength": 1}},
            "required": ["session"],
        },
        side_effects=SideEffects.READ,
        capabilities=frozenset({Capability.READ_ONLY}),
        path_params=(),
        kind="read",
        source="builtin",
        required_tags=frozenset({TAG}),
    )

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        id = input["session"]
        await self._runtime.sessions.conversations.flush()
        store = await self._runtime.sessions.store()
        try:
            stored = await store.get_session(id)
        except SessionNotFound:
            stored = None
        if stored is None or stored.workspace != context.workspace_path:
            raise ToolExecutionError("This workspace has no such session.", reason=_NOT_THERE)
        messages: list[StoredMessage] = []
        while page := await store.read_messages(id, len(messages)):
            messages += page
        events: list[Event] = []
        async for _, event in read_numbered(store, id):
            events.append(event)
            if len(events) >= _MOST_EVENTS:
                break
        return ToolOutput(
            content=[TextBlock(f"{len(messages)} messages, {len(events)} events")],
            value=transcript(stored, messages, events),
            truncated=len(events) >= _MOST_EVENTS,
        )

    async def cancel(self) -> bool:
        return False


def register(runtime: Runtime) -> None:
    """Register the tool. Raises `ToolRegistrationError` if its name already exists."""
    runtime.tools.register(lambda: ReadTranscript(runtime))


class Transcripts:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def listed(self, here: Here) -> Sequence[types.Resource]:
        return [
            types.Resource(
                uri=f"{_SCHEME}{id}",
                name=f"transcript {id}",
                title=title,
                mime_type="text/markdown",
            )
            for id, title in await self._known(here.session)
        ]

    async def templates(self, here: Here) -> Sequence[types.ResourceTemplate]:
        return [
            types.ResourceTemplate(
                name="transcript",
                uri_template=_TEMPLATE,
                description="Transcript of a session of this workspace.",
                mime_type="text/markdown",
            )
        ]

    async def read(self, uri: str, here: Here) -> Sequence[Contents] | None:
        if not uri.startswith(_SCHEME):
            return None
        call = call_for("read_transcript", {"session": uri.removeprefix(_SCHEME)}, here.session)
        result = await here.run(call)
        if result.error is not None and result.error.reason == _NOT_THERE:
            return None
        text: str = value_of(result)
        return [types.TextResourceContents(uri=uri, text=text, mime_type="text/markdown")]

    async def complete(self, template: str, typed: Typed, here: Here) -> Sequence[str]:
        if (template, typed.name) != (_TEMPLATE, "session"):
            return []
        return [id for id, _ in await self._known(here.session) if id.startswith(typed.value)]

    async def _known(self, session: Session) -> list[tuple[str, str | None]]:
        try:
            store = await self._runtime.sessions.store()
            found = await store.list_sessions(session.workspace, limit=_MOST_LISTED)
        except StoreError:
            return []
        return [(each.id, each.title) for each in found.sessions]


_REQUEST = types.PromptArgument(
    name="request", description="The task for this skill, as free text.", required=False
)


class SkillPrompts:
    def __init__(self, skills: Callable[[], Skills]) -> None:
        self._skills = skills

    async def listed(self, here: Here) -> Sequence[types.Prompt]:
        return [
            types.Prompt(name=each.name, description=each.description, arguments=[_REQUEST])
            for each in self._skills().available(here.session)
        ]

    async def get(
        self, name: str, arguments: Mapping[str, str], here: Here
    ) -> types.GetPromptResult | None:
        try:
            text = self._skills().load(name, here.session.workspace, here.session.id)
        except UnknownSkill:
            return None
        except SkillUnreadable as error:
            raise ToolExecutionError(str(error), reason="skill_unreadable") from None
        request = arguments.get("request", "").strip()
        content = types.TextContent(type="text", text=f"{request}\n\n{text}" if request else text)
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])

    async def complete(self, prompt: str, typed: Typed, here: Here) -> Sequence[str]:
        return []  # the only argument is free text


def local_server(
    runtime: Runtime,
    session: Session,
    *,
    home: str,
    skills: Callable[[], Skills] | None = None,
    elicits: bool = True,
    search_above: int = 0,
) -> McpServer:
    """Return the server for one client, with one session for all its calls."""
    return full_server(
        runtime,
        lambda wish: session,
        home=home,
        skills=skills,
        elicits=elicits,
        search_above=search_above,
    )


def full_server(
    runtime: Runtime,
    open_session: OpenForClient,
    *,
    home: str,
    skills: Callable[[], Skills] | None = None,
    elicits: bool = True,
    search_above: int = 0,
) -> McpServer:
    """Return a server with all resources and prompts, and register the tools for them.

    Raises `ToolRegistrationError` if the name of such a tool already exists.
    """
    resources.register(runtime)
    register(runtime)
    prompts: list[Prompts] = [] if skills is None else [SkillPrompts(skills)]
    return McpServer(
        runtime,
        open_session,
        resources=[
            WorkspaceResources(os.path.join(home, "artifacts")),
            Transcripts(runtime),
        ],
        prompts=prompts,
        elicits=elicits,
        search_above=search_above,
    )


async def serve_mcp(
    requests: int,
    answers: int,
    wired: Wired,
    session: Session,
    *,
    elicits: bool,
    search_above: int | None = None,
) -> None:
    """Serve one client over two descriptors, and close `wired`.

    `elicits`: the client may show questions to its user. `search_above` overrides the setting.
    """
    if search_above is None:
        search_above = wired.settings.tools.search_above
    try:
        watch_runtime(wired)
        wired.warm()
        server = local_server(
            wired.runtime,
            session,
            home=wired.home.path,
            skills=lambda: wired.skills,
            elicits=elicits,
            search_above=search_above,
        )
        await stdio.serve(requests, answers, server)
    finally:
        await wired.close()


_MOST = 256
_MOST_BYTES = 1024 * 1024


class Replays(EventStore):
    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._messages: deque[tuple[int, str, JSONRPCMessage | None, int]] = deque()
        """Number, stream, message, size."""
        self._bytes = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        size = 0 if message is None else len(message.model_dump_json(by_alias=True))
        number = next(self._numbers)
        self._messages.append((number, stream_id, message, size))
        self._bytes += size
        while self._messages and (len(self._messages) > _MOST or self._bytes > _MOST_BYTES):
            self._bytes -= self._messages.popleft()[3]
        return str(number)

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        """Send the later events of an event's stream; None if the event was discarded."""
        if not last_event_id.isascii() or not last_event_id.isdecimal():
            return None
        last = int(last_event_id[:20])
        streams = [stream for number, stream, _, _ in self._messages if number == last]
        if not streams:
            return None
        for number, stream, message, _ in list(self._messages):
            if stream == streams[0] and number > last and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return streams[0]


_IDLE_S = 30 * 60.0
_MOST_SESSIONS = 1_000
_RETRY_MS = 1_000
"""Time after which a client reconnects a lost stream."""


class _Manager(StreamableHTTPSessionManager):
    @property
    def event_store(self) -> EventStore:
        """A new store for each session: stream names are unique only within a session.

        A session could receive another session's messages from a shared store.
        """
        return Replays()

    @event_store.setter
    def event_store(self, given: EventStore | None) -> None:
        """Ignored: each session has its own store."""


class Endpoint:
    """An ASGI application. Start it in the event loop that serves it."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._manager = _Manager(
            server.sdk,
            retry_interval=_RETRY_MS,
            session_idle_timeout=_IDLE_S,
            max_sessions=_MOST_SESSIONS,
        )
        self._stopped = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        ready = asyncio.Event()

        async def run() -> None:
            async with self._manager.run():
                ready.set()
                await self._stopped.wait()

        self._running = start_task(run())
        await ready.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._manager.handle_request(scope, receive, send)
        if scope["method"] == "DELETE":
            ids = [value for key, value in scope["headers"] if key == SESSION_HEADER.encode()]
            for id in ids:
                await self.server.client_sessions.end(session_key(id.decode("latin-1")))

    async def close(self) -> None:
        """Stop all requests and end every stream. Idempotent."""
        await self.server.close()
        self._stopped.set()
        if self._running is not None:
            with suppress(asyncio.CancelledError):
                await self._running


async def open_endpoint(
    runtime: Runtime,
    open_fresh: Callable[[str | None, Mode | None], Session],
    *,
    home: str,
    widest: Mode,
    skills: Callable[[], Skills] | None,
    search_above: int = 0,
) -> Endpoint:
    """Return the endpoint of an instance. `open_fresh` opens a session in a workspace and a mode.

    A mode that a client requests is limited to `widest`.
    """

    def open_session(wish: Wish) -> Session:
        if wish.mode is not None and wish.mode not in list(Mode):
            raise ToolPermissionDenied(
                f"The mode {wish.mode[:20]!r} does not exist.", reason="mode"
            )
        mode = None if wish.mode is None else min(Mode(wish.mode), widest, key=_width)
        return open_fresh(wish.workspace, mode)

    server = full_server(runtime, open_session, home=home, skills=skills, search_above=search_above)
    endpoint = Endpoint(server)
    await endpoint.start()
    return endpoint


def _width(mode: Mode) -> int:
    return list(Mode).index(mode)
