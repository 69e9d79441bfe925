"""What a server says, fit to be shown: without a secret, and without what acts on a terminal."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from urllib.parse import quote

import msgspec

from callgate.redaction.texts import redact

MAX_SHOWN = 400
"""Characters of what the server says."""

_SHORTEST_SECRET = 6
_HIDDEN = "[hidden]"
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


def quoted(text: str, masked: Masked) -> str:
    """The end of a sentence. Masked before it is cut, so that no half of a secret is left."""
    shown = UNSEEN.sub(" ", masked(text)).strip()
    if not shown:
        return "."
    if len(shown) > MAX_SHOWN:
        shown = shown[:MAX_SHOWN].rstrip() + " ..."
    return f": {shown}"
