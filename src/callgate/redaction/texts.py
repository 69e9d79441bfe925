"""Redact texts: an unsuspicious text is returned unchanged, any other is masked.

Text of a server also loses its terminal control characters.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from urllib.parse import quote

import msgspec

from callgate.redaction.names import MASK
from callgate.redaction.suspicion import suspicious

LONGEST = 500_000
"""Maximum examined characters; a suspicious longer text is masked beyond."""
_EDGE = 4_096
"""Characters before that limit in which a secret may be recognized only in part."""


def redact(text: str) -> str:
    """Replace every secret in a text by `[REDACTED]`."""
    if not suspicious(text):
        return text
    return thoroughly(text)


def thoroughly(text: str, *, bare: bool = True) -> str:
    """Like `redact`, without the quick check. Not `bare`: random text alone does not count here."""
    # Hundreds of patterns: a process that never meets a suspicious text never compiles them.
    from callgate.redaction.masking import mask  # lazy: heavy, and many texts need none  # noqa: PLC0415

    if len(text) <= LONGEST:
        return mask(text, bare=bare)
    return mask(text[:LONGEST], bare=bare)[:-_EDGE] + MASK


def redact_lines(text: str) -> str:
    """Like `redact`, but a line without a secret keeps its invisible characters."""
    masked = redact(text)
    if masked == text:
        return text
    from callgate.redaction.masking import HIDDEN  # lazy: as above  # noqa: PLC0415

    lines, originals = masked.split("\n"), text.split("\n")
    if len(lines) != len(originals):
        return masked
    pairs = zip(lines, originals, strict=True)
    return "\n".join(old if HIDDEN.sub("", old) == new else new for new, old in pairs)


MAX_SHOWN = 400
"""Maximum length of a quoted server message."""

_SHORTEST_SECRET = 6
_HIDDEN = "[hidden]"
UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]+")
"""Characters that are invisible or control a terminal."""


class Masked:
    """Removes known secrets from a text, and all others that are recognized."""

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
    """Return the forms of a secret: plain, and as in JSON, a URL or an Authorization header."""
    if len(secret) >= _SHORTEST_SECRET:
        yield secret
        yield secret.replace("/", "\\/")
        yield msgspec.json.encode(secret).decode()[1:-1]
        yield quote(secret, safe="")
        yield b64encode(secret.encode()).decode().rstrip("=")


def _without_beginning(text: str, secret: str) -> str:
    """Remove the beginning of a secret at the end of a truncated text."""
    for length in range(min(len(secret) - 1, len(text)), _SHORTEST_SECRET - 1, -1):
        if text.endswith(secret[:length]):
            return text[:-length] + _HIDDEN
    return text


def quoted(text: str, masked: Masked) -> str:
    """Return the end of a sentence with a quoted message. It is masked before it is truncated."""
    shown = UNSEEN.sub(" ", masked(text)).strip()
    if not shown:
        return "."
    if len(shown) > MAX_SHOWN:
        shown = shown[:MAX_SHOWN].rstrip() + " ..."
    return f": {shown}"
