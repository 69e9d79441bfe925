"""The agent: turns of many sessions, each cancelled or resumed on its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
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
from callgate.sessions.conversations import Conversations

_SHUTDOWN = "shutdown"

_log = logging.getLogger("callgate.agent")


class _Conversation:
    """A session as the agent knows it between turns."""

    def __init__(self) -> None:
        self.history: History | None = None
        """None: to be read before the next turn."""
        self.task: asyncio.Task[TurnEnd] | None = None
        self.why = "user_cancel"

    @property
    def is_busy(self) -> bool:
        return self.task is not None and not self.task.done()

    def cancel(self, why: str) -> None:
        """Only once: a second time would end the wait until what was started has stopped."""
        if self.task is not None and not self.task.cancelling():
            self.why = why
            self.task.cancel()


class Agent:
    """A model at work in the sessions of a runtime."""

    def __init__(
        self,
        dispatcher: ToolDispatcher,
        conversations: Conversations,
        model: Model,
        *,
        limits: TurnLimits = TurnLimits(),  # noqa: B008  # frozen
        extra_instructions: Callable[[Session], str] = lambda session: "",
        speaker: Speaker | None = None,
        client_speaks: bool = False,
        subagents: Subagents | None = None,
    ) -> None:
        """`own` is what the user adds to the instructions of a session; `speaker` makes heard
        what the model says aloud, unless the client does; `subagents` knows who is at work in
        the runtime."""
        self.model = model
        self.limits = limits
        self._dispatcher = dispatcher
        self._conversations = conversations
        self._extra_instructions = extra_instructions
        self._speaker = speaker
        self._speech = speaker is not None or client_speaks
        self._subagents = subagents or Subagents(dispatcher, conversations)
        self._running: dict[str, _Conversation] = {}

    async def turn(
        self, session: Session, prompt: str | Message, screen: Screen = nobody
    ) -> TurnEnd:
        """One turn with what the user says. `ValueError` while another is under way.

        Cancelling this cancels the turn, and waits until what it started has stopped."""
        message = Message.text("user", prompt) if isinstance(prompt, str) else prompt

        async def work(conversation: _Conversation) -> TurnEnd:
            history = await self._history(session, conversation)
            written = self._conversations.open_turn(session, message)
            history.messages.append(message)
            return await self._work(session, conversation, history, screen, written)

        return await self._run(session, screen, work)

    async def go_on(
        self,
        session: Session,
        calls: Mapping[str, Awaitable[Any]],
        screen: Screen = nobody,
    ) -> TurnEnd | None:
        """Go on with the turn that was under way when the session's process ended; None if
        there was none. `calls` are those about which a person is still asked. `ValueError`
        while the turn is under way here."""
        if session.turn_id is None:
            return None
        await asyncio.gather(*calls.values(), return_exceptions=True)

        async def work(conversation: _Conversation) -> TurnEnd:
            conversation.history = None  # their results are in the conversation now
            history = await self._history(session, conversation)
            if (words := last_words(history.messages)) is not None:
                end = TurnEnd(stop="end_turn", text=words)
                self._end(session, None, _end_payload(end))
                return end
            return await self._work(session, conversation, history, screen, None)

        return await self._run(session, screen, work)

    def cancel(self, session_id: str, why: str = "user_cancel") -> bool:
        """Stop the turn of a session; False if there is none. A second time changes nothing."""
        conversation = self._running.get(session_id)
        if conversation is None or not conversation.is_busy:
            return False
        conversation.cancel(why)
        return True

    async def close(self) -> None:
        """The runtime goes away: leave the turns under way as they are, to be resumed."""
        running = [
            conversation.task
            for conversation in self._running.values()
            if conversation.task is not None
        ]
        for id in list(self._running):
            self.cancel(id, _SHUTDOWN)
        if running:
            await asyncio.wait(running)
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
        conversation = self._running.get(session_id)
        if (
            conversation is not None and conversation.is_busy
        ):  # it must stay one that can be cancelled
            conversation.history = None
        else:
            self._running.pop(session_id, None)

    async def _history(self, session: Session, conversation: _Conversation) -> History:
        if conversation.history is None:
            messages = await self._conversations.messages(session)
            conversation.history = History(
                messages, lambda message: self._conversations.say(session, message)
            )
        return conversation.history

    async def _run(
        self,
        session: Session,
        screen: Screen,
        work: Callable[[_Conversation], Coroutine[Any, Any, TurnEnd]],
    ) -> TurnEnd:
        """Do this work as the one turn of its session: from here on it can be cancelled."""
        conversation = self._running.setdefault(session.id, _Conversation())
        if conversation.is_busy:
            raise ValueError(f"a turn of {session.id} is under way")
        conversation.why = "user_cancel"
        loop = asyncio.get_running_loop()
        task = conversation.task = loop.create_task(
            self._at_work(session, screen, lambda: work(conversation))
        )
        timer = None
        if self.limits.time_s is not None:
            timer = loop.call_later(self.limits.time_s, self.cancel, session.id, "timeout")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            asked_of_us = not task.done()
            if asked_of_us:
                conversation.cancel("user_cancel")
                await asyncio.wait([task])
            if task.cancelled() and conversation.why != _SHUTDOWN:  # before it came to its loop
                self._end(session, conversation.why, _end_payload(TurnEnd(stop="cancelled")))
            if asked_of_us:
                raise
            return TurnEnd(stop="waiting" if conversation.why == _SHUTDOWN else "cancelled")
        finally:
            if timer is not None:
                timer.cancel()

    async def _at_work(
        self, session: Session, screen: Screen, work: Callable[[], Coroutine[Any, Any, TurnEnd]]
    ) -> TurnEnd:
        with self.at_work(session, _Guarded(screen)):
            return await work()

    def _turn(
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

    async def _work(
        self,
        session: Session,
        conversation: _Conversation,
        history: History,
        screen: Screen,
        written: asyncio.Future[Any] | None,
    ) -> TurnEnd:
        cancelled = None
        try:
            turn = self._turn(session, history, screen, written)
            end = await turn.run()
        except asyncio.CancelledError:
            if conversation.why == _SHUTDOWN:
                return turn.end("waiting")
            turn.keep_what_was_said()
            if self._speaker is not None and not session.is_worker:
                self._speaker.stop()
            cancelled = conversation.why
            notice = "Stopped: the time for this turn is over." if cancelled == "timeout" else None
            end = turn.end("cancelled", notice)
        except BaseException:
            self._end(session, "error", {})
            raise
        if end.stop != "waiting":
            self._end(session, cancelled, _end_payload(end))
        return end

    def _end(self, session: Session, cancelled: str | None, payload: dict[str, Any]) -> None:
        """Over, whether or not that is on the disk yet: it gets there, in its order."""
        if session.turn_id is not None:
            written = self._conversations.close_turn(session, cancelled, payload)
            written.add_done_callback(_report)


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


def _report(written: asyncio.Future[Any]) -> None:
    if not written.cancelled() and (error := written.exception()) is not None:
        _log.error("the end of a turn is not on the disk: %s", error)
