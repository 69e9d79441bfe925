"""Sessions for their owner: resume, turns, messages, mode and title.

    resume ---> the session, owned by this process alone
    begin_turn ---> say, say, ... ---> end_turn

This module writes and emits the parts of a turn; `session_turns` tracks the turn of each session
and which task runs it. A turn whose process died is still the session's turn after `resume`: the
new owner continues or ends it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from callgate.core.content import Message, TextBlock, ToolResultBlock
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
from callgate.core.ops import Acquire, AppendMessages, UpdateSession
from callgate.core.sessions import Mode, Root, Session
from callgate.core.stored import StoredMessage, StoredSession
from callgate.core.stores import SessionLocked, SessionNotFound, Snapshot, Store
from callgate.events.log import SessionLog
from callgate.redaction.texts import redact

_MODEL = "model"
"""Field of the extra data of a session."""
_USER_WORDS = "user_words"
"""Field of a stored message."""
_LONGEST_TITLE = 80


class Conversations:
    def __init__(
        self,
        log: SessionLog,
        sink: EventSink,
        roots: Callable[[], Collection[Root]],
        heard: Callable[[Session, str, str], None] = lambda session, words, text: None,
    ) -> None:
        """`roots` returns the roots that the settings grant in addition to a workspace; `heard`
        receives the words of the user, and the complete text of their message."""
        self._log = log
        self._sink = sink
        self._roots = roots
        self._heard = heard

    async def resume(self, session_id: str) -> tuple[Session, Snapshot]:
        """Take over a session, with its open calls and questions.

        Raises `SessionNotFound`, or `SessionLocked` while another running process owns it.
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
        granted = self._roots()  # the present grants count, not the stored ones
        session.extra_roots = tuple(root for root in session.extra_roots if root in granted)
        self._log.adopt(session, fence)
        self.emit(session, SESSION_RESUMED, "system", {})
        return session, snapshot

    def has_lost(self, session_id: str) -> bool:
        """Whether another process has taken over one of our sessions, as if we were dead."""
        return self._log.has_lost(session_id)

    async def release(self, session: Session) -> None:
        """Release a session: another process may resume it."""
        await self._log.release(session.id)

    async def begin_turn(self, session: Session, prompt: Message) -> str:
        """Begin a turn with the user's message, and return its id. `ValueError` during another
        turn."""
        written = self.open_turn(session, prompt, turn_id())
        try:
            await written
        except BaseException:  # nothing was begun
            session.turn_id = None
            raise
        assert session.turn_id is not None
        return session.turn_id

    def open_turn(
        self, session: Session, prompt: Message, turn: str, user_words: str | None = None
    ) -> asyncio.Future[Any]:
        """Begin a turn with an id, without waiting: the future is done when the turn and its prompt
        are on disk. `user_words`: the part that the user wrote, if not all of it."""
        if session.turn_id is not None:
            raise ValueError(f"turn {session.turn_id} is under way")
        title = session.title or title_of(prompt)
        self._update(session, turn_id=turn, title=title)
        session.turn_id, session.title = turn, title
        self.emit(session, TURN_STARTED, "user", {})
        if session.is_worker:  # the prompt of a sub-agent is the model's
            return self.say(session, prompt)
        words = text_of_prompt(prompt) if user_words is None else user_words
        return self.say(session, prompt, user_words=words)

    async def end_turn(
        self,
        session: Session,
        *,
        cancelled: str | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> None:
        """End the current turn; `cancelled` is the reason of an early end, `payload` extra data of
        the event."""
        if session.turn_id is not None:
            await self.close_turn(session, cancelled, payload or {})

    def close_turn(
        self, session: Session, cancelled: str | None, payload: Mapping[str, Any]
    ) -> asyncio.Future[Any]:
        """End the current turn without waiting."""
        if cancelled is None:
            self.emit(session, TURN_COMPLETED, "agent", payload)
        else:
            self.emit(session, TURN_CANCELLED, "system", {"reason": cancelled, **payload})
        session.turn_id = None
        return self._log.commit(
            session, UpdateSession(session=session.id, turn_id=None, at=time.time()), insist=True
        )

    def say(
        self,
        session: Session,
        message: Message,
        *,
        soon: bool = False,
        user_words: str | None = None,
    ) -> asyncio.Future[Any]:
        """Add a message to the conversation. Completes when it is on the disk, before later writes.
        `soon`: no caller waits. `user_words`: the part that the user wrote."""
        body = msgspec.to_builtins(message)
        if user_words is not None:
            self._heard(session, user_words, text_of_prompt(message) or "")
            body[_USER_WORDS] = user_words
        stored = StoredMessage(id=ulid(), turn_id=session.turn_id, body=body)
        op = AppendMessages(session=session.id, messages=(stored,), at=time.time())
        return self._log.commit(session, op, soon=soon)

    def hear(self, session: Session, words: str) -> None:
        """Report words that the user wrote to a third-party agent."""
        self._heard(session, words, words)

    async def messages(self, session: Session) -> list[Message]:
        """Return the complete conversation; empty before the first message."""
        return [msgspec.convert(each.body, Message) for each in await self.stored(session)]

    async def stored(self, session: Session) -> list[StoredMessage]:
        """Return the stored messages."""
        if not self._log.holds(session.id):  # the first message creates it
            return []
        await self._log.flush()
        return await _all(await self._log.store(), session.id)

    async def store(self) -> Store:
        """Return the store for reading. Raises its `StoreError` if it could not be opened."""
        return await self._log.store()

    async def flush(self) -> None:
        """Wait until all events are on the disk, or could not be written."""
        await self._log.flush()

    async def keep(self, session: Session) -> None:
        """Store a session without messages."""
        await self._update(session)

    async def rename(self, session: Session, title: str) -> None:
        session.title = title
        await self._update(session, title=title)

    async def move(self, session: Session, workspace: str) -> None:
        """Continue a session in another directory, with its current roots."""
        session.workspace = workspace
        await self._update(session, workspace=workspace, extra_roots=session.extra_roots)

    async def set_mode(self, session: Session, mode: Mode) -> None:
        """Change the mode, from the next decision on."""
        before, session.mode = session.mode, mode
        self.emit(session, MODE_CHANGED, "user", {"from": before, "to": mode})
        await self._update(session, mode=mode)

    async def set_model(self, session: Session, name: str) -> None:
        """Store the model that was chosen for a session."""
        await self._update(session, meta={_MODEL: name})

    def _update(self, session: Session, **changes: Any) -> asyncio.Future[Any]:
        return self._log.commit(
            session, UpdateSession(session=session.id, at=time.time(), **changes)
        )

    def emit(
        self,
        session: Session,
        type: str,
        actor: Actor,
        payload: Mapping[str, Any],
        *,
        keep: bool = True,
        parent: str | None = None,
    ) -> str:
        """Emit an event in a session and return its id. If `keep` is False, only subscribers
        receive it."""
        event = Event(
            id=ulid(),
            timestamp=time.time(),
            session_id=session.id,
            turn_id=session.turn_id,
            type=type,
            actor=actor,
            payload=payload,
            parent_event_id=parent,
        )
        if keep:
            self._log.append(session, event)
        self._sink.emit(event)
        return event.id


def text_of_prompt(message: Message) -> str | None:
    """Return the text of a message in the user's role; None if it contains tool results."""
    if any(isinstance(block, ToolResultBlock) for block in message.content):
        return None
    return "\n".join(block.text for block in message.content if isinstance(block, TextBlock))


def user_words_of(body: Mapping[str, Any]) -> str | None:
    """Return the part of a stored message that the user wrote; None if there is none or it is
    unknown."""
    words = body.get(_USER_WORDS)
    return words if isinstance(words, str) else None


def title_of(prompt: Message) -> str | None:
    """Return the default title of a session: the first line of the user's first message; None if it
    has no text."""
    for block in prompt.content:
        if isinstance(block, TextBlock) and block.text.strip():
            line = redact(" ".join(block.text.strip().splitlines()[0].split()))
            return line if len(line) <= _LONGEST_TITLE else line[: _LONGEST_TITLE - 1] + "…"
    return None


def chosen_model(stored: StoredSession) -> str | None:
    """Return the model that was chosen for a session; None if none was."""
    name = stored.meta.get(_MODEL)
    return name if isinstance(name, str) else None


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
