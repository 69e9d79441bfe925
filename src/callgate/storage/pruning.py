"""Ops that prune or count budgets, and the choice of sessions to delete, for every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from callgate.core.budgets import (
    LEDGER,
    BudgetReceipt,
    Charge,
    EventPruning,
    Ledger,
    Overrun,
    PageRelease,
    PruneEvents,
    PruneSessions,
    ReleasePages,
    ReturnBudget,
    RowSweep,
    SessionPruning,
    SweepRows,
    UseBudget,
    charged,
    ledger_kind,
    of_day,
    overruns,
    read_ledger,
    returned,
    session_ledger,
    write_ledger,
)
from callgate.core.events import EVENTS_PRUNED, TERMINAL, Event
from callgate.core.ops import Op
from callgate.core.stored import (
    CallState,
    CutSession,
    SharedEntry,
    StoredCall,
    StoredConfirmation,
    StoredSession,
)
from callgate.core.stores import pruned_id
from callgate.storage.session_changes import event_of
from callgate.storage.views import View


def forget_ledger(view: View, session: str) -> None:
    """Forget the ledger of a deleted session."""
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
    """Save a ledger without `touch_entries`: no caller waits for its change."""
    known = _entry(view, name)
    version = 1 if known is None else known.version + 1
    value = write_ledger(ledger)
    view.put(SharedEntry(kind=ledger_kind(name), name=LEDGER, value=value, version=version))


class Neighbours(Protocol):
    """Facts about a session that decide whether it can be deleted."""

    def workers_of(self, session: str) -> Sequence[StoredSession]: ...
    def has_open_calls(self, session: str) -> bool:
        """Return whether calls are running, or may be open without a living owner."""
        ...

    def alive(self, owner: str) -> bool: ...


def is_needed(session: StoredSession, around: Neighbours) -> bool:
    owned = session.owner is not None and around.alive(session.owner)
    return owned or around.has_open_calls(session.id)


def _unneeded_family(
    session: StoredSession, before: float, around: Neighbours
) -> list[StoredSession]:
    """Return a session with its sub-agents if all of them can be deleted, else nothing."""
    family = [session]
    for member in family:  # grows while it is read
        if member.updated_at >= before or is_needed(member, around):
            return []
        family += around.workers_of(member.id)
    return family


def prunable(
    page: Sequence[StoredSession],
    before: float,
    around: Neighbours,
    exists: Callable[[str], bool],
) -> Iterator[list[StoredSession]]:
    """Yield the sessions that can be deleted, each with its sub-agents, in this order."""
    for session in page:
        if session.parent is not None and exists(session.parent):
            continue  # it goes with the one that it works for
        family = _unneeded_family(session, before, around)
        if family:
            yield family


class _Around:
    """`Neighbours` for a view."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.alive = view.alive

    def workers_of(self, session: str) -> Sequence[StoredSession]:
        return self._view.find(StoredSession, "parent", session)

    def has_open_calls(self, session: str) -> bool:
        calls = self._view.find(StoredCall, "session_id", session)
        is_cut = self._view.get(CutSession, session) is not None
        return is_cut or any(call.state is not CallState.ENDED for call in calls)


def prune_sessions(op: PruneSessions, view: View) -> SessionPruning:
    page, cursor = view.oldest_sessions(op.cursor, op.most)
    removed: list[StoredSession] = []
    rows = 0
    known = {each.id for each in page}
    going = prunable(
        page,
        op.before,
        _Around(view),
        lambda id: id in known or view.get(StoredSession, id) is not None,
    )
    for family in going:
        for session in family:
            view.drop(session)
            forget_ledger(view, session.id)
            rows += session.last_seq + session.messages
        removed += family
        if op.rows is not None and rows >= op.rows:
            return SessionPruning(sessions=tuple(removed), cursor=op.cursor)
    older = any(each.updated_at < op.before for each in page)
    return SessionPruning(sessions=tuple(removed), cursor=cursor if older else None)


def prune_events(op: PruneEvents, view: View) -> EventPruning:
    page, cursor = view.oldest_events(op.cursor, op.most)
    around, stay = _Around(view), dict[str, bool]()
    events = calls = 0
    older = False
    for row in page:
        event = event_of(row.text, row.session_id, row.seq)
        is_old = event.timestamp < op.before
        older |= is_old
        if row.session_id not in stay:
            stay[row.session_id] = is_needed(view.session(row.session_id), around)
        if not is_old or stay[row.session_id]:
            stay[row.session_id] = True  # and all later events
            continue
        view.drop_event(row)
        events += 1
        calls += _drop_call(view, event)
    return EventPruning(events=events, calls=calls, cursor=cursor if older else None)


def _drop_call(view: View, event: Event) -> int:
    if event.type not in TERMINAL:
        return 0
    call = view.get(StoredCall, str(event.payload.get("call_id")))
    if call is None or call.ended != event.id:
        return 0
    question = call.confirmation and view.get(StoredConfirmation, call.confirmation)
    if question:
        view.remove(question)
    view.remove(call)
    return 1


def sweep_rows(op: SweepRows, view: View) -> RowSweep:
    return view.sweep(op.most)


def release_pages(op: ReleasePages, view: View) -> PageRelease:
    return view.release_pages(op.most)


MEANINGS: dict[type[Op[Any]], Callable[[Any, View], Any]] = {
    UseBudget: _use_budget,
    ReturnBudget: _return_budget,
    PruneSessions: prune_sessions,
    PruneEvents: prune_events,
    SweepRows: sweep_rows,
    ReleasePages: release_pages,
}


def pruned_event(session: str, seq: int, upto: int) -> Event:
    """Event in place of a pruned one; all events up to number `upto` are pruned."""
    return Event(
        id=pruned_id(session, seq),
        timestamp=0.0,
        session_id=session,
        type=EVENTS_PRUNED,
        actor="system",
        payload={"upto": upto},
    )


def filled(
    events: Sequence[tuple[int, Event]], session: str, after: int, last: int, limit: int
) -> Iterator[Event]:
    """Return a page of events, starting with one event for each pruned number.

    `last` is the number of the session's last event, even if it was pruned.
    """
    first = events[0][0] if events else last + 1
    missing = range(after + 1, min(first, after + 1 + limit))
    yield from (pruned_event(session, seq, first - 1) for seq in missing)
    yield from (event for _, event in events[: limit - len(missing)])
