"""Rules about connections of commands that mode guarded contains, each with its reason.

They allow a call of `connect_host` that would need approval by default. A rule or setting of the
user takes precedence, and `[policy] guarded_rules` removes them. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from callgate.policy.decisions import Decision, Reason
from callgate.policy.installers import GIT
from callgate.policy.rules import BUILT_IN, Outcome

_THIS_MACHINE = frozenset(("localhost", "127.0.0.1", "::1"))
_RELAYS = frozenset((25, 465, 587, 1080, 2375, 2376, 3128, 8118, 9050, 9150))
"""Ports of mail servers, proxies and Docker, through which data leaves this machine."""


class GuardedRule(msgspec.Struct, frozen=True):
    name: str
    reason: str
    applies: Callable[[Mapping[str, Any]], bool]
    """Whether it applies to the arguments of `connect_host`."""


def _is_this_machine(arguments: Mapping[str, Any]) -> bool:
    name = str(arguments.get("host", "")).removeprefix("private:")
    host = name[1:].partition("]")[0] if name.startswith("[") else name
    if host.count(":") == 1:
        host = host.partition(":")[0]
    address = str(arguments.get("address") or host)
    return {host, address} <= _THIS_MACHINE and arguments.get("port") not in _RELAYS


GUARDED_RULES = (
    GuardedRule(
        "localhost",
        "a service of this machine receives the data, and no other machine",
        _is_this_machine,
    ),
    GuardedRule(
        "git_fetch",
        "`git fetch` only reads, from a remote that the repository had before the first command",
        lambda arguments: arguments.get("reads") == GIT,
    ),
)


def allow_connection(
    decision: Decision, arguments: Mapping[str, Any], enabled: tuple[str, ...] | None
) -> Decision:
    """Allow a connection by the first rule that applies. `enabled`: their names; None: all."""
    if decision.outcome is not Outcome.ASK or decision.explicit or decision.origin != BUILT_IN:
        return decision
    for rule in GUARDED_RULES:
        if (enabled is None or rule.name in enabled) and rule.applies(arguments):
            sentence = f"Mode guarded allows it by its rule `{rule.name}`: {rule.reason}."
            return Decision(
                outcome=Outcome.ALLOW,
                reason=Reason.MODE_GUARDED,
                sentence=sentence,
                any_destination=True,
            )
    return decision
