"""The conversation as a turn goes on with it: in memory, and on its way to the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from callgate.core.content import SummaryBlock, TextBlock, ToolResultBlock, ToolUseBlock
from callgate.core.messages import Message, MessageBlock
from callgate.protocol.toolcalls.find import document_start
from callgate.protocol.toolcalls.values import OUTPUTS

INTERRUPTED = (
    "The process ended while this call was under way. Whether it had an effect is not known."
)
Keep = Callable[[Message], "asyncio.Future[Any]"]


class History:
    def __init__(self, messages: Iterable[Message], keep: Keep) -> None:
        self.messages = list(messages)
        self._keep = keep

    def add(self, message: Message) -> None:
        """Go on with this message, which is on its way to the disk."""
        self.messages.append(message)
        self._keep(message)

    def arranged(self) -> list[Message]:
        """As a model may be shown it: see `arrange`."""
        return arrange(self.messages)


def arrange(messages: Sequence[Message]) -> list[Message]:
    """The messages in turn, each call with its result directly behind it, in the calls' order.

    What a summary stands for is left out. A call without a result was under way when its
    process ended: it gets one that says so.
    """
    arranged: list[Message] = []
    waiting: list[ToolUseBlock] = []
    for role, blocks in _in_turn(_since_summary(messages)):
        if role == "assistant":
            arranged += _answered(waiting, [])
            waiting = [block for block in blocks if isinstance(block, ToolUseBlock)]
            arranged.append(Message(role="assistant", content=blocks))
        else:
            arranged += _answered(waiting, blocks)
            waiting = []
    return arranged + list(_answered(waiting, []))


def summary_of(messages: Sequence[Message]) -> SummaryBlock | None:
    """The newest summary in a conversation."""
    for message in reversed(messages):
        for block in message.content:
            if isinstance(block, SummaryBlock):
                return block
    return None


def last_words(messages: Sequence[Message]) -> str | None:
    """What the model said last, if with that it had ended its turn; else None."""
    arranged = arrange(messages)
    failed: set[str] = set()
    if arranged and all(isinstance(block, ToolResultBlock) for block in arranged[-1].content):
        results = arranged.pop().content
        failed = {b.tool_use_id for b in results if isinstance(b, ToolResultBlock) and b.is_error}
    if not arranged or arranged[-1].role != "assistant":
        return None
    content = arranged[-1].content
    uses = [block for block in content if isinstance(block, ToolUseBlock)]
    if uses and not any(use.name == "end_turn" for use in uses):
        return None
    if any(use.id in failed and use.name not in OUTPUTS for use in uses):
        return None  # of which the model was to know
    words = "".join(block.text for block in content if isinstance(block, TextBlock))
    if "toolCalls" in words or document_start(words) is not None:
        return None  # an attempt at calls, which was to be answered
    chat = [str(use.input.get("content")) for use in uses if use.name == "send_chat"]
    return "".join([words, *chat[-1:]])


def _since_summary(messages: Sequence[Message]) -> Iterator[Message]:
    summary = summary_of(messages)
    if summary is not None:
        yield Message.text("user", f"[What happened before, in short]\n{summary.text}")
    for message in messages[0 if summary is None else summary.upto :]:
        content: list[MessageBlock] = [
            block for block in message.content if not isinstance(block, SummaryBlock)
        ]
        if content:
            yield Message(role=message.role, content=content)


def _in_turn(messages: Iterable[Message]) -> Iterator[tuple[str, list[MessageBlock]]]:
    for role, some in groupby(messages, key=lambda message: message.role):
        yield role, [block for message in some for block in message.content]


def _answered(uses: list[ToolUseBlock], blocks: list[MessageBlock]) -> Iterator[Message]:
    """What the user said behind these calls: their results, then the rest."""
    results = {block.tool_use_id: block for block in blocks if isinstance(block, ToolResultBlock)}
    content: list[MessageBlock] = [results.get(use.id) or _interrupted(use) for use in uses]
    content += [block for block in blocks if not isinstance(block, ToolResultBlock)]
    if content:
        yield Message(role="user", content=content)


def _interrupted(use: ToolUseBlock) -> ToolResultBlock:
    return ToolResultBlock(use.id, [TextBlock(INTERRUPTED)], is_error=True)
