"""What a plugin gives, as plain JSON that the runtime will take, or `Unsendable`."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callgate.core.errors import ToolExecutionError
from callgate.core.tools import ToolOutput
from callgate.protocol.host_v1.values import to_value
from callgate.protocol.ndjson import Unsendable
from callgate.protocol.strict_json import MAX_DEPTH
from callgate.sources.outputs import as_output

MAX_LEVELS = MAX_DEPTH - 2
"""A value stands inside a result or an event, which stands inside a frame."""


def plain(value: Any) -> Any:
    """Text keys, lists, nothing that JSON does not have."""
    try:
        output = as_output(value)
    except ToolExecutionError as error:
        raise Unsendable(error.message) from None
    plain = output.value
    if plain is UNSET or isinstance(value, ToolOutput):
        plain = to_value(output)
    check_depth(plain)
    return plain


def check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_LEVELS + 1):
        inner: list[Any] = []
        for each in level:
            if type(each) is dict:
                inner += each.values()
            elif type(each) is list:
                inner += each
        if not inner:
            return
        level = inner
    raise Unsendable(f"it is nested deeper than {MAX_LEVELS} levels")
