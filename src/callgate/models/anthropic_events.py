"""The events in which Anthropic streams a reply."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from callgate.core.content import RedactedThinkingBlock
from callgate.core.models import Piece, Reply, StopReason, Usage
from callgate.models.failures import ServerFailure
from callgate.models.replies import (
    Draft,
    Part,
    ServerFailed,
    Text,
    Thought,
    Use,
    cut,
    json_text,
    malformed,
    tokens,
)
from callgate.models.sse import SseEvent

_STOPS: Mapping[str, StopReason] = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "refusal": "refusal",
}
_COMPLETE = frozenset({"end_turn", "stop_sequence", "tool_use", "pause_turn"})
"""Reasons of a reply that was not cut short: even of one that was, the last block is closed."""


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Message(msgspec.Struct):
    model: str = ""
    usage: _Usage | None = None


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw()


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None


class _Error(msgspec.Struct):
    type: str = ""
    message: str = ""


class _Event(msgspec.Struct):
    type: str
    index: int = -1
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Event).decode


class AnthropicReader:
    """Reads the events of one reply."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self.done = False
        self.paused = False
        self._draft = Draft(taken)
        self._blocks: dict[int, Part | None] = {}
        """Those that have begun and not ended; None is one of a kind that we do not know."""
        self._stop: StopReason | None = None
        self._complete = False
        """The reason is one of those for which a reply is whole."""
        self._counted = _Usage()

    def feed(self, event: SseEvent) -> Iterator[Piece]:
        try:
            read = _decode(event.data)
        except (ValueError, RecursionError):
            raise malformed("an event is not what the protocol says") from None
        match read.type:
            case "message_start":
                if read.message is not None:
                    self._draft.model = read.message.model
                    self._count(read.message.usage)
            case "content_block_start":
                yield from self._begin(read.index, read.content_block)
            case "content_block_delta":
                yield from self._go_on(read.index, read.delta)
            case "content_block_stop":
                part = self._blocks.pop(read.index, None)
                if isinstance(part, Use):
                    part.closed = True
            case "message_delta":
                self._end(read.delta)
                self._count(read.usage)
            case "message_stop":
                self.done = True
            case "error":
                error = read.error or _Error()
                raise ServerFailed(ServerFailure(error.message, error.type))

    def finish(self) -> Reply:
        if not self.done or self._stop is None:
            raise cut()
        return self._draft.reply(self._stop, complete=self._complete)

    def _begin(self, index: int, block: _Block | None) -> Iterator[Piece]:
        if block is None or index < 0 or index in self._blocks:
            raise malformed("a block begins that cannot")
        part: Part | None = None
        if block.type == "text":
            part = self._draft.add(Text())
            if block.text:
                yield part.add(block.text)
        elif block.type == "thinking":
            part = self._draft.add(Thought())
            part.signature = block.signature or None
            if block.thinking:
                yield part.add(block.thinking)
        elif block.type == "redacted_thinking":
            self._draft.add(RedactedThinkingBlock(block.data))
        elif block.type == "tool_use":
            part = self._draft.use(block.id, block.name)
            # Some servers send a whole input here, where Anthropic has an empty one.
            given = json_text(block.input)
            yield part.add("" if given == "{}" else given)
        self._blocks[index] = part

    def _go_on(self, index: int, delta: _Delta | None) -> Iterator[Piece]:
        if delta is None or index not in self._blocks:
            raise malformed("a piece belongs to no block")
        part = self._blocks[index]
        match delta.type:
            case "text_delta" if isinstance(part, Text):
                yield part.add(delta.text)
            case "thinking_delta" if isinstance(part, Thought):
                yield part.add(delta.thinking)
            case "signature_delta" if isinstance(part, Thought):
                part.signature = (part.signature or "") + delta.signature
            case "input_json_delta" if isinstance(part, Use):
                yield part.add(delta.partial_json)
            case "text_delta" | "thinking_delta" | "signature_delta" | "input_json_delta":
                if part is not None:
                    raise malformed("a piece is of another kind than its block")

    def _end(self, delta: _Delta | None) -> None:
        if delta is not None and delta.stop_reason is not None:
            self.paused = delta.stop_reason == "pause_turn"
            self._stop = _STOPS.get(delta.stop_reason, "end_turn")
            self._complete = delta.stop_reason in _COMPLETE

    def _count(self, usage: _Usage | None) -> None:
        """Counts are totals: a later one replaces an earlier one."""
        if usage is None:
            return
        for field in usage.__struct_fields__:
            if (count := getattr(usage, field)) is not None:
                setattr(self._counted, field, tokens(count))
        read = self._counted.cache_read_input_tokens or 0
        written = self._counted.cache_creation_input_tokens or 0
        self._draft.usage = Usage(
            input=(self._counted.input_tokens or 0) + read + written,
            output=self._counted.output_tokens or 0,
            cache_read=read,
            cache_write=written,
        )
