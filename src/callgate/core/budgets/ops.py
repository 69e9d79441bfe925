"""The ops that count budgets in the store.

    UseBudget ----> counted in every ledger, or in none, because one of its limits would be passed
    ReturnBudget -> what a call that never started had taken

Both carry the id of the call. Idempotent for as long as a ledger remembers it.
"""

from __future__ import annotations

import msgspec

from callgate.core.budgets.ledgers import Charge, Overrun
from callgate.core.ops import Op


class BudgetReceipt(msgspec.Struct, frozen=True):
    applied: bool
    overruns: tuple[Overrun, ...] = ()


class UseBudget(Op[BudgetReceipt], frozen=True, kw_only=True):
    """Count a call, unless one of the limits would be passed."""

    call: str
    charges: tuple[Charge, ...]
    force: bool = False
    """A person allowed it: count it beyond the limits. A destination beyond its limit stays
    unknown, so that the next call to it is asked about too."""
    again: bool = False
    """It was counted with other arguments: count it anew."""


class ReturnBudget(Op[None], frozen=True, kw_only=True):
    """A call that was counted never started."""

    call: str
    ledgers: tuple[str, ...]
