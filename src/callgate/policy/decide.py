"""The one algorithm of permission: a question about a call goes in, a decision comes out.

    mode ceiling -> rules -> per tool -> trusted workspace -> class -> destructive
                 -> mode write or guarded -> trusted caller (then the workspace may narrow)

The first step that has an answer gives it; the steps after `destructive` can only turn a
question into a yes, and never touch a no. Grants are not here: they are remembered answers,
and the authorize stage looks them up only where the decision is to ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.core.calls import CallerKind
from callgate.core.content import Label
from callgate.core.effects import SideEffects
from callgate.core.resolved_paths import ResolvedPath
from callgate.core.sessions import Mode
from callgate.policy.provenance.sources import Flow, Trace
from callgate.policy.rules import (
    BUILT_IN,
    CLASS_DEFAULTS,
    Budget,
    Origin,
    Outcome,
    Policy,
    PolicyMode,
    Rule,
    is_within,
    rule_applies,
)

if TYPE_CHECKING:  # few homes have rules about commands
    from callgate.policy.commands import Judgement, Rules

_HAPPENS = {
    PolicyMode.AUTO: "allowed",
    PolicyMode.PROMPT_ONCE: "asked about once",
    PolicyMode.PROMPT: "asked about",
    PolicyMode.DENY: "refused",
}
"""What becomes of a call, by mode."""
_REMEMBERED = 20_000
_STRICT = {mode: at for at, mode in enumerate(PolicyMode)}
"""auto, prompt_once, prompt, deny: of several words about one tool the strictest counts."""
GUARD_REASONS = frozenset({"untrusted_destination", "private_outward", "secret_outward"})
"""Of decisions that no remembered answer for the whole tool covers (`policy.guard`)."""
_NEEDS_NETWORK = "It needs the network."


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy is asked: may this call run?"""

    tool: str
    aliases: tuple[str, ...] = ()
    effect: SideEffects
    destructive: bool = False
    mode: Mode = Mode.ASK
    caller: CallerKind = CallerKind.LIBRARY
    workspace: str = "/"
    resolved_paths: tuple[ResolvedPath, ...] = ()
    arguments: Mapping[str, Any] = {}
    arguments_sha256: str = ""
    read_only_sandbox: bool = False
    """The command will run where it can change nothing; mode read then allows it."""
    network: bool = False
    """The command asks for the network, which it would not have by itself."""
    contained: bool = False
    """The command will run in a sandbox from which it reaches no network."""
    outward: bool = False
    """It sends something out of this machine, or may."""
    flow: Flow | None = None
    """Where its destinations come from; None: not looked at, or not known."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.tool, *self.aliases)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    outcome: Outcome
    reason: str
    """A short code, such as `mode_read`, `rule`, `per_tool`, `class_default`."""
    sentence: str
    """The same for a person."""
    origin: Origin = BUILT_IN
    remember: bool = False
    """`prompt_once`: a yes counts for the rest of the session."""
    explicit: bool = False
    """The user wrote this question down: mode write does not silence it."""
    counts_once: bool = False
    """A yes is for this call alone: none that was given before answers it, none is remembered."""
    hosts: tuple[tuple[str, ...], ...] = ()
    """Lists of hosts, for a call that asks for the network: it reaches what each of them names.
    None at all: it reaches everything."""
    budgets: tuple[Budget, ...] = ()
    """What the call is counted in before it may run."""
    provenance: tuple[Trace, ...] = ()
    """Where the destinations of the call come from, as far as the conversation is known."""
    any_destination: bool = False
    """A rule allows it also for destinations that untrusted content brought in."""
    policy_reason: str = ""
    """For the audit record: what decided, and where it stands."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "policy_reason", f"{self.reason} ({self.origin})")


class Rulebook:
    """The policies that hold in one workspace. Where they have no rules, a decision depends on
    so little that it is remembered."""

    __slots__ = (
        "budgets",
        "directory",
        "has_rules",
        "refusal",
        "remembered",
        "user",
        "workspace",
    )

    def __init__(
        self,
        user: Policy,
        workspace: Policy | None = None,
        directory: str | None = None,
        refusal: Decision | None = None,
    ) -> None:
        self.user = user
        self.workspace = workspace
        self.directory = directory
        """The workspace with links resolved, as settings name it; None: as the session does."""
        self.refusal = refusal
        """What is decided of every call with effects, while the settings cannot be used."""
        self.has_rules = bool(user.rules) or (workspace is not None and bool(workspace.rules))
        self.budgets = user.budgets + (() if workspace is None else workspace.budgets)
        self.remembered: dict[tuple[str, str, str], Decision] = {}
        """By the key of a tool, mode and caller, whose hashes as enum members cost more than all
        the rest; nothing where there are rules."""

    @property
    def most_hosts(self) -> tuple[str, ...] | None:
        """The hosts that no command goes beyond here, whatever else is said; None: any."""
        return None if self.workspace is None else self.workspace.hosts

    def decide(self, question: Question, key: str = "") -> Decision:
        """Decide; where there are no rules, remember it under the key of the tool."""
        decision = decide(question, self.user, self.workspace)
        if key and not self.has_rules:
            if len(self.remembered) >= _REMEMBERED:
                self.remembered.clear()
            self.remembered[key, question.mode._value_, question.caller._value_] = decision
        return decision


def decide(question: Question, user: Policy, workspace: Policy | None = None) -> Decision:
    """What the user's policy says, made stricter (never laxer) by the workspace's own."""
    decision = _outcome(question, user, workspace)
    rules = user.rules if workspace is None else user.rules + workspace.rules
    hosts = _hosts(question, rules) if question.network and rules else ()
    return msgspec.structs.replace(decision, hosts=hosts) if hosts else decision


def _outcome(question: Question, user: Policy, workspace: Policy | None) -> Decision:
    insists = user.confirm_destructive or (workspace is not None and workspace.confirm_destructive)
    decision = _lower(question, _policy_answer(question, user), confirm_destructive=insists)
    if workspace is None or decision.outcome is Outcome.DENY:
        return decision
    for narrowed in (_opinion(question, workspace), _network_opinion(question, workspace)):
        if narrowed is not None and narrowed.outcome.strictness > decision.outcome.strictness:
            decision = narrowed
    return decision


def refuse_effects(problem: str, origin: Origin) -> Decision:
    """What is decided of calls with effects while the settings cannot be used: what they would
    say is not known."""
    return Decision(
        outcome=Outcome.DENY,
        reason="settings_invalid",
        sentence=f"The settings cannot be used: {problem}.",
        origin=origin,
    )


def ask_because_repaired(decision: Decision) -> Decision:
    """What is decided of a call with effects whose text had to be mended: no yes but a
    person's."""
    if decision.outcome is not Outcome.ALLOW:
        return decision
    return Decision(
        outcome=Outcome.ASK,
        reason="repaired",
        sentence="The model's text had to be repaired to read this call.",
        hosts=decision.hosts,
    )


def ask_because_unbound(decision: Decision) -> Decision:
    """What is decided of a command that runs where rules about paths bind nothing."""
    if decision.outcome is not Outcome.ALLOW:
        return decision
    return msgspec.structs.replace(
        decision,
        outcome=Outcome.ASK,
        reason="unbound",
        sentence="Rules about paths cannot bind a command that the agent runs itself.",
        origin=BUILT_IN,
    )


def ask_because_doubtful(decision: Decision) -> Decision:
    """What is decided of a command of an agent that was not understood: what the user wrote down
    about it holds, and else a person is asked."""
    if decision.outcome is not Outcome.ALLOW or decision.explicit:
        return decision
    return msgspec.structs.replace(
        decision,
        outcome=Outcome.ASK,
        reason="not_understood",
        sentence="The agent would run this itself, and what it does is not fully understood.",
        origin=BUILT_IN,
    )


def ask_always(decision: Decision) -> Decision:
    """What is decided of a call that nobody but a person may let run."""
    if decision.outcome is not Outcome.ALLOW:
        return decision
    return Decision(
        outcome=Outcome.ASK,
        reason="always_asked",
        sentence="This is asked about each time.",
        hosts=decision.hosts,
    )


def lifts_protection(resolved: ResolvedPath, question: Question, user: Policy) -> bool:
    """Whether an explicit rule of the user that speaks of this call names the protected place
    and does not deny it. A rule about everything names nothing."""
    return any(
        rule.decision is not Outcome.DENY
        and rule.path is not None
        and rule.path.lstrip("*/")
        and applies(rule, question, resolved)
        for rule in user.rules
    )


def applies(rule: Rule, question: Question, resolved: ResolvedPath | None = None) -> bool:
    """Whether a rule speaks of a call, or of one place in it; its command is judged apart."""
    return rule_applies(
        rule,
        tools=question.names,
        caller=question.caller,
        workspace=question.workspace,
        resolved_paths=question.resolved_paths if resolved is None else (resolved,),
        arguments=question.arguments,
        arguments_sha256=question.arguments_sha256,
        network=question.network,
    )


def _policy_answer(question: Question, policy: Policy) -> Decision:
    ceiling = _ceiling(question)
    if ceiling is not None:
        return ceiling
    decision = _opinion(question, policy) or _class_default(question)
    return _with_network(question, policy, decision) if question.network else decision


def _with_network(question: Question, policy: Policy, decision: Decision) -> Decision:
    """A command that asks for the network is also what uses the network: the stricter counts.

    A rule has said all about it already (`rules`); only a deny goes before it."""
    networked = _network_opinion(question, policy) or _from_mode(
        CLASS_DEFAULTS[SideEffects.NETWORK].mode, "network", _NEEDS_NETWORK
    )
    stricter = networked.outcome.strictness > decision.outcome.strictness
    if stricter and (decision.reason != "rule" or networked.outcome is Outcome.DENY):
        return networked
    return decision


def _network_opinion(question: Question, policy: Policy) -> Decision | None:
    """What a policy states about the use of the network, if anything."""
    setting = policy.default.get(SideEffects.NETWORK)
    if any(is_within(question.workspace, root) for root in policy.trusted_workspaces):
        setting = policy.trusted_workspace_overrides.get(SideEffects.NETWORK, setting)
    if not question.network or setting is None:
        return None
    sentence = (
        f"{_NEEDS_NETWORK} {_by_effect(SideEffects.NETWORK, setting.mode, 'by the settings')}"
    )
    return _from_mode(setting.mode, "network", sentence, setting.origin)


def _ceiling(question: Question) -> Decision | None:
    if question.mode is Mode.NONE:
        return Decision(
            outcome=Outcome.DENY, reason="mode_none", sentence="Mode none runs no tool."
        )
    if question.mode is Mode.READ and question.network:
        return Decision(
            outcome=Outcome.DENY,
            reason="mode_read",
            sentence="Mode read runs commands without the network only.",
        )
    if question.mode is Mode.READ and question.effect.has_effects and not _jailed(question):
        return Decision(
            outcome=Outcome.DENY,
            reason="mode_read",
            sentence=f"Mode read does not allow effect {question.effect}.",
        )
    return None


def _jailed(question: Question) -> bool:
    return question.effect is SideEffects.EXECUTE and question.read_only_sandbox


def _opinion(question: Question, policy: Policy) -> Decision | None:
    """What a policy states about the call beyond the built-in defaults, if anything. Of what it
    states, a rule that matches decides, but a deny anywhere is final."""
    table = _table(question, policy)
    if table is not None and table.outcome is Outcome.DENY:
        return table
    return (_by_rules(question, policy.rules) if policy.rules else None) or table


def _table(question: Question, policy: Policy) -> Decision | None:
    """What the settings say without rules: by tool, by trusted workspace, by effect."""
    settings = [policy.per_tool[name] for name in question.names if name in policy.per_tool]
    if settings:
        setting = max(settings, key=lambda each: _STRICT[each.mode])
        return _from_mode(
            setting.mode,
            "per_tool",
            f"per_tool says {setting.mode} for {question.tool}.",
            setting.origin,
            explicit=True,
        )
    trusting = _trusted(question, policy)
    if trusting is not None:
        return trusting
    stated = policy.default.get(question.effect)
    if stated is None:
        return None
    sentence = _by_effect(question.effect, stated.mode, "by the settings")
    return _destructive(question, _from_mode(stated.mode, "class_default", sentence, stated.origin))


def _by_effect(effect: SideEffects, mode: PolicyMode, where: str) -> str:
    """The sentence of a decision that follows from the effect of a call alone."""
    return f"Calls with effect {effect} are {_HAPPENS[mode]} {where}."


def _class_default(question: Question) -> Decision:
    setting = CLASS_DEFAULTS[question.effect]
    sentence = _by_effect(question.effect, setting.mode, "by default")
    return _destructive(
        question, _from_mode(setting.mode, "class_default", sentence, setting.origin)
    )


def _trusted(question: Question, policy: Policy) -> Decision | None:
    root = next(
        (root for root in policy.trusted_workspaces if is_within(question.workspace, root)), None
    )
    if root is None:
        return None
    setting = policy.trusted_workspace_overrides.get(question.effect)
    if setting is not None:
        sentence = _by_effect(question.effect, setting.mode, f"in the trusted workspace {root}")
        return _destructive(
            question, _from_mode(setting.mode, "trusted_override", sentence, setting.origin)
        )
    if question.effect is not SideEffects.WRITE:
        return None
    sentence = f"{root} is a trusted workspace: writes need no question."
    decision = _from_mode(PolicyMode.AUTO, "trusted_workspace", sentence, policy.trusted_origin)
    return _destructive(question, decision)


def _destructive(question: Question, decision: Decision) -> Decision:
    if not question.destructive or decision.outcome is not Outcome.ALLOW:
        return decision
    return Decision(
        outcome=Outcome.ASK,
        reason="destructive",
        sentence=f"{question.tool} is destructive, so it is asked about in any case.",
        origin=decision.origin,
    )


def _by_rules(question: Question, rules: tuple[Rule, ...]) -> Decision | None:
    matching = [rule for rule in rules if applies(rule, question)]
    decisions = [_from_rule(rule) for rule in matching if rule.command is None]
    by_command = _by_commands(question, [rule for rule in matching if rule.command is not None])
    if by_command is not None:
        decisions.append(by_command)
    return max(decisions, key=lambda found: found.outcome.strictness, default=None)


def _by_commands(question: Question, rules: list[Rule]) -> Decision | None:
    """All command rules at once: a command is allowed only if each of its parts is."""
    command = question.arguments.get("command")
    if not rules or not isinstance(command, str):
        return None
    patterns = [(rule.command, rule.decision.value) for rule in rules if rule.command is not None]
    judgement = _judge(command, patterns)
    if judgement.outcome is None:
        return None
    decisive = next((rules[i] for i in judgement.rules), None)
    return Decision(
        outcome=Outcome(judgement.outcome),
        reason="rule",
        sentence=judgement.sentence,
        origin=decisive.origin if decisive else BUILT_IN,
        # A doubt alone is not a question the user wrote down, but where they wrote what they
        # deny or want to be asked about, a doubt may hide just that.
        explicit=decisive is not None or any(r.decision is not Outcome.ALLOW for r in rules),
        any_destination=judgement.outcome == "allow"
        and all(rules[i].untrusted_destinations for i in judgement.rules),
    )


def _hosts(question: Question, rules: tuple[Rule, ...]) -> tuple[tuple[str, ...], ...]:
    """The lists of all rules that speak of the call, whichever of them decides: several commands
    of one line have one network, and none of them gets there by the rule of another."""
    return tuple(
        rule.network
        for rule in rules
        if isinstance(rule.network, tuple)
        and applies(rule, question)
        and speaks_of_command(rule, question)
    )


def speaks_of_command(rule: Rule, question: Question) -> bool:
    """Whether a rule's pattern of commands, if it has one, matches a command of the call."""
    if rule.command is None:
        return True
    command = question.arguments.get("command")
    if not isinstance(command, str):
        return False
    judgement = _judge(command, [(rule.command, rule.decision.value)])
    return any(verdict.outcome is not None for verdict in judgement.verdicts)


def _judge(command: str, patterns: Rules) -> Judgement:
    from callgate.policy.commands import judge, read_command  # lazy: only for rules about commands  # noqa: PLC0415

    return judge(read_command(command), patterns)


def _from_rule(rule: Rule) -> Decision:
    return Decision(
        outcome=rule.decision,
        reason="rule",
        sentence=f"Rule: {rule}.",
        origin=rule.origin,
        explicit=True,
        any_destination=rule.decision is Outcome.ALLOW and rule.untrusted_destinations,
    )


def _from_mode(
    mode: PolicyMode,
    reason: str,
    sentence: str,
    origin: Origin = BUILT_IN,
    *,
    explicit: bool = False,
) -> Decision:
    outcome = {PolicyMode.AUTO: Outcome.ALLOW, PolicyMode.DENY: Outcome.DENY}.get(mode, Outcome.ASK)
    return Decision(
        outcome=outcome,
        reason=reason,
        sentence=sentence,
        origin=origin,
        remember=mode is PolicyMode.PROMPT_ONCE,
        explicit=explicit,
    )


def _lower(question: Question, decision: Decision, *, confirm_destructive: bool) -> Decision:
    """Turn a question into a yes where the mode or the caller says so."""
    if decision.outcome is not Outcome.ASK:
        return decision
    insists = decision.explicit or (question.destructive and confirm_destructive)
    if question.mode is Mode.WRITE and not insists:
        return Decision(
            outcome=Outcome.ALLOW, reason="mode_write", sentence="Mode write asks no question."
        )
    if question.mode is Mode.GUARDED and not insists and (reason := _in_guarded_mode(question)):
        return Decision(outcome=Outcome.ALLOW, reason="mode_guarded", sentence=reason)
    if question.mode is Mode.READ and _jailed(question) and not insists:
        return Decision(
            outcome=Outcome.ALLOW,
            reason="mode_read",
            sentence="Mode read runs commands in the read-only sandbox.",
        )
    if question.caller.trusted:
        return Decision(
            outcome=Outcome.ALLOW,
            reason="trusted_caller",
            sentence=f"Caller {question.caller} is part of the program itself.",
        )
    return decision


def _in_guarded_mode(question: Question) -> str:
    """Why mode guarded runs a call without a question; empty where it asks."""
    flow = question.flow
    if question.contained:
        return "Mode guarded runs commands in a sandbox without network."
    if question.effect is SideEffects.WRITE and not question.outward:
        if not question.destructive or (flow is not None and flow.inside):
            return "Mode guarded changes files inside the workspace."
        return ""
    if flow is None:
        return ""
    if flow.vouched or (flow.takes_destinations and not flow.destinations):
        return "Mode guarded lets this go where your words, settings or answers say."
    return ""


def guard(decision: Decision, flow: Flow, mode: Mode) -> Decision:
    """What is decided of a call after a look at where its destinations come from: never laxer."""
    if flow.destinations:
        decision = msgspec.structs.replace(decision, provenance=flow.destinations)
    if decision.outcome is Outcome.DENY or decision.any_destination:
        return decision
    from callgate.policy.guard import describe, objection  # lazy: most calls have no conversation  # noqa: PLC0415

    objected = objection(flow)
    if objected is None and mode is Mode.GUARDED and not decision.explicit:
        if flow.unvouched and (decision.outcome is Outcome.ASK or flow.is_led_out):
            return msgspec.structs.replace(
                decision,
                outcome=Outcome.ASK,
                reason="mode_guarded",
                sentence=f"Mode guarded asks, because {describe(flow)}",
            )
        return _within_hosts(decision, flow)
    if objected is None:
        return _within_hosts(decision, flow)
    reason, sentence = objected
    return msgspec.structs.replace(
        decision,
        outcome=Outcome.ASK,
        reason=reason,
        sentence=sentence,
        origin=BUILT_IN,
        remember=False,
        explicit=True,
    )


def _within_hosts(decision: Decision, flow: Flow) -> Decision:
    """A command that runs because of the hosts in its words reaches no others."""
    counts = decision.reason == "mode_guarded" or Label.UNTRUSTED in flow.labels
    if not counts or not flow.hosts:
        return decision
    return msgspec.structs.replace(decision, hosts=(*decision.hosts, flow.hosts))
