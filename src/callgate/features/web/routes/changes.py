"""Recorded changes of files: timelines, diffs, and undo."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any, TypeVar

from msgspec import Meta, structs

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import ToolError
from callgate.core.sessions import Session
from callgate.dispatch.permission.confirmations import Answer, Confirmation
from callgate.features.web.contexts import BoundTo, Context, Operation, ParsedRequest
from callgate.features.web.operations import while_connected
from callgate.features.web.responses import not_found
from callgate.features.web.routes.approvals import approver
from callgate.features.web.routes.values import Input, Result, Value, result_of
from callgate.policy.rules import Outcome
from callgate.runtime import Runtime
from callgate.tools.undo import Undo
from callgate.workspace.undo import timelines
from callgate.workspace.undo.comparing import ChangeSet
from callgate.workspace.undo.history import History
from callgate.workspace.undo.timelines import ChangedCall

UNDO_TAG = "callgate:undo"
_LOOK = "undo_preview"

T = TypeVar("T")
CallId = Annotated[str, Meta(min_length=1, max_length=128)]


class Timeline(Value, frozen=True, kw_only=True):
    calls: list[ChangedCall]
    """Oldest first."""


class Range(Input, frozen=True, kw_only=True):
    after: CallId | None = None
    """Compare from the end of this call; None: from the beginning of the session."""
    upto: CallId | None = None
    """Compare to the end of this call; None: to the end of the session."""


async def list_changes(context: Context, request: ParsedRequest) -> Timeline:
    id = request.path["id"]
    await (await context.runtime.sessions.store()).get_session(id)  # 404 for an unknown session
    calls = await _read(context, timelines.of_session, id)
    return Timeline(calls=calls)


async def compare_session(context: Context, request: ParsedRequest) -> ChangeSet:
    query: Range = request.query
    id = request.path["id"]
    await (await context.runtime.sessions.store()).get_session(id)
    try:
        found = await _read(context, timelines.between, id, query.after, query.upto)
    except ToolError:
        raise not_found("change") from None
    if found is None:
        raise not_found("change")
    return found


async def diff_of_call(context: Context, request: ParsedRequest) -> ChangeSet:
    found = await _read(context, timelines.of_call, request.path["id"])
    if found is None:
        raise not_found("change")
    return found


async def _read(context: Context, read: Callable[..., T], *arguments: Any) -> T:
    """Read the history in a thread, with the changes of killed processes."""

    def run() -> T:
        context.history.settle_unfinished()
        return read(context.history, *arguments)

    return await asyncio.to_thread(run)


CHANGE_OPERATIONS = (
    Operation(
        "GET",
        "/v1/sessions/{id}/changes",
        "List the calls of a session that changed files.",
        list_changes,
        Timeline,
        errors=(404,),
        bound_to=BoundTo.SESSION_IN_PATH,
    ),
    Operation(
        "GET",
        "/v1/sessions/{id}/diff",
        "Compare the files of a session at two moments.",
        compare_session,
        ChangeSet,
        query=Range,
        errors=(404,),
        bound_to=BoundTo.SESSION_IN_PATH,
    ),
    Operation(
        "GET",
        "/v1/calls/{id}/diff",
        "Show the files that a call changed.",
        diff_of_call,
        ChangeSet,
        errors=(404,),
    ),
)


class UndoWhat(Input, frozen=True, kw_only=True):
    call: CallId | None = None
    """None: the last call that changed files."""
    from_call: CallId | None = None
    """Alternative: this call and all later ones of the session."""
    others: bool = False
    """Whether to leave files that changed since, and restore the others."""
    dry_run: bool = False
    """Whether to report the changes only."""
    confirmed: bool = False
    """Whether the user has confirmed it in the client."""


def register_undo(runtime: Runtime, history: History) -> None:
    """Register the tool. Raises `ToolRegistrationError` if another tool has its name."""

    def make(name: str, *, only_look: bool) -> Undo:
        tool = Undo(history, only_look=only_look)
        tool.definition = structs.replace(
            tool.definition, name=name, required_tags=frozenset({UNDO_TAG})
        )
        return tool

    runtime.tools.register(partial(make, "undo", only_look=False))
    runtime.tools.register(partial(make, _LOOK, only_look=True))


async def undo_call(context: Context, request: ParsedRequest) -> Result:
    body: UndoWhat = request.body
    id = request.path["id"]
    stored = await (await context.runtime.sessions.store()).get_session(id)
    session = context.sessions.fresh(stored.workspace, stored.mode)
    named = body.from_call or body.call
    calls = [each for each in await _changed(context, id, session) if named in (None, each)]
    if not calls:
        context.sessions.let_go(session)
        raise not_found("change")
    session.tags |= {UNDO_TAG}
    call = ToolCall(
        tool=_LOOK if body.dry_run else "undo",
        arguments={
            "call_id" if body.from_call is None else "from_call": calls[-1],
            **({"others": True} if body.others else {}),
        },
        session=session,
        caller=CallerKind.HTTP,
        client=request.client,
    )
    answer = Answer(decision=Outcome.ALLOW, by=approver(request))
    confirmed = (
        context.runtime.permission.attach(partial(_give, answer), session.id)
        if body.confirmed
        else nullcontext()
    )
    try:
        with confirmed:
            return result_of(await while_connected(request, context.runtime.calls.run(call)))
    finally:
        context.sessions.let_go(session)


async def _changed(context: Context, id: str, session: Session) -> Sequence[str]:
    """Return the calls of a session that changed files, oldest first.

    If a worker has the changes, the session `session` is bound to that worker.
    """
    if session.pool is None:
        return [each.origin.call for each in context.history.of_session(id).changes]
    return await context.peers.pool_changes(id, session)


async def _give(answer: Answer, question: Confirmation) -> Answer:
    return answer


UNDO_OPERATIONS = (
    Operation(
        "POST",
        "/v1/sessions/{id}/undo",
        "Restore files to their state before a call.",
        undo_call,
        Result,
        body=UndoWhat,
        errors=(403, 404, 503),
        bound_to=BoundTo.SESSION_IN_PATH,
    ),
)
