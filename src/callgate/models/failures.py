"""What went wrong with a request, as one sentence without a secret. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

import msgspec

from callgate.core.models import ModelError, ModelErrorKind
from callgate.http_client.retries import retry_after
from callgate.http_client.server_text import Masked, quoted

MAX_BODY = 64 * 1024
"""Bytes of an answer that is an error."""

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
    """The shapes in which servers say what is wrong."""

    error: _Error | str | None = None
    message: str | None = None
    detail: str | None = None


class ServerFailure(msgspec.Struct, frozen=True):
    """What a server says of an error."""

    message: str = ""
    words: str = ""
    """Its type and its code, as they are."""


def read_body(body: bytes) -> ServerFailure:
    """What stands in the body of an error; nothing of it where that is no JSON of an error."""
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
    """The error of an answer that is not a stream."""
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
    )


_STATUS_SENTENCES = {
    ModelErrorKind.KEY: "The server does not accept the key",
    ModelErrorKind.CONTEXT: "The prompt is longer than the model takes",
    ModelErrorKind.RATE: "The server asks for fewer requests",
    ModelErrorKind.OVERLOADED: "The server is overloaded or broken",
    ModelErrorKind.TIMEOUT: "The server gave up waiting",
}


def _kind_of_status(status: int, failure: ServerFailure) -> ModelErrorKind:
    if status in (401, 402, 403, 407):
        return ModelErrorKind.KEY
    # 500 too: so llama.cpp says it of a text to embed.
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
    """The error that a server sent where the next piece of its reply should be."""
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
    else:  # overloaded, a server error, or a word nobody knows
        kind, retryable = ModelErrorKind.OVERLOADED, True
    return ModelError(
        kind,
        "The server broke off its reply" + quoted(failure.message, masked),
        retryable=retryable,
    )
