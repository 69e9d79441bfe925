"""What was said and done in the sessions of a workspace, as pages to read.

    transcript:///SESSION   the sessions of the client_session's own workspace, and no others

Like the files, they are read by a call, which the policy can refuse and the record shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mcp_types as types

from callgate.core.content import TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolExecutionError
from callgate.core.events import Event
from callgate.core.sessions import Session
from callgate.core.stored import StoredMessage
from callgate.core.stores import SessionNotFound, StoreError
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.runtime import Runtime
from callgate.sessions.ordering import read_numbered
from callgate.sessions.transcripts import transcript
from callgate.surfaces.mcp.resources import Contents, Here, Typed
from callgate.surfaces.mcp.workspace import TAG, call_for, value_of

_SCHEME = "transcript:///"
_TEMPLATE = "transcript:///{session}"
_MOST_LISTED = 50
_MOST_EVENTS = 10_000
_NOT_THERE = "session_not_found"


class ReadTranscript:
    definition = ToolDefinition(
        name="read_transcript",
        description="Read what was said and done in a session of this workspace.",
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
        await self._runtime.conversations.flush()
        store = await self._runtime.store()
        try:
            stored = await store.get_session(id)
        except SessionNotFound:
            stored = None
        if stored is None or stored.workspace != context.workspace_path:
            raise ToolExecutionError("There is no such session here.", reason=_NOT_THERE)
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
    """Raises `ToolRegistrationError` where another tool has the name."""
    runtime.register(lambda: ReadTranscript(runtime))


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
                description="What was said and done in a session of this workspace.",
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
            store = await self._runtime.store()
            found = await store.list_sessions(session.workspace, limit=_MOST_LISTED)
        except StoreError:
            return []
        return [(each.id, each.title) for each in found.sessions]
