"""What the pieces of a stream add up to: blocks in the order in which they began, then a reply.

Arguments are read strictly and never mended. A call that was not closed, or cannot be read,
stays in the message with an empty input, and `Reply.unreadable` says why it must not run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Protocol, TypeVar

import msgspec

from callgate.core.content import TextBlock, ThinkingBlock, ToolUseBlock
from callgate.core.ids import call_id
from callgate.core.messages import Message, MessageBlock
from callgate.core.models import (
    ModelError,
    ModelErrorKind,
    Piece,
    Reply,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ToolUseDelta,
    Usage,
)
from callgate.http_client.server_text import UNSEEN
from callgate.models.failures import MAX_BODY, ServerFailure
from callgate.models.sse import SseEvent
from callgate.protocol import strict_json

MAX_CALLS = 1_000
"""In one reply."""
MAX_CHARS = 4_000_000
"""Of one reply: several times what any model says at once."""
_CUT = "the reply ended before the call did"
_MOST_TOKENS = 10**12
_LONGEST_NAME = 200
"""Characters of what a server calls a model, a tool or a call; no tool's name is as long."""


class ServerFailed(Exception):
    """The server sent an error instead of the rest of its reply."""

    def __init__(self, failure: ServerFailure) -> None:
        super().__init__()
        self.failure = ServerFailure(failure.message[:MAX_BODY], failure.words[:MAX_BODY])


def malformed(problem: str) -> ModelError:
    return ModelError(ModelErrorKind.MALFORMED, f"The server's reply cannot be read: {problem}.")


def cut() -> ModelError:
    return ModelError(
        ModelErrorKind.CUT, "The connection ended before the reply did.", retryable=True
    )


def tokens(count: int | None) -> int:
    """What a server counted, as far as it can be true."""
    return min(max(count or 0, 0), _MOST_TOKENS)


def json_text(raw: msgspec.Raw) -> str:
    """What stands in a JSON string, or any other value as it is written; null is empty."""
    data = bytes(raw).strip()
    if data in (b"", b"null"):
        return ""
    try:
        return msgspec.json.decode(data, type=str) if data.startswith(b'"') else data.decode()
    except (ValueError, RecursionError):
        raise malformed("the arguments of a call are no text") from None


class Reader(Protocol):
    """Reads the stream of one reply. Made anew for each request."""

    done: bool
    """Whether the reply is complete: what follows does not count."""

    def feed(self, event: SseEvent) -> Iterable[Piece]:
        """Raises `ModelError` where it makes no sense, `ServerFailed` where it is an error."""
        ...

    def finish(self) -> Reply:
        """Raises `ModelError` of kind CUT where something is missing."""
        ...


class Text:
    """A text that grows."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def add(self, text: str) -> TextDelta:
        self.pieces.append(text)
        return TextDelta(text)


class Thought:
    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.signature: str | None = None

    def add(self, text: str) -> ThinkingDelta:
        self.pieces.append(text)
        return ThinkingDelta(text)


class Use:
    """A call whose arguments grow."""

    def __init__(self, id: str, name: str, *, free_text: bool = False) -> None:
        self.id = id
        self.name = name
        self.pieces: list[str] = []
        self.closed = False
        self.free_text = free_text
        """Its input is no JSON but becomes the only argument `text`."""

    def add(self, text: str) -> ToolUseDelta:
        self.pieces.append(text)
        return ToolUseDelta(self.id, self.name, text)

    def read(self, *, complete: bool) -> tuple[dict[str, Any], str | None]:
        """The input, or an empty one and why there is none.

        Args:
            complete: the reply came to its own end. One that did not may have been cut within
                a call whose text does not show it.
        """
        text = "".join(self.pieces)
        if not self.closed or (not complete and (self.free_text or not text.strip())):
            return {}, _CUT
        if not self.name:
            return {}, "the call names no tool"
        if self.free_text:
            return {"text": text}, None
        if not text.strip():  # how servers write a call without arguments
            return {}, None
        try:
            value = strict_json.loads(text)
        except strict_json.StrictJsonError as error:
            return {}, f"the arguments are not JSON we take: {error}"
        if not isinstance(value, dict):
            return {}, "the arguments are not a JSON object"
        return value, None


Part = Text | Thought | Use | MessageBlock
P = TypeVar("P", bound=Part)


class Draft:
    """A reply that grows."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        """`taken`: ids that calls of the conversation have already."""
        self._taken = set(taken)
        self._calls = 0
        self.parts: list[Part] = []
        self.usage = Usage()
        self.model = ""

    def text(self) -> Text:
        """The text that goes on, or a new one."""
        last = self.parts[-1] if self.parts else None
        return last if isinstance(last, Text) else self.add(Text())

    def thought(self) -> Thought:
        last = self.parts[-1] if self.parts else None
        return last if isinstance(last, Thought) else self.add(Thought())

    def use(self, id: str | None, name: str, *, free_text: bool = False) -> Use:
        """A new call. One without an id, or with that of another, gets an id of ours.

        Raises `ModelError` where there are too many."""
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise malformed(f"it has more than {MAX_CALLS} calls")
        if not id or len(id) > _LONGEST_NAME or id in self._taken:
            id = call_id()
        self._taken.add(id)
        return self.add(Use(id, name, free_text=free_text))

    def add(self, part: P) -> P:
        self.parts.append(part)
        return part

    def reply(self, stop: StopReason, *, complete: bool) -> Reply:
        """`complete`: the model came to the end of what it wanted to say."""
        self._ensure_bounded()
        blocks: list[MessageBlock] = []
        unreadable: dict[str, str] = {}
        for part in self.parts:
            if isinstance(part, Text):
                if text := "".join(part.pieces):
                    blocks.append(TextBlock(text))
            elif isinstance(part, Thought):
                thinking = "".join(part.pieces)
                if thinking or part.signature:
                    blocks.append(ThinkingBlock(thinking, part.signature))
            elif isinstance(part, Use):
                value, why = part.read(complete=complete)
                blocks.append(ToolUseBlock(part.id, part.name[:_LONGEST_NAME], value))
                if why is not None:
                    unreadable[part.id] = why
            else:
                blocks.append(part)
        if stop == "end_turn" and any(isinstance(each, ToolUseBlock) for each in blocks):
            stop = "tool_use"  # some servers say that they ended where they wait for results
        return Reply(
            message=Message(role="assistant", content=blocks),
            stop=stop,
            usage=self.usage,
            model=UNSEEN.sub(" ", self.model[:_LONGEST_NAME]),
            unreadable=unreadable,
        )

    def _ensure_bounded(self) -> None:
        growing = (part for part in self.parts if isinstance(part, Text | Thought | Use))
        if sum(len(piece) for part in growing for piece in part.pieces) > MAX_CHARS:
            raise malformed(f"it is longer than {MAX_CHARS:,} characters")
