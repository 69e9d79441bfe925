"""The agent: runs a model in the turns of many sessions. `SessionTurns` owns the turns.

A person may also make a call in a conversation, as a separate turn without a model (`direct_turn`).
The conversation records it like a call of a model, so that a model that works in the session later
sees it. The call runs through the dispatcher.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from callgate.core.calls import CallerKind, ToolCall, ToolResult
from callgate.core.content import Message, ToolUseBlock
from callgate.core.errors import ToolErrorClass
from callgate.core.models import Model
from callgate.core.sessions import Session
from callgate.dispatch.foreign_code import log_failure
from callgate.dispatch.journal import LEFT_OPEN
from callgate.features.chat.agent.history import Context, History, last_words
from callgate.features.chat.agent.tools import Subagents
from callgate.features.chat.agent.turns import Turn, TurnLimits
from callgate.runtime import Runtime
from callgate.sessions.session_turns import SHUTDOWN, USER_CANCEL, SessionTurn
from callgate.sessions.shows import (
    Finished,
    Said,
    Screen,
    Show,
    Speaker,
    Started,
    TurnEnd,
    nobody,
    screen_with_speech,
)

_log = logging.getLogger("callgate.features.chat.agent")


class Agent:
    """A model that works in the sessions of a runtime."""

    def __init__(
        self,
        runtime: Runtime,
        model: Model,
        *,
        limits: TurnLimits = TurnLimits(),  # noqa: B008  # frozen
        extra_instructions: Callable[[Session], str] = lambda session: "",
        speaker: Speaker | None = None,
        client_speaks: bool = False,
        subagents: Subagents | None = None,
    ) -> None:
        """
        Args:
            extra_instructions: Instructions of the user for a session.
            speaker: Plays the model's speech on this machine.
            client_speaks: Whether the client plays the model's speech.
            subagents: The agents and sub-agents of the runtime.
        """
        self.model = model
        self.limits = limits
        self._runtime = runtime
        self._turns = runtime.sessions.turns
        self._conversations = runtime.sessions.conversations
        self._extra_instructions = extra_instructions
        self._speaker = speaker
        self._speech = speaker is not None or client_speaks
        self._subagents = subagents or Subagents(runtime)
        self._histories: dict[str, History] = {}
        """Conversations by session id, cached between turns."""

    async def turn(
        self,
        session: Session,
        prompt: str | Message,
        screen: Screen = nobody,
        user_words: str | None = None,
    ) -> TurnEnd:
        """Run one turn with the user's prompt. Raises `TurnInProgress` if the session has a turn.

        `user_words` is the part of the prompt that the user wrote, if not all of it. A
        cancellation of this task cancels the turn, and returns after the turn's work has stopped.
        """
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
        """Continue the turn that was open when the session's process ended. None if there was
        none.

        `calls` are the calls that still wait for approval. Raises `TurnInProgress` if the turn
        runs in this process.
        """
        if session.turn_id is None:
            return None
        await asyncio.gather(*calls.values(), return_exceptions=True)
        turn = self._turns.reserve_open(session)
        if turn is None:
            return None
        turn.idle_payload = _NOTHING_DONE

        async def work() -> TurnEnd | None:
            with self._at_work(turn, screen):
                history = await self._reread(session)  # if this fails, the turn stays open
                return await turn.run(lambda: self._continue(turn, history, screen))

        return _end_of(turn, await turn.complete(work))

    async def work(self, turn: SessionTurn, screen: Screen = nobody) -> TurnEnd | None:
        """Do all the work of an open turn whose owner waits for its end. None if the turn was
        cancelled before its work began.
        """
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
        """Release the model and the speaker. The runtime closes its agents at shutdown; open turns
        can be resumed.
        """
        if self._speaker is not None:
            await self._speaker.close()
        await self.model.close()

    def at_work(self, session: Session, screen: Screen) -> AbstractContextManager[None]:
        """Make this the agent of the session within the context."""
        session.model = self.model.name
        return self._subagents.at_work(session, self, screen)

    async def heard(self) -> None:
        """Wait until the speaker has played all queued speech."""
        if self._speaker is not None:
            await self._speaker.heard()

    def forget(self, session_id: str) -> None:
        """Drop the cached conversation; the next turn reads it from the store."""
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
        """Run a turn with this agent within the context, at most `limits.time_s` seconds."""
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
            runtime=self._runtime,
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
        """Run the rest of a turn whose prompt is already in the conversation."""
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
            notice = (
                "Stopped: this turn reached its time limit." if cancelled == "timeout" else None
            )
            end = loop.end("cancelled", notice)
        if end.stop != "waiting":
            turn.end_soon(cancelled, _end_payload(end))
        return end


class _Guarded:
    """A screen whose failure does not end the turn."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._failed = False

    def __call__(self, show: Show) -> None:
        try:
            self._screen(show)
        except Exception as error:
            if not self._failed:
                log_failure(_log, error, "The display of a turn failed")
            self._failed = True


def _end_payload(end: TurnEnd) -> dict[str, Any]:
    """Return the payload of the event that ends a turn."""
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
    """Return the end of a turn, also if it was cancelled before its work began."""
    if end is not None:
        return end
    return TurnEnd(stop="waiting" if turn.reason == SHUTDOWN else "cancelled")


RunCall = Callable[[ToolCall], Awaitable[ToolResult]]


async def direct_turn(
    run_call: RunCall,
    turn: SessionTurn,
    use: ToolUseBlock,
    caller: CallerKind,
    screen: Screen,
    agent: Agent | None = None,
) -> TurnEnd:
    """Make the call in the turn that was begun for it, and end the turn. With an `agent`, its
    tools are available to the call, and the call's result is also the text of the turn.
    """
    turn.say(Message(role="assistant", content=[use]))
    screen(Started(use))
    call = ToolCall(
        id=use.id,
        tool=use.name,
        arguments=use.input,
        session=turn.session,
        caller=caller,
        turn_id=turn.id,
    )
    with nullcontext() if agent is None else agent.at_work(turn.session, screen):
        result = await run_call(call)
    error = result.error
    if error is not None and error.reason == LEFT_OPEN:
        return TurnEnd(stop="waiting")
    block = result.block(use.id)
    screen(Finished(block, result.value))
    turn.say(Message(role="user", content=[block]))
    if agent is not None and result.ok:
        screen(Said(result.text, ends=True))
        turn.say(Message.text("assistant", result.text))
    stopped = error is not None and error.error_class is ToolErrorClass.CANCELLED
    await turn.end(cancelled=USER_CANCEL if stopped else None)
    return TurnEnd(stop="cancelled" if stopped else "end_turn", text=result.text, calls=1)
