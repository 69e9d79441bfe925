"""Statements of a policy about a call: `OPINIONS`, of which the first one with an answer decides.

    mode ceiling -> deny in the settings -> rules -> per tool -> trusted workspace
                 -> class in the settings -> class by default

A deny in the settings precedes the rules, so that no rule lifts it. The settings of a workspace
have no mode and no defaults: `STATED` is the part of the list that applies to them. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode, ResolvedPath
from callgate.policy.decisions import Decision, Question, Reason
from callgate.policy.rules import (
    BUILT_IN,
    CLASS_DEFAULTS,
    Origin,
    Outcome,
    Policy,
    PolicyMode,
    Rule,
    Setting,
    is_within,
    rule_applies,
)

if TYPE_CHECKING:  # few homes have rules about commands
    from callgate.policy.commands import Judgement, Rules

Opinion = Callable[[Question, Policy], Decision | None]

_HAPPENS = {
    PolicyMode.AUTO: "are allowed",
    PolicyMode.PROMPT_ONCE: "need approval once",
    PolicyMode.PROMPT: "need approval",
    PolicyMode.DENY: "are refused",
}
"""The consequence for a call, by mode."""
_OUTCOMES = {PolicyMode.AUTO: Outcome.ALLOW, PolicyMode.DENY: Outcome.DENY}
"""Outcomes of the modes that do not ask."""
_STRICT = {mode: at for at, mode in enumerate(PolicyMode)}
"""auto, prompt_once, prompt, deny: of several modes for one tool the strictest counts."""


def mode_ceiling(question: Question, policy: Policy) -> Decision | None:
    """Deny in mode none, and in mode read for calls that change something."""
    if question.mode is Mode.NONE:
        return _deny(Reason.MODE_NONE, Reason.MODE_NONE.sentence)
    if question.mode is not Mode.READ:
        return None
    if question.network:
        return _deny(Reason.MODE_READ, "Mode read runs commands without the network only.")
    if question.effect.has_effects and not question.is_jailed:
        return _deny(Reason.MODE_READ, f"Mode read does not allow effect {question.effect}.")
    return None


def settings_deny(question: Question, policy: Policy) -> Decision | None:
    """Deny a tool or an effect by setting, if there are rules that could otherwise lift it."""
    if not policy.rules:
        return None
    decision = first_answer(_SETTINGS, question, policy)
    return decision if decision is not None and decision.outcome is Outcome.DENY else None


def matching_rules(question: Question, policy: Policy) -> Decision | None:
    """Return the decision of the strictest matching rule."""
    if not policy.rules:
        return None
    matching = [rule for rule in policy.rules if applies(rule, question)]
    decisions = [_from_rule(rule) for rule in matching if rule.command is None]
    by_command = _by_commands(question, [rule for rule in matching if rule.command is not None])
    if by_command is not None:
        decisions.append(by_command)
    return max(decisions, key=lambda found: found.outcome.strictness, default=None)


def per_tool(question: Question, policy: Policy) -> Decision | None:
    """Return the strictest setting for any name of the tool."""
    settings = [policy.per_tool[name] for name in question.names if name in policy.per_tool]
    if not settings:
        return None
    setting = max(settings, key=lambda each: _STRICT[each.mode])
    sentence = Reason.PER_TOOL.sentence.format(mode=setting.mode, tool=question.tool)
    return from_setting(setting, Reason.PER_TOOL, sentence, explicit=True)


def trusted_workspace(question: Question, policy: Policy) -> Decision | None:
    """Return the override for the effect in a trusted workspace; writes need no approval there."""
    root = trusted_root(question, policy)
    if root is None:
        return None
    setting = policy.trusted_workspace_overrides.get(question.effect)
    if setting is not None:
        sentence = by_effect(question.effect, setting.mode, f"in the trusted workspace {root}")
        return from_setting(setting, Reason.TRUSTED_OVERRIDE, sentence)
    if question.effect is not SideEffects.WRITE:
        return None
    setting = Setting(PolicyMode.AUTO, policy.trusted_origin)
    sentence = Reason.TRUSTED_WORKSPACE.sentence.format(root=root)
    return from_setting(setting, Reason.TRUSTED_WORKSPACE, sentence)


def class_setting(question: Question, policy: Policy) -> Decision | None:
    """Return the setting for the effect of the call."""
    setting = policy.default.get(question.effect)
    if setting is None:
        return None
    sentence = by_effect(question.effect, setting.mode, "by the settings")
    return from_setting(setting, Reason.CLASS_DEFAULT, sentence)


def class_default(question: Question, policy: Policy) -> Decision:
    """Return the built-in default for the effect of the call."""
    setting = CLASS_DEFAULTS[question.effect]
    sentence = by_effect(question.effect, setting.mode, "by default")
    return from_setting(setting, Reason.CLASS_DEFAULT, sentence)


_SETTINGS: tuple[Opinion, ...] = (per_tool, trusted_workspace, class_setting)
STATED: tuple[Opinion, ...] = (settings_deny, matching_rules, *_SETTINGS)
OPINIONS: tuple[Opinion, ...] = (mode_ceiling, *STATED, class_default)


def first_answer(
    opinions: Iterable[Opinion], question: Question, policy: Policy
) -> Decision | None:
    for opinion in opinions:
        decision = opinion(question, policy)
        if decision is not None:
            return decision
    return None


def answer(question: Question, policy: Policy) -> Decision:
    """Return the answer of a user's policy."""
    return first_answer(OPINIONS, question, policy) or class_default(question, policy)


def trusted_root(question: Question, policy: Policy) -> str | None:
    """Return the trusted workspace that contains the call's workspace."""
    for root in policy.trusted_workspaces:
        if is_within(question.workspace, root):
            return root
    return None


def network_opinion(question: Question, policy: Policy) -> Decision | None:
    """Return the policy's statement about network access of a command, if there is one."""
    if not question.network:
        return None
    setting = policy.default.get(SideEffects.NETWORK)
    if trusted_root(question, policy) is not None:
        setting = policy.trusted_workspace_overrides.get(SideEffects.NETWORK, setting)
    if setting is None:
        return None
    stated = by_effect(SideEffects.NETWORK, setting.mode, "by the settings")
    return from_setting(setting, Reason.NETWORK, f"{Reason.NETWORK.sentence} {stated}")


def by_effect(effect: SideEffects, mode: PolicyMode, where: str) -> str:
    """Return the sentence of a decision that follows from the effect alone."""
    return f"Calls with effect {effect} {_HAPPENS[mode]} {where}."


def from_setting(
    setting: Setting, reason: Reason, sentence: str, *, explicit: bool = False
) -> Decision:
    return Decision(
        outcome=_OUTCOMES.get(setting.mode, Outcome.ASK),
        reason=reason,
        sentence=sentence,
        origin=setting.origin,
        remember=setting.mode is PolicyMode.PROMPT_ONCE,
        explicit=explicit,
    )


def _deny(reason: Reason, sentence: str) -> Decision:
    return Decision(outcome=Outcome.DENY, reason=reason, sentence=sentence)


# --- rules ------------------------------------------------------------------------------------


def applies(rule: Rule, question: Question, resolved: ResolvedPath | None = None) -> bool:
    """Whether a rule applies to a call, or to one of its paths; without its command pattern."""
    return rule_applies(
        rule,
        tools=question.names,
        caller=question.caller,
        workspace=question.workspace,
        resolved_paths=question.resolved_paths if resolved is None else (resolved,),
        arguments=question.arguments,
        arguments_sha256=question.arguments_sha256,
        network=question.network,
        reversible=question.reversible,
    )


def lifts_protection(resolved: ResolvedPath, question: Question, user: Policy) -> bool:
    """Whether a rule of the user, other than a deny, names the protected path and applies.

    A rule about all paths names none.
    """
    return any(
        rule.decision is not Outcome.DENY
        and rule.path is not None
        and rule.path.lstrip("*/")
        and applies(rule, question, resolved)
        for rule in user.rules
    )


def speaks_of_command(rule: Rule, question: Question) -> bool:
    """Whether the rule has no command pattern, or one that matches a command of the call."""
    if rule.command is None:
        return True
    command = question.arguments.get("command")
    if not isinstance(command, str):
        return False
    judgement = _judge(command, [(rule.command, rule.decision.value)])
    return any(verdict.outcome is not None for verdict in judgement.verdicts)


def hosts_of(question: Question, rules: Iterable[Rule]) -> tuple[tuple[str, ...], ...]:
    """Return the host lists of all rules that match the call, not only of the deciding one.

    The commands of a line share a network, and a rule for one command must not open it for another.
    """
    return tuple(
        rule.network
        for rule in rules
        if isinstance(rule.network, tuple)
        and applies(rule, question)
        and speaks_of_command(rule, question)
    )


def _by_commands(question: Question, rules: list[Rule]) -> Decision | None:
    """Evaluate all command rules together: a command line is allowed only if each part is."""
    command = question.arguments.get("command")
    if not rules or not isinstance(command, str):
        return None
    patterns = [(rule.command, rule.decision.value) for rule in rules if rule.command is not None]
    judgement = _judge(command, patterns)
    if judgement.outcome is None:
        return None
    decisive = next((rules[i] for i in judgement.rules), None)
    origin: Origin = decisive.origin if decisive else BUILT_IN
    return Decision(
        outcome=Outcome(judgement.outcome),
        reason=Reason.RULE,
        sentence=judgement.sentence,
        origin=origin,
        # A doubt alone is not a question that the user's settings require. But if they contain
        # rules that deny or ask, a doubt may hide such a command.
        explicit=decisive is not None or any(r.decision is not Outcome.ALLOW for r in rules),
        any_destination=judgement.outcome == "allow"
        and all(rules[i].untrusted_destinations for i in judgement.rules),
    )


def _judge(command: str, patterns: Rules) -> Judgement:
    from callgate.policy.commands import judge, read_command  # lazy: only for rules about commands  # noqa: PLC0415

    return judge(read_command(command), patterns)


def _from_rule(rule: Rule) -> Decision:
    return Decision(
        outcome=rule.decision,
        reason=Reason.RULE,
        sentence=f"Rule: {rule}.",
        origin=rule.origin,
        explicit=True,
        any_destination=rule.decision is Outcome.ALLOW and rule.untrusted_destinations,
    )
