"""Budgets and pruning: values, and the operations that a store performs for them.

    UseBudget ----> counted in every ledger, or in none if a limit would be exceeded
    ReturnBudget -> returns the amount of a call that never started

A ledger counts for one session (`session/ID`) or for one principal and day (`day/NAME`). It has one
counter for all tools and one for each tool with a budget. It remembers its latest calls: these can
be returned, and are not counted twice. Older calls stay counted. Both operations carry the id of
the call and are idempotent while a ledger remembers it. The arithmetic is pure.

Operations that delete old data from a store, and the figures that precede them.

    PruneSessions ---> deletes sessions, but not their rows
    SweepRows     ---> deletes those rows, in bounded batches
    PruneEvents   ---> deletes the oldest events of the remaining sessions; no number is reused
    ReleasePages  ---> returns empty pages of the file to the disk

Each operation is one idempotent commit. After a crash a session is complete or deleted, and the
next process sweeps the remaining rows. A session is needed while a living process owns it, or while
one of its calls has not ended, which includes calls that wait for approval. Its workers are deleted
with it, not earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar

import msgspec

from callgate.core.ops import Op
from callgate.core.stored import StoredSession


class SessionPruning(msgspec.Struct, frozen=True, kw_only=True):
    sessions: Sequence[StoredSession] = ()
    """The deleted sessions, as they were."""
    cursor: str | None = None
    """Start of the next batch; None: no more data is older than the bound."""


class EventPruning(msgspec.Struct, frozen=True, kw_only=True):
    events: int = 0
    calls: int = 0
    """Number of ended calls whose last event was deleted."""
    cursor: str | None = None
    """Start of the next batch; None: no more data is older than the bound."""


class RowSweep(msgspec.Struct, frozen=True, kw_only=True):
    events: int = 0
    messages: int = 0
    calls: int = 0
    more: bool = False
    """Whether rows of deleted sessions remain."""


class PageRelease(msgspec.Struct, frozen=True, kw_only=True):
    pages: int = 0
    more: bool = False
    """Whether more empty pages can be released."""


class PruneSessions(Op[SessionPruning], frozen=True, kw_only=True):
    """Delete sessions that are not needed and were last used before a moment.

    Least recently used sessions first. One op examines at most `most` sessions.
    """

    sole: ClassVar[bool] = True
    before: float
    most: int = 100
    rows: int | None = None
    """Stop after the deleted sessions had this many events and messages."""
    cursor: str | None = None


class SweepRows(Op[RowSweep], frozen=True, kw_only=True):
    """Delete at most `most` rows of deleted sessions."""

    sole: ClassVar[bool] = True
    most: int = 1_000


class PruneEvents(Op[EventPruning], frozen=True, kw_only=True):
    """Delete events from before a moment, and the calls that ended with them.

    The oldest events of a session go first, so that the remaining ones have no gap. One op examines
    at
    most `most` events. A session that is needed retains all of its events.
    """

    sole: ClassVar[bool] = True
    before: float
    most: int = 500
    cursor: str | None = None


class ReleasePages(Op[PageRelease], frozen=True, kw_only=True):
    """Return at most `most` empty pages to the disk, if the file supports it."""

    sole: ClassVar[bool] = True
    most: int = 1_000


class PrunablePage(msgspec.Struct, frozen=True, kw_only=True):
    sessions: Sequence[StoredSession] = ()
    """Sessions that `PruneSessions` would delete."""
    calls: int = 0
    """Number of recorded calls in these sessions."""
    cursor: str | None = None
    """Start of the next page; None: this was the last."""


class StoreUsage(msgspec.Struct, frozen=True, kw_only=True):
    bytes: int = 0
    """Size of the file without its empty pages; 0: there is no file."""
    free_bytes: int = 0
    """Size of its empty pages."""
    sessions: int = 0
    events: int = 0
    messages: int = 0
    shrinks: bool = True
    """Whether empty pages can be released; not in a file from an older callgate."""


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
