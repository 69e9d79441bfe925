"""The authorize stage: require an approval, by a grant or by an approver's answer."""

from __future__ import annotations

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.commands import CONNECT_HOST
from callgate.core.errors import (
    ConfirmationTimeout,
    ToolCancelled,
    ToolPermissionDenied,
    ToolUserDenied,
)
from callgate.core.events import EFFECT_MISMATCH
from callgate.core.stored import ConfirmationState
from callgate.core.tasks import start_task
from callgate.core.tools import Preview
from callgate.dispatch.journal import Journal
from callgate.dispatch.permission.asking import Confirmations, Hash
from callgate.dispatch.permission.confirmations import Answer, Closed, Confirmation, Scope
from callgate.dispatch.permission.deciding import Authority, deny_reason, ensure_not_denied
from callgate.dispatch.permission.grants import Grant
from callgate.dispatch.running import RunningCall
from callgate.dispatch.subjects import Subject
from callgate.policy.decisions import Decision, Reason
from callgate.policy.rules import Outcome

_REMEMBERED = frozenset({Scope.SESSION, Scope.DESTINATION})


async def authorize(
    call: ToolCall,
    subject: Subject,
    decision: Decision,
    authority: Authority,
    journal: Journal,
    running: RunningCall,
    hash: Hash,
    confirmation: Confirmation | None = None,
) -> Answer | None:
    """Return the answer that approves a call which the policy does not simply allow; None if a
    grant covers it. Raises if the call is not allowed. `confirmation` is the question that was
    open at a restart. An answer may contain other arguments: the caller checks them, then calls
    `accept`."""
    if decision.outcome is Outcome.DENY:
        raise ToolPermissionDenied(
            f"{decision.sentence.removesuffix('.')} ({decision.origin}).",
            reason=deny_reason(decision),
        )
    if confirmation is None:
        if _granted(call, subject, decision, authority):
            return None
        await _ensure_approver(call, decision, authority.confirmations)
    with authority.confirmations.room(call.session):
        return await _ask(call, subject, decision, authority, journal, running, hash, confirmation)


async def _ask(
    call: ToolCall,
    subject: Subject,
    decision: Decision,
    authority: Authority,
    journal: Journal,
    running: RunningCall,
    hash: Hash,
    confirmation: Confirmation | None,
) -> Answer:
    """Put a question, or wait again for a stored one, and return the approval. Raises otherwise."""
    resumed = confirmation is not None
    if confirmation is None:
        journal.ensure_recordable()  # no question about a call that would be refused anyway
        preview = await _preview(call, subject, authority, running, journal)
        confirmation = await _confirmation(call, subject, decision, authority, preview, running)
        await journal.write_question(confirmation, running)
    confirmations = authority.confirmations
    if resumed and call.handover is not None:
        await confirmations.withdraw(confirmation, call.session, journal.answered)
        raise ToolCancelled(
            "The program that was to do the work of this call has exited. Nothing was done; make"
            " the call again.",
            reason="handed_over",
        )
    closed = await confirmations.ask(confirmation, call.session, running, hash, journal.answered)
    answer = _answer(closed, _answer_s(call, confirmations))
    if answer.decision is not Outcome.ALLOW:
        _remember(call, subject, decision, authority, answer)
        if decision.reason.is_of_guard:
            authority.flows.refused(call)
        reason = f" They said: {answer.reason}" if answer.reason else ""
        raise ToolUserDenied(f"User denied this operation.{reason}", reason="user_denied")
    return answer


def accept(
    call: ToolCall, subject: Subject, decision: Decision, authority: Authority, answer: Answer
) -> None:
    """Remember an approval for its scope. Raises if the call is denied by now."""
    ensure_not_denied(call, subject, authority)
    authority.flows.approved(call, subject)
    _remember(call, subject, decision, authority, answer)


def _granted(call: ToolCall, subject: Subject, decision: Decision, authority: Authority) -> bool:
    grant = authority.grants.take(
        call.session,
        subject.tool.name,
        subject.checked.sha256,
        call.id,
        by_rule=decision.reason is Reason.RULE,
        network=subject.reaches_network,
        destinations=lambda: _remembered_destinations(call, subject, authority),
    )
    if grant is None:
        return False
    if grant.decision is Outcome.DENY:
        raise ToolUserDenied(
            f"User denied this operation. {subject.tool.name} is denied for this session.",
            reason="sticky",
        )
    mended = call.repaired and subject.tool.has_effects
    insists = decision.counts_once or decision.reason.overrides_grants
    return not (mended or subject.tool.definition.always_ask or insists)


def _destinations(call: ToolCall, subject: Subject, authority: Authority) -> tuple[str, ...]:
    """Return the destinations of a call, in the form that a question shows."""
    from callgate.dispatch.permission.session_facts import (  # lazy: only where a person is asked  # noqa: PLC0415
        destinations_of,
    )

    return destinations_of(subject, authority.policies(call.session.workspace).user.guard)


def _remembered_destinations(
    call: ToolCall, subject: Subject, authority: Authority
) -> tuple[str, ...]:
    """Return the destinations of a call, in the form that a grant stores."""
    from callgate.policy.provenance.destinations import remembered  # lazy: as above  # noqa: PLC0415

    return tuple(map(remembered, _destinations(call, subject, authority)))


def _without_destination() -> tuple[str, ...]:
    """Return the destinations of a grant for a tool that declares no destination."""
    from callgate.dispatch.permission.session_facts import (  # lazy: as above  # noqa: PLC0415
        WITHOUT_DESTINATION,
    )
    from callgate.policy.provenance.destinations import remembered  # lazy: as above  # noqa: PLC0415

    return (remembered(WITHOUT_DESTINATION),)


async def _ensure_approver(
    call: ToolCall, decision: Decision, confirmations: Confirmations
) -> None:
    """Refuse a direct call that has no approver; a call of a turn waits for one."""
    if call.turn_id is None and not await confirmations.can_ask(call.session):
        raise ToolPermissionDenied(
            f"{call.tool} needs approval, and no approver is available. "
            f"{decision.sentence.removesuffix('.')} ({decision.origin}).",
            reason="no_confirmer",
        )


def _answer_s(call: ToolCall, confirmations: Confirmations) -> float:
    """Return how long a question about a call waits, in seconds."""
    limit_s = confirmations.timeout_s
    return limit_s if call.answer_s is None else min(limit_s, call.answer_s)


def _answer(closed: Closed, timeout_s: float) -> Answer:
    """Return the answer to a closed question. Raises if it was closed without an answer."""
    if closed.answer is not None:
        return closed.answer
    if closed.state is ConfirmationState.EXPIRED:
        raise ConfirmationTimeout(
            f"No answer came within {timeout_s:g} s.", reason="confirmation_timeout"
        )
    raise ToolCancelled(reason="question_withdrawn")


def _remember(
    call: ToolCall, subject: Subject, decision: Decision, authority: Authority, answer: Answer
) -> None:
    if call.session.is_worker:  # a sub-agent's "always" counts once
        return
    if decision.counts_once and answer.decision is Outcome.ALLOW:
        return
    if answer.scope is Scope.ALWAYS:
        authority.save(call, subject, answer)
    elif answer.scope in _REMEMBERED or (decision.remember and answer.decision is Outcome.ALLOW):
        is_narrow = answer.scope is Scope.DESTINATION or subject.tool.name == CONNECT_HOST
        destinations = _remembered_destinations(call, subject, authority)
        if not destinations and decision.reason is Reason.PRIVATE_OUTWARD:
            destinations = _without_destination()
        if is_narrow and not destinations:  # no destination to remember: approved once
            return
        authority.grants.add(
            call.session,
            Grant(
                tool=subject.tool.name,
                decision=answer.decision,
                covers_rules=answer.scope in _REMEMBERED,
                network=subject.reaches_network,
                destinations=destinations,
                is_narrow=is_narrow,
                principal=answer.principal,
            ),
        )


async def _preview(
    call: ToolCall,
    subject: Subject,
    authority: Authority,
    running: RunningCall,
    journal: Journal,
) -> Preview | None:
    """Return the tool's preview of the call. The preview may come from an editor or a host that
    never answers, so a stop ends the wait. If a host writes during a preview, the call is refused.

    Raises `CannotSucceed` if the tool detects that the call would fail."""
    running.raise_if_stopped()
    work = start_task(authority.preview(call, subject))
    try:
        preview: Preview | None = await running.until(work)
    except ToolPermissionDenied as error:
        journal.published(EFFECT_MISMATCH, error.detail_fields)
        raise
    return preview


async def _confirmation(
    call: ToolCall,
    subject: Subject,
    decision: Decision,
    authority: Authority,
    preview: Preview | None,
    running: RunningCall,
) -> Confirmation:
    from callgate.dispatch.permission.question_building import (  # lazy: to ask a person  # noqa: PLC0415
        NO_CONVERSATION,
        build_question,
        read_hint,
    )

    hints: list[str] = []
    if decision.is_read_command:
        count = read_hint(authority.confirmations.open_store, call.principal)
        if hint := await running.until(start_task(count)):
            hints.append(hint)
    is_unknown = call.caller == CallerKind.AGENT and not authority.flows.knows(call.session)
    if is_unknown and subject.tool.is_guarded:
        hints.append(NO_CONVERSATION)
    return build_question(
        call,
        subject,
        decision,
        traces=authority.flows.traces(call, subject) if subject.tool.is_guarded else (),
        destinations=_destinations(call, subject, authority),
        preview=preview,
        answer_s=_answer_s(call, authority.confirmations),
        hints=hints,
    )
