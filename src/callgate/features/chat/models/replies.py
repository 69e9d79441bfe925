"""Replies of a model's server, from bytes to blocks. No I/O.

    failed request  -> `ModelError` with one sentence, without secrets
    streamed bytes  -> `SseDecoder` -> events -> an adapter's pieces -> `Draft` -> `Reply`

Lines of server-sent events end with LF, CRLF or CR, even if a piece ends between CR and LF. Streams
are never resumed, so all fields except `event` and `data` are ignored. Time is linear and memory is
bounded for every size of pieces.

Arguments are parsed strictly and never repaired. An incomplete or unreadable call stays in the
message with an empty input, and must not run; `Reply.unreadable` contains the reason.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Protocol, TypeVar

import msgspec

from callgate.core.content import Message, MessageBlock, TextBlock, ThinkingBlock, ToolUseBlock
from callgate.core.http import retry_after
from callgate.core.ids import call_id
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
from callgate.protocol import strict_json
from callgate.redaction.texts import UNSEEN, Masked, quoted

MAX_BODY = 64 * 1024
"""Maximum number of bytes of an error response."""

_RETRIED = frozenset({408, 409, 425, 429})
_CONTEXT = re.compile(
    r"prompt is too long|context[ _](length|window|size)|maximum context|too many tokens"
    r"|exceed_context_size|exceeds? the (available |model'?s? )?context|input is too long"
    r"|too large to process",
    re.IGNORECASE,
)


class _Error(msgspec.Struct):
    message: str | None = None
    type: str | int | None = None
    code: str | int | None = None


class _Body(msgspec.Struct):
    """The formats of servers' error responses."""

    error: _Error | str | None = None
    message: str | None = None
    detail: str | None = None


class ServerFailure(msgspec.Struct, frozen=True):
    """The error information of a server."""

    message: str = ""
    words: str = ""
    """Its type and code, unchanged."""


def read_body(body: bytes) -> ServerFailure:
    """Return the error information of a response body. Empty if the body is HTML."""
    try:
        read = msgspec.json.decode(body, type=_Body)
    except (ValueError, RecursionError):
        text = body.decode("utf-8", "replace")
        return ServerFailure("" if text.lstrip()[:1] == "<" else text)
    if isinstance(read.error, _Error):
        words = f"{read.error.type or ''} {read.error.code or ''}"
        return ServerFailure(read.error.message or "", words.strip())
    return ServerFailure(read.error or read.message or read.detail or "")


def status_error(
    status: int, headers: Mapping[str, str], body: bytes, masked: Masked, now: datetime
) -> ModelError:
    """Return the error for an HTTP status."""
    failure = read_body(body)
    kind = _kind_of_status(status, failure)
    retryable = status in _RETRIED or (status >= 500 and kind is not ModelErrorKind.CONTEXT)
    if headers.get("x-should-retry") == "false" or "insufficient_quota" in failure.words:
        retryable = False
    elif headers.get("x-should-retry") == "true":
        retryable = True
    sentence = f"{_STATUS_SENTENCES.get(kind, 'The server refused the request')} ({status})"
    return ModelError(
        kind,
        sentence + quoted(failure.message, masked),
        retryable=retryable,
        retry_after_s=retry_after(headers, now),
        status=status,
    )


_STATUS_SENTENCES = {
    ModelErrorKind.KEY: "The server does not accept the key",
    ModelErrorKind.CONTEXT: "The prompt exceeds the model's context window",
    ModelErrorKind.RATE: "The rate limit of the server is exceeded",
    ModelErrorKind.OVERLOADED: "The server is overloaded or failed",
    ModelErrorKind.TIMEOUT: "The server timed out",
}


def _kind_of_status(status: int, failure: ServerFailure) -> ModelErrorKind:
    if status in (401, 402, 403, 407):
        return ModelErrorKind.KEY
    # Includes 500, which llama.cpp sends for a text that is too long to embed.
    if status == 413 or (status <= 500 and _CONTEXT.search(f"{failure.words} {failure.message}")):
        return ModelErrorKind.CONTEXT
    if status == 429:
        return ModelErrorKind.RATE
    if status == 408:
        return ModelErrorKind.TIMEOUT
    if status in _RETRIED or status >= 500:
        return ModelErrorKind.OVERLOADED
    return ModelErrorKind.REQUEST


def stream_error(failure: ServerFailure, masked: Masked) -> ModelError:
    """Return the error for an error event within a stream."""
    words = failure.words.lower()
    if _CONTEXT.search(f"{failure.words} {failure.message}"):
        kind, retryable = ModelErrorKind.CONTEXT, False
    elif "quota" in words:
        kind, retryable = ModelErrorKind.RATE, False
    elif "rate_limit" in words or "429" in words:
        kind, retryable = ModelErrorKind.RATE, True
    elif "authentication" in words or "permission" in words:
        kind, retryable = ModelErrorKind.KEY, False
    elif "invalid" in words or "not_found" in words or "request" in words:
        kind, retryable = ModelErrorKind.REQUEST, False
    else:  # overloaded, a server error, or an unknown type
        kind, retryable = ModelErrorKind.OVERLOADED, True
    return ModelError(
        kind,
        "The server aborted its reply" + quoted(failure.message, masked),
        retryable=retryable,
    )


MAX_EVENT = 16 * 1024 * 1024
"""Maximum number of bytes of one event, and of one line."""
MAX_STREAM = 128 * 1024 * 1024
"""Maximum number of bytes of the stream."""

_BOM = b"\xef\xbb\xbf"


class SseEvent(msgspec.Struct, frozen=True):
    event: str
    """Empty if the server sent none."""
    data: bytes


class SseError(ValueError):
    """The stream is larger than any reply of a model."""


class SseDecoder:
    def __init__(self, *, max_event: int = MAX_EVENT, max_stream: int = MAX_STREAM) -> None:
        self._max_event = max_event
        self._left = max_stream
        self._line: list[bytes] = []
        """The pieces of an incomplete line."""
        self._line_size = 0
        self._after_cr = False
        self._first = True
        self._event = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[SseEvent]:
        """Yield the events that this piece completes. An incomplete event at the end is dropped."""
        self._left -= len(piece)
        if self._left < 0:
            raise SseError("the stream is too long")
        if self._after_cr and piece:
            self._after_cr = False
            if piece.startswith(b"\n"):
                piece = piece[1:]
        self._after_cr = self._after_cr or piece.endswith(b"\r")
        # bytes.splitlines knows exactly the three line ends of the format.
        for part in piece.splitlines(keepends=True):
            ended = part.endswith((b"\n", b"\r"))
            self._take(part)
            if ended:
                event = self._end_line()
                if event is not None:
                    yield event

    def _take(self, part: bytes) -> None:
        self._line_size += len(part)
        if self._line_size > self._max_event:
            raise SseError("a line is too long")
        self._line.append(part)

    def _end_line(self) -> SseEvent | None:
        line = b"".join(self._line).rstrip(b"\r\n")
        self._line, self._line_size = [], 0
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._end_event()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._size += len(value) + 1
            if self._size > self._max_event:
                raise SseError("an event is too large")
            self._data.append(value)
        elif field == b"event":
            self._event = value.decode("utf-8", "replace")
        return None

    def _end_event(self) -> SseEvent | None:
        event, data = self._event, self._data
        self._event, self._data, self._size = "", [], 0
        return SseEvent(event, b"\n".join(data)) if data else None


MAX_CALLS = 1_000
"""Maximum number of calls in one reply."""
MAX_CHARS = 4_000_000
"""Maximum number of characters in one reply: several times the output limit of any model."""
_CUT = "the reply ended before the call did"
_MOST_TOKENS = 10**12
_LONGEST_NAME = 200
"""Maximum number of characters in the server's name for a model, tool or call. No tool has a
longer name.
"""


class ServerFailed(Exception):
    """The server sent an error instead of the rest of its reply."""

    def __init__(self, failure: ServerFailure) -> None:
        super().__init__()
        self.failure = ServerFailure(failure.message[:MAX_BODY], failure.words[:MAX_BODY])


def malformed(problem: str) -> ModelError:
    return ModelError(ModelErrorKind.MALFORMED, f"The server's reply cannot be read: {problem}.")


def cut() -> ModelError:
    return ModelError(
        ModelErrorKind.CUT, "The connection ended before the reply was complete.", retryable=True
    )


def tokens(count: int | None) -> int:
    """Return a server's token count, limited to plausible values."""
    return min(max(count or 0, 0), _MOST_TOKENS)


def json_text(raw: msgspec.Raw) -> str:
    """Return the content of a JSON string, or the source text of another value. Null is empty."""
    data = bytes(raw).strip()
    if data in (b"", b"null"):
        return ""
    try:
        return msgspec.json.decode(data, type=str) if data.startswith(b'"') else data.decode()
    except (ValueError, RecursionError):
        raise malformed("the arguments of a call are not text") from None


class Reader(Protocol):
    """Reads the stream of one reply. One per request."""

    done: bool
    """Whether the reply is complete. Later events are ignored."""

    def feed(self, event: SseEvent) -> Iterable[Piece]:
        """Read one event. Raises `ModelError` if it is invalid, `ServerFailed` if it is
        an error.
        """
        ...

    def finish(self) -> Reply:
        """Return the reply. Raises `ModelError` of kind CUT if it is incomplete."""
        ...


class Text:
    """A text under construction."""

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
    """A call under construction."""

    def __init__(self, id: str, name: str, *, free_text: bool = False) -> None:
        self.id = id
        self.name = name
        self.pieces: list[str] = []
        self.closed = False
        self.free_text = free_text
        """Whether its input is not JSON but the value of the only argument, `text`."""

    def add(self, text: str) -> ToolUseDelta:
        self.pieces.append(text)
        return ToolUseDelta(self.id, self.name, text)

    def read(self, *, complete: bool) -> tuple[dict[str, Any], str | None]:
        """Return the input, or an empty one and the reason.

        Args:
            complete: Whether the reply ended normally. Otherwise it may have been truncated within
                a call, which the text of the call cannot show.
        """
        text = "".join(self.pieces)
        if not self.closed or (not complete and (self.free_text or not text.strip())):
            return {}, _CUT
        if not self.name:
            return {}, "the call has no tool name"
        if self.free_text:
            return {"text": text}, None
        if not text.strip():  # the form of a call without arguments
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
    """A reply under construction."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        """`taken`: ids of earlier calls of the conversation."""
        self._taken = set(taken)
        self._calls = 0
        self.parts: list[Part] = []
        self.usage = Usage()
        self.model = ""

    def text(self) -> Text:
        """Return the last text if it is the last part, or a new one."""
        last = self.parts[-1] if self.parts else None
        return last if isinstance(last, Text) else self.add(Text())

    def thought(self) -> Thought:
        last = self.parts[-1] if self.parts else None
        return last if isinstance(last, Thought) else self.add(Thought())

    def use(self, id: str | None, name: str, *, free_text: bool = False) -> Use:
        """Add a call. A call without an id, or with an id in use, gets a new id.

        Raises `ModelError` if there are too many.
        """
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
        """Return the reply. `complete`: the model finished its output."""
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
            stop = "tool_use"  # some servers send this reason for replies with calls
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
