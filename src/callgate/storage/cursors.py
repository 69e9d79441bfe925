"""Where a page begins. A cursor means nothing to its holder: a kind and a number as one word."""

from __future__ import annotations

import base64
import binascii


def check_page(after: int, limit: int) -> None:
    if after < 0 or limit < 1:
        raise ValueError("a page begins after 0 or more events and holds at least one")


def write_cursor(kind: str, number: int) -> str:
    return base64.urlsafe_b64encode(f"{kind}{number}".encode()).decode().rstrip("=")


def read_cursor(kind: str, text: str) -> int:
    """`ValueError` for anything that `write_cursor` did not make."""
    try:
        decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        decoded = ""
    number = decoded[len(kind) :]
    if not decoded.startswith(kind) or not number.isdecimal() or len(number) > 18:
        raise ValueError(f"not a cursor: {text!r}")
    return int(number)
