"""Budgets: their used part, and the operations that count it in the store.

    UseBudget ----> counted in every ledger, or in none if a limit would be exceeded
    ReturnBudget -> returns the amount of a call that never started

A ledger counts for one session (`session/ID`) or for one principal and day (`day/NAME`). It has one
counter for all tools and one for each tool with a budget. It remembers its latest calls: these can
be returned, and are not counted twice. Older calls stay counted. Both operations carry the id of
the call and are idempotent while a ledger remembers it. The arithmetic is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from callgate.core.ops import Op

LEDGER = "budget"
"""The name of a ledger among the shared entries of kind `ledger_kind`."""
REMEMBERED = 128
"""Number of calls that a ledger can still return or recognise."""


class Amount(StrEnum):
    """The quantity that a budget limits."""

    CALLS = "calls"
    BYTES_OUT = "bytes_out"
    DESTINATIONS = "destinations"


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one counter of a ledger by a call, and the limits of this counter."""

    ledger: str
    day: str = ""
    """The day, in a ledger of days. A later day restarts at zero."""
    tool: str = ""
    """The counter of this tool; empty: the counter of all tools."""
    bytes_out: int = 0
    destinations: tuple[str, ...] = ()
    """Hashes without duplicates."""
    limits: Mapping[Amount, int] = {}


class Overrun(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that a call would exceed."""

    ledger: str
    tool: str
    amount: Amount
    used: int
    limit: int


class Counter(msgspec.Struct, frozen=True):
    calls: int = 0
    bytes_out: int = 0
    destinations: Mapping[str, int] = {}
    """Number of calls per destination, in the order of first use."""


class Taken(msgspec.Struct, frozen=True):
    """The use of one counter by one call."""

    tool: str
    bytes_out: int = 0
    destinations: tuple[str, ...] = ()


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    day: str = ""
    counters: Mapping[str, Counter] = {}
    """By tool."""
    calls: Mapping[str, tuple[Taken, ...]] = {}
    """The latest counted calls, oldest first."""


def ledger_kind(ledger: str) -> str:
    """The kind of shared entries that contains only this ledger."""
    return f"budget:{ledger}"


def session_ledger(session: str) -> str:
    return f"session/{session}"


def day_ledger(principal: str) -> str:
    return f"day/{principal}"


def read_ledger(value: str) -> Ledger:
    """Decode a ledger. Raises `ValueError` for malformed data."""
    return msgspec.json.decode(value, type=Ledger)


def write_ledger(ledger: Ledger) -> str:
    return msgspec.json.encode(ledger).decode()


def of_day(ledger: Ledger, day: str) -> Ledger:
    """Return the ledger for a day, empty if the day is new. A clock that is behind uses the later
    day.
    """
    return Ledger(day=day) if day > ledger.day else ledger


def overruns(ledger: Ledger, charges: Iterable[Charge]) -> tuple[Overrun, ...]:
    """Return the limits that these charges to one ledger would exceed."""
    found: list[Overrun] = []
    for charge in charges:
        counter = ledger.counters.get(charge.tool, Counter())
        for amount, limit in charge.limits.items():
            if _wanted(counter, charge, amount, limit) > limit:
                found.append(
                    Overrun(
                        ledger=charge.ledger,
                        tool=charge.tool,
                        amount=amount,
                        used=used(counter, amount),
                        limit=limit,
                    )
                )
    return tuple(found)


def used(counter: Counter, amount: Amount) -> int:
    if amount is Amount.CALLS:
        return counter.calls
    return counter.bytes_out if amount is Amount.BYTES_OUT else len(counter.destinations)


def charged(ledger: Ledger, call: str, charges: Iterable[Charge]) -> Ledger:
    """Return the ledger with a call counted, without destinations beyond their limit."""
    counters, taken = dict(ledger.counters), []
    for charge in charges:
        counter = counters.get(charge.tool, Counter())
        destinations = dict(counter.destinations)
        limit = charge.limits.get(Amount.DESTINATIONS, 0)
        counted = []
        for each in charge.destinations:
            if each in destinations or len(destinations) < limit:
                destinations[each] = destinations.get(each, 0) + 1
                counted.append(each)
        counters[charge.tool] = Counter(
            counter.calls + 1, counter.bytes_out + charge.bytes_out, destinations
        )
        taken.append(Taken(charge.tool, charge.bytes_out, tuple(counted)))
    calls = {**ledger.calls, call: tuple(taken)}
    for oldest in list(calls)[:-REMEMBERED]:
        del calls[oldest]
    return Ledger(day=ledger.day, counters=counters, calls=calls)


def returned(ledger: Ledger, call: str) -> Ledger:
    """Return the ledger without the use of a call, if the ledger remembers the call."""
    calls: dict[str, Any] = dict(ledger.calls)
    counters = dict(ledger.counters)
    for taken in calls.pop(call, ()):
        counter = counters.get(taken.tool, Counter())
        destinations = dict(counter.destinations)
        for each in taken.destinations:
            destinations[each] = destinations.get(each, 0) - 1
            if destinations[each] <= 0:
                del destinations[each]
        counters[taken.tool] = Counter(
            max(counter.calls - 1, 0), max(counter.bytes_out - taken.bytes_out, 0), destinations
        )
    return Ledger(day=ledger.day, counters=counters, calls=calls)


def _wanted(counter: Counter, charge: Charge, amount: Amount, limit: int) -> int:
    if amount is Amount.CALLS:
        return counter.calls + 1
    if amount is Amount.BYTES_OUT:
        return counter.bytes_out + charge.bytes_out if charge.bytes_out else 0
    known = list(counter.destinations)[:limit]  # the limit may have been lowered since
    return len({*known, *charge.destinations}) if charge.destinations else 0


class BudgetReceipt(msgspec.Struct, frozen=True):
    applied: bool
    overruns: tuple[Overrun, ...] = ()


class UseBudget(Op[BudgetReceipt], frozen=True, kw_only=True):
    """Count a call, unless a limit would be exceeded."""

    call: str
    charges: tuple[Charge, ...]
    force: bool = False
    """A user allowed the call: count it beyond the limits. A destination beyond its limit is not
    stored, so the next call to it needs approval too.
    """
    again: bool = False
    """The call was counted with other arguments: replace its charges."""


class ReturnBudget(Op[None], frozen=True, kw_only=True):
    """Return the charges of a counted call that never started."""

    call: str
    ledgers: tuple[str, ...]
