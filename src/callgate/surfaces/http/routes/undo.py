"""Taking changes back: a call like any other, which a person may be asked about.

The tool for it is no tool for models: it is seen only by the sessions that are made here.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

from msgspec import Meta, structs

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.sessions import Session
from callgate.dispatch.permission.confirmations import Answer, Confirmation
from callgate.policy.rules import Outcome
from callgate.runtime import Runtime
from callgate.surfaces.http import owners
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.disconnects import while_connected
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.problems import not_found
from callgate.surfaces.http.routes.values import Input, Result, result_of
from callgate.tools.undo import Undo
from callgate.workspace.undo.history import History

TAG = "callgate:undo"


class UndoWhat(Input, frozen=True, kw_only=True):
    call: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    """None: the last one that changed something."""
    confirmed: bool = False
    """The person has said yes to it where they asked for it."""


def register(runtime: Runtime, history: History) -> None:
    """Raises `ToolRegistrationError` where another tool has the name."""

    def make() -> Undo:
        tool = Undo(history)
        tool.definition = structs.replace(tool.definition, required_tags=frozenset({TAG}))
        return tool

    runtime.register(make)


async def undo_call(context: Context, request: Request) -> Result:
    body: UndoWhat = request.body
    id = request.path["id"]
    stored = await (await context.runtime.store()).get_session(id)
    session = context.sessions.fresh(stored.workspace, stored.mode)
    calls = [each for each in await _changed(context, id, session) if body.call in (None, each)]
    if not calls:
        context.sessions.let_go(session)
        raise not_found("change")
    session.tags |= {TAG}
    call = ToolCall(
        tool="undo",
        arguments={"call_id": calls[-1]},
        session=session,
        caller=CallerKind.HTTP,
        client=request.client,
    )
    confirmed = context.runtime.attach(_yes, session.id) if body.confirmed else nullcontext()
    try:
        with confirmed:
            return result_of(await while_connected(request, context.runtime.call(call)))
    finally:
        context.sessions.let_go(session)


async def _changed(context: Context, id: str, session: Session) -> list[str]:
    """The calls of a session that changed something, oldest first. Where a worker knows of them,
    the undoing session goes to that one."""
    if session.pool is None:
        return [each.origin.call for each in context.history.of_session(id).changes]
    if context.workers is None:
        return []
    workers = context.workers()
    link, calls = await workers.changes(session.pool, id)
    if link is not None:
        workers.pools.bind(session.id, link)
    return calls


async def _yes(question: Confirmation) -> Answer:
    return Answer(decision=Outcome.ALLOW, by="http")


OPERATIONS = (
    Operation(
        "POST",
        "/v1/sessions/{id}/undo",
        "Put files back to before a call.",
        undo_call,
        Result,
        body=UndoWhat,
        errors=(403, 404, 503),
        owner=owners.of_session_in_path,
    ),
)
