"""Sessions: list, open, change, close, their messages and events, and their turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from callgate.core.content import Label, Message
from callgate.core.events import Event
from callgate.core.sessions import POOL_NAME, Mode, PoolWorkspace
from callgate.core.stored import StoredSession
from callgate.core.stores import Store
from callgate.features.chat.live_sessions import MODES
from callgate.features.web.contexts import BoundTo, Context, Operation, ParsedRequest
from callgate.features.web.responses import conflict, forbidden, not_found
from callgate.features.web.routes.values import (
    Directory,
    Input,
    Limit,
    Session,
    SessionDetail,
    Value,
    session_fields,
    session_of,
)

_FIRST = 3
"""Number of first events that name the client and the tool of a session."""
_MOST_LOOKED_AT = 2_000
"""Maximum number of sessions that one search examines."""

Title = Annotated[str, Meta(min_length=1, max_length=200)]
Pool = Annotated[str, Meta(pattern=rf"^{POOL_NAME}(/{POOL_NAME})?$", max_length=129)]
Seq = Annotated[int, Meta(ge=0, lt=1 << 53)]


class SessionQuery(Input, frozen=True, kw_only=True):
    search: str | None = None
    workspace: str | None = None
    before: str | None = None
    limit: Limit = 50
    workers: bool = False
    """Whether to include sessions of sub-agents."""


class SessionList(Value, frozen=True, kw_only=True):
    sessions: list[Session]
    before: str | None


class NewSession(Input, frozen=True, kw_only=True):
    workspace: Directory | None = None
    mode: Mode | None = None
    title: Title | None = None
    pool: Pool | None = None
    """Alternative to `workspace`: a workspace on remote workers, as `POOL/WORKSPACE`, or `POOL` if
    the pool has only one."""


class Changes(Input, frozen=True, kw_only=True):
    mode: Mode | UnsetType = UNSET
    title: Title | UnsetType = UNSET
    clear_labels: list[Literal["private", "untrusted"]] = []
    """Labels to remove from the session."""


class Closed(Value, frozen=True, kw_only=True):
    closed: bool


class MessageList(Value, frozen=True, kw_only=True):
    messages: list[Message]


class EventQuery(Input, frozen=True, kw_only=True):
    after: Seq = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 500


class EventList(Value, frozen=True, kw_only=True):
    events: list[tuple[int, Event]]
    last: int


async def list_sessions(context: Context, request: ParsedRequest) -> SessionList:
    query: SessionQuery = request.query
    store = await context.runtime.sessions.store()
    labels = await context.peers.labels()
    cursor, found, looked_at = query.before, list[Session](), 0
    while len(found) < query.limit and looked_at < _MOST_LOOKED_AT:
        limit = query.limit - len(found)
        try:
            page = await store.list_sessions(
                query.workspace, cursor=cursor, limit=limit, workers=query.workers
            )
        except ValueError:
            raise not_found("cursor") from None
        looked_at += len(page.sessions)
        found += [
            await _with_names(context, store, each, labels)
            for each in page.sessions
            if _matches(each, query.search)
        ]
        cursor = page.cursor
        if cursor is None:
            break
    return SessionList(sessions=found, before=cursor)


def _matches(stored: StoredSession, search: str | None) -> bool:
    if search is None:
        return True
    return search.lower() in f"{stored.id} {stored.title or ''} {stored.workspace}".lower()


def _session_of(context: Context, stored: StoredSession, labels: Mapping[str, str]) -> Session:
    live = context.sessions.find(stored.id) is not None
    return session_of(stored, live=live, server=labels.get(stored.owner or ""))


async def _with_names(
    context: Context, store: Store, stored: StoredSession, labels: Mapping[str, str]
) -> Session:
    """Return a session with its client and first tool, from its first events."""
    first = await store.read_events(stored.id, 0, _FIRST)
    values = {name: _first(first, name) for name in ("client", "tool_name")}
    return replace(
        _session_of(context, stored, labels),
        client=values["client"],
        first_tool=values["tool_name"] if stored.title is None else None,
    )


def _first(events: Sequence[Event], name: str) -> str | None:
    found = (each.payload[name] for each in events if name in each.payload)
    value = next(found, None)
    return None if value is None else str(value)


async def open_session(context: Context, request: ParsedRequest) -> Session:
    body: NewSession = request.body
    ensure_within(context, body.mode)
    workspace: str | None = body.workspace
    if body.pool is not None:
        workspace = await _pool_workspace(context, body.pool, body.workspace)
    session = await context.sessions.open(workspace, body.mode, body.title, client=request.client)
    stored = await (await context.runtime.sessions.store()).get_session(session.id)
    return _session_of(context, stored, await context.peers.labels())


async def _pool_workspace(context: Context, given: str, directory: str | None) -> str:
    """Return the workspace of a pool that a connected worker has."""
    if directory is not None:
        raise conflict("A session has either a workspace or a pool, not both.", "pool")
    pool, _, name = given.partition("/")
    names = await context.peers.pool_workspaces(pool)
    if names is None:
        raise not_found("pool")
    if not names:
        raise conflict(
            f"No worker of pool {pool} is connected. Start one with: callgate worker --server URL"
            f" --pool {pool} --workspace DIR",
            "no_worker",
        )
    if name and name not in names:
        raise not_found(f"workspace in pool {pool}; there are: {', '.join(names)}")
    if not name and len(names) > 1:
        message = f"Pool {pool} has several workspaces; name one: {', '.join(names)}."
        raise conflict(message, "workspace")
    return str(PoolWorkspace(pool, name or names[0]))


def ensure_within(context: Context, mode: Mode | None) -> None:
    ceiling = context.served.ceiling
    if mode is not None and ceiling is not None and MODES.index(mode) > MODES.index(ceiling):
        raise forbidden(f"This instance was started with mode {ceiling}.", "mode_ceiling")


async def get_session(context: Context, request: ParsedRequest) -> SessionDetail:
    id = request.path["id"]
    stored = await (await context.runtime.sessions.store()).get_session(id)
    server = (await context.peers.labels()).get(stored.owner or "")
    return SessionDetail(
        **session_fields(stored, live=context.sessions.find(id) is not None, server=server),
        attach_token=context.access.new_attach(id),
        confirmations=await context.runtime.permission.open_confirmations(id),
    )


async def change_session(context: Context, request: ParsedRequest) -> Session:
    body: Changes = request.body
    id = request.path["id"]
    if isinstance(body.mode, Mode):
        ensure_within(context, body.mode)
    session = await context.sessions.take(id)
    conversations = context.runtime.sessions.conversations
    if isinstance(body.mode, Mode):
        await conversations.set_mode(session, body.mode)
    if isinstance(body.title, str):
        await conversations.rename(session, body.title)
    for label in body.clear_labels:
        context.runtime.permission.clear_label(session, Label(label))
    if body.clear_labels:
        await conversations.flush()
    stored = await (await context.runtime.sessions.store()).get_session(id)
    return _session_of(context, stored, await context.peers.labels())


async def close_session(context: Context, request: ParsedRequest) -> Closed:
    await context.sessions.close(request.path["id"])
    return Closed(closed=True)


async def list_messages(context: Context, request: ParsedRequest) -> MessageList:
    id = request.path["id"]
    await context.peers.settle(id)
    store = await context.runtime.sessions.store()
    found: list[Any] = []
    while page := await store.read_messages(id, len(found)):
        found += page
    return MessageList(messages=[msgspec.convert(each.body, Message) for each in found])


async def list_events(context: Context, request: ParsedRequest) -> EventList:
    query: EventQuery = request.query
    id = request.path["id"]
    await context.peers.settle(id)
    store = await context.runtime.sessions.store()
    stored = await store.get_session(id)
    found = await store.read_events(id, query.after, query.limit)
    numbered = [*enumerate(found, query.after + 1)]
    seen = query.after + len(found) if found else 0  # more may have come since
    return EventList(events=numbered, last=max(stored.last_seq, seen))


_ONE = "/v1/sessions/{id}"
OPERATIONS = (
    Operation(
        "GET",
        "/v1/sessions",
        "List sessions, last used first.",
        list_sessions,
        SessionList,
        query=SessionQuery,
        errors=(404,),
    ),
    Operation(
        "POST",
        "/v1/sessions",
        "Open a session.",
        open_session,
        Session,
        body=NewSession,
        errors=(403, 404, 409, 503),
        bound_to=BoundTo.POOL_IN_BODY,
    ),
    Operation("GET", _ONE, "One session.", get_session, SessionDetail, errors=(404,), short=True),
    Operation(
        "PATCH",
        _ONE,
        "Change its mode or title, or clear a label.",
        change_session,
        Session,
        body=Changes,
        errors=(403, 404, 409, 503),
        bound_to=BoundTo.SESSION_IN_PATH,
    ),
    Operation(
        "DELETE",
        _ONE,
        "Close a session.",
        close_session,
        Closed,
        errors=(404, 409, 503),
        bound_to=BoundTo.SESSION_IN_PATH,
    ),
    Operation(
        "GET",
        f"{_ONE}/messages",
        "List the messages of a session.",
        list_messages,
        MessageList,
        errors=(404,),
        short=True,
    ),
    Operation(
        "GET",
        f"{_ONE}/events",
        "List the events of a session.",
        list_events,
        EventList,
        query=EventQuery,
        errors=(404,),
        short=True,
    ),
)


class Prompt(Input, frozen=True, kw_only=True):
    prompt: Annotated[str, Meta(min_length=1)]
    model: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class Begun(Value, frozen=True, kw_only=True):
    turn_id: str


class Cancelling(Value, frozen=True, kw_only=True):
    turn_id: str
    cancelled: bool
    """False if the turn had already ended."""


async def begin_turn(context: Context, request: ParsedRequest) -> Begun:
    body: Prompt = request.body
    turn = await context.sessions.begin_turn(request.path["id"], body.prompt, body.model)
    return Begun(turn_id=turn)


async def cancel_turn(context: Context, request: ParsedRequest) -> Cancelling:
    id, turn = request.path["id"], request.path["turn"]
    await (await context.runtime.sessions.store()).get_session(id)  # 404 for an unknown session
    if not await context.sessions.knows_turn(id, turn):
        raise not_found("turn")
    return Cancelling(turn_id=turn, cancelled=context.sessions.cancel_turn(id, turn))


_TURNS = "/v1/sessions/{id}/turns"
TURN_OPERATIONS = (
    Operation(
        "POST",
        _TURNS,
        "Begin a turn.",
        begin_turn,
        Begun,
        body=Prompt,
        status=202,
        errors=(403, 404, 409, 503),
        short=True,
        bound_to=BoundTo.SESSION_IN_PATH,
    ),
    Operation(
        "DELETE",
        f"{_TURNS}/{{turn}}",
        "Cancel a turn.",
        cancel_turn,
        Cancelling,
        status=202,
        errors=(404, 503),
        short=True,
        bound_to=BoundTo.SESSION_IN_PATH,
    ),
)
