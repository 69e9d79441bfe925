"""One turn of a session, from its reservation to its end.

    reserve          open, begin           run
   ---------> PREPARING -------> OPEN -----------> RUNNING ---------> ENDED
                 |                |                   |    returned,    ^
                 |                |                   |    failed       |
                 +----- cancel ---+------ cancel -----+-----------------+

    PREPARING   nothing is in the conversation yet: instructions or a model are being loaded
    OPEN        the prompt is in the conversation, and `session.turn_id` is the turn's id
    RUNNING     an agent, or one call, is at work in it
    ENDED       what it started has stopped; another may start

Anybody may cancel a turn, in every state. Whoever waits for it with `complete` cancels it by
going away; one that was made with `start` goes on alone. A turn that is open when the process
ends stays open on the disk (`SHUTDOWN`). `live.SessionTurns` makes them, at most one a session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from enum import Enum, auto
from typing import Any, Self, TypeVar

from callgate.core.ids import turn_id
from callgate.core.messages import Message
from callgate.core.sessions import Session
from callgate.core.task_sets import start_task
from callgate.sessions.conversations import Conversations

USER_CANCEL = "user_cancel"
SHUTDOWN = "shutdown"

E = TypeVar("E")

_log = logging.getLogger("callgate.sessions")


class TurnInProgress(ValueError):
    """The session has a turn; one at a time."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"Turn {turn_id} is under way.")
        self.turn_id = turn_id


class TurnState(Enum):
    PREPARING = auto()
    OPEN = auto()
    RUNNING = auto()
    ENDED = auto()


class SessionTurn:
    """A turn of a session, for whoever reserved it. As a context manager it ends the reservation,
    unless `start` has handed it to a task."""

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
        """Why it was cancelled."""
        self.idle_payload: Mapping[str, Any] = {}
        """What the event at its end says if it is cancelled before its work could say more."""
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

    # For whoever starts it.

    def open(self, prompt: Message, user_words: str | None = None) -> asyncio.Future[Any]:
        """Begin it with what the user says. Done when that is on the disk. `user_words`: what of
        it they wrote themselves, if that is not all of it."""
        if self.is_cancelled:  # meanwhile: it does not begin
            raise asyncio.CancelledError
        written = self._conversations.open_turn(self.session, prompt, self.id, user_words)
        self.state = TurnState.OPEN
        return written

    async def begin(self, prompt: Message, user_words: str | None = None) -> str:
        """The same for who waits until it is on the disk; its id."""
        written = self.open(prompt, user_words)
        try:
            await written
        except asyncio.CancelledError:  # it is on its way to the disk
            self._end_cancelled()
            raise
        except BaseException:  # nothing was begun
            self.session.turn_id = None
            raise
        return self.id

    def start(self, work: Callable[[], Coroutine[Any, Any, E]]) -> asyncio.Task[E | None]:
        """Have a task of its own do all of it, whoever watches. Its result is None if a cancel
        was quicker than the work."""
        task = start_task(self._supervise(work))
        task.add_done_callback(lambda _: self.release())  # it may never have come to its work
        self._task = task
        return task

    async def complete(self, work: Callable[[], Coroutine[Any, Any, E]]) -> E | None:
        """Start it and wait for its end. Cancelling this cancels the turn, and waits until what
        it started has stopped."""
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
        """Do the work of a turn that is open. The work ends the turn; if it is cancelled or
        fails before it could, this does. None if a cancel was quicker than the work.

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
        """End it in the conversation; `cancelled` says why it did not get to its end."""
        if self._is_open:
            await self._conversations.end_turn(self.session, cancelled=cancelled)

    def end_soon(
        self, cancelled: str | None = None, payload: Mapping[str, Any] | None = None
    ) -> None:
        """The same for who does not wait: over, whether or not that is on the disk yet. It gets
        there, in its order."""
        if self._is_open:
            written = self._conversations.close_turn(self.session, cancelled, payload or {})
            written.add_done_callback(_report)

    @property
    def _is_open(self) -> bool:
        return self.session.turn_id == self.id

    def _end_cancelled(self) -> None:
        if self.reason != SHUTDOWN:
            self.end_soon(self.reason, self.idle_payload)

    # For everybody.

    @property
    def has_task(self) -> bool:
        """Else whoever reserved it drives it."""
        return self._task is not None

    @property
    def is_stopped_by_user(self) -> bool:
        return self.is_cancelled and self.reason == USER_CANCEL

    def cancel(self, reason: str = USER_CANCEL) -> bool:
        """Stop it; False if it has ended, or cannot be stopped. Idempotent: a second cancel of
        its task would end the wait until what it started has stopped."""
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
        """Wait for its end after a cancel. One that is being prepared is not waited for: it may
        wait for something else, and will not begin."""
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
        """Another turn may start in the session. Idempotent."""
        if not self._over.is_set():
            self.state = TurnState.ENDED
            self._over.set()
            self._released()


def _report(written: asyncio.Future[Any]) -> None:
    if not written.cancelled() and (error := written.exception()) is not None:
        _log.error("the end of a turn is not on the disk: %s", error)
