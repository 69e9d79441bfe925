"""The agent: what a model does in the turns of many sessions, which `SessionTurns` owns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from callgate.agent.context import Context
from callgate.agent.history import History, last_words
from callgate.agent.limits import TurnLimits
from callgate.agent.shows import Screen, Show, Speaker, nobody, screen_with_speech
from callgate.agent.subagents import Subagents
from callgate.agent.turns import Turn, TurnEnd
from callgate.core.messages import Message
from callgate.core.models import Model
from callgate.core.sessions import Session
from callgate.dispatch.dispatcher import ToolDispatcher
from callgate.dispatch.failures import log_failure
from callgate.sessions.live import SessionTurns
from callgate.sessions.session_turn import SHUTDOWN, USER_CANCEL, SessionTurn

_log = logging.getLogger("callgate.agent")


class Agent:
    """A model at work in the sessions of a runtime."""

    def __init__(
        self,
        dispatcher: ToolDispatcher,
        turns: SessionTurns,
        model: Model,
        *,
        limits: TurnLimits = TurnLimits(),  # noqa: B008  # frozen
        extra_instructions: Callable[[Session], str] = lambda session: "",
        speaker: Speaker | None = None,
        client_speaks: bool = False,
        subagents: Subagents | None = None,
    ) -> None:
        """`extra_instructions` are those that the user adds in a session; `speaker` makes heard
        what the model says aloud, unless the client does; `subagents` knows who is at work in
        the runtime."""
        self.model = model
        self.limits = limits
        self._dispatcher = dispatcher
        self._turns = turns
        self._conversations = turns.conversations
        self._extra_instructions = extra_instructions
        self._speaker = speaker
        self._speech = speaker is not None or client_speaks
        self._subagents = subagents or Subagents(dispatcher, turns)
        self._histories: dict[str, History] = {}
        """By session, between turns."""

    async def turn(
        self,
        session: Session,
        prompt: str | Message,
        screen: Screen = nobody,
        user_words: str | None = None,
    ) -> TurnEnd:
        """One turn with what the user says; `user_words`: what of it they wrote, if not all.
        `TurnInProgress` while there is one.

        Cancelling this cancels the turn, and waits until what it started has stopped."""
        message = Message.text("user", prompt) if isinstance(prompt, str) else prompt
        turn = self._turns.reserve(session)

        async def work() -> TurnEnd | None:
            with self._at_work(turn, screen):
                history = await self._history(session)
                written = turn.open(message, user_words)
                history.messages.append(message)
                return await turn.run(lambda: self._loop(turn, history, screen, written))

        return _end_of(turn, await turn.complete(work))

    async def go_on(
        self,
        session: Session,
        calls: Mapping[str, Awaitable[Any]],
        screen: Screen = nobody,
    ) -> TurnEnd | None:
        """Go on with the turn that was under way when the session's process ended; None if
        there was none. `calls` are those about which a person is still asked. `TurnInProgress`
        while the turn is under way here."""
        if session.turn_id is None:
            return None
        await asyncio.gather(*calls.values(), return_exceptions=True)
        turn = self._turns.reserve_open(session)
        if turn is None:
            return None
        turn.idle_payload = _NOTHING_DONE

        async def work() -> TurnEnd | None:
            with self._at_work(turn, screen):
                history = await self._reread(session)  # or it stays open
                return await turn.run(lambda: self._continue(turn, history, screen))

        return _end_of(turn, await turn.complete(work))

    async def work(self, turn: SessionTurn, screen: Screen = nobody) -> TurnEnd | None:
        """Do all the work of a turn that is open and whose owner waits for its end. None if a
        cancel was quicker."""
        turn.idle_payload = _NOTHING_DONE

        async def work() -> TurnEnd:
            history = await self._reread(turn.session)
            return await self._continue(turn, history, screen)

        with self._at_work(turn, screen):
            return await turn.run(work)

    def cancel(self, session_id: str, why: str = USER_CANCEL) -> bool:
        """Stop the turn of a session; False if there is none. Idempotent."""
        return self._turns.cancel(session_id, why)

    async def close(self) -> None:
        """The runtime goes away, and has left the turns that were open to be resumed."""
        if self._speaker is not None:
            await self._speaker.close()
        await self.model.close()

    def at_work(self, session: Session, screen: Screen) -> AbstractContextManager[None]:
        """While this lasts, what needs an agent in a session has this one."""
        session.model = self.model.name
        return self._subagents.at_work(session, self, screen)

    async def heard(self) -> None:
        """Wait until everything that was said aloud has been heard."""
        if self._speaker is not None:
            await self._speaker.heard()

    def forget(self, session_id: str) -> None:
        """Read the conversation anew before the next turn."""
        self._histories.pop(session_id, None)

    async def _history(self, session: Session) -> History:
        history = self._histories.get(session.id)
        return await self._reread(session) if history is None else history

    async def _reread(self, session: Session) -> History:
        messages = await self._conversations.messages(session)
        say = partial(self._conversations.say, session, soon=True)
        history = History(messages, say)
        self._histories[session.id] = history
        return history

    @contextmanager
    def _at_work(self, turn: SessionTurn, screen: Screen) -> Iterator[None]:
        """While this lasts, the turn is this agent's, for as long as it may take."""
        timer = None
        if self.limits.time_s is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self.limits.time_s, turn.cancel, "timeout")
        try:
            with self.at_work(turn.session, _Guarded(screen)):
                yield
        finally:
            if timer is not None:
                timer.cancel()

    def _new_turn(
        self,
        session: Session,
        history: History,
        screen: Screen,
        written: asyncio.Future[Any] | None,
    ) -> Turn:
        if self._speaker is not None and not session.is_worker:
            screen = screen_with_speech(screen, self._speaker)
        return Turn(
            dispatcher=self._dispatcher,
            conversations=self._conversations,
            session=session,
            model=self.model,
            history=history,
            context=Context(self.model, history),
            limits=self.limits,
            extra_instructions=self._extra_instructions(session),
            screen=_Guarded(screen),
            speech=self._speech and not session.is_worker,
            written=written,
            delegated=lambda: self._subagents.delegated(session.id),
        )

    async def _continue(self, turn: SessionTurn, history: History, screen: Screen) -> TurnEnd:
        """The rest of a turn whose prompt, and perhaps more, is in the conversation."""
        if (words := last_words(history.messages)) is None:
            return await self._loop(turn, history, screen, None)
        end = TurnEnd(stop="end_turn", text=words)
        turn.end_soon(None, _end_payload(end))
        return end

    async def _loop(
        self,
        turn: SessionTurn,
        history: History,
        screen: Screen,
        written: asyncio.Future[Any] | None,
    ) -> TurnEnd:
        session, cancelled = turn.session, None
        loop = self._new_turn(session, history, screen, written)
        try:
            end = await loop.run()
        except asyncio.CancelledError:
            if turn.reason == SHUTDOWN:
                return loop.end("waiting")
            loop.keep_what_was_said()
            if self._speaker is not None and not session.is_worker:
                self._speaker.stop()
            cancelled = turn.reason
            notice = "Stopped: the time for this turn is over." if cancelled == "timeout" else None
            end = loop.end("cancelled", notice)
        if end.stop != "waiting":
            turn.end_soon(cancelled, _end_payload(end))
        return end


class _Guarded:
    """A screen whose own failure does not end the turn."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._failed = False

    def __call__(self, show: Show) -> None:
        try:
            self._screen(show)
        except Exception as error:
            if not self._failed:
                log_failure(_log, error, "a turn cannot be shown")
            self._failed = True


def _end_payload(end: TurnEnd) -> dict[str, Any]:
    """What the event at the end of a turn says."""
    payload = {
        "stop_reason": end.stop,
        "cycles": end.cycles,
        "calls": end.calls,
        "input_tokens": end.usage.input,
        "output_tokens": end.usage.output,
    }
    return payload if end.cost_usd is None else {**payload, "cost_usd": end.cost_usd}


_NOTHING_DONE = _end_payload(TurnEnd(stop="cancelled"))


def _end_of(turn: SessionTurn, end: TurnEnd | None) -> TurnEnd:
    """How it ended, also where a cancel was quicker than its work."""
    if end is not None:
        return end
    return TurnEnd(stop="waiting" if turn.reason == SHUTDOWN else "cancelled")
