"""How much of a budget is used. Pure.

A ledger counts for one session (`session/ID`) or for one principal and day (`day/NAME`), with one
counter for all tools and one for each tool that has a budget. It remembers the calls that it
counted last: these can be returned, and are not counted twice. What it has forgotten stays counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

LEDGER = "budget"
"""The name of a ledger among the shared entries; its kind is that of `ledger_kind`."""
REMEMBERED = 128
"""Calls that a ledger can still return or recognise."""


class Amount(StrEnum):
    """What a budget limits."""

    CALLS = "calls"
    BYTES_OUT = "bytes_out"
    DESTINATIONS = "destinations"


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """What a call takes from one counter of a ledger, and how far that may go."""

    ledger: str
    day: str = ""
    """In a ledger of days: which one. A later day begins anew."""
    tool: str = ""
    """The counter; empty: the one of all tools."""
    bytes_out: int = 0
    destinations: tuple[str, ...] = ()
    """Hashes, each once."""
    limits: Mapping[Amount, int] = {}


class Overrun(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that a call would pass."""

    ledger: str
    tool: str
    amount: Amount
    used: int
    limit: int


class Counter(msgspec.Struct, frozen=True):
    calls: int = 0
    bytes_out: int = 0
    destinations: Mapping[str, int] = {}
    """Calls to each, in the order in which they were first used."""


class Taken(msgspec.Struct, frozen=True):
    """What one call took from one counter."""

    tool: str
    bytes_out: int = 0
    destinations: tuple[str, ...] = ()


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    day: str = ""
    counters: Mapping[str, Counter] = {}
    """By tool."""
    calls: Mapping[str, tuple[Taken, ...]] = {}
    """The last calls that were counted, oldest first."""


def ledger_kind(ledger: str) -> str:
    """The kind of shared entries in which a ledger is the only one."""
    return f"budget:{ledger}"


def session_ledger(session: str) -> str:
    return f"session/{session}"


def day_ledger(principal: str) -> str:
    return f"day/{principal}"


def read_ledger(value: str) -> Ledger:
    """Raises `ValueError` for what is no ledger."""
    return msgspec.json.decode(value, type=Ledger)


def write_ledger(ledger: Ledger) -> str:
    return msgspec.json.encode(ledger).decode()


def of_day(ledger: Ledger, day: str) -> Ledger:
    """The ledger as it counts on a day. A clock that is behind counts for the later day."""
    return Ledger(day=day) if day > ledger.day else ledger


def overruns(ledger: Ledger, charges: Iterable[Charge]) -> tuple[Overrun, ...]:
    """The limits that these charges of one ledger would pass."""
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
    """The ledger once a call is counted; destinations beyond their limit stay out of it."""
    counters, taken = dict(ledger.counters), []
    for charge in charges:
        counter = counters.get(charge.tool, Counter())
        kept = dict(counter.destinations)
        limit = charge.limits.get(Amount.DESTINATIONS, 0)
        counted = []
        for each in charge.destinations:
            if each in kept or len(kept) < limit:
                kept[each] = kept.get(each, 0) + 1
                counted.append(each)
        counters[charge.tool] = Counter(
            counter.calls + 1, counter.bytes_out + charge.bytes_out, kept
        )
        taken.append(Taken(charge.tool, charge.bytes_out, tuple(counted)))
    calls = {**ledger.calls, call: tuple(taken)}
    for oldest in list(calls)[:-REMEMBERED]:
        del calls[oldest]
    return Ledger(day=ledger.day, counters=counters, calls=calls)


def returned(ledger: Ledger, call: str) -> Ledger:
    """The ledger without what a call took, if it still remembers it."""
    calls: dict[str, Any] = dict(ledger.calls)
    counters = dict(ledger.counters)
    for taken in calls.pop(call, ()):
        counter = counters.get(taken.tool, Counter())
        kept = dict(counter.destinations)
        for each in taken.destinations:
            kept[each] = kept.get(each, 0) - 1
            if kept[each] <= 0:
                del kept[each]
        counters[taken.tool] = Counter(
            max(counter.calls - 1, 0), max(counter.bytes_out - taken.bytes_out, 0), kept
        )
    return Ledger(day=ledger.day, counters=counters, calls=calls)


def _wanted(counter: Counter, charge: Charge, amount: Amount, limit: int) -> int:
    if amount is Amount.CALLS:
        return counter.calls + 1
    if amount is Amount.BYTES_OUT:
        return counter.bytes_out + charge.bytes_out if charge.bytes_out else 0
    known = list(counter.destinations)[:limit]  # a limit that was lowered since counts, too
    return len({*known, *charge.destinations}) if charge.destinations else 0
