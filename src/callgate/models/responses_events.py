"""The events in which OpenAI's responses stream a reply."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, TypeVar

import msgspec

from callgate.core.models import Piece, Reply, StopReason, Usage
from callgate.models.failures import ServerFailure
from callgate.models.replies import (
    Draft,
    ServerFailed,
    Text,
    Thought,
    Use,
    cut,
    malformed,
    tokens,
)
from callgate.models.signatures import of_item
from callgate.models.sse import SseEvent


class _Content(msgspec.Struct):
    type: str = ""
    text: str = ""
    refusal: str = ""


class _Item(msgspec.Struct):
    type: str
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    status: str | None = None
    content: list[_Content] | None = None
    summary: list[_Content] | None = None
    encrypted_content: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Cached | None = None


class _Why(msgspec.Struct):
    reason: str | None = None
    code: str | int | None = None
    message: str | None = None
    type: str | None = None


class _Response(msgspec.Struct):
    model: str | None = None
    output: list[_Item] | None = None
    usage: _Usage | None = None
    error: _Why | None = None
    incomplete_details: _Why | None = None


class _Event(msgspec.Struct):
    type: str
    output_index: int | None = None
    item_id: str | None = None
    delta: Any = None
    item: _Item | None = None
    response: _Response | None = None
    code: str | int | None = None
    message: str | None = None
    error: _Why | None = None


_decode = msgspec.json.Decoder(_Event).decode
_BETWEEN_THOUGHTS = "\n\n"
PartT = TypeVar("PartT", Text, Thought, Use)


class ResponsesReader:
    """Reads the events of one reply.

    Deltas are shown; what counts is the item that stands complete in `output_item.done`.
    """

    def __init__(self, taken: Collection[str] = ()) -> None:
        self.done = False
        self._draft = Draft(taken)
        self._open: dict[int | str, Text | Thought | Use] = {}
        """By index or id of the item: what has begun and not ended."""
        self._refused = False
        self._complete = False
        self._stop: StopReason = "end_turn"

    def feed(self, event: SseEvent) -> Iterator[Piece]:
        if event.data.strip() == b"[DONE]":
            return
        try:
            read = _decode(event.data)
        except (ValueError, RecursionError):
            raise malformed("an event is not what the protocol says") from None
        match read.type.removeprefix("response."):
            case "output_item.added":
                yield from self._begin(read)
            case "output_item.done":
                self._close(read)
            case "output_text.delta" | "refusal.delta":
                yield self._part(read, Text).add(_delta(read))
            case "reasoning_summary_text.delta" | "reasoning_text.delta":
                yield self._part(read, Thought).add(_delta(read))
            case "reasoning_summary_part.added":
                thought = self._part(read, Thought)
                if thought.pieces:
                    yield thought.add(_BETWEEN_THOUGHTS)
            case "function_call_arguments.delta" | "custom_tool_call_input.delta":
                yield self._part(read, Use).add(_delta(read))
            case "completed" | "incomplete" as how:
                self._complete = how == "completed"
                self._end(read.response or _Response())
            case "failed":
                raise _failure((read.response or _Response()).error)
            case "error":
                raise _failure(read.error or _Why(code=read.code, message=read.message))

    def finish(self) -> Reply:
        if not self.done:
            raise cut()
        stop = "refusal" if self._refused else self._stop
        return self._draft.reply(stop, complete=self._complete)

    def _begin(self, event: _Event) -> Iterator[Piece]:
        key = _item_key(event)
        if event.item is None or key in self._open:
            raise malformed("an item begins that cannot")
        part = self._new(event.item)
        if part is not None:
            self._open[key] = part
        if isinstance(part, Use):
            yield part.add("")

    def _new(self, item: _Item) -> Text | Thought | Use | None:
        match item.type:
            case "message":
                return self._draft.add(Text())
            case "reasoning":
                return self._draft.add(Thought())
            case "function_call":
                return self._draft.use(item.call_id, item.name or "")
            case "custom_tool_call":
                return self._draft.use(item.call_id, item.name or "", free_text=True)
        return None  # a tool of the server's own, which we never asked for

    def _part(self, event: _Event, kind: type[PartT]) -> PartT:
        part = self._open.get(_item_key(event))
        if not isinstance(part, kind):
            raise malformed("a piece belongs to no item of its kind")
        return part

    def _close(self, event: _Event) -> None:
        if event.item is None:
            raise malformed("an item ends that never was")
        part = self._open.pop(_item_key(event), None) or self._new(event.item)
        if part is not None:
            self._fill(part, event.item)

    def _fill(self, part: Text | Thought | Use, item: _Item) -> None:
        """What the item says when it is complete stands above what its deltas added up to."""
        if isinstance(part, Use):
            arguments = item.input if part.free_text else item.arguments
            part.pieces = part.pieces if arguments is None else [arguments]
            part.name = item.name or part.name
            part.closed = item.status in (None, "completed")
        elif isinstance(part, Thought):
            texts = [each.text for each in item.summary or item.content or ()]
            part.pieces = [_BETWEEN_THOUGHTS.join(texts)] if texts else part.pieces
            if item.id and item.encrypted_content:  # else nobody could go on from it
                part.signature = of_item(item.id, item.encrypted_content)
        else:
            content = item.content or ()
            self._refused = self._refused or any(each.type == "refusal" for each in content)
            part.pieces = [each.text or each.refusal for each in content] or part.pieces

    def _end(self, response: _Response) -> None:
        # Where nothing came before, the server sends the whole only at the end.
        for item in () if self._draft.parts else response.output or ():
            part = self._new(item)
            if part is not None:
                self._fill(part, item)
        self._draft.model = response.model or ""
        self._count(response.usage or _Usage())
        why = (response.incomplete_details or _Why()).reason
        if why is not None:
            self._stop = "refusal" if why == "content_filter" else "max_tokens"
        self.done = True

    def _count(self, usage: _Usage) -> None:
        details = usage.input_tokens_details or _Cached()
        self._draft.usage = Usage(
            input=tokens(usage.input_tokens),
            output=tokens(usage.output_tokens),
            cache_read=tokens(details.cached_tokens),
            cache_write=tokens(details.cache_write_tokens),
        )


def _item_key(event: _Event) -> int | str:
    """Which item an event is about: by its index, or by its id where a server does not count."""
    if event.output_index is not None:
        return event.output_index
    item = event.item or _Item(type="")
    key = event.item_id or item.id or item.call_id
    if not key:
        raise malformed("a piece belongs to no item")
    return key


def _delta(event: _Event) -> str:
    if not isinstance(event.delta, str):
        raise malformed("a piece is no text")
    return event.delta


def _failure(why: _Why | None) -> ServerFailed:
    why = why or _Why()
    return ServerFailed(
        ServerFailure(why.message or "", f"{why.type or ''} {why.code or ''}".strip())
    )
