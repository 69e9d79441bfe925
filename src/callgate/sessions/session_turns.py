"""Turns of live sessions, at most one per session.

    editors (ACP) ----+
    HTTP -------------+                          +--> session: its turn, or none
    chat, run --------+--> reserve, cancel, ... -+--> session: its turn, or none
    sub-agents -------+                          +--> ...
    the library ------+

    reserve          open, begin           run
   ---------> PREPARING -------> OPEN -----------> RUNNING ---------> ENDED
                 |                |                   |    returned,    ^
                 |                |                   |    failed       |
                 +----- cancel ---+------ cancel -----+-----------------+

    PREPARING   the conversation is empty: instructions or a model are being loaded
    OPEN        the prompt is in the conversation, and `session.turn_id` is the turn's id
    RUNNING     an agent, or one call, is at work in it
    ENDED       its work has stopped; another turn may start

`reserve` starts every turn. It never queues: a session with a turn raises `TurnInProgress`. Every
client may cancel a turn in every state. A caller in `complete` cancels its turn by disconnecting; a
turn made with `start` continues without it. A session is live while clients return to it (`serve`)
or it has a turn.

A turn that is open when the process ends stays open on the disk (`SHUTDOWN`), and `session.turn_id`
still names it. The process that resumes the session continues it (`reserve_open`) or ends it
(`end`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from enum import Enum, auto
from typing import Any, Self, TypeVar

from callgate.core.content import Message
from callgate.core.ids import turn_id
from callgate.core.sessions import Session
from callgate.core.tasks import start_task
from callgate.sessions.conversations import Conversations

USER_CANCEL = "user_cancel"
SHUTDOWN = "shutdown"

E = TypeVar("E")

_log = logging.getLogger("callgate.sessions")


class TurnInProgress(ValueError):
    """The session already has a turn."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"Turn {turn_id} is under way.")
        self.turn_id = turn_id


class TurnState(Enum):
    PREPARING = auto()
    OPEN = auto()
    RUNNING = auto()
    ENDED = auto()


class SessionTurn:
    """A turn of a session, for the task that reserved it. As a context manager it ends the
    reservation, unless `start` has handed it to a task."""

    def __init__(
        self,
        session: Session,
        conversations: Conversations,
        released: Callable[[], None],
        stop: Callable[[], bool] | None,
    ) -> None:
        self.session = session
        self.id = session.turn_id or turn_id()
        self.state = TurnState.PREPARING if session.turn_id is None else TurnState.OPEN
        self.is_cancelled = False
        self.reason = USER_CANCEL
        """Reason of the cancellation."""
        self.idle_payload: Mapping[str, Any] = {}
        """Payload of its last event if it is cancelled before its work sets one."""
        self._conversations = conversations
        self._released = released
        self._stop = stop
        self._task: asyncio.Task[Any] | None = None
        self._is_started = False
        self._over = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release_unstarted()

    # For the owner of the reservation.

    def open(self, prompt: Message, user_words: str | None = None) -> asyncio.Future[Any]:
        """Begin the turn with the user's message. Completes when that is on the disk. `user_words`:
        the part that the user wrote, if not all of it."""
        if self.is_cancelled:  # cancelled after the reservation: it does not begin
            raise asyncio.CancelledError
        written = self._conversations.open_turn(self.session, prompt, self.id, user_words)
        self.state = TurnState.OPEN
        return written

    async def begin(self, prompt: Message, user_words: str | None = None) -> str:
        """Begin the turn, wait until it is on disk, and return its id."""
        written = self.open(prompt, user_words)
        try:
            await written
        except asyncio.CancelledError:  # the write is in progress
            self._end_cancelled()
            raise
        except BaseException:  # nothing was begun
            self.session.turn_id = None
            raise
        return self.id

    def start(self, work: Callable[[], Coroutine[Any, Any, E]]) -> asyncio.Task[E | None]:
        """Run it in a separate task, independent of observers. The result is None if a cancel came
        before the work."""
        task = start_task(self._supervise(work))
        task.add_done_callback(lambda _: self.release())  # the task may end before its work begins
        self._task = task
        return task

    async def complete(self, work: Callable[[], Coroutine[Any, Any, E]]) -> E | None:
        """Start it and wait for its end. Cancelling this cancels the turn, and waits until its work
        has stopped."""
        task = self.start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                return None
            self.cancel()
            await asyncio.wait([task])
            raise

    async def _supervise(self, work: Callable[[], Coroutine[Any, Any, E]]) -> E | None:
        self._is_started = True
        try:
            if self.is_cancelled and self._stop is None:
                raise asyncio.CancelledError
            return await work()
        except asyncio.CancelledError:
            self._end_cancelled()
            return None
        finally:
            self.release()

    # For the work in it.

    async def run(
        self, work: Callable[[], Awaitable[E]], stop: Callable[[], bool] | None = None
    ) -> E | None:
        """Do the work of an open turn. The work ends the turn; if it is cancelled or fails before
        that, this method does. Returns None if a cancellation came before the work.

        `stop` stops the work in another way than by cancelling its task."""
        if self.is_cancelled:
            self._end_cancelled()
            return None
        self.state, self._stop = TurnState.RUNNING, stop
        try:
            return await work()
        except asyncio.CancelledError:
            self._end_cancelled()
            return None
        except BaseException:
            self.end_soon("error")
            raise
        finally:
            self.state = TurnState.ENDED

    def say(self, message: Message) -> None:
        """Add a message to the conversation."""
        self._conversations.say(self.session, message)

    async def end(self, cancelled: str | None = None) -> None:
        """End the turn in the conversation; `cancelled` is the reason of an early end."""
        if self._is_open:
            await self._conversations.end_turn(self.session, cancelled=cancelled)

    def end_soon(
        self, cancelled: str | None = None, payload: Mapping[str, Any] | None = None
    ) -> None:
        """End the turn without waiting: other turns may start before the end is on disk, which is
        written in order."""
        if self._is_open:
            written = self._conversations.close_turn(self.session, cancelled, payload or {})
            written.add_done_callback(_report)

    @property
    def _is_open(self) -> bool:
        return self.session.turn_id == self.id

    def _end_cancelled(self) -> None:
        if self.reason != SHUTDOWN:
            self.end_soon(self.reason, self.idle_payload)

    # For all callers.

    @property
    def has_task(self) -> bool:
        """Whether a task runs the turn; otherwise the owner of the reservation does."""
        return self._task is not None

    @property
    def is_stopped_by_user(self) -> bool:
        return self.is_cancelled and self.reason == USER_CANCEL

    def cancel(self, reason: str = USER_CANCEL) -> bool:
        """Stop the turn. Returns False if it has ended, or cannot be stopped. Idempotent, because a
        second cancellation of its task would end the wait for its work."""
        if self.state is TurnState.ENDED:
            return False
        if self.is_cancelled:
            return True
        if self._stop is not None and not self._stop():
            return False
        self.is_cancelled, self.reason = True, reason
        if self._stop is None and self._task is not None and self._is_started:
            self._task.cancel()
        return True

    async def stopped(self) -> None:
        """Wait for its end after a cancellation. A turn in preparation needs no wait: it will not
        begin."""
        if self.state is not TurnState.PREPARING:
            await self.over()

    async def over(self) -> None:
        """Wait for its end."""
        await self._over.wait()
        if self._task is not None:
            await asyncio.wait([self._task])

    def release_unstarted(self) -> None:
        """Release it unless a task works in it."""
        if self._task is None:
            self.release()

    def release(self) -> None:
        """Release the session for another turn. Idempotent."""
        if not self._over.is_set():
            self.state = TurnState.ENDED
            self._over.set()
            self._released()


def _report(written: asyncio.Future[Any]) -> None:
    if not written.cancelled() and (error := written.exception()) is not None:
        _log.error("the end of a turn is not on the disk: %s", error)


class _LiveSession:
    """A session that is served to clients, or has a turn, or both."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.is_served = False
        self.turn: SessionTurn | None = None


class SessionTurns:
    """The live sessions of a runtime, and the turn in each. One per runtime."""

    def __init__(self, conversations: Conversations) -> None:
        self.conversations = conversations
        self._live: dict[str, _LiveSession] = {}

    # Turns.

    def reserve(self, session: Session, stop: Callable[[], bool] | None = None) -> SessionTurn:
        """Reserve the next turn of a session. `TurnInProgress` during a turn, with or without a
        task.

        `stop` is called for a cancel until `run`, whose caller then checks `is_cancelled` itself;
        False: the turn cannot be stopped.
        """
        if session.turn_id is not None:
            raise TurnInProgress(session.turn_id)
        return self._reserve(session, stop)

    def reserve_open(self, session: Session) -> SessionTurn | None:
        """Reserve the open turn of a session, to continue it; None if there is none.
        `TurnInProgress` while a task runs it."""
        return None if session.turn_id is None else self._reserve(session, None)

    def _reserve(self, session: Session, stop: Callable[[], bool] | None) -> SessionTurn:
        live = self._live.get(session.id) or _LiveSession(session)
        if live.turn is not None:
            raise TurnInProgress(live.turn.id)

        def released() -> None:
            live.turn = None
            if not live.is_served and self._live.get(session.id) is live:
                del self._live[session.id]

        turn = live.turn = SessionTurn(session, self.conversations, released, stop)
        self._live[session.id] = live
        return turn

    def running(self, session_id: str) -> SessionTurn | None:
        """Return the turn of a session, from its reservation to its end."""
        live = self._live.get(session_id)
        return None if live is None else live.turn

    def active(self) -> list[SessionTurn]:
        """Return the turns of all sessions, from their reservations to their ends."""
        return [live.turn for live in self._live.values() if live.turn is not None]

    def cancel(self, session_id: str, reason: str = USER_CANCEL) -> bool:
        """Stop the turn of a session. Returns False if there is none, or it cannot be stopped."""
        turn = self.running(session_id)
        return turn is not None and turn.cancel(reason)

    async def end(self, session: Session, cancelled: str | None = None) -> None:
        """End a turn without a task: a turn of an earlier process, or the program's own."""
        turn = self.running(session.id)
        await self.conversations.end_turn(session, cancelled=cancelled)
        if turn is not None:
            turn.release_unstarted()

    async def close(self) -> None:
        """Stop all turns at shutdown. Open turns stay open on disk, to be resumed."""
        turns = [live.turn for live in self._live.values() if live.turn is not None]
        stopping = [turn for turn in turns if turn.cancel(SHUTDOWN) and turn.has_task]
        for turn in stopping:
            await turn.stopped()

    # Sessions to which clients return.

    def serve(self, session: Session) -> None:
        """Make a session available to `served`."""
        live = self._live.setdefault(session.id, _LiveSession(session))
        live.session, live.is_served = session, True

    def served(self, session_id: str) -> Session | None:
        live = self._live.get(session_id)
        return live.session if live is not None and live.is_served else None

    @property
    def served_count(self) -> int:
        return sum(live.is_served for live in self._live.values())

    def withdraw_if_idle(self, session_id: str) -> bool:
        """Stop serving a session, if it has no turn."""
        live = self._live.get(session_id)
        if live is None or not live.is_served or live.turn is not None:
            return False
        del self._live[session_id]
        return True

    def withdraw_idle(self, busy: Collection[str]) -> list[Session]:
        """Stop serving the sessions that have no turn and are not `busy`. Returns them."""
        idle = [
            live.session
            for live in self._live.values()
            if live.is_served and live.turn is None and live.session.id not in busy
        ]
        for session in idle:
            del self._live[session.id]
        return idle

    def cancel_served(self) -> None:
        """Stop the turn of every served session."""
        for live in list(self._live.values()):
            if live.is_served and live.turn is not None:
                live.turn.cancel()

    async def withdraw(self, session_id: str) -> Session | None:
        """Stop serving a session, cancel its turn, and wait for its end. Returns None if it was not
        served."""
        live = self._live.get(session_id)
        if live is None or not live.is_served:
            return None
        del self._live[session_id]  # a turn in preparation blocks no other
        if live.turn is not None:
            live.turn.cancel()
            await live.turn.stopped()
            await self.conversations.end_turn(live.session, cancelled=USER_CANCEL)
        return live.session
