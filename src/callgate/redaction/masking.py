"""Takes secrets out of text: by their shape, by the name before them, by the words around them.

Each `find_...` adds what it found to a list of spans; here they are cut out of the text.
"""

from __future__ import annotations

import re

from callgate.redaction.assignments import find_assignments
from callgate.redaction.command_lines import find_in_commands
from callgate.redaction.phrases import find_in_headers, find_in_markup, find_nearby
from callgate.redaction.prose import find_in_prose
from callgate.redaction.shapes import (
    Spans,
    find_hex_keys,
    find_in_urls,
    find_key_blocks,
    find_random,
    find_tokens,
)
from callgate.redaction.suspicion import has_long_run
from callgate.redaction.values import MASK

_HIDDEN = re.compile(
    "\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|[@-Z\\\\^_])"
    "|[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
)
_FULLWIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_WIDE = re.compile("[\uff01-\uff5e\u0130]")


def mask(text: str, *, bare: bool) -> str:
    """The text without its secrets. Not `bare`: a random text alone is no secret here."""
    if not text.isascii() or "\x1b" in text:
        shown = _HIDDEN.sub("", text)
        if shown != text:  # what is invisible may cut a secret in two
            masked = _until_stable(shown, bare=bare)
            return masked if masked != shown else text
    return _until_stable(text, bare=bare)


def _until_stable(text: str, *, bare: bool) -> str:
    """What is masked no longer explains what stands beside it, so look again."""
    if "-----" in text or "Private-L" in text:
        blocks: Spans = []
        find_key_blocks(text, blocks)
        text = _without(text, blocks) if blocks else text
    for _ in range(8):
        masked = _mask(text, bare=bare)
        if masked == text:
            break
        text = masked
    return text


def _mask(text: str, *, bare: bool) -> str:
    shadow = text
    if not text.isascii() and _WIDE.search(text):
        shadow = text.translate(_FULLWIDTH).replace("\u0130", "I")
    low = shadow.lower()
    spans: Spans = []
    public = find_key_blocks(shadow, spans) if "-----" in shadow or "private-l" in low else []
    if "://" in shadow or "@" in shadow:
        find_in_urls(shadow, spans)
    find_assignments(shadow, low, spans)
    find_in_headers(shadow, low, spans)
    find_in_commands(shadow, low, spans)
    find_in_prose(shadow, low, spans)
    find_in_markup(shadow, low, spans)
    if has_long_run(shadow):
        find_tokens(shadow, spans)
        if bare:
            find_random(shadow, spans, public)
            find_hex_keys(shadow, spans)
        find_nearby(shadow, low, spans)
    return _without(text, spans) if spans else text


def _without(text: str, spans: Spans) -> str:
    pieces: list[str] = []
    position = 0
    for start, stop in sorted(spans):
        if start > position or not pieces:
            pieces += (text[position:start], MASK)
        position = max(position, stop)
    pieces.append(text[position:])
    return "".join(pieces)
