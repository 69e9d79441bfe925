"""Reservation of a call in its budgets before it may run, for the authorize stage.

    reserve ---> counted in the store, in every ledger or in none
       |  |----> a limit would be exceeded, or the count is unreadable: the call needs approval
       |            '--- approved: `settle` counts it beyond the limit
       '--- refused before it started: `release` returns the amount

If calls of several processes compete for the rest of a budget, the store decides. A process that
dies between `reserve` and `release` leaves a call counted that never ran.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from callgate.core.budgets import (
    BudgetReceipt,
    Charge,
    Ledger,
    Overrun,
    ReturnBudget,
    UseBudget,
    ledger_kind,
    of_day,
    overruns,
    read_ledger,
)
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.effects import SideEffects
from callgate.core.stores import Store, StoreError
from callgate.dispatch.permission.session_facts import parameters
from callgate.dispatch.running import RunningCall
from callgate.dispatch.subjects import Subject
from callgate.events.log import SessionLog
from callgate.policy.budgets import (
    Sending,
    charges,
    sending,
    usage,
)
from callgate.policy.decide import Rulebook
from callgate.policy.decisions import Decision
from callgate.policy.provenance.destinations import values_of
from callgate.policy.provenance.forms import hosts_in
from callgate.policy.rules import GuardSettings, Outcome
from callgate.policy.tightenings import Circumstances, tighten

_log = logging.getLogger("callgate.budgets")
_PROBLEMS = (StoreError, ValueError)
_MOST_VALUES = 100_000
"""Maximum destination values counted in one call; arguments are too small for more."""
_MAY_SEND = frozenset({SideEffects.NETWORK, SideEffects.EXECUTE})
OpenStore = Callable[[], Awaitable[Store]]


class Policies(Protocol):
    """The part of `Authority` that this module uses."""

    @property
    def policies(self) -> Callable[[str], Rulebook]: ...


class Reservation:
    """The budget charges of one call."""

    def __init__(self, call: ToolCall, open_store: OpenStore, guard: GuardSettings) -> None:
        """`guard` names the destination parameters of tools that do not declare them."""
        self._call = call
        self._guard = guard
        self._open_store = open_store
        self._store: Store | None = None
        self._charges: tuple[Charge, ...] = ()
        self._is_counted = False

    async def reserve(self, subject: Subject, decision: Decision) -> Decision:
        """Count the call. Returns the decision, or a question in its place."""
        call = self._call
        self._charges = _charges(call, subject, decision, self._guard)
        if not self._charges:
            return decision
        # A call of the embedding program is counted, but never needs approval.
        force = CallerKind(call.caller).trusted and decision.outcome is Outcome.ALLOW
        op = UseBudget(call=call.id, charges=self._charges, force=force)
        try:
            receipt = await self._commit(op)
        except _PROBLEMS as error:
            _log.warning("call %s is in no budget: %s", call.id, error)
            return tighten(decision, Circumstances(budget_problem=_problem(error)))
        self._is_counted = receipt.applied
        if receipt.applied:
            return decision
        passed = Circumstances(names=_names(subject), overruns=receipt.overruns)
        return tighten(decision, passed)

    async def settle(self, subject: Subject, decision: Decision) -> None:
        """Count an approved call beyond the limits, with the arguments that run."""
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
        """Return the charges of a call that never started."""
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
    """Count a call in its budgets. Returns the decision, or a question in its place."""
    call = running.call
    guard = authority.policies(call.session.workspace).user.guard
    running.reservation = reservation = Reservation(call, log.store, guard)
    return await reservation.reserve(subject, decision)


class BudgetForecast(msgspec.Struct, frozen=True):
    decision: Decision
    usage: tuple[str, ...] = ()
    """The used part of each budget of the call, as text."""


async def forecast(
    call: ToolCall, subject: Subject, decision: Decision, guard: GuardSettings, store: Store
) -> BudgetForecast:
    """Return the decision after a check of the budgets, without counting the call."""
    wanted = _charges(call, subject, decision, guard)
    ledgers: dict[str, Ledger] = {}
    passed: list[Overrun] = []
    try:
        for name in sorted({each.ledger for each in wanted}):
            entries = await store.entries(ledger_kind(name))
            of_ledger = [each for each in wanted if each.ledger == name]
            ledger = read_ledger(entries[0].value) if entries else Ledger()
            ledgers[name] = of_day(ledger, of_ledger[0].day)
            passed += overruns(ledgers[name], of_ledger)
    except _PROBLEMS as error:
        unknown = Circumstances(budget_problem=_problem(error))
        return BudgetForecast(tighten(decision, unknown))
    is_asked = passed and not CallerKind(call.caller).trusted
    facts = Circumstances(names=_names(subject), overruns=tuple(passed) if is_asked else ())
    return BudgetForecast(tighten(decision, facts), tuple(usage(wanted, ledgers)))


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
    """Return the amounts that a call may send out; None for a tool that declares no network access,
    or a command in a sandbox without network."""
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
