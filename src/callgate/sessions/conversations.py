"""Sessions as their owner uses them: resume, turns, messages, mode and title.

    resume ---> the session, owned by this process alone
    begin_turn ---> say, say, ... ---> end_turn

A session has one turn at a time. A turn that was under way when its process died is still the
session's turn after `resume`: whoever resumes goes on with it or ends it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from callgate.core.events import (
    MODE_CHANGED,
    SESSION_RESUMED,
    TURN_CANCELLED,
    TURN_COMPLETED,
    TURN_STARTED,
    Actor,
    Event,
    EventSink,
)
from callgate.core.ids import turn_id, ulid
from callgate.core.messages import Message
from callgate.core.ops import Acquire, AppendMessages, UpdateSession
from callgate.core.sessions import Mode, Root, Session
from callgate.core.stored import StoredMessage, StoredSession
from callgate.core.stores import SessionLocked, SessionNotFound, Snapshot, Store
from callgate.events.log import SessionLog
from callgate.sessions.titles import title_of


class Conversations:
    def __init__(
        self, log: SessionLog, sink: EventSink, roots: Callable[[], Collection[Root]]
    ) -> None:
        """`roots` are those that the settings grant beside a workspace."""
        self._log = log
        self._sink = sink
        self._roots = roots

    async def resume(self, session_id: str) -> tuple[Session, Snapshot]:
        """Take a session over, with what is still open in it.

        `SessionNotFound`, or `SessionLocked` while another living process has it.
        """
        store = await self._log.store()
        if not session_id.isascii():
            raise SessionNotFound(session_id)
        if self._log.holds(session_id):
            raise SessionLocked(session_id, store.owner)
        await store.get_session(session_id)
        acquire = Acquire(session=session_id, owner=store.owner, at=time.time())
        (fence,) = await store.commit(acquire)
        snapshot = await store.snapshot(session_id)
        session = _session(snapshot.session)
        granted = self._roots()  # what was granted since, or taken back, counts
        session.extra_roots = tuple(root for root in session.extra_roots if root in granted)
        self._log.adopt(session, fence)
        self._emit(session, SESSION_RESUMED, "system", {})
        return session, snapshot

    async def begin_turn(self, session: Session, prompt: Message) -> str:
        """Begin a turn with what the user said; its id. `ValueError` while one is under way."""
        if session.turn_id is not None:
            raise ValueError(f"turn {session.turn_id} is under way")
        turn = turn_id()
        title = session.title or title_of(prompt)
        await self._update(session, turn_id=turn, title=title)
        session.turn_id, session.title = turn, title
        self._emit(session, TURN_STARTED, "user", {})
        await self.say(session, prompt)
        return turn

    async def end_turn(self, session: Session, *, cancelled: str | None = None) -> None:
        """End the turn under way; `cancelled` says why it did not get to its end."""
        if session.turn_id is None:
            return
        if cancelled is None:
            self._emit(session, TURN_COMPLETED, "agent", {})
        else:
            self._emit(session, TURN_CANCELLED, "system", {"reason": cancelled})
        session.turn_id = None
        await self._log.commit(
            session, UpdateSession(session=session.id, turn_id=None, at=time.time()), insist=True
        )

    async def say(self, session: Session, message: Message) -> None:
        """Add a message to the conversation."""
        kept = StoredMessage(
            id=ulid(), turn_id=session.turn_id, body=msgspec.to_builtins(message)
        )
        op = AppendMessages(session=session.id, messages=(kept,), at=time.time())
        await self._log.commit(session, op)

    async def messages(self, session: Session) -> list[Message]:
        """The whole conversation."""
        await self._log.flush()
        store = await self._log.store()
        return [msgspec.convert(each.body, Message) for each in await _all(store, session.id)]

    async def rename(self, session: Session, title: str) -> None:
        session.title = title
        await self._update(session, title=title)

    async def set_mode(self, session: Session, mode: Mode) -> None:
        """Change the ceiling of what may run, from the next decision on."""
        before, session.mode = session.mode, mode
        self._emit(session, MODE_CHANGED, "user", {"from": before, "to": mode})
        await self._update(session, mode=mode)

    async def _update(self, session: Session, **changes: Any) -> None:
        await self._log.commit(
            session, UpdateSession(session=session.id, at=time.time(), **changes)
        )

    def _emit(
        self, session: Session, type: str, actor: Actor, payload: Mapping[str, Any]
    ) -> None:
        event = Event(
            id=ulid(),
            timestamp=time.time(),
            session_id=session.id,
            turn_id=session.turn_id,
            type=type,
            actor=actor,
            payload=payload,
        )
        self._log.append(session, event)
        self._sink.emit(event)


async def _all(store: Store, session_id: str) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while page := await store.read_messages(session_id, len(found)):
        found += page
    return found


def _session(stored: StoredSession) -> Session:
    return Session(
        id=stored.id,
        workspace=stored.workspace,
        mode=stored.mode,
        extra_roots=stored.extra_roots,
        tags=stored.tags,
        turn_id=stored.turn_id,
        is_worker=stored.parent is not None,
        parent=stored.parent,
        title=stored.title,
    )
