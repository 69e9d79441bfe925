"""What the ops that count budgets mean; once for every engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from callgate.core.budgets.ledgers import (
    LEDGER,
    Charge,
    Ledger,
    Overrun,
    charged,
    ledger_kind,
    of_day,
    overruns,
    read_ledger,
    returned,
    session_ledger,
    write_ledger,
)
from callgate.core.budgets.ops import BudgetReceipt, ReturnBudget, UseBudget
from callgate.core.ops import Op
from callgate.core.stored import SharedEntry
from callgate.storage.views import View


def forget_ledger(view: View, session: str) -> None:
    """A session is gone: nobody asks again how much it used."""
    entry = _entry(view, session_ledger(session))
    if entry is not None:
        view.remove(entry)


def _use_budget(op: UseBudget, view: View) -> BudgetReceipt:
    by_ledger: dict[str, list[Charge]] = {}
    for charge in op.charges:
        by_ledger.setdefault(charge.ledger, []).append(charge)
    new: dict[str, Ledger] = {}
    passed: list[Overrun] = []
    for name, charges in sorted(by_ledger.items()):  # rows are locked in one order
        ledger = of_day(_ledger(view, name), charges[0].day)
        if op.again:
            ledger = returned(ledger, op.call)
        if op.call in ledger.calls:
            continue
        passed += overruns(ledger, charges)
        new[name] = charged(ledger, op.call, charges)
    if passed and not op.force:
        return BudgetReceipt(False, tuple(passed))
    for name, ledger in new.items():
        _put(view, name, ledger)
    return BudgetReceipt(True)


def _return_budget(op: ReturnBudget, view: View) -> None:
    for name in sorted(op.ledgers):
        ledger = _ledger(view, name)
        if op.call in ledger.calls:
            _put(view, name, returned(ledger, op.call))


def _entry(view: View, ledger: str) -> SharedEntry | None:
    return view.get(SharedEntry, (ledger_kind(ledger), LEDGER))


def _ledger(view: View, name: str) -> Ledger:
    entry = _entry(view, name)
    return Ledger() if entry is None else read_ledger(entry.value)


def _put(view: View, name: str, ledger: Ledger) -> None:
    """Without `touch_entries`: nobody waits for a change of it."""
    known = _entry(view, name)
    version = 1 if known is None else known.version + 1
    value = write_ledger(ledger)
    view.put(SharedEntry(kind=ledger_kind(name), name=LEDGER, value=value, version=version))


MEANINGS: dict[type[Op[Any]], Callable[[Any, View], Any]] = {
    UseBudget: _use_budget,
    ReturnBudget: _return_budget,
}
