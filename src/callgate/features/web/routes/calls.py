"""Calls: start, list, show and cancel them, and search the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from msgspec import Meta, structs

from callgate.audit.reading import Filter
from callgate.audit.records import CallRecord
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import ToolErrorClass
from callgate.core.events import Event
from callgate.core.ids import parse_traceparent
from callgate.core.sessions import Client, Session
from callgate.core.stored import CallState as Stage
from callgate.core.stored import ConfirmationState
from callgate.core.stores import ConfirmationNotFound, Store
from callgate.core.tasks import Backpressure, start_task
from callgate.dispatch.permission.confirmations import Answer, Confirmation
from callgate.dispatch.permission.questions import closed, read_question
from callgate.features.web.contexts import BoundTo, Context, Operation, ParsedRequest
from callgate.features.web.frames import CallEvents
from callgate.features.web.operations import while_connected
from callgate.features.web.responses import Problem, Streamed, conflict, encode, not_found
from callgate.features.web.routes.records import (
    classes_of,
    find_page,
    find_record,
    open_calls,
    open_rows,
    row_of_record,
)
from callgate.features.web.routes.values import (
    CallRow,
    CallState,
    Directory,
    Input,
    Limit,
    Moment,
    Result,
    Value,
    result_of,
)

_MOST_AT_ONCE = 256
"""Maximum number of running calls over HTTP."""
_PAGE = 500


class NewCall(Input, frozen=True, kw_only=True):
    tool: Annotated[str, Meta(min_length=1, max_length=128)]
    arguments: dict[str, Any] = {}
    session: str | None = None
    workspace: Directory | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None


class CallQuery(Input, frozen=True, kw_only=True):
    session: str | None = None
    tool: str | None = None
    state: CallState | None = None
    search: str | None = None
    before: str | None = None
    limit: Limit = 100


class CallList(Value, frozen=True, kw_only=True):
    calls: list[CallRow]
    before: str | None


class CallDetail(CallRow, frozen=True, kw_only=True):
    events: list[Event]
    confirmation: Confirmation | None
    confirmation_state: ConfirmationState | None
    answer: Answer | None


class Cancelled(Value, frozen=True, kw_only=True):
    cancelled: bool


async def run_call(context: Context, request: ParsedRequest) -> Result | Streamed:
    body: NewCall = request.body
    if len(context.runtime.calls.in_flight()) >= _MOST_AT_ONCE:
        message = "Too many calls are in flight; retry later."
        raise Problem(429, ToolErrorClass.EXECUTION_ERROR, message, "too_many")
    session = await _session(context, body, request.client)
    call = ToolCall(
        tool=body.tool,
        arguments=body.arguments,
        session=session,
        caller=CallerKind.HTTP,
        client=request.client,
        timeout_s=body.timeout_s,
        principal=request.principal,
        trace=parse_traceparent(request.traceparent, request.tracestate)
        if context.runtime.calls.is_traced
        else None,
    )
    if "text/event-stream" in request.accepts.lower():
        return Streamed(_event_stream(context, request, call), "text/event-stream")
    return result_of(await _run(context, request, call))


async def _session(context: Context, body: NewCall, client: Client) -> Session:
    if body.session is None:
        return context.sessions.fresh(body.workspace, client=client)
    session = await context.sessions.take(body.session)
    ensure_same(body.workspace, session.workspace)
    return session


def ensure_same(requested: str | None, workspace: str) -> None:
    if requested not in (None, workspace):
        raise conflict("The session has another workspace.", "workspace")


async def _run(context: Context, request: ParsedRequest, call: ToolCall) -> Any:
    try:
        return await while_connected(request, context.runtime.calls.run_promptly(call))
    finally:
        context.sessions.let_go(call.session)


async def _event_stream(
    context: Context, request: ParsedRequest, call: ToolCall
) -> AsyncIterator[bytes]:
    """Yield the events and the result of a call as server-sent events."""
    backpressure = Backpressure()
    call = structs.replace(call, backpressure=backpressure)
    events = CallEvents(call, backpressure)
    unlisten = context.runtime.sessions.listen(events.hear, call.session.id)
    running = start_task(_run(context, request, call))
    running.add_done_callback(lambda _: events.end())
    try:
        async for piece in events.pieces():
            yield piece
        if not running.cancelled() and running.exception() is None:
            result = result_of(events.counted(running.result()))
            yield b"event: result\ndata: " + encode(result) + b"\n\n"
    finally:
        unlisten()
        backpressure.resume()
        running.cancel()


async def list_calls(context: Context, request: ParsedRequest) -> CallList:
    query: CallQuery = request.query
    wanted = Filter(
        text=query.search,
        tool=query.tool,
        session=query.session,
        error_classes=None if query.state is None else classes_of(query.state),
        without_error=query.state == "ok",
    )

    open_rows: list[CallRow] = []
    if query.before is None and query.state in (None, "asked", "running"):
        open_rows = [each for each in await _in_flight(context) if _matches(each, query)]
    if query.state in ("asked", "running"):
        return CallList(calls=open_rows[: query.limit], before=None)
    found = await find_page(context, wanted, query.limit, query.before)
    return CallList(calls=[*open_rows, *map(row_of_record, found.records)], before=found.before)


async def _in_flight(context: Context) -> list[CallRow]:
    """Return the unfinished calls of every process, newest first."""
    store = await context.runtime.sessions.store()
    return await open_calls(context, await store.open_calls())


def _matches(row: CallRow, query: CallQuery) -> bool:
    text = f"{row.tool} {row.summary} {row.id} {row.session_id}".lower()
    return (
        query.session in (None, row.session_id)
        and query.tool in (None, row.tool)
        and query.state in (None, row.state)
        and (query.search is None or query.search.lower() in text)
    )


async def get_call(context: Context, request: ParsedRequest) -> CallDetail:
    id = request.path["id"]
    await context.runtime.sessions.conversations.flush()
    store = await context.runtime.sessions.store()
    row, question_id = await _row(context, store, id)
    await context.peers.settle(row.session_id)
    question = closing = None
    if question_id is not None:
        try:
            stored = await store.get_confirmation(question_id)
            question, closing = read_question(stored), closed(stored)
        except ConfirmationNotFound:
            pass
    open_state = None if question is None else ConfirmationState.PENDING
    return CallDetail(
        **{name: getattr(row, name) for name in row.__struct_fields__},
        events=await _events(store, row.session_id, id),
        confirmation=question,
        confirmation_state=open_state if closing is None else closing.state,
        answer=None if closing is None else closing.answer,
    )


async def _row(context: Context, store: Store, id: str) -> tuple[CallRow, str | None]:
    """Return the row of a call, and the id of its question."""
    stored = await store.get_call(id)
    unended = [stored] if stored is not None and stored.state is not Stage.ENDED else []
    running = [each for each in context.runtime.calls.in_flight() if each.call.id == id]
    for row in open_rows(unended, running):
        return row, None if stored is None else stored.confirmation
    line = await find_record(context, id)
    if line is None:
        raise not_found("call")
    return row_of_record(line), line.confirmation_id


async def _events(store: Store, session: str, id: str) -> list[Event]:
    """Return the events of a call, searched backwards: none is older than the call's id."""
    created = id.removeprefix("tu_")[:10]
    end = (await store.get_session(session)).last_seq
    found: list[Event] = []
    while end > 0:
        begin = max(0, end - _PAGE)
        events = [*await store.read_events(session, begin, end - begin)]
        found[:0] = [each for each in events if each.payload.get("call_id") == id]
        if events and events[0].id[:10] < created:
            break
        end = begin
    return found


async def cancel_call(context: Context, request: ParsedRequest) -> Cancelled:
    id = request.path["id"]
    if await context.runtime.calls.cancel_promptly(id):
        return Cancelled(cancelled=True)
    try:
        await _row(context, await context.runtime.sessions.store(), id)
    except Problem:  # an unknown call, or one without effects on another server
        if not await context.peers.cancel_call(request):
            raise
        return Cancelled(cancelled=True)
    return Cancelled(cancelled=False)


OPERATIONS = (
    Operation(
        "POST",
        "/v1/calls",
        "Run one tool once.",
        run_call,
        Result,
        body=NewCall,
        errors=(403, 404, 409, 429, 503),
        events=True,
        bound_to=BoundTo.SESSION_IN_BODY,
    ),
    Operation(
        "GET",
        "/v1/calls",
        "List calls, newest first.",
        list_calls,
        CallList,
        query=CallQuery,
    ),
    Operation("GET", "/v1/calls/{id}", "One call.", get_call, CallDetail, errors=(404,)),
    Operation(
        "DELETE",
        "/v1/calls/{id}",
        "Cancel a call.",
        cancel_call,
        Cancelled,
        errors=(404, 503),
        bound_to=BoundTo.CALL_IN_PATH,
    ),
)


class AuditQuery(Input, frozen=True, kw_only=True):
    text: str | None = None
    tool: str | None = None
    session: str | None = None
    decision: Literal["allow", "deny"] | None = None
    error: str | None = None
    since: Moment | None = None
    before: str | None = None
    limit: Limit = 100


class RecordList(Value, frozen=True, kw_only=True):
    records: list[CallRecord]
    before: str | None


async def find_records(context: Context, request: ParsedRequest) -> RecordList:
    query: AuditQuery = request.query
    wanted = Filter(
        text=query.text,
        tool=query.tool,
        session=query.session,
        decision=query.decision,
        error_classes=None if query.error is None else (query.error,),
        since_ms=None if query.since is None else int(query.since * 1000),
    )
    found = await find_page(context, wanted, query.limit, query.before)
    return RecordList(records=found.records, before=found.before)


AUDIT_OPERATIONS = (
    Operation(
        "GET", "/v1/audit", "Search the recorded calls.", find_records, RecordList, query=AuditQuery
    ),
)
