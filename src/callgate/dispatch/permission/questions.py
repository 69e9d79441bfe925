"""A question in the store: how any process stores, closes and reads it.

The store's compare-and-set accepts the first close; later ones receive its answer. The process
that closes the question creates the event about it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from callgate.core.calls import CallerKind, Handover, ToolCall, no_work
from callgate.core.events import CONFIRMATION_RESOLVED, Event
from callgate.core.ids import ulid
from callgate.core.ops import PutConfirmation, ResolveConfirmation
from callgate.core.sessions import Client, Session
from callgate.core.stored import LOCAL, ConfirmationState, StoredConfirmation
from callgate.core.stores import ConfirmationNotFound, Store
from callgate.dispatch.permission.confirmations import Answer, Closed, Confirmation, Receipt
from callgate.policy.rules import Outcome

_STATES = {Outcome.ALLOW: ConfirmationState.ALLOWED, Outcome.DENY: ConfirmationState.DENIED}
_STATE_WORDS = {ConfirmationState.EXPIRED: "timeout", ConfirmationState.WITHDRAWN: "cancelled"}


class _AskedCall(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a call that is stored with its question, to run the call after a restart."""

    caller: CallerKind
    external_id: str | None = None
    timeout_s: float | None = None
    parent_event_id: str | None = None
    scope: Mapping[str, str] | None = None
    principal: str = LOCAL
    client: Client | None = None
    repaired: bool = False
    answer_s: float | None = None
    is_handed_over: bool = False
    """Whether another program was to do the work: such a call does not run after a restart."""
    place: str | None = None
    """The label of the place of the handed-over work."""


class _StoredQuestion(msgspec.Struct, frozen=True, kw_only=True):
    question: Confirmation
    call: _AskedCall


class _StoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    answer: Answer
    at: float


def put(call: ToolCall, question: Confirmation, event: Event, owner: str) -> PutConfirmation:
    record = _StoredQuestion(
        question=question,
        call=_AskedCall(
            caller=call.caller,
            external_id=call.external_id,
            timeout_s=call.timeout_s,
            parent_event_id=call.parent_event_id,
            scope=call.scope,
            principal=call.principal,
            client=call.client,
            repaired=call.repaired,
            answer_s=call.answer_s,
            is_handed_over=call.handover is not None,
            place=None if call.handover is None else call.handover.place,
        ),
    )
    return PutConfirmation(
        session=call.session.id,
        event=event,
        confirmation=question.id,
        call=call.id,
        owner=owner,
        caller=call.caller,
        tool=question.tool,
        tool_use_id=question.tool_use_id,
        turn_id=call.turn_id,
        side_effects=question.side_effects,
        arguments_sha256=question.arguments_sha256,
        expires_at=question.expires_at,
        question=msgspec.to_builtins(record),
        summary=question.input_summary,
        principal=call.principal,
    )


def read_question(stored: StoredConfirmation) -> Confirmation:
    return _stored_question(stored).question


def read_call(stored: StoredConfirmation, session: Session) -> ToolCall:
    """Return the original call of the question. The work of a handed-over call ended with its
    process, so `authorize` closes its question."""
    record = _stored_question(stored)
    question, call = record.question, record.call
    handover = Handover(no_work, call.place, takes_slot=False) if call.is_handed_over else None
    return ToolCall(
        id=question.call_id,
        tool=question.tool,
        arguments=question.arguments,
        session=session,
        caller=call.caller,
        external_id=call.external_id,
        tool_use_id=question.tool_use_id,
        turn_id=question.turn_id,
        timeout_s=call.timeout_s,
        parent_event_id=call.parent_event_id,
        scope=call.scope,
        principal=call.principal,
        client=call.client,
        repaired=call.repaired,
        answer_s=call.answer_s,
        handover=handover,
    )


def _stored_question(stored: StoredConfirmation) -> _StoredQuestion:
    return msgspec.convert(stored.question, _StoredQuestion)


def close(
    question: Confirmation,
    state: ConfirmationState,
    answer: Answer | None = None,
    amended_sha256: str | None = None,
) -> ResolveConfirmation:
    """Close a question with an answer, or without one at a timeout or a stop."""
    now = time.time()
    stored_answer = None if answer is None else _StoredAnswer(answer=answer, at=now)
    return ResolveConfirmation(
        session=question.session_id,
        event=_closing(question, state, answer, ulid(), now),
        confirmation=question.id,
        state=state,
        arguments_sha256=question.arguments_sha256,
        amended_sha256=amended_sha256,
        answer=None if stored_answer is None else msgspec.to_builtins(stored_answer),
        by=None if answer is None else answer.by,
        principal=None if answer is None else answer.principal,
        at=now,
    )


def answered_state(answer: Answer) -> ConfirmationState:
    return _STATES[answer.decision]


def closed(stored: StoredConfirmation) -> Closed | None:
    """Return the end of a question in any process; None while it is open."""
    if stored.state is ConfirmationState.PENDING:
        return None
    stored_answer = None if stored.answer is None else msgspec.convert(stored.answer, _StoredAnswer)
    answer = None if stored_answer is None else stored_answer.answer
    at = time.time() if stored_answer is None else stored_answer.at
    event = _closing(read_question(stored), stored.state, answer, stored.resolved or ulid(), at)
    return Closed(stored.state, answer, event)


def _closing(
    question: Confirmation, state: ConfirmationState, answer: Answer | None, id: str, at: float
) -> Event:
    payload: dict[str, Any] = {
        "confirmation_request_id": question.id,
        "decision": _STATE_WORDS[state] if answer is None else answer.decision,
        "scope": answer.scope if answer is not None else None,
        "by": answer.by if answer is not None else None,
        "tool_use_id": question.tool_use_id,
        "call_id": question.call_id,
    }
    return Event(
        id=id,
        timestamp=at,
        session_id=question.session_id,
        turn_id=question.turn_id,
        parent_event_id=question.event_id,
        type=CONFIRMATION_RESOLVED,
        actor="user" if answer is not None else "system",
        payload=payload,
    )


async def answer(store: Store, id: str, answer: Answer) -> Receipt:
    """Answer a question of any process. Raises `KeyError` if it does not exist."""
    try:
        stored = await store.get_confirmation(id)
    except ConfirmationNotFound:
        raise KeyError(id) from None
    if answer.arguments is not None:
        raise ValueError("only the process that put the question accepts changed arguments")
    op = close(read_question(stored), answered_state(answer), answer)
    (resolution,) = await store.commit(op)
    if resolution.applied:
        return Receipt(True, answer)
    standing = closed(resolution.confirmation)
    return Receipt(False, standing.answer if standing is not None else None)
