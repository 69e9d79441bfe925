"""Rows of the file, for the duration of a transaction.

The rows of a batch are loaded with one statement for each kind. Sessions are cached between
transactions while no other process writes. Events are assumed to be new, which is almost always
true; otherwise saving them fails.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import apsw
import msgspec

from callgate.core.ops import (
    AppendMessages,
    ClaimOutbox,
    ClearOutbox,
    FinishCall,
    Op,
    SessionOp,
    StartCall,
)
from callgate.core.stored import (
    ConfirmationState,
    OutboxRecord,
    StoredCall,
    StoredConfirmation,
    StoredGrant,
    StoredSession,
)
from callgate.core.stores import StoreTooNew
from callgate.storage.encoding import is_forgotten
from callgate.storage.owners import Owners
from callgate.storage.sqlite.saving import Saving, WriterCache
from callgate.storage.sqlite.tables import (
    MIGRATIONS,
    POSITION_BITS,
    SESSION,
    TABLES,
    position_of,
    select,
    seq_of,
    session_of,
    value_of,
    where_key,
)
from callgate.storage.views import Blob, EventRow, MessageRow, Row, View, is_due

if TYPE_CHECKING:  # few commands prune
    from callgate.core.budgets import PageRelease, RowSweep

KEPT_SESSIONS = 4_096

R = TypeVar("R", bound=Row)
_Kind = type[Any]


class SqliteRows:
    """The rows below the view of a batch. Used only by the writer's thread."""

    def __init__(self, db: apsw.Connection, path: str, owners: Owners) -> None:
        self._db = db
        self._path = path
        self._owners = owners
        self._version: int | None = None
        self.cache = WriterCache()
        self._loaded: dict[_Kind, dict[Hashable, Any]] = {}
        """Results of lookups in this transaction; None if the row does not exist."""
        self._looks = True
        self.left_in_log = False
        """Whether the log still has data that was deleted since it was last truncated."""

    # Loading.

    def begin(self, *, look: bool = True) -> None:
        """Start a transaction: look for events, or assume that they are new."""
        self._looks = look
        version = self._db.pragma("data_version")
        self._loaded.clear()
        if version != self._version or len(self.cache.sessions) > KEPT_SESSIONS:
            self._refresh()
            self._version = version

    def forget(self) -> None:
        """Clear the cache, because a transaction was not committed."""
        self._version = None

    def _refresh(self) -> None:
        format = int(self._db.pragma("user_version"))
        if format > len(MIGRATIONS):
            raise StoreTooNew(self._path, format, len(MIGRATIONS))
        self.cache.sessions.clear()
        marks = dict(select(self._db, "select name, value from marks"))
        [(n, touch)] = select(
            self._db,
            "select (select ifnull(max(n), 0) from events),"
            " max((select ifnull(max(touch), 0) from sessions),"
            " (select ifnull(max(touch), 0) from entry_kinds))",
        )
        self.cache.n = max(n, marks.get("n", 0))
        self.cache.touch = max(touch, marks.get("touch", 0))

    def load(self, ops: Iterable[Op[Any]]) -> None:
        """Load the rows that these ops certainly need, present or not."""
        sessions: list[str] = []
        events: list[str] = []
        calls: list[str] = []
        messages: list[str] = []
        cleared: list[str] = []
        for op in ops:
            if isinstance(op, SessionOp) and op.session not in self.cache.sessions:
                sessions.append(op.session)
            for event in op.recorded:
                events.append(event.id)
            if isinstance(op, StartCall | FinishCall):
                calls.append(op.call)
            elif isinstance(op, AppendMessages):
                messages += [each.id for each in op.messages]
            elif isinstance(op, ClearOutbox | ClaimOutbox):
                cleared += op.calls
        self._load(StoredSession, sessions)
        if self._looks:
            self._load(EventRow, events)
        self._load(StoredCall, calls)
        self._load(MessageRow, messages)
        self._load(OutboxRecord, cleared)

    def _load(self, kind: _Kind, keys: list[str]) -> None:
        if len(keys) < 2:  # a single one is looked up on demand
            return
        among = "id in (select value from json_each(?))"
        loaded = self._loaded[kind] = dict.fromkeys(keys)
        for row in self._select(kind, among, (msgspec.json.encode(keys).decode(),)):
            loaded[row.key] = row

    def get(self, kind: type[R], key: Hashable) -> R | None:
        if kind is StoredSession and key in self.cache.sessions:
            return self.cache.sessions[key][1]  # type: ignore[return-value]
        if kind is EventRow and not self._looks:
            return None
        loaded = self._loaded.get(kind)
        if loaded is None:
            loaded = self._loaded[kind] = {}
        if key not in loaded:
            rows = self._select(kind, *where_key(kind, key))
            loaded[key] = rows[0] if rows else None
        return loaded[key]  # type: ignore[no-any-return]

    def find(self, kind: type[R], field: str, value: Any, limit: int | None = None) -> Sequence[R]:
        where = "owner = ?" if field == "owner" else "ord = ?"
        if kind is StoredCall:
            where += " and state <> 'ended'"
        elif kind is not StoredGrant:
            where = f"{field} = ?"
        values = (self._ord(value) if where.startswith("ord") else value,)
        if limit is not None:
            return self._select(kind, f"{where} order by id limit ?", (*values, limit))
        return self._select(kind, where, values)

    def due(self, at: float) -> Sequence[StoredConfirmation]:
        # Spelled out, or the index on the open ones is not used.
        pending = self._select(StoredConfirmation, f"state = '{ConfirmationState.PENDING}'", ())
        return [question for question in pending if is_due(question, at)]

    def events(self, session: str, after: int = 0) -> Iterator[tuple[int, str]]:
        yield from self._texts("events", session, after)

    def messages(self, session: str) -> Iterator[str]:
        yield from (text for _, text in self._texts("messages", session, 0))

    def alive(self, owner: str) -> bool:
        return self._owners.alive(owner)

    # Pruning.

    def oldest_sessions(
        self, cursor: str | None, most: int
    ) -> tuple[Sequence[StoredSession], str | None]:
        from callgate.storage.sqlite import pruning  # lazy: few commands prune  # noqa: PLC0415

        page, further = pruning.oldest_sessions(self._db, cursor, most)
        return [self._keep(*each) for each in page], further

    def oldest_events(self, cursor: str | None, most: int) -> tuple[Sequence[EventRow], str | None]:
        from callgate.storage.sqlite import pruning  # lazy: as above  # noqa: PLC0415

        return pruning.oldest_events(self._db, cursor, most)

    def sweep(self, most: int) -> RowSweep:
        from callgate.storage.sqlite import pruning  # lazy: as above  # noqa: PLC0415

        result = pruning.sweep(self._db, most)
        self.left_in_log |= not result.more
        return result

    def release_pages(self, most: int) -> PageRelease:
        from callgate.storage.sqlite import pruning  # lazy: as above  # noqa: PLC0415

        result = pruning.release_pages(self._db, most)
        self.left_in_log |= not result.more
        return result

    def _texts(self, table: str, session: str, after: int) -> Iterator[tuple[int, str]]:
        ord = self._ord(session)
        if ord is not None:
            yield from (
                (seq_of(position), text)
                for position, text in self._db.execute(
                    f"select place, body from {table} where place > ? and place < ? order by place",  # noqa: S608
                    (position_of(ord, after), position_of(ord + 1, 0)),
                )
            )

    def _ord(self, session: str) -> int | None:
        """Return a session's ord, or None, which matches no row, if there is no such session."""
        self.get(StoredSession, session)
        known = self.cache.sessions.get(session)
        return known[0] if known is not None else None

    def _select(self, kind: _Kind, where: str, values: tuple[Any, ...]) -> list[Any]:
        if kind is StoredSession:
            return [self._keep(*session_of(row)) for row in self._all(SESSION, where, values)]
        if kind in (EventRow, MessageRow):
            table = "events" if kind is EventRow else "messages"
            known = self._all(
                f"select t.id, s.id, place from {table} t"  # noqa: S608
                f" join sessions s on s.ord = place >> {POSITION_BITS}",
                "t." + where,
                values,
            )
            return [kind(id, session, seq_of(position), "") for id, session, position in known]
        if kind is Blob:
            known = self._all("select sha256 from blobs", where, values)
            return [Blob(sha256, b"") for (sha256,) in known]
        bodies = self._all(f"select body from {TABLES[kind]}", where, values)  # noqa: S608
        return [value_of(body, kind) for (body,) in bodies]

    def _all(self, columns: str, where: str, values: tuple[Any, ...]) -> list[Any]:
        return select(self._db, f"{columns} where {where}", values)

    def _keep(self, ord: int, session: StoredSession) -> StoredSession:
        self.cache.sessions[session.id] = ord, session
        return session

    def save(self, view: View) -> dict[str, int]:
        """Write the changes; return the number of each changed session's change."""
        for session in view.touched:
            if session not in self.cache.sessions:
                self.get(StoredSession, session)
        questions = view.rows.get(StoredConfirmation, {}).values()
        self.left_in_log |= bool(view.deleted or view.pruned) or any(map(is_forgotten, questions))
        return Saving(self._db, self.cache, looked=self._looks).save(view)
