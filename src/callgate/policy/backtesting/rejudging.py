"""What one set of settings decides about a call of which only a record is left.

What the record does not tell is taken in each way it can have been: the question (`_questions`)
and the rules that may apply to it or not (`_worlds`). Only where all of them end alike is there
a decision; else there is a `Doubt`. An allow is never guessed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec

from callgate.core.effects import SideEffects
from callgate.core.resolved_paths import ResolvedPath
from callgate.core.sessions import Mode, Root
from callgate.policy.backtesting.inputs import Lookups, PolicySettings
from callgate.policy.backtesting.recorded_calls import RecordedCall, resolve_recorded
from callgate.policy.decide import (
    Decision,
    Question,
    applies,
    ask_because_repaired,
    decide,
    lifts_protection,
)
from callgate.policy.rules import BUILT_IN, Origin, Outcome, Policy, Rule, is_within


class Doubt(StrEnum):
    """Why a call cannot be judged by its record."""

    ARGUMENTS = "arguments_cut"
    TOOL = "tool_unknown"
    LINK = "link"
    SANDBOX = "sandbox"
    WORKSPACE = "workspace_settings"


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One side as it looks at a kind of call: with the rules that can speak of it."""

    settings: PolicySettings
    lookups: Lookups
    mode: Mode
    user: Policy
    workspace: Policy | None
    directory: str
    """The workspace with links resolved."""
    roots: tuple[Root, ...]
    needs_paths: bool = True
    """Whether it matters where exactly a call went that was found inside."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.user.rules + (() if self.workspace is None else self.workspace.rules)

    def grounds(self, call: RecordedCall) -> tuple[object, ...]:
        """All that a decision about such calls depends on beside the calls, wherever it is
        written."""
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
            [msgspec.structs.replace(rule, origin=BUILT_IN) for rule in self.rules],
            self.roots,
            self.settings.sandbox if call.sandboxed else None,
            call.record.tool in self.settings.disabled,
        )


def narrowed(policy: Policy, question: Question) -> Policy:
    """With only those rules that may speak of such a call, whatever its arguments are."""
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
    """What one side decides, if it is the same in every way the call can have been."""
    disabled = view.settings.disabled.get(call.record.tool)
    if disabled is not None:
        return _refusal("disabled", f"{call.record.tool} is disabled.", disabled)
    known = not call.path_params or call.knows_paths
    if not known and (view.needs_paths or call.refused_by_path):
        return Doubt.ARGUMENTS
    paths = call.paths() if known else []
    resolved_paths = [_resolved(view, call, path) for path in paths]
    inside = tuple(resolved for resolved in resolved_paths if resolved is not None)
    if len(inside) < len(resolved_paths):
        return _refusal("workspace_escape", "A path leads out of the workspace.")
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
    """With the directory in which the output of the session is kept, where that is meant."""
    artifacts = os.path.join(view.lookups.home, "artifacts", call.record.session)
    return (*view.roots, Root(artifacts)) if artifacts in call.record.args else view.roots


def _judged(
    view: View, call: RecordedCall, question: Question, user: Policy, workspace: Policy | None
) -> Decision:
    refused = _confined(view, question, user) if call.effect is SideEffects.WRITE else None
    decision = refused or decide(question, user, workspace)
    if call.repaired and call.effect.has_effects:
        return ask_because_repaired(decision)
    return decision


def _confined(view: View, question: Question, user: Policy) -> Decision | None:
    """Where a place among those of a call is not written."""
    without_paths = msgspec.structs.replace(question, resolved_paths=())
    for resolved in question.resolved_paths:
        if not resolved.writable:
            sentence = f"{resolved.root} is open for reading only."
            return _refusal("read_only_root", sentence)
        if is_within(resolved.real, view.lookups.home) or (
            resolved.protected and not lifts_protection(resolved, without_paths, user)
        ):
            return _refusal("protected_path", "What is written there runs later by itself.")
    return None


def _refusal(reason: str, sentence: str, origin: Origin = BUILT_IN) -> Decision:
    return Decision(outcome=Outcome.DENY, reason=reason, sentence=sentence, origin=origin)


def _questions(
    view: View, call: RecordedCall, resolved_paths: tuple[ResolvedPath, ...]
) -> Iterator[Question]:
    """What the policy is asked, in each way that the record leaves open."""
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
                    network=network,
                )


def _surroundings(view: View, call: RecordedCall) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Whether its commands ask for the network, and whether they run where nothing changes."""
    sandbox = view.settings.sandbox
    if not call.sandboxed or sandbox is None:
        return (False,), (False,)
    asks: tuple[bool, ...] = (False, True)
    if call.arguments.knows("network"):
        asks = (call.arguments.values.get("network") is True,)
    if view.mode is Mode.READ:
        # What this machine can promise is tried out only where a command is to run.
        confined = call.record.sandbox == "read" and call.record.decision == Outcome.ALLOW
        return asks, (True,) if confined else (True, False)
    if sandbox.grants_network:
        asks = (False,)
    return asks, (False,)


def _worlds(policy: Policy, call: RecordedCall) -> list[Policy]:
    """A policy in each way its rules can apply, where the record does not tell.

    Of rules that match the strictest decides, so one rule at a time is enough; but several that
    allow may each cover a part of a command line."""
    known = [_known_part(rule, call) for rule in policy.rules]
    judged = list(zip(policy.rules, known, strict=True))
    unsure = [part for rule, part in judged if part is not rule]
    if not unsure:
        return [policy]
    sure = tuple(part for rule, part in judged if part is rule)
    ways: list[tuple[Rule, ...]] = [(), *((each,) for each in unsure)]
    ways.append(tuple(each for each in unsure if each.decision is Outcome.ALLOW))
    if any(rule.command is not None for rule, part in judged if part is not rule):
        ways.append((Rule(decision=Outcome.ASK),))  # a command that is not understood asks
    return [msgspec.structs.replace(policy, rules=sure + way) for way in ways]


def _known_part(rule: Rule, call: RecordedCall) -> Rule:
    """A rule without those conditions of which the record does not tell whether they hold."""
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
