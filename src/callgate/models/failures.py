"""What went wrong with a request, as one sentence without a secret. Values in, values out."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote

import msgspec

from callgate.audit.redaction import redact
from callgate.core.models import ModelError, ModelErrorKind

MAX_BODY = 64 * 1024
"""Bytes of an answer that is an error."""
MAX_SHOWN = 400
"""Characters of what the server says."""

FIRST_WAIT_S = 0.5
"""Before the second attempt, about."""

_SHORTEST_SECRET = 6
_HIDDEN = "[hidden]"
_RETRIED = frozenset({408, 409, 425, 429})
_CONTEXT = re.compile(
    r"prompt is too long|context[ _](length|window|size)|maximum context|too many tokens"
    r"|exceed_context_size|exceeds? the (available |model'?s? )?context|input is too long",
    re.IGNORECASE,
)
UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]+")
"""What would not be seen, or act on a terminal."""


class Masked:
    """Takes out of a text the secrets it was made with, and whatever else looks like one."""

    __slots__ = ("_secrets",)

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {spelt for each in secrets for spelt in _spellings(each)}
        self._secrets = sorted(known, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = re.sub(re.escape(secret), _HIDDEN, text, flags=re.IGNORECASE)
            text = _without_beginning(text, secret)
        return redact(text)


def _spellings(secret: str) -> Iterator[str]:
    """A secret as it is, and as JSON, an address or an Authorization header would have it."""
    if len(secret) >= _SHORTEST_SECRET:
        yield secret
        yield secret.replace("/", "\\/")
        yield msgspec.json.encode(secret).decode()[1:-1]
        yield quote(secret, safe="")
        yield b64encode(secret.encode()).decode().rstrip("=")


def _without_beginning(text: str, secret: str) -> str:
    """Where a text was cut in the middle of a secret, its end goes too."""
    for length in range(min(len(secret) - 1, len(text)), _SHORTEST_SECRET - 1, -1):
        if text.endswith(secret[:length]):
            return text[:-length] + _HIDDEN
    return text


class _Error(msgspec.Struct):
    message: str | None = None
    type: str | int | None = None
    code: str | int | None = None


class _Body(msgspec.Struct):
    """The shapes in which servers say what is wrong."""

    error: _Error | str | None = None
    message: str | None = None
    detail: str | None = None


class Said(msgspec.Struct, frozen=True):
    """What a server says of an error."""

    message: str = ""
    words: str = ""
    """Its type and its code, as they are."""


def read_body(body: bytes) -> Said:
    """What stands in the body of an error; nothing of it where that is no JSON of an error."""
    try:
        read = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = body.decode("utf-8", "replace")
        return Said("" if text.lstrip()[:1] == "<" else text)
    if isinstance(read.error, _Error):
        words = f"{read.error.type or ''} {read.error.code or ''}"
        return Said(read.error.message or "", words.strip())
    return Said(read.error or read.message or read.detail or "")


def status_error(
    status: int, headers: Mapping[str, str], body: bytes, masked: Masked, now: datetime
) -> ModelError:
    """The error of an answer that is not a stream."""
    said = read_body(body)
    kind = _kind_of_status(status, said)
    retryable = status in _RETRIED or status >= 500
    if headers.get("x-should-retry") == "false" or "insufficient_quota" in said.words:
        retryable = False
    elif headers.get("x-should-retry") == "true":
        retryable = True
    sentence = f"{_STATUS_SENTENCES.get(kind, 'The server refused the request')} ({status})"
    return ModelError(
        kind,
        sentence + _quoted(said.message, masked),
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


def _kind_of_status(status: int, said: Said) -> ModelErrorKind:
    if status in (401, 402, 403, 407):
        return ModelErrorKind.KEY
    if status == 413 or (status < 500 and _CONTEXT.search(f"{said.words} {said.message}")):
        return ModelErrorKind.CONTEXT
    if status == 429:
        return ModelErrorKind.RATE
    if status == 408:
        return ModelErrorKind.TIMEOUT
    if status in _RETRIED or status >= 500:
        return ModelErrorKind.OVERLOADED
    return ModelErrorKind.REQUEST


def said_in_stream(said: Said, masked: Masked) -> ModelError:
    """The error that a server sent where the next piece of its reply should be."""
    words = said.words.lower()
    if _CONTEXT.search(f"{said.words} {said.message}"):
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
        kind, "The server broke off its reply" + _quoted(said.message, masked), retryable=retryable
    )


def _quoted(text: str, masked: Masked) -> str:
    """Masked before it is cut, so that no half of a secret is left."""
    shown = UNSEEN.sub(" ", masked(text)).strip()
    if not shown:
        return "."
    if len(shown) > MAX_SHOWN:
        shown = shown[:MAX_SHOWN].rstrip() + " ..."
    return f": {shown}"


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds until the server wants to be asked again; None where it does not say."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, TypeError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max((moment - now).total_seconds(), 0.0)


def back_off(attempt: int, chance: float) -> float:
    """Seconds before the request is made again: about 0.5, 1, 2, ... 16, never in step.

    Args:
        attempt: how many have failed, from 1.
        chance: from 0 to 1.
    """
    return float(min(FIRST_WAIT_S * 2 ** (attempt - 1), 16.0) * (0.75 + chance / 2))
