"""A conversation that was kept, told again to an editor that opens it.

Each call is a card with its end; one that has none was under way when its process ended, and
is shown as failed. Changes of files are shown as changes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping

from callgate.agent.plans import UPDATE_PLAN
from callgate.core.content import (
    ImageBlock,
    JsonBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callgate.core.messages import Message, MessageBlock
from callgate.core.sessions import Session
from callgate.protocol.acp.updates import (
    AgentMessageChunk,
    AgentThoughtChunk,
    ToolCallUpdate,
    Update,
    UserMessageChunk,
)
from callgate.protocol.acp.values import ResourceLink, Shown
from callgate.protocol.toolcalls.values import OUTPUTS
from callgate.runtime import Registered
from callgate.surfaces.acp.cards import card
from callgate.surfaces.acp.contents import as_block, result_content, text
from callgate.surfaces.acp.telling import plan_of

_ORPHAN = "The process ended while this call was under way. Whether it had an effect is not known."


async def replayed(
    messages: AsyncIterator[Message],
    session: Session,
    find: Callable[[str], Registered | None],
) -> AsyncIterator[Update]:
    """All updates of a conversation, in its order."""
    waiting: dict[str, ToolUseBlock] = {}
    async for message in messages:
        for block in message.content:
            for update in _updates(message.role, block, waiting, session, find):
                yield update
    for use in waiting.values():
        yield ToolCallUpdate(
            tool_call_id=use.id, status="failed", content=[Shown(content=text(_ORPHAN))]
        )


def _updates(
    role: str,
    block: MessageBlock,
    waiting: dict[str, ToolUseBlock],
    session: Session,
    find: Callable[[str], Registered | None],
) -> Iterator[Update]:
    match block:
        case TextBlock() | ImageBlock() | JsonBlock():
            chunk = UserMessageChunk if role == "user" else AgentMessageChunk
            yield chunk(content=as_block(block))
        case ThinkingBlock(thinking=thought):
            yield AgentThoughtChunk(content=text(thought))
        case ToolUseBlock(name=name, input=given) if name in OUTPUTS:
            yield from _output(name, given if isinstance(given, Mapping) else {})
        case ToolUseBlock(name=name, input=given):
            waiting[block.id] = block
            yield card(block, find(name), session)
        case ToolResultBlock(tool_use_id=id) if id in waiting:
            use = waiting.pop(id)
            yield ToolCallUpdate(
                tool_call_id=id,
                status="failed" if block.is_error else "completed",
                content=result_content(block),
            )
            if use.name == UPDATE_PLAN and not block.is_error:
                yield plan_of(use.input.get("entries"))


def _output(name: str, given: Mapping[str, object]) -> Iterator[Update]:
    """What a model that writes its calls has shown by them."""
    value = given.get({"send_chat": "content", "say": "utterance", "open_url": "url"}.get(name, ""))
    if isinstance(value, str) and value:
        content = ResourceLink(name=value, uri=value) if name == "open_url" else text(value)
        yield AgentMessageChunk(content=content)
