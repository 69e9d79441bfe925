"""The chunks in which chat completions stream a reply, as the many servers send them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from callgate.core.models import Piece, Reply, StopReason, Usage
from callgate.models.failures import read_body
from callgate.models.replies import Draft, ServerFailed, Use, cut, json_text, malformed, tokens
from callgate.models.signatures import THOUGHTS, of_field
from callgate.models.sse import SseEvent

_STOPS: Mapping[str, StopReason] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
_COMPLETE = frozenset({"stop", "tool_calls", "function_call"})
"""Reasons of a reply that was not cut short; one that we do not know is none of them."""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw()
    """A text by the protocol; an object from some servers."""


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None


class _Chunk(msgspec.Struct):
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Chunk).decode


class ChatReader:
    """Reads the chunks of one reply."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self.done = False
        self._draft = Draft(taken)
        self._calls: dict[int, tuple[str | None, Use]] = {}
        """By index: the id that the server gave, and the call."""
        self._indexes: dict[str, int] = {}
        """By the id that the server gave: the index of the newest such call."""
        self._last = -1
        self._stop: StopReason | None = None
        self._complete = False
        """The reason is one of those for which a reply is whole."""
        self._refused = False

    def feed(self, event: SseEvent) -> Iterator[Piece]:
        if event.data.strip() == b"[DONE]":
            self.done = True
            return
        try:
            chunk = _decode(event.data)
        except (ValueError, RecursionError):
            raise malformed("an event is not what the protocol says") from None
        if bytes(chunk.error).strip() not in (b"", b"null"):
            raise ServerFailed(read_body(event.data))
        self._draft.model = self._draft.model or chunk.model or ""
        if chunk.usage is not None:
            self._count(chunk.usage)
        for choice in chunk.choices or ():
            if not choice.index:  # of alternatives only the first counts
                yield from self._read(choice)

    def finish(self) -> Reply:
        if self._stop is None:  # some servers leave the last line out, none the reason
            raise cut()
        for _, use in self._calls.values():
            use.closed = True  # they have no mark of their own for it
        stop = "refusal" if self._refused else self._stop
        return self._draft.reply(stop, complete=self._complete)

    def _read(self, choice: _Choice) -> Iterator[Piece]:
        if (delta := choice.delta) is not None:
            for name in THOUGHTS:
                if text := getattr(delta, name):
                    thought = self._draft.thought()
                    thought.signature = of_field(name)
                    yield thought.add(text)
                    break  # a server that sends both sends the same twice
            if delta.content:
                yield self._draft.text().add(delta.content)
            if delta.refusal:
                self._refused = True
                yield self._draft.text().add(delta.refusal)
            for call in delta.tool_calls or ():
                yield self._call(call)
        if choice.finish_reason:
            self._stop = _STOPS.get(choice.finish_reason, "end_turn")
            self._complete = choice.finish_reason in _COMPLETE

    def _call(self, call: _Call) -> Piece:
        function = call.function or _Function()
        name, text = function.name or "", json_text(function.arguments)
        index, known = self._find(call)
        if known is None:
            known = self._draft.use(call.id, name)
            self._calls[index] = (call.id, known)
            self._last = max(self._last, index)
            if call.id:
                self._indexes[call.id] = index
        elif not known.name:
            known.name = name
        return known.add(text)

    def _find(self, call: _Call) -> tuple[int, Use | None]:
        """The call that a delta goes on with, or where a new one is to be kept."""
        index, same = call.index, self._indexes.get(call.id or "")
        if index is None:  # a server that does not count: a new id or a name begins a new call
            begins = call.id or (call.function is not None and call.function.name)
            index = self._last + 1 if begins else self._last
            index = index if same is None else same
        if index not in self._calls:
            return max(index, 0), None
        id, use = self._calls[index]
        if call.id and id and call.id != id:  # a server that counts every call as the first
            return (self._last + 1, None) if same is None else (same, self._calls[same][1])
        return index, use

    def _count(self, usage: _Usage) -> None:
        details = usage.prompt_tokens_details or _Cached()
        self._draft.usage = Usage(
            input=tokens(usage.prompt_tokens),
            output=tokens(usage.completion_tokens),
            cache_read=tokens(details.cached_tokens),
            cache_write=tokens(details.cache_write_tokens),
        )
