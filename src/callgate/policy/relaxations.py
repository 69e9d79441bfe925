"""Reasons to run a call without its approval: `RELAXATIONS`, of which the first one counts.

    read-only command -> reversible call -> mode write -> mode guarded -> read-only sandbox
        -> trusted caller

A relaxation returns the allow, or None. `relax` calls it only for a decision to ask, so none of
them changes a deny. A question that the user's settings require stays, except for trusted callers.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode
from callgate.policy.decisions import Decision, Question, Reason
from callgate.policy.opinions import STATED, answer, first_answer
from callgate.policy.rules import BUILT_IN, Outcome, Policy, PolicyMode, Setting

Relaxation = Callable[[Question, Decision, Policy, Policy | None], Decision | None]
"""Receives a question, the decision to ask, the user's policy and the workspace's."""


def read_commands(
    question: Question, decision: Decision, user: Policy, workspace: Policy | None
) -> Decision | None:
    """Allow a command that only reads, if `read_file` would run without approval, too."""
    if not question.reading or decision.explicit:
        return None
    setting = reads_unasked(question.mode, user, workspace)
    if setting is None or not _may_read_files(question, user, workspace):
        return None
    allowing = "Mode guarded runs" if setting.origin is BUILT_IN else "`read_commands` allows"
    return Decision(
        outcome=Outcome.ALLOW,
        reason=Reason.READ_COMMANDS,
        sentence=Reason.READ_COMMANDS.sentence.format(allowing=allowing),
        origin=setting.origin,
    )


def reversible_calls(
    question: Question, decision: Decision, user: Policy, workspace: Policy | None
) -> Decision | None:
    """Allow a call in mode ask that callgate can undo, if the user's settings opt in."""
    setting, own = user.reversible, None if workspace is None else workspace.reversible
    if setting is None or any(
        each is not None and each.mode is not PolicyMode.AUTO for each in (setting, own)
    ):
        return None
    is_meant = question.reversible and question.mode is Mode.ASK and not question.outward
    if not is_meant or question.network or _insists(question, decision, user, workspace):
        return None
    return Decision(
        outcome=Outcome.ALLOW,
        reason=Reason.REVERSIBLE,
        sentence=Reason.REVERSIBLE.sentence,
        origin=setting.origin,
    )


def mode_write(
    question: Question, decision: Decision, user: Policy, workspace: Policy | None
) -> Decision | None:
    if question.mode is not Mode.WRITE or _insists(question, decision, user, workspace):
        return None
    return _allow(Reason.MODE_WRITE, Reason.MODE_WRITE.sentence)


def mode_guarded(
    question: Question, decision: Decision, user: Policy, workspace: Policy | None
) -> Decision | None:
    if question.mode is not Mode.GUARDED or _insists(question, decision, user, workspace):
        return None
    sentence = _in_guarded_mode(question)
    return _allow(Reason.MODE_GUARDED, sentence) if sentence else None


def read_only_sandbox(
    question: Question, decision: Decision, user: Policy, workspace: Policy | None
) -> Decision | None:
    is_jailed = question.mode is Mode.READ and question.is_jailed
    if not is_jailed or _insists(question, decision, user, workspace):
        return None
    return _allow(Reason.MODE_READ, "Mode read runs commands in the read-only sandbox.")


def trusted_caller(
    question: Question, decision: Decision, user: Policy, workspace: Policy | None
) -> Decision | None:
    """Allow calls of the program itself, even if the user's settings require approval."""
    if not question.caller.trusted:
        return None
    sentence = Reason.TRUSTED_CALLER.sentence.format(caller=question.caller)
    return _allow(Reason.TRUSTED_CALLER, sentence)


RELAXATIONS: tuple[Relaxation, ...] = (
    read_commands,
    reversible_calls,
    mode_write,
    mode_guarded,
    read_only_sandbox,
    trusted_caller,
)


def relax(
    question: Question, decision: Decision, user: Policy, workspace: Policy | None
) -> Decision:
    """Return the first allow, or the decision. A deny or an allow is unchanged."""
    if decision.outcome is not Outcome.ASK:
        return decision
    for relaxation in RELAXATIONS:
        allowed = relaxation(question, decision, user, workspace)
        if allowed is not None:
            return allowed
    return decision


def reads_unasked(mode: Mode, user: Policy, workspace: Policy | None) -> Setting | None:
    """Return the setting with which read-only commands run unasked in a mode; None: they do not."""
    settings = [policy.read_commands for policy in (user, workspace) if policy is not None]
    if any(each is not None and each.mode is not PolicyMode.AUTO for each in settings):
        return None
    if mode is Mode.GUARDED:
        return user.read_commands or Setting(PolicyMode.AUTO)
    return user.read_commands if mode is Mode.ASK else None


def _may_read_files(question: Question, user: Policy, workspace: Policy | None) -> bool:
    """Whether `read_file` would run unasked, so that a command cannot bypass its settings. Rules
    about paths bind the command itself.
    """
    as_file = Question(
        tool="read_file",
        effect=SideEffects.READ,
        mode=question.mode,
        caller=question.caller,
        workspace=question.workspace,
    )
    narrowed = None if workspace is None else first_answer(STATED, as_file, workspace)
    decisions = (answer(as_file, user), narrowed)
    return all(each is None or each.outcome is Outcome.ALLOW for each in decisions)


def _insists(
    question: Question, decision: Decision, user: Policy, workspace: Policy | None
) -> bool:
    """Whether the user's settings require approval of the call in every mode."""
    if decision.explicit or not question.destructive:
        return decision.explicit
    return user.confirm_destructive or (workspace is not None and workspace.confirm_destructive)


def _in_guarded_mode(question: Question) -> str:
    """Return why mode guarded runs a call without approval, or an empty text if it does not."""
    flow = question.flow
    if question.contained:
        return "Mode guarded runs commands in a sandbox that reaches no host without approval."
    if question.effect is SideEffects.WRITE and not question.outward:
        if not question.destructive or (flow is not None and flow.inside):
            return "Mode guarded changes files inside the workspace."
        if question.reversible and not question.network:
            return "Mode guarded changes files that callgate undo can restore."
        return ""
    if flow is None:
        return ""
    if flow.vouched or (flow.takes_destinations and not flow.destinations):
        return "Mode guarded allows destinations that your words, settings or answers name."
    return ""


def _allow(reason: Reason, sentence: str) -> Decision:
    return Decision(outcome=Outcome.ALLOW, reason=reason, sentence=sentence)
