"""The decision of one set of settings about a recorded call.

Facts that the record does not contain are tried in every possible way: in the question
(`_questions`), and in the rules that may apply (`_worlds`). If all ways end in the same decision,
that is the result; otherwise it is a `Doubt`. An allow is never guessed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec

from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode, ResolvedPath, Root
from callgate.features.reporting.recorded_calls import (
    Lookups,
    PolicySettings,
    RecordedCall,
    resolve_recorded,
)
from callgate.policy.decide import decide
from callgate.policy.decisions import Decision, Question, Reason
from callgate.policy.opinions import applies, lifts_protection
from callgate.policy.read_commands import reads_only
from callgate.policy.relaxations import reads_unasked
from callgate.policy.rules import BUILT_IN, Origin, Outcome, Policy, Rule, is_within
from callgate.policy.tightenings import Circumstances, tighten


class Doubt(StrEnum):
    """The reason why a call cannot be decided from its record."""

    ARGUMENTS = "arguments_cut"
    TOOL = "tool_unknown"
    LINK = "link"
    SANDBOX = "sandbox"
    WORKSPACE = "workspace_settings"


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One set of settings for one kind of call, with the rules that may apply."""

    settings: PolicySettings
    lookups: Lookups
    mode: Mode
    user: Policy
    workspace: Policy | None
    directory: str
    """The workspace with links resolved."""
    roots: tuple[Root, ...]
    needs_paths: bool = True
    """Whether the decision depends on the exact paths inside the roots."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.user.rules + (() if self.workspace is None else self.workspace.rules)

    def grounds(self, call: RecordedCall) -> tuple[object, ...]:
        """Return everything besides the call itself on which a decision about such
        calls depends.
        """
        user, classes = self.user, (call.effect, SideEffects.NETWORK)
        names = (call.record.tool, *call.aliases)
        words = [
            *(user.per_tool.get(name) for name in names),
            *(user.default.get(effect) for effect in classes),
            *(user.trusted_workspace_overrides.get(effect) for effect in classes),
        ]
        return (
            self.mode,
            [None if setting is None else setting.mode for setting in words],
            any(is_within(self.directory, root) for root in user.trusted_workspaces),
            user.confirm_destructive,
            reads_unasked(self.mode, user, self.workspace) is not None,
            [msgspec.structs.replace(rule, origin=BUILT_IN) for rule in self.rules],
            self.roots,
            self.settings.sandbox if call.sandboxed else None,
            call.record.tool in self.settings.disabled,
        )


def narrowed(policy: Policy, question: Question) -> Policy:
    """Return a policy with only the rules that may apply to such a call, for any arguments."""
    rules = tuple(
        rule
        for rule in policy.rules
        if applies(
            Rule(
                decision=rule.decision,
                tool=rule.tool,
                caller=rule.caller,
                workspace=rule.workspace,
            ),
            question,
        )
    )
    return msgspec.structs.replace(policy, rules=rules)


def decision_of(view: View, call: RecordedCall) -> Decision | Doubt:
    """Return the decision of one side if it is the same for every possible form of the call."""
    disabled = view.settings.disabled.get(call.record.tool)
    if disabled is not None:
        return _refusal(Reason.DISABLED, disabled, tool=call.record.tool)
    known = not call.path_params or call.knows_paths
    if not known and (view.needs_paths or call.refused_by_path):
        return Doubt.ARGUMENTS
    paths = call.paths() if known else []
    resolved_paths = [_resolved(view, call, path) for path in paths]
    inside = tuple(resolved for resolved in resolved_paths if resolved is not None)
    if len(inside) < len(resolved_paths):
        return _refusal(Reason.WORKSPACE_ESCAPE)
    workspace = view.workspace
    narrowings = [None] if workspace is None else _worlds(workspace, call)
    possible = [
        _judged(view, call, question, user, narrowing)
        for question in _questions(view, call, inside)
        for user in _worlds(view.user, call)
        for narrowing in narrowings
    ]
    first = possible[0]
    if all(each.outcome is first.outcome for each in possible):
        return first
    return _doubt(view, call)


def _doubt(view: View, call: RecordedCall) -> Doubt:
    looked_at = {name for rule in view.rules for name in (*rule.arguments, *rule.without)}
    looked_at |= {"command", "network"}
    if not all(map(call.arguments.knows, looked_at)):
        return Doubt.ARGUMENTS
    return Doubt.TOOL if call.tool is None else Doubt.SANDBOX


def _resolved(view: View, call: RecordedCall, path: str) -> ResolvedPath | None:
    roots = _roots(view, call)
    return resolve_recorded(path, call.record.cwd, roots, view.lookups.is_protected)


def _roots(view: View, call: RecordedCall) -> tuple[Root, ...]:
    """Return the roots, with the session's artifact directory if the call names it."""
    artifacts = os.path.join(view.lookups.home, "artifacts", call.record.session)
    return (*view.roots, Root(artifacts)) if artifacts in call.record.args else view.roots


def _judged(
    view: View, call: RecordedCall, question: Question, user: Policy, workspace: Policy | None
) -> Decision:
    refused = _confined(view, question, user) if call.effect is SideEffects.WRITE else None
    decision = refused or decide(question, user, workspace)
    is_repaired = call.repaired and call.effect.has_effects
    return tighten(decision, Circumstances(is_repaired=is_repaired))


def _confined(view: View, question: Question, user: Policy) -> Decision | None:
    """Return the refusal if the call names a path that is not writable."""
    without_paths = msgspec.structs.replace(question, resolved_paths=())
    for resolved in question.resolved_paths:
        if not resolved.writable:
            return _refusal(Reason.READ_ONLY_ROOT, root=resolved.root)
        if is_within(resolved.real, view.lookups.home) or (
            resolved.protected and not lifts_protection(resolved, without_paths, user)
        ):
            return _refusal(Reason.PROTECTED_PATH)
    return None


def _refusal(reason: Reason, origin: Origin = BUILT_IN, **named: str) -> Decision:
    sentence = reason.sentence.format(**named)
    return Decision(outcome=Outcome.DENY, reason=reason, sentence=sentence, origin=origin)


def _questions(
    view: View, call: RecordedCall, resolved_paths: tuple[ResolvedPath, ...]
) -> Iterator[Question]:
    """Yield the questions to the policy, in each way that the record leaves open."""
    networks, jails = _surroundings(view, call)
    for destructive in (False, True) if call.destructive is None else (call.destructive,):
        for network in networks:
            for read_only in jails:
                yield Question(
                    tool=call.record.tool,
                    aliases=call.aliases,
                    effect=call.effect,
                    destructive=destructive,
                    mode=view.mode,
                    caller=call.caller,
                    workspace=view.directory,
                    resolved_paths=resolved_paths,
                    arguments=call.arguments.values,
                    arguments_sha256=call.sha256,
                    read_only_sandbox=read_only,
                    reading=not network and _is_reading(view, call),
                    network=network,
                )


def _is_reading(view: View, call: RecordedCall) -> bool:
    """Whether its command only reads, by its text, and ran in callgate's sandbox."""
    if not call.sandboxed or view.settings.sandbox is None or not call.arguments.knows("command"):
        return False
    command = call.arguments.values.get("command")
    reads = reads_only(command) if isinstance(command, str) else None
    if reads is None or not str(call.record.sandbox).startswith(("read", "workspace")):
        return False
    cwd = str(call.arguments.values.get("cwd", "."))
    paths = [os.path.join(cwd, reads.directory, each) for each in ("", *reads.paths)]
    return all(_resolved(view, call, path) is not None for path in paths)


def _surroundings(view: View, call: RecordedCall) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Return the possible values of "requests the network" and of "runs in a read-only sandbox"."""
    sandbox = view.settings.sandbox
    if not call.sandboxed or sandbox is None:
        return (False,), (False,)
    asks: tuple[bool, ...] = (False, True)
    if call.arguments.knows("network"):
        asks = (call.arguments.values.get("network") is True,)
    if view.mode is Mode.READ:
        # The sandbox of this machine is tested only before a command runs.
        confined = call.record.sandbox == "read" and call.record.decision == Outcome.ALLOW
        return asks, (True,) if confined else (True, False)
    if sandbox.grants_network:
        asks = (False,)
    return asks, (False,)


def _worlds(policy: Policy, call: RecordedCall) -> list[Policy]:
    """Return a policy in each way that its rules can apply, as far as the record leaves it open.

    The strictest matching rule decides, so one rule at a time is enough. Several rules that allow
    may each cover a part of a command line, so they are also tried together.
    """
    known = [_known_part(rule, call) for rule in policy.rules]
    judged = list(zip(policy.rules, known, strict=True))
    unsure = [part for rule, part in judged if part is not rule]
    if not unsure:
        return [policy]
    sure = tuple(part for rule, part in judged if part is rule)
    ways: list[tuple[Rule, ...]] = [(), *((each,) for each in unsure)]
    ways.append(tuple(each for each in unsure if each.decision is Outcome.ALLOW))
    if any(rule.command is not None for rule, part in judged if part is not rule):
        # a command that the parser does not understand needs approval
        ways.append((Rule(decision=Outcome.ASK),))
    return [msgspec.structs.replace(policy, rules=sure + way) for way in ways]


def _known_part(rule: Rule, call: RecordedCall) -> Rule:
    """Return a rule without the conditions that the record cannot decide."""
    conditions: dict[str, Any] = {}
    if rule.path is not None and not call.knows_paths:
        conditions["path"] = None
    if rule.command is not None and not call.arguments.knows("command"):
        conditions["command"] = None
    if not all(map(call.arguments.knows, rule.arguments)):
        conditions["arguments"] = {
            name: glob for name, glob in rule.arguments.items() if call.arguments.knows(name)
        }
    if not all(map(call.arguments.knows, rule.without)):
        conditions["without"] = tuple(filter(call.arguments.knows, rule.without))
    return msgspec.structs.replace(rule, **conditions) if conditions else rule
