"""The decision about one call: the policy in force, and the facts of this call.

    Rulebook (rules, settings, mode)  -> cached if it depends on nothing else
        -> tightenings (facts of this call, features) -> Decision

After a wait the decision is checked again, because the mode or the policy may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.commands import CONNECT_HOST
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolPermissionDenied
from callgate.core.sessions import Mode
from callgate.core.tools import Preview
from callgate.dispatch.permission.asking import Confirmations
from callgate.dispatch.permission.confirmations import Answer
from callgate.dispatch.permission.flows import Flows
from callgate.dispatch.permission.grants import Grants
from callgate.dispatch.subjects import Subject, question
from callgate.policy.decide import Rulebook, bears_rules
from callgate.policy.decisions import Decision, Reason
from callgate.policy.guarded_rules import allow_connection
from callgate.policy.opinions import lifts_protection
from callgate.policy.provenance.sources import Flow
from callgate.policy.rules import Outcome
from callgate.policy.tightenings import Circumstances, Tightening, tighten
from callgate.workspace.protected import is_only_pipeline


class Authority(msgspec.Struct, frozen=True, kw_only=True):
    """All inputs of a permission."""

    policies: Callable[[str], Rulebook]
    """Returns the rulebook of a workspace."""
    grants: Grants
    flows: Flows
    """Prompts and output of sessions, for the guard."""
    confirmations: Confirmations
    preview: Callable[[ToolCall, Subject], Coroutine[Any, Any, Preview | None]]
    save: Callable[[ToolCall, Subject, Answer], None]
    """Write an `always` answer into the user's settings."""
    tightenings: tuple[Tightening, ...] = ()
    """Tightenings of features, which run after the built-in ones."""


def decide(call: ToolCall, subject: Subject, authority: Authority) -> Decision:
    """Return the present decision about a call: the decision of the rulebook, cached if it depends
    on nothing else, then the tightenings by the facts of this call."""
    tool, mode, caller = subject.tool, call.session.mode, call.caller
    book = authority.policies(call.session.workspace)
    is_plain = subject.enclosure is None and not subject.undone_by
    key = tool.policy_key if is_plain else subject.policy_key
    if book.has_rules:
        key = _with_rules(key, subject)
    decision: Decision | None = None
    flow = authority.flows.of(call, subject, book.user.guard) if tool.is_guarded else None
    if book.refusal is not None and tool.has_effects:
        decision = book.refusal
    elif flow is not None and mode == Mode.GUARDED:
        decision = book.decide(question(call, subject, book, flow))
    elif type(mode) is Mode and type(caller) is CallerKind:  # callers may pass plain strings
        known = (key, mode._value_, caller._value_)
        if known in book.remembered:
            decision = book.remembered[known]
    if decision is None:
        decision = book.decide(question(call, subject, book), key)
    reads = decision.reason in (Reason.READ_COMMANDS, Reason.REVERSIBLE)
    if tool.name == CONNECT_HOST and mode == Mode.GUARDED:
        arguments = subject.checked.arguments
        decision = allow_connection(decision, arguments, book.user.guarded_rules)
    has_facts = call.repaired or tool.definition.always_ask or reads or flow is not None
    writes = tool.effect is SideEffects.WRITE and bool(subject.resolved_paths)
    if has_facts or writes or subject.named or authority.tightenings:  # most calls have none
        facts = _circumstances(call, subject, authority, flow, book, reads=reads)
        decision = tighten(decision, facts, authority.tightenings)
    if book.budgets and decision.outcome is not Outcome.DENY:
        return msgspec.structs.replace(decision, budgets=book.budgets)
    return decision


def _with_rules(key: str, subject: Subject) -> str:
    """Return the key of a cached decision under rules, which some calls of a tool cannot match."""
    paths = subject.resolved_paths or subject.named
    return f"{key} {bears_rules(paths, subject.checked.arguments)}"


def _circumstances(
    call: ToolCall,
    subject: Subject,
    authority: Authority,
    flow: Flow | None,
    book: Rulebook,
    *,
    reads: bool,
) -> Circumstances:
    """Return the facts of a call that are available at this stage. `reads`: the setting
    `read_commands` or `reversible` allows the call, so that a denial for the session counts."""
    tool, session, checked = subject.tool, call.session, subject.checked
    return Circumstances(
        names=(tool.name, *tool.definition.aliases),
        effect=tool.effect,
        arguments=checked.arguments,
        mode=Mode(session.mode),  # callers may pass both as plain strings
        caller=CallerKind(call.caller),
        is_denied=reads and authority.grants.denies(session, tool.name, checked.sha256),
        named=subject.named,
        flow=flow,
        copied=authority.flows.copied(call, subject) if book.user.guard.enabled else "",
        pipeline=_pipeline(call, subject, book),
        is_repaired=call.repaired and tool.has_effects,
        always_ask=tool.definition.always_ask,
    )


def _pipeline(call: ToolCall, subject: Subject, book: Rulebook) -> str:
    """Return a file of a build server that a file tool would write, and that no rule names."""
    if subject.tool.effect is not SideEffects.WRITE:
        return ""
    for resolved in subject.resolved_paths:
        is_pipeline = resolved.protected and is_only_pipeline(resolved.relative)
        asking = question(call, subject, book)
        if is_pipeline and not lifts_protection(resolved, asking, book.user):
            return resolved.relative
    return ""


def ensure_not_denied(call: ToolCall, subject: Subject, authority: Authority) -> None:
    """Check again after a wait that the call is not denied; a denial is final."""
    decision = decide(call, subject, authority)
    if decision.outcome is Outcome.DENY:
        raise ToolPermissionDenied(
            f"{decision.sentence} ({decision.origin})", reason=deny_reason(decision)
        )


def ensure_still_allowed(
    call: ToolCall, subject: Subject, authority: Authority, decided: Decision
) -> None:
    """Check again after a wait for a slot: the call is not denied, and a call without an approval
    still needs none."""
    ensure_not_denied(call, subject, authority)
    if decided.outcome is not Outcome.ALLOW:
        return
    now = decide(call, subject, authority)
    if now.outcome is not Outcome.ALLOW:
        raise ToolPermissionDenied(
            f"The permission changed while the call waited: {now.sentence} ({now.origin}) Nothing"
            " was run; repeat the call to request approval.",
            reason="changed_while_waiting",
        )


def deny_reason(decision: Decision) -> str:
    """Return the reason code of a refusal by the policy."""
    speaks_for_itself = decision.reason.is_mode or decision.reason is Reason.SETTINGS_INVALID
    return decision.reason.value if speaks_for_itself else "policy_deny"
