"""A batch of commits in one transaction of PostgreSQL, if possible in one round trip.

    optimistic ---> applied to cached rows, sent in one round trip
        | a session has changed: drop it from the cache, retry
        | a presumed new row exists: read it, retry
        v
    locked -------> sessions locked first, then read; also for ops that name no session

After the loss of a connection, the writer reconnects once and sends the batch again: ops are
idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import psycopg

from callgate.core.ops import (
    Acquire,
    Append,
    AppendMessages,
    ClearOutbox,
    DropOutput,
    FinishCall,
    NewSession,
    Op,
    PutBlob,
    PutConfirmation,
    PutGrant,
    Release,
    ResolveConfirmation,
    RevokeGrants,
    StartCall,
    UpdateSession,
    UseGrant,
)
from callgate.core.stores import Lease, StoreError, StoreUnwritable, Trouble
from callgate.features.fleet.postgres import PostgresLocation, connections
from callgate.features.fleet.postgres.connections import TROUBLE, Connection, Lost, unwritable
from callgate.features.fleet.postgres.listener import Listener
from callgate.features.fleet.postgres.rows import PostgresRows, SessionsNeeded
from callgate.features.fleet.postgres.saving import INSERT, TOUCHES, VERIFY, Saving
from callgate.features.fleet.postgres.schema import FORMAT, migrate
from callgate.features.fleet.postgres.wire import (
    Results,
    Statement,
    StatementFailed,
    exchange,
    text,
)
from callgate.storage.owners import Owners
from callgate.storage.threaded_store import BatchWriter, Commit, Outcome, Tell, apply_all
from callgate.storage.views import View

_OPTIMISTIC = frozenset(
    {
        NewSession, UpdateSession, Acquire, Release, Append, AppendMessages, DropOutput, StartCall,
        FinishCall, ClearOutbox, PutConfirmation, ResolveConfirmation, PutGrant, UseGrant,
        RevokeGrants, PutBlob,
    }
)  # fmt: skip
"""Ops that read and change only the named sessions and their rows."""
_TRIES = 3
_LOCKED_TRIES = 20
_ORDS = 64
"""Number of session numbers to draw in one query."""
_CONFLICTS = ("40001", "40P01", "23505")
"""Conflicts with another process: a serialization failure, a deadlock, a duplicate row."""
_DIVISION = "22012"


class _Changed(Exception):
    """A session has changed since it was cached."""


class _Repeated(Exception):
    """A presumed new row already exists."""


class Writer(BatchWriter):
    def __init__(
        self,
        location: PostgresLocation,
        owner: str,
        local: Owners | None,
        listener: Listener,
        tell: Tell,
        before_commit: Callable[[], None],
        lease: Lease,
    ) -> None:
        """`local` announces this process to others on this machine."""
        super().__init__(tell, before_commit)
        self.idle_s = location.beat_s
        self._location = location
        self._owner = owner
        self._local = local
        self._lease = lease
        self._listener = listener
        self._db: Connection | None = None
        self._rows = PostgresRows(self._connect)
        self._ords: list[int] = []
        self._sent = False
        """Whether the transaction may have reached the server."""
        self.is_dead = False
        """Whether other processes marked this one as dead."""

    def _split(self, batch: list[Commit]) -> Iterable[list[Commit]]:
        for _, some in groupby(batch, _is_optimistic):
            yield [*some]

    def _after_batch(self, changed: Mapping[str, int]) -> None:
        if changed:
            self._listener.pass_on(changed)

    def _on_idle(self) -> None:
        """Reconnect after a loss, because the connection announces this process."""
        if self._db is not None and not self._db.has_ended():
            return
        self._disconnect()
        try:
            self._connect()
        except (*TROUBLE, StoreError):  # the next commit gets the error
            pass

    def _transact(self, batch: list[Commit]) -> tuple[list[Outcome], dict[str, int]]:
        self._sent = False
        sent_before = False
        try:
            try:
                return self._apply(batch, look=False)
            except (Lost, psycopg.OperationalError, psycopg.InterfaceError) as error:
                if self._db is None or not _is_lost(error):
                    raise
                sent_before = self._sent
                self._disconnect()
                return self._apply(batch, look=True)
        except TROUBLE as error:
            if _is_lost(error):
                self._disconnect()
            unknown = sent_before or self._sent
            named = unwritable(self._location.label, error, outcome_unknown=unknown)
            if named is None:
                raise
            raise named from error
        except StoreUnwritable as error:
            error.outcome_unknown |= sent_before
            raise

    def _apply(
        self, batch: Sequence[Commit], *, look: bool
    ) -> tuple[list[Outcome], dict[str, int]]:
        ops = [op for commit in batch for op in commit.ops]
        if _is_optimistic(batch[0]):
            for _ in range(_TRIES):
                try:
                    return self._apply_optimistic(batch, ops, look=look)
                except _Repeated:
                    look = True
                except _Changed:
                    continue
        return self._apply_locked(batch, ops)

    def _apply_optimistic(
        self, batch: Sequence[Commit], ops: Sequence[Op[Any]], *, look: bool
    ) -> tuple[list[Outcome], dict[str, int]]:
        rows = self._rows
        rows.begin(ops, look=look)
        outcomes, view = apply_all(batch, rows)
        saving = self._saving(view)
        statements = saving.statements(verify=True)
        if not statements:
            return outcomes, {}
        try:
            # Also without changes: a result must hold for the present state.
            results = self._exchange([_BEGIN, self._check_alive(), *statements, _COMMIT])
        except StatementFailed as failure:
            self._roll_back()
            if failure.purpose == ALIVE:
                self._disconnect()  # reconnecting raises the reason
                raise _Changed from None
            if failure.purpose == VERIFY and failure.sqlstate == _DIVISION:
                rows.forget_used()
                raise _Changed from None
            if failure.sqlstate in _CONFLICTS:
                rows.forget_used()
                repeated = failure.purpose in (INSERT, TOUCHES)
                raise (_Repeated if repeated else _Changed) from None
            raise failure.as_error() from None
        touches = saving.touches(results[2:-1])
        rows.remember(view, saving.ords, touches)
        return outcomes, touches

    def _apply_locked(
        self, batch: Sequence[Commit], ops: Sequence[Op[Any]]
    ) -> tuple[list[Outcome], dict[str, int]]:
        needed = {id for op in ops for id in op.sessions}
        tries = 0
        while tries < _LOCKED_TRIES:
            tries += 1
            try:
                return self._try_locked(batch, needed)
            except SessionsNeeded as more:
                tries -= not more.sessions <= needed  # new sessions are known: not counted as a try
                needed |= more.sessions
            except StatementFailed as failure:
                if failure.purpose == ALIVE:
                    self._disconnect()  # reconnecting raises the reason
                elif failure.sqlstate not in _CONFLICTS:
                    raise failure.as_error() from None
            except psycopg.Error as error:
                if error.sqlstate not in _CONFLICTS:
                    raise
        raise StoreUnwritable(self._location.label, Trouble.BUSY)

    def _try_locked(
        self, batch: Sequence[Commit], needed: Iterable[str]
    ) -> tuple[list[Outcome], dict[str, int]]:
        db, rows = self._connect(), self._rows
        db.begin()
        try:
            rows.begin_locked(needed)
            outcomes, view = apply_all(batch, rows)
            if not view.changed:
                db.run("rollback")
                return outcomes, {}
            saving = self._saving(view)
            statements = saving.statements(verify=False)
            results = self._exchange([self._check_alive(), *statements, _COMMIT])
        except BaseException:
            for id in needed:
                rows.forget(id)
            self._roll_back()
            raise
        touches = saving.touches(results[1:-1])
        rows.remember(view, saving.ords, touches)
        return outcomes, touches

    def _check_alive(self) -> Statement:
        return Statement(_ALIVE, (text(self._owner),), ALIVE)

    def _saving(self, view: View) -> Saving:
        return Saving(view, self._rows, self._connect().draw_base, self._draw_ord)

    def _draw_ord(self) -> int:
        if not self._ords:
            drawn = "select nextval('cg.session_numbers') from generate_series(1, %s)"
            self._ords = [ord for (ord,) in self._connect().fetch(drawn, _ORDS)][::-1]
        return self._ords.pop()

    def _exchange(self, statements: Sequence[Statement]) -> Results:
        db = self._connect()
        named = [Statement(db.text(each.sql), each.values, each.purpose) for each in statements]
        return exchange(db.psycopg, named, self._location.answer_s, self._note_sent)

    def _note_sent(self) -> None:
        self._sent = True

    def _roll_back(self) -> None:
        if self._db is None:
            return
        try:
            self._db.run("rollback")
        except TROUBLE:  # the outcome is unknown
            self._disconnect()
        else:
            self._sent = False

    # Connection.

    def _connect(self) -> Connection:
        if self.is_dead:
            raise StoreUnwritable(self._location.label, Trouble.TAKEN_FOR_DEAD)
        if self._db is None or self._db.psycopg.closed:
            if self._local is not None:
                self._local.declare()
            db = Connection(self._location)
            try:
                self._prepare(db)
            except BaseException:
                db.close()
                raise
            self._db = db
        return self._db

    def _prepare(self, db: Connection) -> None:
        """Announce this process before the first commit."""
        migrate(db)
        at = Lease.now()
        if db.is_direct:
            alive = connections.declare(db, self._owner, FORMAT)
            self._listener.start()
        else:
            if not self._listener.wait_declared(self._location.connect_s):
                raise Lost("there is no direct connection")
            alive = connections.beat(db, self._owner)
        if not alive:
            self.is_dead = True
            raise StoreUnwritable(self._location.label, Trouble.TAKEN_FOR_DEAD)
        self._lease.renew(at)

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        self._rows.forget_all()
        if db is not None:
            db.close()


ALIVE = "alive"
_ALIVE = "select 1 / (exists (select 1 from cg.owners where id = $1 and not dead))::int"
"""Divides by zero if others marked this process as dead, so that it commits nothing more."""
_BEGIN = Statement("begin")
_COMMIT = Statement("commit")


def _is_optimistic(commit: Commit) -> bool:
    return all(type(op) in _OPTIMISTIC for op in commit.ops)


def _is_lost(error: BaseException) -> bool:
    """Whether the connection is unusable."""
    if isinstance(error, Lost | OSError | psycopg.InterfaceError):
        return True
    state = getattr(error, "sqlstate", None) or ""
    return isinstance(error, psycopg.OperationalError) and state[:2] in ("", "08", "57", "25")
