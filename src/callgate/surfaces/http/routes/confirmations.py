"""Questions that wait for a person, and the answers to them: the first one counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from callgate.core.stores import ConfirmationNotFound
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Scope
from callgate.dispatch.permission.questions import closed, read_question
from callgate.policy.rules import Outcome
from callgate.surfaces.http import owners
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.problems import Settled, conflict, invalid, not_found
from callgate.surfaces.http.routes.values import Input, Value

_DIRECT = "-"
"""Stands for the turn of a call that belongs to none."""
_BY = "http"


class ConfirmationQuery(Input, frozen=True, kw_only=True):
    session: str | None = None


class ConfirmationList(Value, frozen=True, kw_only=True):
    confirmations: list[Confirmation]


class Decision(Input, frozen=True, kw_only=True):
    decision: Literal["allow", "deny", "always-allow-this-tool"]
    scope: Literal["once", "destination", "session", "always"] | None = None
    arguments: Mapping[str, Any] | None = None
    pattern: Annotated[str, Meta(max_length=4096)] | None = None
    reason: Annotated[str, Meta(max_length=4096)] | None = None
    arguments_sha256: Annotated[str, Meta(max_length=64)] | None = None
    """Of the arguments that the answer is about; with others it is refused."""


class Decided(Value, frozen=True, kw_only=True):
    request_id: str
    decision: str
    """`allow` or `deny`; if nobody answered, `timeout` or `cancelled`."""
    scope: str | None
    by: str | None
    applied: bool


async def list_confirmations(context: Context, request: Request) -> ConfirmationList:
    query: ConfirmationQuery = request.query
    found = await context.runtime.open_confirmations(query.session)
    return ConfirmationList(confirmations=found)


async def answer_confirmation(context: Context, request: Request) -> Decided:
    """Answer a question; in a session and a turn, only one of theirs."""
    id = request.path["request"]
    question = await _question(context, id)
    of_turn = (question.session_id, question.turn_id or _DIRECT)
    if "turn" in request.path and (request.path["id"], request.path["turn"]) != of_turn:
        raise not_found("question")
    if request.body.arguments_sha256 not in (None, question.arguments_sha256):
        raise conflict("The question is about other arguments.", "other_arguments")
    try:
        receipt = await context.runtime.answer(id, _answer(request.body))
    except KeyError:
        raise not_found("question") from None
    except ValueError as error:
        raise conflict(str(error), "elsewhere") from None
    if receipt.applied:
        assert receipt.answer is not None
        return _decided(id, receipt.answer, applied=True)
    raise Settled(await _settled(context, id, receipt.answer))


async def _question(context: Context, id: str) -> Confirmation:
    try:
        return read_question(await (await context.runtime.store()).get_confirmation(id))
    except ConfirmationNotFound:
        raise not_found("question") from None


async def _settled(context: Context, id: str, answer: Answer | None) -> Decided:
    """What was decided instead."""
    if answer is not None:
        return _decided(id, answer, applied=False)
    ended = closed(await (await context.runtime.store()).get_confirmation(id))
    decision = "cancelled" if ended is None else str(ended.event.payload["decision"])
    return Decided(request_id=id, decision=decision, scope=None, by=None, applied=False)


def _decided(id: str, answer: Answer, *, applied: bool) -> Decided:
    return Decided(
        request_id=id, decision=answer.decision, scope=answer.scope, by=answer.by, applied=applied
    )


def _answer(body: Decision) -> Answer:
    always = body.decision == "always-allow-this-tool"
    if always and body.scope not in (None, "session"):
        raise invalid("always-allow-this-tool is for the session.")
    return Answer(
        decision=Outcome.DENY if body.decision == "deny" else Outcome.ALLOW,
        scope=Scope.SESSION if always else Scope(body.scope or "once"),
        arguments=body.arguments,
        pattern=body.pattern,
        reason=body.reason,
        by=_BY,
    )


OPERATIONS = (
    Operation(
        "GET",
        "/v1/confirmations",
        "The questions that wait.",
        list_confirmations,
        ConfirmationList,
        query=ConfirmationQuery,
    ),
    Operation(
        "POST",
        "/v1/confirmations/{request}",
        "Answer a question.",
        answer_confirmation,
        Decided,
        body=Decision,
        errors=(404, 503),
        declined=Decided,
        owner=owners.of_amended_call,
        while_draining=True,
    ),
    Operation(
        "POST",
        "/v1/sessions/{id}/turns/{turn}/confirmations/{request}",
        "Answer a question of a turn; - is the turn of a direct call.",
        answer_confirmation,
        Decided,
        body=Decision,
        errors=(404, 503),
        declined=Decided,
        owner=owners.of_amended_call,
        while_draining=True,
        short=True,
    ),
)
