"""One call that a person makes in a conversation: a turn of its own, without a model.

It is kept as if a model had made it, so that a model that works in the session later knows of
it, and it goes through the dispatcher as any other.
"""

from __future__ import annotations

from contextlib import nullcontext

from callgate.agent.agent import Agent
from callgate.agent.shows import Finished, Said, Screen, Started
from callgate.agent.turns import TurnEnd
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.content import ToolUseBlock
from callgate.core.errors import ToolErrorClass
from callgate.core.messages import Message
from callgate.core.sessions import Session
from callgate.dispatch.dispatcher import ToolDispatcher
from callgate.dispatch.journal import LEFT_OPEN
from callgate.sessions.conversations import Conversations


async def direct_turn(
    dispatcher: ToolDispatcher,
    conversations: Conversations,
    session: Session,
    use: ToolUseBlock,
    caller: CallerKind,
    screen: Screen,
    agent: Agent | None = None,
) -> TurnEnd:
    """Make the call in the turn that was begun for it, and end that. With an `agent`, which is
    at work meanwhile, what the call gives is also what is said."""
    conversations.say(session, Message(role="assistant", content=[use]))
    screen(Started(use))
    call = ToolCall(
        id=use.id,
        tool=use.name,
        arguments=use.input,
        session=session,
        caller=caller,
        turn_id=session.turn_id,
    )
    with nullcontext() if agent is None else agent.at_work(session, screen):
        result = await dispatcher.run(call)
    error = result.error
    if error is not None and error.reason == LEFT_OPEN:
        return TurnEnd(stop="waiting")
    block = result.block(use.id)
    screen(Finished(block, result.value))
    conversations.say(session, Message(role="user", content=[block]))
    if agent is not None and result.ok:
        screen(Said(result.text, ends=True))
        conversations.say(session, Message.text("assistant", result.text))
    stopped = error is not None and error.error_class is ToolErrorClass.CANCELLED
    await conversations.end_turn(session, cancelled="user_cancel" if stopped else None)
    return TurnEnd(stop="cancelled" if stopped else "end_turn", text=result.text, calls=1)
