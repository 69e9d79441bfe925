"""Budgets in the policy: the charges of a call, and the decision about a call over budget. Pure.

    budgets of the settings -> charges -> the store counts -> overruns -> ask

A call that uses the network sends its arguments to the destinations among them
(`provenance.destinations`). A call without a named destination counts for its tool. A
command without one counts for the hosts in its words, or else for its whole text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256

import msgspec

from callgate.core.budgets import (
    Amount,
    Charge,
    Counter,
    Ledger,
    Overrun,
    day_ledger,
    of_day,
    session_ledger,
    used,
)
from callgate.policy.decisions import Decision, Reason
from callgate.policy.provenance.destinations import normal_destination
from callgate.policy.rules import BUILT_IN, Budget, Origin, Outcome

_MAILBOX = re.compile(r"<([^<>\s]+@[^<>\s]+)>\s*\Z")
_NOUNS = {
    Amount.CALLS: "calls",
    Amount.BYTES_OUT: "bytes sent out",
    Amount.DESTINATIONS: "destinations",
}


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """The data that a call sends over the network, according to its arguments."""

    bytes_out: int
    destinations: tuple[str, ...]


def sending(tool: str, size: int, command: str | None, values: Iterable[str]) -> Sending:
    """`size` is the size of the arguments; `values` are the destinations among them."""
    named = [normal_destination(part) for value in values for part in _parts(value)]
    if not named and command is not None:
        named = [" ".join(command.split())]
    return Sending(bytes_out=size, destinations=tuple(dict.fromkeys(map(_hash, named or [tool]))))


def charges(
    budgets: Iterable[Budget],
    *,
    names: tuple[str, ...],
    session: str,
    principal: str,
    day: str,
    sending: Sending | None,
) -> tuple[Charge, ...]:
    """Return the charges of a call to each counter with a budget.

    `names` are the names of its tool; the first one names the counter.
    """
    limits: dict[tuple[str, str], dict[Amount, int]] = {}
    for budget in budgets:
        if budget.tool is None or budget.tool in names:
            counter = limits.setdefault((budget.per, names[0] if budget.tool else ""), {})
            amount = Amount(budget.amount)
            counter[amount] = min(budget.limit, counter.get(amount, budget.limit))
    return tuple(
        Charge(
            ledger=session_ledger(session) if per == "session" else day_ledger(principal),
            day=day if per == "day" else "",
            tool=tool,
            bytes_out=0 if sending is None else sending.bytes_out,
            destinations=sending.destinations
            if sending is not None and Amount.DESTINATIONS in each
            else (),
            limits=each,
        )
        for (per, tool), each in limits.items()
    )


def over_budget(
    decision: Decision, overruns: tuple[Overrun, ...], names: tuple[str, ...]
) -> Decision:
    """Return the decision for a call that would exceed limits: it needs its own approval."""
    first = overruns[0]
    per = "session" if first.ledger.startswith("session/") else "day"
    origin = next(
        (
            each.origin
            for each in decision.budgets
            if (each.per, each.amount, each.limit) == (per, first.amount, first.limit)
            and (each.tool in names if first.tool else each.tool is None)
        ),
        BUILT_IN,
    )
    return _ask(decision, Reason.BUDGET, " ".join(map(_sentence, overruns)), origin)


def budget_unknown(decision: Decision, problem: str) -> Decision:
    """Return the decision while the used amount is unknown."""
    sentence = Reason.BUDGET_UNKNOWN.sentence.format(problem=problem)
    return _ask(decision, Reason.BUDGET_UNKNOWN, sentence, decision.budgets[0].origin)


def usage(charges: Iterable[Charge], ledgers: Mapping[str, Ledger]) -> list[str]:
    """Return the used part of each budget, in words."""
    lines = []
    for charge in charges:
        ledger = of_day(ledgers.get(charge.ledger, Ledger()), charge.day)
        counter = ledger.counters.get(charge.tool, Counter())
        where = _where(charge.ledger, charge.tool)
        lines += [
            f"{used(counter, amount)} of {limit} {_NOUNS[amount]}{where}"
            for amount, limit in charge.limits.items()
        ]
    return lines


def _ask(decision: Decision, reason: Reason, sentence: str, origin: Origin) -> Decision:
    asked_anyway = decision.outcome is Outcome.ASK
    return msgspec.structs.replace(
        decision,
        outcome=Outcome.ASK,
        reason=reason,
        sentence=f"{decision.sentence} {sentence}" if asked_anyway else sentence,
        origin=origin,
        remember=False,
        explicit=True,
        counts_once=True,
    )


def _sentence(overrun: Overrun) -> str:
    where = _where(overrun.ledger, overrun.tool)
    return (
        f"Over budget: {overrun.used} of {overrun.limit} {_NOUNS[overrun.amount]}{where} are used."
    )


def _where(ledger: str, tool: str) -> str:
    of = f" of {tool}" if tool else ""
    return f"{of} {'in this session' if ledger.startswith('session/') else 'today'}"


def _parts(value: str) -> list[str]:
    """Split a list of recipients, and remove the names before their addresses."""
    if "://" in value:
        return [value]
    addresses = [part for part in re.split(r"[,;]", value) if part.strip()] or [value]
    return [found[1] if (found := _MAILBOX.search(part)) else part for part in addresses]


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
