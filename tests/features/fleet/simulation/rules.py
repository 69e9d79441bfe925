"""What must hold on every schedule: a model that is far simpler than the store, told of every outcome.

one owner a session, fences grow by one     an op with a fence that is not the last never applies
a call starts once, ends once               the first answer stands, everyone else learns it
at most `CAP` calls of a session run        nothing of the dead is left open at the end
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from callgate.core.events import CALLED, CONFIRMATION_REQUESTED, CONFIRMATION_RESOLVED, TERMINAL
from callgate.core.ops import (
    Acquire,
    Append,
    ExpireConfirmations,
    FinishCall,
    PutConfirmation,
    Reap,
    Release,
    ResolveConfirmation,
    StartCall,
)
from callgate.core.stores import SessionLocked, StaleOwner
from tests.features.fleet.simulation.engines import Engine, Outcome

CAP = 3


class Rules:
    def __init__(self) -> None:
        self.living: dict[str, bool] = {}
        """Every owner that ever was."""
        self._taken: set[str] = set()
        self._reaped: set[str] = set()
        self._owner: dict[str, str | None] = {}
        self._fence: Counter[str] = Counter()
        self._running: dict[str, tuple[str, str]] = {}
        """Calls that run: their sessions and owners."""
        self._started: dict[str, str] = {}
        self._ended: dict[str, str | None] = {}
        """Calls that ended, by which event; None: as interrupted."""
        self._runs: dict[str, str] = {}
        self._answers: dict[str, str] = {}
        self.counts: Counter[str] = Counter()

    def is_taken(self, owner: str) -> bool:
        """Whether others took it for dead."""
        return owner in self._taken

    def is_reaped(self, owner: str) -> bool:
        return owner in self._reaped

    def run(self, call: str, owner: str) -> None:
        """A tool runs: its effect."""
        assert call not in self._runs, f"{call} runs twice, by {self._runs[call]} and {owner}"
        self._runs[call] = owner

    def check(self, ops: Any, outcome: Outcome) -> None:
        is_error = isinstance(outcome, BaseException)
        self.counts["refused" if is_error else "done"] += 1
        for n, op in enumerate(ops):
            self._check_fence(op, outcome)
            result = outcome if is_error else outcome[n]
            checks: dict[type[Any], Any] = {
                Acquire: self._acquire,
                Release: self._release,
                StartCall: self._start,
                FinishCall: self._finish,
                ResolveConfirmation: self._resolve,
                Reap: self._reap,
            }
            known = (*checks, Append, PutConfirmation, ExpireConfirmations)
            assert type(op) in known
            assert not is_error or isinstance(outcome, StaleOwner | SessionLocked), repr(outcome)
            if type(op) in checks:
                checks[type(op)](op, result)

    def _check_fence(self, op: Any, outcome: Outcome) -> None:
        if getattr(op, "fence", None) is None or isinstance(op, Release):
            return
        holds = self._owner.get(op.session) is not None and self._fence[op.session] == op.fence
        assert holds != isinstance(outcome, StaleOwner), f"{op} with fence {self._fence[op.session]}: {outcome!r}"
        self.counts["fenced off"] += not holds

    def _acquire(self, op: Acquire, result: Any) -> None:
        before = self._owner.get(op.session)
        if isinstance(result, SessionLocked):
            assert before is not None and before != op.owner and self.living[before], f"{op} was refused: {before}"
            return
        if before == op.owner:
            assert result == self._fence[op.session]
            return
        if before is not None:
            assert not self.living[before], f"{op.session} was taken from {before}, which lives"
            self._taken.add(before)
            self._interrupt(before, op.session)
            self.counts["takeovers"] += 1
        self._fence[op.session] += 1
        assert result == self._fence[op.session]
        self._owner[op.session] = op.owner

    def _release(self, op: Release, result: bool) -> None:
        owns = self._owner.get(op.session) == op.owner and self._fence[op.session] == op.fence
        assert result == owns
        if owns:
            self._owner[op.session] = None

    def _interrupt(self, owner: str, session: str | None = None) -> None:
        for call, (where, by) in [*self._running.items()]:
            if by == owner and session in (None, where):
                del self._running[call]
                self._ended[call] = None
                self.counts["interrupted"] += 1

    def _reap(self, op: Reap, result: Any) -> None:
        if self.living.get(op.owner):
            assert not result.interrupted and not result.closed, f"{op.owner} lives"
            return
        mine = {call for call, (_, by) in self._running.items() if by == op.owner}
        assert {call.id for call in result.interrupted} == mine
        assert not result.more
        self._taken.add(op.owner)
        self._reaped.add(op.owner)
        self._interrupt(op.owner)
        for session, owner in self._owner.items():
            if owner == op.owner:
                self._owner[session] = None

    def _start(self, op: StartCall, result: Any) -> None:
        if isinstance(result, StaleOwner):
            return
        before = self._started.get(op.call)
        if before is not None or op.call in self._ended:
            assert result.applied == (before == op.event.id), f"{op.call} started twice"
            return
        if result.applied:
            self._started[op.call] = op.event.id
            self._running[op.call] = (op.session, op.owner)
            assert sum(where == op.session for where, _ in self._running.values()) <= CAP
            self.counts["started"] += 1

    def _finish(self, op: FinishCall, result: Any) -> None:
        runs = self._running.get(op.call, ("", ""))[1] == op.owner
        assert result.applied == (runs or self._ended.get(op.call) == op.event.id), f"the end of {op.call}"
        if runs:
            del self._running[op.call]
            self._ended[op.call] = op.event.id
            self.counts["finished"] += 1

    def _resolve(self, op: ResolveConfirmation, result: Any) -> None:
        if result.applied:
            first = self._answers.setdefault(op.confirmation, op.event.id)
            assert first == op.event.id, f"{op.confirmation} was answered twice"
        elif op.confirmation in self._answers:
            assert result.confirmation.resolved == self._answers[op.confirmation]
            self.counts["second answers"] += 1

    # At the end.

    async def check_end(self, engine: Engine) -> None:
        store = engine.store
        assert list(await store.open_calls()) == []
        assert list(await store.open_confirmations()) == []
        assert list(await store.dead_owners()) == []
        sessions = (await store.list_sessions(limit=100_000)).sessions
        assert [session.id for session in sessions if session.owner is not None] == []
        starts, ends, asked, resolved = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        ids = Counter[str]()
        order: dict[str, list[str]] = {}
        for session in sessions:
            events: list[Any] = []
            while page := await store.read_events(session.id, after=len(events), limit=1_000):
                events += page
            assert len(events) == session.last_seq, "there is a gap"
            order[session.id] = [each.id for each in events]
            for each in events:
                ids[each.id] += 1
                call = each.payload.get("call_id", "")
                starts[call] += each.type == CALLED
                ends[call] += each.type in TERMINAL
                asked[session.id] += each.type == CONFIRMATION_REQUESTED
                resolved[session.id] += each.type == CONFIRMATION_RESOLVED
        assert set(ids.values()) <= {1}, "an event is there twice"
        assert {call for call, count in starts.items() if count > 1} == set()
        assert {call for call, count in ends.items() if call and count != 1} == set(), "a call has no end, or two"
        assert resolved == asked, "a question has no answer, or two"
        await self._check_order(store, order)

    async def _check_order(self, store: Any, order: dict[str, list[str]]) -> None:
        seen: dict[str, list[str]] = {id: [] for id in order}
        cursor = None
        while (page := await store.read_all(cursor)).events:
            cursor = page.cursor
            for each in page.events:
                seen[each.session_id].append(each.id)
        assert seen == order, "the events of all sessions are not those of each"
