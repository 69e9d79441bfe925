"""A conversation as a model is shown it: in native blocks, or as text in the format of calls.

The same conversation may have been held with both kinds of models; each is shown all of it in
its own words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, groupby
from typing import Any

import msgspec

from callgate.agent.feedback import bounded, execution_result
from callgate.core.content import ImageBlock, JsonBlock, TextBlock, ToolResultBlock, ToolUseBlock
from callgate.core.messages import Message, MessageBlock
from callgate.protocol.native_results import native_size
from callgate.protocol.results import as_text

_ONLY_TEXT = frozenset({"send_chat", "end_turn"})
"""What a model that calls natively does without a call."""

_encode = msgspec.json.Encoder().encode


def to_native(messages: Sequence[Message], limit: int) -> list[Message]:
    """For a model that calls tools itself; `limit` are the characters of one result."""
    dropped: set[str] = set()
    shown = [
        (message.role, list(_native_blocks(message.content, dropped, limit)))
        for message in messages
    ]
    return [
        Message(role=role, content=[block for _, blocks in some for block in blocks])
        for role, some in groupby((each for each in shown if each[1]), key=lambda each: each[0])
    ]


def _native_blocks(
    blocks: Sequence[MessageBlock], dropped: set[str], limit: int
) -> Iterator[MessageBlock]:
    for block in blocks:
        match block:
            case ToolUseBlock(id=id, name=name, input=given) if name in _ONLY_TEXT:
                dropped.add(id)
                if name == "send_chat" and isinstance(text := given.get("content"), str) and text:
                    yield TextBlock(text)
            case ToolResultBlock(tool_use_id=id):
                if id not in dropped:
                    content = bounded(block.content, limit)
                    native = block.native
                    if native is not None and native_size(native) > limit:
                        native = None
                    yield msgspec.structs.replace(block, content=content, diffs=(), native=native)
            case _:
                yield block


def to_text(messages: Sequence[Message], limit: int) -> list[Message]:
    """For a model that writes its calls as text."""
    names: dict[str, tuple[str, str]] = {}
    """Our id of a call to the model's own, and its type."""
    shown = []
    for message in messages:
        if message.role == "assistant":
            content = _reply(message.content, names)
        else:
            content = list(_result_blocks(message.content, names, limit))
        if content:
            shown.append(Message(role=message.role, content=content))
    return shown


def _reply(blocks: Sequence[MessageBlock], names: dict[str, tuple[str, str]]) -> list[MessageBlock]:
    visible = [block for block in blocks if isinstance(block, TextBlock | ToolUseBlock)]
    if not any(isinstance(block, ToolUseBlock) for block in visible):
        return list(visible)  # prose: as it was, and as it was answered
    numbers = count(1)
    calls = []
    for block in visible:
        if isinstance(block, TextBlock):
            call = ("send_chat", f"text{next(numbers)}", {"content": block.text})
        else:
            call = (block.name, block.external_id or block.id, block.input)
            names[block.id] = (call[1], block.name)
        calls.append(_call(*call))
    return [TextBlock(_encode({"toolCalls": calls}).decode())]


def _call(type: str, id: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": type, "id": id, "operation": type, "parameters": parameters}


def _result_blocks(
    blocks: Sequence[MessageBlock], names: Mapping[str, tuple[str, str]], limit: int
) -> Iterator[MessageBlock]:
    results = [
        execution_result(block, *names[block.tool_use_id], limit)
        for block in blocks
        if isinstance(block, ToolResultBlock) and block.tool_use_id in names
    ]
    if results:
        yield TextBlock("[Results of your calls]\n" + _encode(results).decode())
    for block in blocks:
        if isinstance(block, TextBlock | ImageBlock):
            yield block
        elif isinstance(block, JsonBlock):
            yield TextBlock(as_text(block))
