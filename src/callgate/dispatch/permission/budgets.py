"""Counting a call in its budgets before it may run, for the stage `authorize`.

    reserve ---> counted in the store, in every ledger or in none
       |  |----> a limit would be passed, or the count cannot be read: a person is asked
       |            '--- a yes: `settle` counts it beyond the limit
       '--- refused before it started: `release` gives it back

The store decides which of several calls gets what is left, whichever process they are in. A
process that dies between `reserve` and `release` leaves a call counted that never ran.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from callgate.core.budgets.ledgers import (
    Charge,
    Ledger,
    Overrun,
    ledger_kind,
    of_day,
    overruns,
    read_ledger,
)
from callgate.core.budgets.ops import BudgetReceipt, ReturnBudget, UseBudget
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.effects import SideEffects
from callgate.core.stores import Store, StoreError
from callgate.dispatch.permission.session_facts import parameters
from callgate.dispatch.running import RunningCall
from callgate.dispatch.subjects import Subject
from callgate.events.log import SessionLog
from callgate.policy.budgets import (
    Sending,
    budget_unknown,
    charges,
    over_budget,
    sending,
    usage,
)
from callgate.policy.decide import Decision, Rulebook
from callgate.policy.provenance.commands import hosts_in
from callgate.policy.provenance.destinations import values_of
from callgate.policy.rules import GuardSettings, Outcome

_log = logging.getLogger("callgate.budgets")
_PROBLEMS = (StoreError, ValueError)
_MOST_VALUES = 100_000
"""Of destinations in one call: more than arguments have room for."""
_MAY_SEND = frozenset({SideEffects.NETWORK, SideEffects.EXECUTE})
OpenStore = Callable[[], Awaitable[Store]]


class Policies(Protocol):
    """`authorize.Authority`, as far as it is looked at here."""

    @property
    def policies(self) -> Callable[[str], Rulebook]: ...


class Reservation:
    """What one call takes from its budgets."""

    def __init__(self, call: ToolCall, open_store: OpenStore, guard: GuardSettings) -> None:
        """`guard` says which parameters are destinations, where their names do not tell."""
        self._call = call
        self._guard = guard
        self._open_store = open_store
        self._store: Store | None = None
        self._charges: tuple[Charge, ...] = ()
        self._is_counted = False

    async def reserve(self, subject: Subject, decision: Decision) -> Decision:
        """Count the call. The decision stays, or becomes a question."""
        call = self._call
        self._charges = _charges(call, subject, decision, self._guard)
        if not self._charges:
            return decision
        # What the program itself does is counted, and asked about nowhere.
        force = CallerKind(call.caller).trusted and decision.outcome is Outcome.ALLOW
        op = UseBudget(call=call.id, charges=self._charges, force=force)
        try:
            receipt = await self._commit(op)
        except _PROBLEMS as error:
            _log.warning("call %s is in no budget: %s", call.id, error)
            return budget_unknown(decision, _problem(error))
        self._is_counted = receipt.applied
        if receipt.applied:
            return decision
        return over_budget(decision, receipt.overruns, _names(subject))

    async def settle(self, subject: Subject, decision: Decision) -> None:
        """Count what a person allowed: beyond the limits, and with the arguments that run."""
        allowed = _charges(self._call, subject, decision, self._guard)
        if self._is_counted and allowed == self._charges:
            return
        self._charges = allowed
        op = UseBudget(call=self._call.id, charges=allowed, force=True, again=True)
        try:
            await self._commit(op)
            self._is_counted = True
        except _PROBLEMS as error:
            _log.warning("call %s was allowed and is in no budget: %s", self._call.id, error)

    def release(self) -> None:
        """The call never started: what follows in this process finds its share returned."""
        if not self._is_counted or self._store is None:
            return
        self._is_counted = False
        ledgers = tuple({charge.ledger for charge in self._charges})
        try:
            op = ReturnBudget(call=self._call.id, ledgers=ledgers)
            self._store.commit(op).add_done_callback(self._released)
        except _PROBLEMS as error:
            self._log_kept(error)

    def _released(self, future: asyncio.Future[Any]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self._log_kept(error)

    def _log_kept(self, error: BaseException) -> None:
        _log.warning("call %s stays in its budgets: %s", self._call.id, error)

    async def _commit(self, op: UseBudget) -> BudgetReceipt:
        self._store = await self._open_store()
        (receipt,) = await self._store.commit(op)
        return receipt


async def reserve(
    subject: Subject,
    decision: Decision,
    authority: Policies,
    log: SessionLog,
    running: RunningCall,
) -> Decision:
    """Count a call in its budgets: the decision stays, or becomes a question."""
    call = running.call
    guard = authority.policies(call.session.workspace).user.guard
    running.reservation = reservation = Reservation(call, log.store, guard)
    return await reservation.reserve(subject, decision)


class BudgetForecast(msgspec.Struct, frozen=True):
    decision: Decision
    usage: tuple[str, ...] = ()
    """How much of each budget of the call is used, in words."""


async def forecast(
    call: ToolCall, subject: Subject, decision: Decision, guard: GuardSettings, store: Store
) -> BudgetForecast:
    """What the budgets would make of a decision, without counting the call."""
    wanted = _charges(call, subject, decision, guard)
    ledgers: dict[str, Ledger] = {}
    passed: list[Overrun] = []
    try:
        for name in sorted({each.ledger for each in wanted}):
            kept = await store.entries(ledger_kind(name))
            own = [each for each in wanted if each.ledger == name]
            ledger = read_ledger(kept[0].value) if kept else Ledger()
            ledgers[name] = of_day(ledger, own[0].day)
            passed += overruns(ledgers[name], own)
    except _PROBLEMS as error:
        return BudgetForecast(budget_unknown(decision, _problem(error)))
    is_asked = passed and not CallerKind(call.caller).trusted
    after = over_budget(decision, tuple(passed), _names(subject)) if is_asked else decision
    return BudgetForecast(after, tuple(usage(wanted, ledgers)))


def _charges(
    call: ToolCall, subject: Subject, decision: Decision, guard: GuardSettings
) -> tuple[Charge, ...]:
    return charges(
        decision.budgets,
        names=_names(subject),
        session=call.session.parent or call.session.id,
        principal=call.principal,
        day=datetime.now(UTC).date().isoformat(),
        sending=_sending(subject, guard),
    )


def _names(subject: Subject) -> tuple[str, ...]:
    return subject.tool.name, *subject.tool.definition.aliases


def _sending(subject: Subject, guard: GuardSettings) -> Sending | None:
    """None for a call that cannot send anything out: a tool that says that it does not, a command
    in a sandbox without the network."""
    tool, checked = subject.tool, subject.checked
    command = checked.arguments.get("command") if subject.enclosure is not None else None
    if subject.enclosure is not None:
        if subject.contained:
            return None
        values = hosts_in(command) if isinstance(command, str) else ()
    elif tool.outward or tool.effect in _MAY_SEND:
        names = parameters(subject, guard)
        values = tuple(each for _, each in values_of(checked.arguments, names, _MOST_VALUES))
    else:
        return None
    text = command if isinstance(command, str) else None
    return sending(tool.name, checked.size, text, values)


def _problem(error: BaseException) -> str:
    return str(error).rstrip(".")
