"""Stage 4: may this call run? By policy, by a remembered answer, or by asking a person."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import (
    ConfirmationTimeout,
    ToolCancelled,
    ToolPermissionDenied,
    ToolUserDenied,
)
from callgate.core.events import EFFECT_MISMATCH
from callgate.core.sessions import Mode
from callgate.core.stored import ConfirmationState
from callgate.core.task_sets import start_task
from callgate.core.tools import Preview
from callgate.dispatch.journal import Journal
from callgate.dispatch.permission.asking import Confirmations, Hash
from callgate.dispatch.permission.confirmations import Answer, Closed, Confirmation, Scope
from callgate.dispatch.permission.flows import Flows
from callgate.dispatch.permission.grants import Grant, Grants
from callgate.dispatch.running import RunningCall
from callgate.dispatch.subjects import Subject, question
from callgate.policy.decide import (
    GUARD_REASONS,
    Decision,
    Rulebook,
    ask_always,
    ask_because_repaired,
    guard,
)
from callgate.policy.rules import Outcome

_REMEMBERED = frozenset({Scope.SESSION, Scope.DESTINATION})


class Authority(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a permission may come from."""

    policies: Callable[[str], Rulebook]
    """What holds in a workspace."""
    grants: Grants
    flows: Flows
    """What sessions were told and have read, for the guard."""
    confirmations: Confirmations
    preview: Callable[[ToolCall, Subject], Coroutine[Any, Any, Preview | None]]
    save: Callable[[ToolCall, Subject, Answer], None]
    """Write an `always` answer into the user's settings."""


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
    """For a call that the policy does not simply allow: the answer by which it may run, None
    where a remembered one covers it. Raises if it may not. `confirmation` was put before a
    restart. An answer may have other arguments: they are checked, then the answer is `accept`ed."""
    if decision.outcome is Outcome.DENY:
        raise ToolPermissionDenied(
            f"{decision.sentence} ({decision.origin})", reason=_deny_reason(decision)
        )
    if confirmation is None:
        if _granted(call, subject, decision, authority):
            return None
        await _ensure_somebody(call, decision, authority.confirmations)
        journal.ensure_recordable()  # nobody is asked about what could not be done anyway
        preview = await _preview(call, subject, authority, running, journal)
        confirmation = _confirmation(call, subject, decision, authority, preview)
        await journal.write_question(confirmation, running)
    confirmations = authority.confirmations
    closed = await confirmations.ask(confirmation, call.session, running, hash, journal.answered)
    answer = _answer(closed, _answer_s(call, confirmations))
    if answer.decision is not Outcome.ALLOW:
        _remember(call, subject, decision, authority, answer)
        reason = f" They said: {answer.reason}" if answer.reason else ""
        raise ToolUserDenied(f"User denied this operation.{reason}", reason="user_denied")
    return answer


def accept(
    call: ToolCall, subject: Subject, decision: Decision, authority: Authority, answer: Answer
) -> None:
    """Remember a yes as long as it says, unless what it allows is denied by now."""
    ensure_not_denied(call, subject, authority)
    _remember(call, subject, decision, authority, answer)


def ensure_not_denied(call: ToolCall, subject: Subject, authority: Authority) -> None:
    """After a wait: the mode or the policy may have changed, and a deny is final."""
    decision = judge(call, subject, authority)
    if decision.outcome is Outcome.DENY:
        raise ToolPermissionDenied(
            f"{decision.sentence} ({decision.origin})", reason=_deny_reason(decision)
        )


def ensure_still_allowed(
    call: ToolCall, subject: Subject, authority: Authority, decided: Decision
) -> None:
    """After a wait for a slot: as before, and what nobody was asked about then must not need
    to be asked about now."""
    ensure_not_denied(call, subject, authority)
    if decided.outcome is not Outcome.ALLOW:
        return
    now = judge(call, subject, authority)
    if now.outcome is not Outcome.ALLOW:
        raise ToolPermissionDenied(
            f"What may run changed while the call waited: {now.sentence} ({now.origin}) Nothing"
            " was run; make the call again to be asked.",
            reason="changed_while_waiting",
        )


def judge(call: ToolCall, subject: Subject, authority: Authority) -> Decision:
    """What the policy says of a call at this moment. What the book in force has decided before,
    it remembers as far as it may."""
    tool, mode, caller = subject.tool, call.session.mode, call.caller
    book = authority.policies(call.session.workspace)
    decision: Decision | None = None
    flow = authority.flows.of(call, subject, book.user.guard) if tool.is_guarded else None
    if book.refusal is not None and tool.has_effects:
        decision = book.refusal
    elif flow is not None and mode == Mode.GUARDED:
        decision = book.decide(question(call, subject, book, flow))
    elif type(mode) is Mode and type(caller) is CallerKind:  # they may have been given as words
        name = tool.policy_key if subject.enclosure is None else subject.policy_key
        key = (name, mode._value_, caller._value_)
        if key in book.remembered:
            decision = book.remembered[key]
    if decision is None:
        decision = book.decide(question(call, subject, book), subject.policy_key)
    if flow is not None and not CallerKind(caller).trusted:
        decision = guard(decision, flow, Mode(mode))
    if call.repaired and tool.has_effects:
        decision = ask_because_repaired(decision)
    elif tool.definition.always_ask:
        decision = ask_always(decision)
    if book.budgets and decision.outcome is not Outcome.DENY:
        return msgspec.structs.replace(decision, budgets=book.budgets)
    return decision


def _deny_reason(decision: Decision) -> str:
    speaks_for_itself = decision.reason.startswith("mode_") or decision.reason == "settings_invalid"
    return decision.reason if speaks_for_itself else "policy_deny"


def _granted(call: ToolCall, subject: Subject, decision: Decision, authority: Authority) -> bool:
    grant = authority.grants.take(
        call.session,
        subject.tool.name,
        subject.checked.sha256,
        call.id,
        by_rule=decision.reason == "rule",
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
    insists = decision.counts_once or decision.reason in GUARD_REASONS
    return not (mended or subject.tool.definition.always_ask or insists)


def _destinations(call: ToolCall, subject: Subject, authority: Authority) -> tuple[str, ...]:
    """Where a call goes, as answers remember it."""
    from callgate.dispatch.permission.session_facts import (  # lazy: only where a person is asked  # noqa: PLC0415
        destinations_of,
    )

    return destinations_of(subject, authority.policies(call.session.workspace).user.guard)


def _remembered_destinations(
    call: ToolCall, subject: Subject, authority: Authority
) -> tuple[str, ...]:
    """The same as a remembered answer keeps them."""
    from callgate.policy.provenance.destinations import remembered  # lazy: as above  # noqa: PLC0415

    return tuple(map(remembered, _destinations(call, subject, authority)))


def _without_destination() -> tuple[str, ...]:
    """What is remembered of an answer about a tool that says no destination."""
    from callgate.dispatch.permission.session_facts import (  # lazy: as above  # noqa: PLC0415
        WITHOUT_DESTINATION,
    )
    from callgate.policy.provenance.destinations import remembered  # lazy: as above  # noqa: PLC0415

    return (remembered(WITHOUT_DESTINATION),)


async def _ensure_somebody(
    call: ToolCall, decision: Decision, confirmations: Confirmations
) -> None:
    """A direct call that nobody can approve is refused at once; a turn waits for someone."""
    if call.turn_id is None and not await confirmations.can_ask(call.session):
        raise ToolPermissionDenied(
            f"{decision.sentence} ({decision.origin}) It needs a confirmation, and nobody can "
            "be asked here.",
            reason="no_confirmer",
        )


def _answer_s(call: ToolCall, confirmations: Confirmations) -> float:
    """How long a question about a call waits."""
    limit_s = confirmations.timeout_s
    return limit_s if call.answer_s is None else min(limit_s, call.answer_s)


def _answer(closed: Closed, timeout_s: float) -> Answer:
    """What a person said; raises where nobody did."""
    if closed.answer is not None:
        return closed.answer
    if closed.state is ConfirmationState.EXPIRED:
        raise ConfirmationTimeout(
            f"Nobody answered within {timeout_s:g} s.", reason="confirmation_timeout"
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
        is_narrow = answer.scope is Scope.DESTINATION
        destinations = _remembered_destinations(call, subject, authority)
        if not destinations and decision.reason == "private_outward":
            destinations = _without_destination()
        if is_narrow and not destinations:  # it goes nowhere in particular: this once
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
    """What the call will do. Whoever is asked for it, an editor or a host, may never answer:
    a stop does not wait for that. Where a host was seen to write instead, the call is refused."""
    running.raise_if_stopped()
    work = start_task(authority.preview(call, subject))
    try:
        preview: Preview | None = await running.until(work)
    except ToolPermissionDenied as error:
        journal.published(EFFECT_MISMATCH, error.detail_fields)
        raise
    return preview


def _confirmation(
    call: ToolCall,
    subject: Subject,
    decision: Decision,
    authority: Authority,
    preview: Preview | None,
) -> Confirmation:
    from callgate.dispatch.permission.question_building import (  # lazy: to ask a person  # noqa: PLC0415
        build_question,
    )

    return build_question(
        call,
        subject,
        decision,
        traces=authority.flows.traces(call, subject) if subject.tool.is_guarded else (),
        destinations=_destinations(call, subject, authority),
        preview=preview,
        answer_s=_answer_s(call, authority.confirmations),
    )
