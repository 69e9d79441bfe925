"""Sessions as their owner uses them: resume, turns, messages, mode and title.

    resume ---> the session, owned by this process alone
    begin_turn ---> say, say, ... ---> end_turn

What is written of a turn, and told of it; which turn a session has, and who works in it, is
`live.SessionTurns`' to know. A turn that was under way when its process died is still the
session's turn after `resume`: whoever resumes goes on with it or ends it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from callgate.core.content import TextBlock, ToolResultBlock
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
from callgate.redaction.texts import redact

_MODEL = "model"
"""In what belongs to a session beside the rest."""
_USER_WORDS = "user_words"
"""In what is kept of a message."""
_LONGEST_TITLE = 80


class Conversations:
    def __init__(
        self,
        log: SessionLog,
        sink: EventSink,
        roots: Callable[[], Collection[Root]],
        heard: Callable[[Session, str, str], None] = lambda session, words, text: None,
    ) -> None:
        """`roots` are those that the settings grant beside a workspace; `heard` is told what the
        user of a session wrote, and the whole text of that message."""
        self._log = log
        self._sink = sink
        self._roots = roots
        self._heard = heard

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
        self.emit(session, SESSION_RESUMED, "system", {})
        return session, snapshot

    def has_lost(self, session_id: str) -> bool:
        """Whether another process has taken over a session of ours: it took us for dead."""
        return self._log.has_lost(session_id)

    async def release(self, session: Session) -> None:
        """Give a session back: another process may resume it."""
        await self._log.release(session.id)

    async def begin_turn(self, session: Session, prompt: Message) -> str:
        """Begin a turn with what the user said; its id. `ValueError` while one is under way."""
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
        """The same, with an id, for who does not wait: done when it is on the disk, prompt and
        all. `user_words`: what of the prompt the user wrote, if that is not all of it."""
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
        """End the turn under way; `cancelled` says why it did not get to its end,
        `payload` what else the event says."""
        if session.turn_id is not None:
            await self.close_turn(session, cancelled, payload or {})

    def close_turn(
        self, session: Session, cancelled: str | None, payload: Mapping[str, Any]
    ) -> asyncio.Future[Any]:
        """The same for who does not wait."""
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
        """Add a message to the conversation. Done when it is on the disk: before anything that
        is written later. `soon`: nobody waits for it. `user_words`: what of it a person wrote."""
        body = msgspec.to_builtins(message)
        if user_words is not None:
            self._heard(session, user_words, text_of_prompt(message) or "")
            body[_USER_WORDS] = user_words
        stored = StoredMessage(id=ulid(), turn_id=session.turn_id, body=body)
        op = AppendMessages(session=session.id, messages=(stored,), at=time.time())
        return self._log.commit(session, op, soon=soon)

    async def messages(self, session: Session) -> list[Message]:
        """The whole conversation; empty before anything was said."""
        return [msgspec.convert(each.body, Message) for each in await self.stored(session)]

    async def stored(self, session: Session) -> list[StoredMessage]:
        """The same as it is kept."""
        if not self._log.holds(session.id):  # it is made with the first thing that is said
            return []
        await self._log.flush()
        return await _all(await self._log.store(), session.id)

    async def store(self) -> Store:
        """What is kept, to read. Raises the `StoreError` for which there is none."""
        return await self._log.store()

    async def flush(self) -> None:
        """Wait until what was said so far is on the disk, or could not be written."""
        await self._log.flush()

    async def keep(self, session: Session) -> None:
        """Keep a session in which nothing was said yet."""
        await self._update(session)

    async def rename(self, session: Session, title: str) -> None:
        session.title = title
        await self._update(session, title=title)

    async def move(self, session: Session, workspace: str) -> None:
        """Go on with a session in another directory, and with the roots that it has by now."""
        session.workspace = workspace
        await self._update(session, workspace=workspace, extra_roots=session.extra_roots)

    async def set_mode(self, session: Session, mode: Mode) -> None:
        """Change the ceiling of what may run, from the next decision on."""
        before, session.mode = session.mode, mode
        self.emit(session, MODE_CHANGED, "user", {"from": before, "to": mode})
        await self._update(session, mode=mode)

    async def set_model(self, session: Session, name: str) -> None:
        """Remember which model was chosen for a session."""
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
        """Say what happened in a session; the event's id. Not to `keep`: only to who listens."""
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
    """What a message says in the user's role; None if it carries what tools gave back."""
    if any(isinstance(block, ToolResultBlock) for block in message.content):
        return None
    return "\n".join(block.text for block in message.content if isinstance(block, TextBlock))


def user_words_of(body: Mapping[str, Any]) -> str | None:
    """What of a kept message a person wrote; None: nothing, or it is not known."""
    words = body.get(_USER_WORDS)
    return words if isinstance(words, str) else None


def title_of(prompt: Message) -> str | None:
    """What a session is called before anyone gave it a title: the first line of what the user
    said first; None where they said no word."""
    for block in prompt.content:
        if isinstance(block, TextBlock) and block.text.strip():
            line = redact(" ".join(block.text.strip().splitlines()[0].split()))
            return line if len(line) <= _LONGEST_TITLE else line[: _LONGEST_TITLE - 1] + "…"
    return None


def chosen_model(stored: StoredSession) -> str | None:
    """The model that was chosen for a session; None where none was."""
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
