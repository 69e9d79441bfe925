"""Conditions that make a decision stricter: three lists, in the order of their application.

    OPINIONS -> LIFTABLE -> RELAXATIONS -> NARROWINGS ->  (remembered)  -> TIGHTENINGS
                destructive               workspace                       facts of this call
                network                   its network

A relaxation may lift the first list: mode write runs a destructive tool. Nothing lifts the others.
The first two depend only on inputs that are part of a `Rulebook`'s cache key. `TIGHTENINGS` depend
on the facts of one call, its `Circumstances`; each acts on one fact and leaves all other decisions
unchanged. A feature adds one with `Authority.tightenings`.

No tightening returns a laxer outcome than its input. They differ in the fields they retain: some
replace the whole decision, so that no answer is remembered for it. Pure.

The guard above rules, grants and modes: data flow out of a session with untrusted content.

    untrusted content was read, and the call sends out or destroys
        -> the user, the settings or an answer vouch for all destinations   unchanged
        -> they do not                                                      ask
    a secret goes to an unvouched destination                               ask

`Flow` has the facts about one call: its destinations with their sources, and the labels of the
content that its session has read. The guard only makes a decision stricter. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.core.calls import CallerKind
from callgate.core.content import Label
from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode, ResolvedPath
from callgate.policy.decisions import Decision, Question, Reason
from callgate.policy.opinions import STATED, first_answer, from_setting, network_opinion
from callgate.policy.provenance.sources import Flow, SourceKind
from callgate.policy.rules import BUILT_IN, CLASS_DEFAULTS, Outcome, Policy

if TYPE_CHECKING:
    from callgate.core.budgets import Overrun


_SHOWN = 80


def objection(flow: Flow) -> tuple[Reason, str] | None:
    """Return why a call needs approval even if all else allows it, as a reason and a sentence.

    None: the guard does not object.
    """
    if flow.destinations and not flow.unvouched:
        return None
    first_read = flow.labels.get(Label.UNTRUSTED)
    if first_read is not None and (flow.outward or flow.destroys) and flow.unvouched:
        return Reason.UNTRUSTED_DESTINATION, (
            f"The session has read untrusted content ({first_read}), and {describe(flow)}"
        )
    if flow.destinations or flow.takes_destinations:
        return _secret(flow)
    is_private = Label.PRIVATE in flow.labels
    may_follow = first_read is not None and (is_private or flow.has_effects)
    if may_follow and flow.outward and not flow.is_answered:
        private = f" and private content ({flow.labels[Label.PRIVATE]})" if is_private else ""
        return Reason.PRIVATE_OUTWARD, (
            f"The session has read untrusted content ({first_read}){private}, and this call sends"
            " data out without a destination that callgate knows."
        )
    return _secret(flow)


def is_paused(flow: Flow) -> bool:
    """Whether the call waits for the user, who refused several questions of the guard."""
    may_go_on = not flow.outward or (not flow.has_effects and flow.vouched)
    return flow.is_paused and not may_go_on


def unnamed_host(flow: Flow) -> str:
    """Return why a host needs its first approval; an empty text if all hosts are named."""
    if not flow.unnamed_hosts:
        return ""
    first, *others = flow.unnamed_hosts
    more = f" (and {len(others)} more)" if others else ""
    return f"The host {first!r}{more} appears neither in your words nor in your settings."


def _secret(flow: Flow) -> tuple[Reason, str] | None:
    if flow.outward and flow.carries_secret:
        return Reason.SECRET_OUTWARD, Reason.SECRET_OUTWARD.sentence
    return None


def describe(flow: Flow) -> str:
    """Describe the source of the first unvouched destination."""
    trace = flow.unvouched[0]
    more = len(flow.unvouched) - 1
    others = "" if not more else f" (and {more} more)"
    value = trace.value if len(trace.value) <= _SHOWN else trace.value[: _SHOWN - 1] + "…"
    subject = f"{trace.parameter} {value!r}{others}"
    match trace.source.kind:
        case SourceKind.NOWHERE:
            return f"{subject} does not appear in anything you wrote."
        case SourceKind.MENTIONED:
            return f"{subject} is not covered by your words, {trace.source.reason}."
        case SourceKind.UNKNOWN:
            return f"what you wrote is unknown, so {subject} may come from anywhere."
        case _:
            return f"{subject} does not come from your words but from {trace.source}."


PolicyTightening = Callable[[Question, Policy, Decision], Decision]
_BY_EFFECT = frozenset({Reason.CLASS_DEFAULT, Reason.TRUSTED_OVERRIDE, Reason.TRUSTED_WORKSPACE})


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one call that are not inputs of a cached decision."""

    names: tuple[str, ...] = ()
    """The tool's name and its aliases."""
    effect: SideEffects = SideEffects.EXECUTE
    arguments: Mapping[str, Any] = {}
    mode: Mode = Mode.ASK
    caller: CallerKind = CallerKind.LIBRARY
    is_denied: bool = False
    """A person denied such calls for the rest of the session. Set only for a call that
    `read_commands` or `reversible` allows; for others a remembered answer applies if the decision
    is to ask.
    """
    named: tuple[ResolvedPath, ...] = ()
    """Paths in the words of its command that a rule asks about, even for other tools only."""
    flow: Flow | None = None
    """The sources of its destinations; None: the guard does not apply."""
    copied: str = ""
    """The control file that the call would write, and the untrusted content that it copies."""
    pipeline: str = ""
    """A file of a build server that the call would write, and that no rule names."""
    is_repaired: bool = False
    """The call has effects, and was parsed from repaired text."""
    always_ask: bool = False
    """Each call of the tool needs its own approval."""
    is_unbound: bool = False
    """Another agent runs the command, so its path rules cannot be enforced."""
    is_understood: bool = True
    """Whether the input for work of another process was fully understood."""
    overruns: tuple[Overrun, ...] = ()
    """Budget limits that the call would exceed."""
    budget_problem: str = ""
    """Why the budgets cannot be read."""


Tightening = Callable[[Decision, Circumstances], Decision]


# --- before the relaxations -------------------------------------------------------------------


def destructive(question: Question, policy: Policy, decision: Decision) -> Decision:
    """Ask before a destructive tool that is allowed only because of its effect class."""
    is_allowed = decision.outcome is Outcome.ALLOW and decision.reason in _BY_EFFECT
    if not question.destructive or not is_allowed:
        return decision
    return Decision(
        outcome=Outcome.ASK,
        reason=Reason.DESTRUCTIVE,
        sentence=Reason.DESTRUCTIVE.sentence.format(tool=question.tool),
        origin=decision.origin,
    )


def network(question: Question, policy: Policy, decision: Decision) -> Decision:
    """Apply the network setting to a command that requests network access: the stricter one counts.

    A rule that decided has considered the network already (`rules`); only a deny overrides it.
    """
    if not question.network:
        return decision
    networked = network_opinion(question, policy) or from_setting(
        CLASS_DEFAULTS[SideEffects.NETWORK], Reason.NETWORK, Reason.NETWORK.sentence
    )
    is_final = decision.reason is not Reason.RULE or networked.outcome is Outcome.DENY
    return networked if is_final and networked.is_stricter_than(decision) else decision


LIFTABLE: tuple[PolicyTightening, ...] = (destructive, network)
"""Applied with the user's policy."""


# --- the settings of a workspace --------------------------------------------------------------


def workspace_settings(question: Question, policy: Policy, decision: Decision) -> Decision:
    """Apply the statements of a workspace's own settings, if they are stricter."""
    stated = first_answer(STATED, question, policy)
    if stated is None:
        return decision
    stated = destructive(question, policy, stated)
    return stated if stated.is_stricter_than(decision) else decision


def workspace_network(question: Question, policy: Policy, decision: Decision) -> Decision:
    """Apply a workspace's own network setting, if it is stricter."""
    stated = network_opinion(question, policy)
    return stated if stated is not None and stated.is_stricter_than(decision) else decision


NARROWINGS: tuple[PolicyTightening, ...] = (workspace_settings, workspace_network)
"""Applied with the workspace's policy."""


# --- the facts of one call --------------------------------------------------------------------


def session_denial(decision: Decision, call: Circumstances) -> Decision:
    """Ask about a read-only or reversible call if the person denied such calls for the session.

    Then the remembered answer decides, if it covers the call.
    """
    is_lifted = decision.reason in (Reason.READ_COMMANDS, Reason.REVERSIBLE)
    is_about_it = decision.outcome is Outcome.ALLOW and is_lifted
    if not call.is_denied or not is_about_it:
        return decision
    sentence = "Calls of this tool were denied for this session."
    return _ask(decision, Reason.CLASS_DEFAULT, sentence)


def named_paths(decision: Decision, call: Circumstances) -> Decision:
    """Ask about a command that names files which a rule asks about: its output may show them."""
    is_exempt = decision.outcome is not Outcome.ALLOW or decision.reason is Reason.TRUSTED_CALLER
    if not call.named or is_exempt:
        return decision
    sentence = f"A rule requires approval for {call.named[0].relative}, which the command names."
    return _ask(decision, Reason.RULE, sentence, explicit=True)


def provenance(decision: Decision, call: Circumstances) -> Decision:
    """Ask about a call with unvouched destinations (the guard), and add the sources of its
    destinations. Calls of the program itself are exempt.
    """
    flow = call.flow
    if flow is None or call.caller.trusted:
        return decision
    if flow.destinations:
        decision = msgspec.structs.replace(decision, provenance=flow.destinations)
    if decision.outcome is Outcome.DENY or decision.any_destination:
        return decision

    if is_paused(flow):
        paused = Reason.PAUSED
        return _ask(decision, paused, paused.sentence, outcome=Outcome.DENY)
    objected = objection(flow)
    if objected is not None:
        reason, sentence = objected
        return _ask(decision, reason, sentence, explicit=True, remember=False)
    is_cautious = call.mode is Mode.GUARDED and not decision.explicit and bool(flow.unvouched)
    if is_cautious and (decision.outcome is Outcome.ASK or flow.is_led_out):
        sentence = f"Mode guarded requires approval, because {describe(flow)}"
        return _ask(decision, Reason.MODE_GUARDED, sentence, origin=decision.origin)
    unnamed = unnamed_host(flow)
    is_by_effect = decision.reason in _BY_EFFECT or decision.reason is Reason.MODE_GUARDED
    if unnamed and is_by_effect and call.mode is not Mode.WRITE:
        return _ask(decision, Reason.UNNAMED_HOST, unnamed)
    return _within_hosts(decision, flow)


def control_files(decision: Decision, call: Circumstances) -> Decision:
    """Ask about untrusted content that is copied to a file which an agent or a tool runs later."""
    if not call.copied or decision.outcome is Outcome.DENY or call.caller.trusted:
        return decision
    return _ask(decision, Reason.CONTROL_FILE, call.copied, explicit=True, remember=False)


def pipelines(decision: Decision, call: Circumstances) -> Decision:
    """Ask about writing a file that a build server executes."""
    if not call.pipeline or decision.outcome is not Outcome.ALLOW:
        return decision
    sentence = Reason.PIPELINE.sentence.format(path=call.pipeline)
    return _ask(decision, Reason.PIPELINE, sentence, explicit=True)


def repaired(decision: Decision, call: Circumstances) -> Decision:
    """Ask about a call from repaired text. Retains only the hosts of the decision."""
    if not call.is_repaired or decision.outcome is not Outcome.ALLOW:
        return decision
    return _ask_afresh(decision, Reason.REPAIRED)


def always_asked(decision: Decision, call: Circumstances) -> Decision:
    """Ask about each call of a tool that declares it. Retains only the hosts of the decision."""
    if not call.always_ask or decision.outcome is not Outcome.ALLOW:
        return decision
    return _ask_afresh(decision, Reason.ALWAYS_ASKED)


def unbound_paths(decision: Decision, call: Circumstances) -> Decision:
    """Ask about a command that runs where path rules cannot be enforced."""
    if not call.is_unbound or decision.outcome is not Outcome.ALLOW:
        return decision
    return _ask(decision, Reason.UNBOUND, Reason.UNBOUND.sentence)


def not_understood(decision: Decision, call: Circumstances) -> Decision:
    """Ask about an unclear command of another agent, unless a setting allows it explicitly."""
    if call.is_understood or decision.outcome is not Outcome.ALLOW or decision.explicit:
        return decision
    return _ask(decision, Reason.NOT_UNDERSTOOD, Reason.NOT_UNDERSTOOD.sentence)


def over_budget(decision: Decision, call: Circumstances) -> Decision:
    """Ask about a call that would exceed a limit, or whose budgets cannot be read."""
    is_counted = call.overruns or call.budget_problem
    if not is_counted or not decision.budgets or decision.outcome is Outcome.DENY:
        return decision
    from callgate.policy import budgets  # lazy: few homes have budgets  # noqa: PLC0415

    if call.budget_problem:
        return budgets.budget_unknown(decision, call.budget_problem)
    return budgets.over_budget(decision, call.overruns, call.names)


TIGHTENINGS: tuple[Tightening, ...] = (
    session_denial,
    named_paths,
    provenance,
    control_files,
    pipelines,
    repaired,
    always_asked,
    unbound_paths,
    not_understood,
    over_budget,
)


def tighten(decision: Decision, call: Circumstances, added: Iterable[Tightening] = ()) -> Decision:
    """Return the decision after all tightenings; the `added` ones of features come last.

    A fact may become known later than the others, such as a full budget: then the list is applied
    again with that fact alone. Raises `ValueError` if an added tightening is laxer.
    """
    for tightening in TIGHTENINGS:
        decision = tightening(decision, call)
    for tightening in added:
        tightened = tightening(decision, call)
        if decision.is_stricter_than(tightened):
            raise ValueError(f"{tightening} made {decision.outcome} {tightened.outcome}")
        decision = tightened
    return decision


def _ask(decision: Decision, reason: Reason, sentence: str, **more: Any) -> Decision:
    """Return a decision to ask; fields that are not given are retained."""
    fields = {"outcome": Outcome.ASK, "reason": reason, "sentence": sentence, "origin": BUILT_IN}
    return msgspec.structs.replace(decision, **(fields | more))


def _ask_afresh(decision: Decision, reason: Reason) -> Decision:
    return Decision(
        outcome=Outcome.ASK, reason=reason, sentence=reason.sentence, hosts=decision.hosts
    )


def _within_hosts(decision: Decision, flow: Flow) -> Decision:
    """Limit a command that runs because of the hosts in its words to these hosts."""
    counts = decision.reason is Reason.MODE_GUARDED or Label.UNTRUSTED in flow.labels
    if not counts or not flow.hosts:
        return decision
    return msgspec.structs.replace(decision, hosts=(*decision.hosts, flow.hosts))
