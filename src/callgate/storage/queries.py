"""Queries, most of them defined once for every engine; an engine adds the others in a subclass.

Shared statements are written with `cg.` before each table, and `%s` for each value.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol, TypeVar

from callgate.core.events import Event
from callgate.core.stored import (
    CallState,
    ConfirmationState,
    CutSession,
    OutboxRecord,
    SharedEntry,
    StoredCall,
    StoredConfirmation,
    StoredGrant,
    StoredMessage,
    StoredSession,
)
from callgate.core.stores import (
    Behind,
    ConfirmationNotFound,
    EventPage,
    SessionNotFound,
    SessionPage,
    Snapshot,
)
from callgate.storage.encoding import write_cursor
from callgate.storage.session_changes import event_of

PAGE_BYTES = 4 << 20
"""Size at which a page ends."""
LAST_NUMBER = (1 << 63) - 1
"""Upper bound for the numbers of events."""
_OF_SESSION = "ord = (select ord from cg.sessions where id = %s)"
_SHOWN = (ConfirmationState.PENDING, ConfirmationState.ALLOWED)

D = TypeVar("D", contravariant=True)


class Queries(Protocol[D]):
    """Queries of an engine; each method takes a read-only connection."""

    BY_ID: ClassVar[str] = "order by id"
    """Order of open calls and questions."""

    def rows(self, db: D, statement: str, *values: Any) -> Sequence[Any]: ...
    def sessions(self, db: D, where: str, *values: Any) -> list[StoredSession]: ...
    def values(self, db: D, kind: type[Any], where: str, *values: Any) -> list[Any]:
        """Return the values of rows; `where` begins with their table."""
        ...

    def texts(
        self, db: D, table: str, session: str, after: int, limit: int
    ) -> tuple[int, list[tuple[int, str]]]:
        """Return the number of the session's last event, with numbers and texts of a page."""
        ...

    def message(self, text: str) -> StoredMessage: ...
    def confirmations(self, db: D, ids: list[str]) -> list[StoredConfirmation]: ...
    def suspect(self, problem: str) -> None:
        """Report a row whose columns disagree with its value."""
        ...

    def transaction(self, db: D) -> AbstractContextManager[Any]: ...
    def read_all(self, db: D, after: str | None, limit: int) -> EventPage: ...
    def read_last(self, db: D, after: str | None, upto: str | None, limit: int) -> EventPage: ...
    def behind(self, db: D, after: str | None) -> Behind: ...
    def list_sessions(
        self, db: D, workspace: str | None, cursor: str | None, limit: int, workers: bool
    ) -> SessionPage: ...
    def find_sessions(self, db: D, part: str) -> list[str]: ...
    def get_blob(self, db: D, sha256: str) -> bytes | None: ...

    # The same in every engine.

    def read_events(self, db: D, session: str, after: int, limit: int) -> list[Event]:
        last, rows = self.texts(db, "events", session, after, limit)
        events = [(seq, event_of(text, session, seq)) for seq, text in rows]
        if (events[0][0] if events else last + 1) == after + 1 or after >= last:
            return [event for _, event in events]
        from callgate.storage.pruning import filled  # lazy: few sessions lack events  # noqa: PLC0415

        return [*filled(events, session, after, last, limit)]

    def read_messages(self, db: D, session: str, after: int, limit: int) -> list[StoredMessage]:
        _, rows = self.texts(db, "messages", session, after, limit)
        return [self.message(text) for _, text in rows]

    def get_session(self, db: D, session: str) -> StoredSession:
        found = self.sessions(db, "id = %s", session)
        if not found:
            raise SessionNotFound(session)
        self._ensure_same(found[0].id, session)
        return found[0]

    def workers_of(self, db: D, session: str) -> list[StoredSession]:
        return self.sessions(db, "parent = %s order by id", session)

    def snapshot(self, db: D, session: str) -> Snapshot:
        with self.transaction(db):
            stored = self.get_session(db, session)
            calls = self.open_calls(db, session, None)
            ids = [call.confirmation for call in calls if call.confirmation]
            confirmations = self.confirmations(db, ids)
            return Snapshot(
                session=stored,
                calls=calls,
                confirmations=[question for question in confirmations if question.state in _SHOWN],
                grants=self.grants(db, session),
            )

    def open_confirmations(self, db: D, session: str | None) -> list[StoredConfirmation]:
        among, values = ("", ()) if session is None else (f"{_OF_SESSION} and ", (session,))
        where = f"confirmations where {among}state = 'pending' {self.BY_ID}"
        found: list[StoredConfirmation] = self.values(db, StoredConfirmation, where, *values)
        if any(each.state is not ConfirmationState.PENDING for each in found):
            self.suspect("the columns of a confirmation disagree")
        return found

    def get_confirmation(self, db: D, id: str) -> StoredConfirmation:
        found = self.values(db, StoredConfirmation, "confirmations where id = %s", id)
        if not found:
            raise ConfirmationNotFound(id)
        confirmation: StoredConfirmation = found[0]
        self._ensure_same(confirmation.id, id)
        return confirmation

    def open_calls(self, db: D, session: str | None, owner: str | None) -> list[StoredCall]:
        where, values = "state <> 'ended'", list[str]()
        if session is not None:
            where, values = f"{_OF_SESSION} and {where}", [session]
        if owner is not None:
            where, values = f"{where} and owner = %s", [*values, owner]
        found: list[StoredCall]
        found = self.values(db, StoredCall, f"calls where {where} {self.BY_ID}", *values)
        if any(each.state is CallState.ENDED for each in found):
            self.suspect("the columns of a call disagree")
        return found

    def get_call(self, db: D, id: str) -> StoredCall | None:
        found = self.values(db, StoredCall, "calls where id = %s", id)
        if found:
            self._ensure_same(found[0].id, id)
        return found[0] if found else None

    def grants(self, db: D, session: str) -> list[StoredGrant]:
        return self.values(db, StoredGrant, f"grants where {_OF_SESSION} order by id", session)

    def owners(self, db: D) -> list[str]:
        """Return the owners of sessions and of running calls."""
        found = self.rows(
            db,
            "select owner from cg.sessions where owner is not null"
            " union select owner from cg.calls where state <> 'ended' order by owner",
        )
        return [owner for (owner,) in found]

    def has_open_calls(self, db: D, session: str) -> bool:
        """Return whether calls of a session run, or a dead owner may have left some open."""
        cut = self.rows(db, "select 1 from cg.cut_sessions where id = %s", session)
        return bool(cut or self.open_calls(db, session, None))

    def has_session(self, db: D, session: str) -> bool:
        return bool(self.rows(db, "select 1 from cg.sessions where id = %s", session))

    def outbox(self, db: D) -> list[OutboxRecord]:
        return self.values(db, OutboxRecord, "outbox order by id")

    def cut_sessions(self, db: D) -> list[CutSession]:
        return self.values(db, CutSession, "cut_sessions order by id")

    def entries(self, db: D, kind: str) -> list[SharedEntry]:
        return self.values(db, SharedEntry, "entries where kind = %s order by name", kind)

    def audited_from(self, db: D) -> str | None:
        found = self.rows(db, "select value from cg.marks where name = 'audited'")
        return write_cursor("e", int(found[0][0])) if found else None

    def _ensure_same(self, found: str, wanted: str) -> None:
        if found != wanted:
            self.suspect(f"{wanted} is stored under the id of another row")


def event_page(rows: Sequence[Any], end: int, *, pending: bool = False) -> EventPage:
    """Build a page of events from their numbers, sessions, places and texts. `end` is its cursor
    if it has no events."""
    numbers = [n for n, _, _, _ in rows] or [end]
    return EventPage(
        [event_of(text, session, seq) for _, session, seq, text in rows],
        [write_cursor("e", n) for n, _, _, _ in rows],
        write_cursor("e", numbers[-1]),
        [seq for _, _, seq, _ in rows],
        write_cursor("e", numbers[0] - 1 if rows else end),
        pending,
    )
