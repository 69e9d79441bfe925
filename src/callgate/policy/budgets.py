"""Which budgets a call is counted in, and what is decided of one that would pass a limit. Pure.

    budgets of the settings -> charges -> the store counts -> overruns -> ask

A call that sends something out is one that uses the network: its arguments are what goes out, and
it goes to the destinations among them (`provenance.destinations`). One that names none goes to its
tool, and a command to the hosts in its words or to wherever these say, so that neither is free.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256

import msgspec

from callgate.core.budgets.ledgers import (
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
from callgate.policy.decide import Decision
from callgate.policy.provenance.destinations import normal_destination
from callgate.policy.rules import BUILT_IN, Budget, Origin, Outcome

_MAILBOX = re.compile(r"<([^<>\s]+@[^<>\s]+)>\s*\Z")
_NOUNS = {
    Amount.CALLS: "calls",
    Amount.BYTES_OUT: "bytes sent out",
    Amount.DESTINATIONS: "destinations",
}


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """What a call that uses the network sends, as far as its arguments tell."""

    bytes_out: int
    destinations: tuple[str, ...]


def sending(tool: str, size: int, command: str | None, values: Iterable[str]) -> Sending:
    """`size` is that of the arguments; `values` are the destinations among them."""
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
    """What a call takes from each counter for which there is a budget; `names` are those of its
    tool, the first of which counts."""
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
    """What is decided of a call that would pass limits: no yes but a person's, for it alone."""
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
    return _ask(decision, "budget", " ".join(map(_sentence, overruns)), origin)


def budget_unknown(decision: Decision, problem: str) -> Decision:
    """What is decided while nobody can say how much is used."""
    sentence = f"How much of the budgets is used cannot be told: {problem}."
    return _ask(decision, "budget_unknown", sentence, decision.budgets[0].origin)


def usage(charges: Iterable[Charge], ledgers: Mapping[str, Ledger]) -> list[str]:
    """How much of each budget is used, in words."""
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


def _ask(decision: Decision, reason: str, sentence: str, origin: Origin) -> Decision:
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
    """The recipients of a text that lists several, without the names before their addresses."""
    if "://" in value:
        return [value]
    parts = [part for part in re.split(r"[,;]", value) if part.strip()] or [value]
    return [found[1] if (found := _MAILBOX.search(part)) else part for part in parts]


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
