"""Lines that were passed over, and the beginning of what a peer wrote, for logs."""

from __future__ import annotations

from typing import Literal

import msgspec

from callgate.core.text.characters import escape

SHOWN = 200
"""Characters."""


class Passed(msgspec.Struct, frozen=True):
    """A line that was passed over."""

    why: Literal["noise", "too_long", "unknown_id", "abandoned", "not_agreed", "complaint"]
    shown: str
    """The beginning of the line."""


def excerpt(text: str | bytes) -> str:
    """Cut short, in printable ASCII: nothing unseen, no look-alikes, no line ends."""
    if isinstance(text, bytes):
        text = text[: 4 * SHOWN].decode("utf-8", "backslashreplace")
    shown = (char if " " <= char <= "~" else escape(char) for char in text[:SHOWN])
    return "".join(shown)[:SHOWN]
