"""Which characters a reader sees, and how the others are written so that they are seen."""

from __future__ import annotations

import re

# Printable by their category, and yet nothing is seen of them: fillers, blanks, joiners and
# the selectors that change the character before them.
UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def is_seen(char: str) -> bool:
    return char.isprintable() and UNSEEN.match(char) is None


def escape(char: str) -> str:
    """Such as `\\x1b` and `\\u202e`."""
    code = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
