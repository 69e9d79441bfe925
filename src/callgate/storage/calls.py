"""Ops about calls and questions: every call ends exactly once, reported by any process.

A call is attended while the process that runs it, waits for its answer, or owns its session is
alive. The attendant records the end. Without an attendant, the op that decides the call (an answer,
an expiry, a reaping) records the end, too.
"""

from __future__ import annotations

from msgspec.structs import replace

from callgate.core.errors import ToolErrorClass
from callgate.core.events import (
    CALLED,
    CONFIRMATION_RESOLVED,
    TERMINAL,
    TURN_CANCELLED,
    Event,
)
from callgate.core.ops import (
    CallReceipt,
    ExpireConfirmations,
    FinishCall,
    PutConfirmation,
    Reap,
    Reaped,
    Resolution,
    ResolveConfirmation,
    StartCall,
)
from callgate.core.stored import (
    CallState,
    ConfirmationState,
    OutboxRecord,
    StoredCall,
    StoredConfirmation,
    StoredSession,
)
from callgate.core.stores import AnswerMismatch, CallMismatch, ConfirmationNotFound
from callgate.storage.encoding import forget_arguments
from callgate.storage.session_changes import (
    INTERRUPTED,
    failure,
    interruption,
    mark_cut,
    record_of,
    system_event,
)
from callgate.storage.views import View

_ANSWERS = (ConfirmationState.ALLOWED, ConfirmationState.DENIED)
_REFUSALS = {
    ConfirmationState.DENIED: (ToolErrorClass.USER_DENIED, "User denied this operation."),
    ConfirmationState.EXPIRED: (
        ToolErrorClass.CONFIRMATION_TIMEOUT,
        "No answer came in time.",
    ),
    ConfirmationState.WITHDRAWN: (ToolErrorClass.CANCELLED, "The question was withdrawn."),
}
"""Ending of an unattended call, by the way in which its question was closed."""


def start_call(op: StartCall, view: View) -> CallReceipt:
    if op.event.type != CALLED:
        raise ValueError(f"a call starts with {CALLED}, not with {op.event.type}")
    call = _known_call(op, view)
    if call is not None:
        if call.called == op.event.id:
            return CallReceipt(True, call)
        if call.state is not CallState.WAITING or not _allowed(view, call, op.arguments_sha256):
            return CallReceipt(False, call)
    started = StoredCall(
        id=op.call,
        session_id=op.session,
        state=CallState.RUNNING,
        owner=op.owner,
        attempt=op.attempt,
        caller=op.caller,
        tool=op.tool,
        tool_use_id=op.tool_use_id,
        turn_id=op.turn_id,
        side_effects=op.side_effects,
        arguments_sha256=op.arguments_sha256,
        summary=op.summary,
        principal=op.principal,
        confirmation=call.confirmation if call is not None else None,
        called=op.event.id,
    )
    view.append(op.session, (op.event,))
    view.put(started)
    return CallReceipt(True, started)


def finish_call(op: FinishCall, view: View) -> CallReceipt:
    if op.event.type not in TERMINAL:
        raise ValueError(f"a call does not end with {op.event.type}")
    call = _known_call(op, view)
    if call is None:
        call = StoredCall(
            id=op.call,
            session_id=op.session,
            state=CallState.ENDED,
            owner=op.owner,
            attempt=op.attempt,
        )
    elif call.state is CallState.ENDED:
        return CallReceipt(call.ended == op.event.id, call)
    elif call.state is CallState.RUNNING and (call.owner != op.owner or call.attempt != op.attempt):
        return CallReceipt(False, call)
    _withdraw(view, call, op.event.timestamp)
    if op.record is not None:
        view.put(OutboxRecord(call_id=op.call, owner=op.owner, record=op.record))
    return CallReceipt(True, _end(view, call, op.event))


def put_confirmation(op: PutConfirmation, view: View) -> StoredConfirmation:
    known = view.get(StoredConfirmation, op.confirmation)
    if known is not None:
        if known.call_id != op.call:
            raise ValueError(f"confirmation {op.confirmation} is about another call")
        return known
    call = _known_call(op, view)
    if call is not None:
        if call.state is not CallState.WAITING:
            raise CallMismatch(op.call)
        _withdraw(view, call, op.event.timestamp)
        _forget_question(view, call)
    question = StoredConfirmation(
        id=op.confirmation,
        session_id=op.session,
        call_id=op.call,
        arguments_sha256=op.arguments_sha256,
        expires_at=op.expires_at,
        question=op.question,
    )
    view.append(op.session, (op.event,))
    view.put(question)
    view.put(
        StoredCall(
            id=op.call,
            session_id=op.session,
            state=CallState.WAITING,
            owner=op.owner,
            caller=op.caller,
            tool=op.tool,
            tool_use_id=op.tool_use_id,
            turn_id=op.turn_id,
            side_effects=op.side_effects,
            arguments_sha256=op.arguments_sha256,
            summary=op.summary,
            principal=op.principal,
            confirmation=op.confirmation,
        )
    )
    return question


def resolve_confirmation(op: ResolveConfirmation, view: View) -> Resolution:
    question = view.get(StoredConfirmation, op.confirmation)
    if question is None or question.session_id != op.session:
        raise ConfirmationNotFound(op.confirmation)
    if op.state is ConfirmationState.PENDING:
        raise ValueError("a question is not resolved to pending")
    if op.arguments_sha256 not in (None, question.arguments_sha256):
        raise AnswerMismatch(op.confirmation)
    if question.state is not ConfirmationState.PENDING:
        return Resolution(question.resolved == op.event.id, question)
    if op.state in _ANSWERS and op.at >= question.expires_at:
        late = _close(view, question, ConfirmationState.EXPIRED, op.at)
        _end_unattended(view, late, op.at)
        return Resolution(False, late)
    resolved = replace(
        question,
        state=op.state,
        amended_sha256=op.amended_sha256,
        answer=op.answer,
        by=op.by,
        principal=op.principal,
        resolved=op.event.id,
    )
    view.append(op.session, (op.event,))
    view.put(resolved)
    for grant in op.grants:
        if grant.session_id != op.session:
            raise ValueError("a grant belongs to the session of the question")
        if view.get(type(grant), grant.id) is None:
            view.put(grant)
    _end_unattended(view, resolved, op.at)
    return Resolution(True, resolved)


def expire_confirmations(op: ExpireConfirmations, view: View) -> tuple[StoredConfirmation, ...]:
    expired = []
    for question in view.due(op.at):
        closed = _close(view, question, ConfirmationState.EXPIRED, op.at)
        _end_unattended(view, closed, op.at)
        expired.append(closed)
    return tuple(expired)


def reap(op: Reap, view: View) -> Reaped:
    if view.alive(op.owner):
        return Reaped(owner=op.owner)
    owned = view.find(StoredSession, "owner", op.owner, op.most + 1)
    calls = view.find(StoredCall, "owner", op.owner, op.most + 1)
    elsewhere = {call.session_id for call in calls} - {session.id for session in owned}
    sessions = [session.id for session in owned] + sorted(elsewhere)
    view.take_for_dead(op.owner)
    portions = [reap_session(view, id, op.owner, op.at) for id in sessions[: op.most]]
    return Reaped(
        owner=op.owner,
        interrupted=tuple(call for each in portions for call in each.interrupted),
        closed=tuple(call for each in portions for call in each.closed),
        more=len(sessions) > op.most,
    )


def reap_session(view: View, id: str, owner: str, at: float) -> Reaped:
    """End everything that a dead owner left open in one session."""
    session = view.session(id)
    calls = view.find(StoredCall, "session_id", id)
    if session.owner == owner:
        view.put(replace(session, owner=None))
        mark_cut(view, session, owner)
        if session.parent is not None and session.turn_id is not None:
            _end_turn(view, session, at)
    else:
        calls = [call for call in calls if call.owner == owner]
    interrupted, closed = [], []
    for call in calls:  # including calls that wait for an earlier owner
        if call.state is CallState.RUNNING and call.owner == owner:
            interrupted.append(_fail(view, call, interruption(call, at)))
        elif call.state is CallState.WAITING and not _attended(view, call):
            ended = _settle(view, call, at)
            if ended is not None:
                closed.append(ended)
    return Reaped(owner=owner, interrupted=tuple(interrupted), closed=tuple(closed))


def _end_turn(view: View, session: StoredSession, at: float) -> None:
    """End the turn of a sub-agent: no process continues it."""
    event = system_event(session.id, None, TURN_CANCELLED, {"reason": INTERRUPTED}, at)
    view.append(session.id, (replace(event, turn_id=session.turn_id),))
    view.describe(replace(view.session(session.id), turn_id=None))


def _settle(view: View, call: StoredCall, at: float) -> StoredCall | None:
    """End a waiting call without an attendant, unless its turn can continue."""
    question = _question(view, call)
    if question is None:
        return _fail(view, call, interruption(call, at))
    lasts = call.turn_id is not None and view.session(call.session_id).parent is None
    if not lasts and question.state is ConfirmationState.PENDING:
        question = _close(view, question, ConfirmationState.WITHDRAWN, at)
    if not lasts and question.state is ConfirmationState.ALLOWED:
        refusal = failure(
            call, ToolErrorClass.CANCELLED, "The caller is gone.", at, reason=INTERRUPTED
        )
        return _fail(view, call, refusal)
    _end_unattended(view, question, at)
    ended = view.get(StoredCall, call.id)
    return ended if ended is not None and ended.state is CallState.ENDED else None


def _close(
    view: View, question: StoredConfirmation, state: ConfirmationState, at: float
) -> StoredConfirmation:
    """Close a question by time or because its caller is gone, not by a person."""
    call = view.get(StoredCall, question.call_id)
    decision = "timeout" if state is ConfirmationState.EXPIRED else "cancelled"
    event = system_event(
        question.session_id,
        call,
        CONFIRMATION_RESOLVED,
        {
            "confirmation_request_id": question.id,
            "decision": decision,
            "scope": None,
            "by": None,
            "tool_use_id": call.tool_use_id if call is not None else "",
            "call_id": question.call_id,
        },
        at,
    )
    closed = replace(question, state=state, resolved=event.id)
    view.append(question.session_id, (event,))
    view.put(closed)
    return closed


def _end_unattended(view: View, question: StoredConfirmation, at: float) -> None:
    """End a call that was refused without an attendant."""
    refusal = _REFUSALS.get(question.state)
    call = view.get(StoredCall, question.call_id)
    if (
        refusal is None
        or call is None
        or call.state is not CallState.WAITING
        or call.confirmation != question.id
        or _attended(view, call)
    ):
        return
    error_class, message = refusal
    _fail(view, call, failure(call, error_class, message, at))


def _attended(view: View, call: StoredCall) -> bool:
    if view.alive(call.owner):
        return True
    owner = view.session(call.session_id).owner
    return owner is not None and call.turn_id is not None and view.alive(owner)


def _allowed(view: View, call: StoredCall, arguments_sha256: str) -> bool:
    question = _question(view, call)
    return (
        question is not None
        and question.state is ConfirmationState.ALLOWED
        and arguments_sha256 == (question.amended_sha256 or question.arguments_sha256)
    )


def _known_call(op: StartCall | FinishCall | PutConfirmation, view: View) -> StoredCall | None:
    call = view.get(StoredCall, op.call)
    if call is not None and call.session_id != op.session:
        raise CallMismatch(op.call)
    return call


def _withdraw(view: View, call: StoredCall, at: float) -> None:
    question = _question(view, call)
    if question is not None and question.state is ConfirmationState.PENDING:
        _close(view, question, ConfirmationState.WITHDRAWN, at)


def _question(view: View, call: StoredCall) -> StoredConfirmation | None:
    if call.confirmation is None:
        return None
    return view.get(StoredConfirmation, call.confirmation)


def _fail(view: View, call: StoredCall, event: Event) -> StoredCall:
    """End a call without an attendant, and queue its record for the audit log."""
    view.put(record_of(call, event, view))
    return _end(view, call, event)


def _end(view: View, call: StoredCall, event: Event) -> StoredCall:
    ended = replace(call, state=CallState.ENDED, ended=event.id)
    view.append(call.session_id, (event,))
    view.put(ended)
    _forget_question(view, call)
    return ended


def _forget_question(view: View, call: StoredCall) -> None:
    """Delete the arguments of a question whose call will never run."""
    question = _question(view, call)
    if question is not None:
        view.put(forget_arguments(question))
