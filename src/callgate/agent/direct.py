"""One call that a person makes in a conversation: a turn of its own, without a model.

It is kept as if a model had made it, so that a model that works in the session later knows of
it, and it goes through the dispatcher as any other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext

from callgate.agent.agent import Agent
from callgate.agent.shows import Finished, Said, Screen, Started
from callgate.agent.turns import TurnEnd
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.content import ToolUseBlock
from callgate.core.errors import ToolErrorClass
from callgate.core.messages import Message
from callgate.core.results import ToolResult
from callgate.dispatch.journal import LEFT_OPEN
from callgate.sessions.session_turn import USER_CANCEL, SessionTurn

RunCall = Callable[[ToolCall], Awaitable[ToolResult]]


async def direct_turn(
    run_call: RunCall,
    turn: SessionTurn,
    use: ToolUseBlock,
    caller: CallerKind,
    screen: Screen,
    agent: Agent | None = None,
) -> TurnEnd:
    """Make the call in the turn that was begun for it, and end that. With an `agent`, which is
    at work meanwhile, what the call gives is also what is said."""
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
