"""No read, and no deletion, goes through a whole table: each finds its rows by an index."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import apsw
import pytest

from callgate.core.budgets import PruneEvents, PruneSessions, SweepRows
from callgate.core.ops import DeleteSession, Reap
from callgate.core.stores import SessionNotFound
from callgate.storage.changes import apply
from callgate.storage.encoding import encode_ops, write_cursor
from callgate.storage.owners import Owners
from callgate.storage.sqlite.files import Location, open_writer
from callgate.storage.sqlite.reads import READS
from callgate.storage.sqlite.rows import SqliteRows
from callgate.storage.views import View
from tests.kernel.cli.stored import opened
from tests.kernel.contract.stores import append, new_session

_WHOLE = re.compile(r"SCAN \w+\Z")
_AT = write_cursor("e", 5)
_READS: dict[str, Callable[[apsw.Connection, str], Any]] = {
    "read_events": lambda db, session: READS.read_events(db, session, 0, 10),
    "read_messages": lambda db, session: READS.read_messages(db, session, 0, 10),
    "read_all": lambda db, session: READS.read_all(db, _AT, 10),
    "read_last": lambda db, session: READS.read_last(db, _AT, None, 10),
    "behind": lambda db, session: READS.behind(db, _AT),
    "get_session": READS.get_session,
    "list_sessions": lambda db, session: READS.list_sessions(db, None, write_cursor("s", 9), 10, False),
    "list_sessions of a workspace": lambda db, session: READS.list_sessions(db, "/w", None, 10, False),
    "workers_of": READS.workers_of,
    "find_sessions": READS.find_sessions,
    "snapshot": READS.snapshot,
    "open_confirmations": lambda db, session: READS.open_confirmations(db, None),
    "open_confirmations of a session": READS.open_confirmations,
    "open_calls": lambda db, session: READS.open_calls(db, None, None),
    "open_calls of a session": lambda db, session: READS.open_calls(db, session, None),
    "open_calls of an owner": lambda db, session: READS.open_calls(db, None, "own_1"),
    "get_call": READS.get_call,
    "grants": READS.grants,
    "get_blob": READS.get_blob,
    "audited_from": lambda db, session: READS.audited_from(db),
    "owners": lambda db, session: READS.owners(db),
    "has_open_calls": READS.has_open_calls,
    "has_session": READS.has_session,
    "entries": lambda db, session: READS.entries(db, "rule"),
}


class Plans:
    """How the statements of a connection find their rows."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._statements: dict[str, Any] = {}
        db.exec_trace = self._note

    def _note(self, cursor: Any, sql: str, values: Any) -> bool:
        self._statements[sql] = values
        return True

    def whole_tables(self) -> list[str]:
        self._db.exec_trace = None
        looked = [(sql, v) for sql, v in self._statements.items() if re.match(r"\s*(select|delete|update)", sql)]
        assert looked
        return [
            f"{detail}: {sql}"
            for sql, values in looked
            for *_, detail in self._db.execute(f"explain query plan {sql}", values)
            if _WHOLE.match(detail)
        ]


@pytest.fixture
async def session(home: Path) -> str:
    async with opened(home) as store:
        session = await new_session(store)
        await append(store, session, "a", "b")
    return session


@pytest.fixture
def db(home: Path, session: str) -> Iterator[apsw.Connection]:
    db = open_writer(Location(home=str(home)))
    yield db
    db.close()


@pytest.mark.parametrize("name", _READS)
def test_a_read_finds_its_rows_by_an_index(name: str, db: apsw.Connection, session: str) -> None:
    plans = Plans(db)
    _READS[name](db, session)
    assert plans.whole_tables() == []


def test_every_read_is_looked_at() -> None:
    parts = {"rows", "sessions", "values", "texts", "message", "confirmations", "suspect", "transaction", "BY_ID"}
    public = {name for name in dir(READS) if not name.startswith("_")} - parts
    assert public - {name.partition(" of ")[0] for name in _READS} == {
        "get_confirmation",
        *("outbox", "cut_sessions"),  # small tables, of which all is wanted
    }


@pytest.mark.parametrize("op", [DeleteSession, Reap], ids=["delete", "reap"])
def test_what_a_commit_removes_is_found_by_an_index(op: Any, db: apsw.Connection, session: str, home: Path) -> None:
    rows = SqliteRows(db, "", Owners(str(home / "run"), "own_1"))
    plans = Plans(db)
    rows.begin()
    change = DeleteSession(session=session) if op is DeleteSession else Reap(owner="own_2", at=1.0)
    [change], texts = encode_ops([change])
    view = View(rows)
    view.begin(texts)
    apply(change, view)
    rows.save(view)
    assert [each for each in plans.whole_tables() if " marks" not in each] == []
    if op is DeleteSession:
        with pytest.raises(SessionNotFound):
            READS.get_session(db, session)


@pytest.mark.parametrize(
    "op", [PruneSessions(before=1e12), PruneEvents(before=1e12), SweepRows()], ids=["sessions", "events", "rows"]
)
def test_what_is_pruned_is_found_by_an_index(op: Any, db: apsw.Connection, session: str, home: Path) -> None:
    rows = SqliteRows(db, "", Owners(str(home / "run"), "own_1"))
    if isinstance(op, SweepRows):
        _apply(PruneSessions(before=1e12), rows)
    plans = Plans(db)
    _apply(op, rows)
    # How far it has come is in two small tables; of sessions and events it reads the next few.
    allowed = (" marks", " dropped_sessions", "order by touch limit", "order by n limit")
    assert [each for each in plans.whole_tables() if not any(part in each for part in allowed)] == []
    with pytest.raises(SessionNotFound) if not isinstance(op, PruneEvents) else nullcontext():
        READS.get_session(db, session)


def _apply(op: Any, rows: SqliteRows) -> None:
    rows.begin()
    view = View(rows)
    view.begin({})
    apply(op, view)
    rows.save(view)
