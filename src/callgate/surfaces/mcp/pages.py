"""Lists in pages: a cursor names the last item that was seen, so that changes between two pages
make none of the others skip or repeat."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import TypeVar

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

T = TypeVar("T")

PAGE = 200


def page(
    items: Sequence[T], key: Callable[[T], str], cursor: str | None
) -> tuple[list[T], str | None]:
    """The items behind a cursor, in the order of their keys, and the cursor of the next page.

    `MCPError` for a cursor that is not ours."""
    ordered = sorted(items, key=key)
    if cursor is not None:
        last = _read(cursor)
        ordered = [each for each in ordered if key(each) > last]
    shown = ordered[:PAGE]
    more = len(ordered) > PAGE
    return shown, _write(key(shown[-1])) if more else None


def _write(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode("utf-8", "surrogatepass")).decode()


def _read(cursor: str) -> str:
    try:
        return base64.b64decode(cursor, b"-_", validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        raise MCPError(INVALID_PARAMS, "This cursor is not one of ours.") from None
