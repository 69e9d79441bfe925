"""What binds a call on a worker: the rules of the server, and what the settings here deny.

The server has judged the call and asked whom it had to ask, so what would be asked here is
allowed. A deny is final, whoever wrote it: where the settings of this machine want a question, the
answer is no, since nobody can be asked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from callgate.core.sessions import PoolWorkspace
from callgate.policy.decide import Decision, Question, Rulebook
from callgate.policy.rules import Outcome, Policy, PolicyMode, Rule, Setting, is_within
from callgate.protocol.host_v1.frames import Object
from callgate.protocol.host_v1.workers import SERVER

K = TypeVar("K")


class WorkerRulebook(Rulebook):
    """One whose questions were answered by the server."""

    __slots__ = ()

    def decide(self, question: Question, key: str = "") -> Decision:
        decision = super().decide(question)
        if decision.outcome is not Outcome.ASK:
            return decision
        return msgspec.structs.replace(decision, outcome=Outcome.ALLOW)


class WorkerPolicies:
    """By the directory of a workspace: the rules that the server sent last, with those here."""

    def __init__(self, own: Callable[[str], Rulebook]) -> None:
        self._own = own
        self._given: dict[str, tuple[str, tuple[Rule, ...]]] = {}
        """What the server calls the workspace, and its rules."""

    def give(self, directory: str, workspace: PoolWorkspace, rules: Sequence[Object]) -> None:
        """From now on these bind. Raises `msgspec.ValidationError`."""
        self._given[directory] = (str(workspace), msgspec.convert(rules, tuple[Rule, ...]))

    @staticmethod
    def is_servers(decision: Decision) -> bool:
        """Whether the server comes to the same by itself: by its rules, or by the mode."""
        return decision.origin.file == SERVER or decision.reason.startswith("mode_")

    def __call__(self, directory: str) -> Rulebook:
        name, rules = self._given.get(directory, (directory, ()))
        own = self._own(directory)
        policies = [own.user] if own.workspace is None else [own.user, own.workspace]
        hosts = None if own.workspace is None else own.workspace.hosts
        narrowing = Policy(
            default=_denied(effect for policy in policies for effect in policy.default.items()),
            per_tool=_denied(tool for policy in policies for tool in policy.per_tool.items()),
            rules=tuple(_denials(policies, directory)),
            hosts=hosts,
        )
        return WorkerRulebook(Policy(rules=rules), narrowing, name, own.refusal)


def _denied(settings: Iterable[tuple[K, Setting]]) -> Mapping[K, Setting]:
    return {key: each for key, each in settings if each.mode is PolicyMode.DENY}


def _denials(policies: Sequence[Policy], directory: str) -> Iterator[Rule]:
    """The rules of this machine that hold in a directory: what they would ask about is denied."""
    for rule in (rule for policy in policies for rule in policy.rules):
        here = rule.workspace is None or is_within(directory, rule.workspace)
        if here and rule.decision is not Outcome.ALLOW:
            yield msgspec.structs.replace(rule, decision=Outcome.DENY, workspace=None)
