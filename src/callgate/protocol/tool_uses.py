"""The calls in what a model or an MCP client sent, whatever shape it has.

Taken are our own `ToolUseBlock`, messages and blocks of Anthropic, messages and calls of
OpenAI chat, items of OpenAI responses and MCP's `tools/call`, as dicts or as the objects of
their libraries, alone or in a list. Whatever else a message holds is passed over.

Arguments that arrive as text are read strictly and never mended. A call that cannot be read
comes back as `UnreadableUse`, so that it is answered under its id and never run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from callgate.core.content import ToolUseBlock
from callgate.protocol import strict_json


class UnreadableUse(msgspec.Struct, frozen=True):
    """A call that nobody can run: what is known of it, and why."""

    id: str
    """Empty where it had none."""
    name: str
    message: str


ToolUse = ToolUseBlock | UnreadableUse

_HOLDERS = ("tool_calls", "content", "output", "message")
"""Where messages and whole responses keep their calls."""


def read_tool_uses(message_or_blocks: Any) -> list[ToolUse]:
    """The calls in the order in which they were made."""
    return list(_read(message_or_blocks))


def _read(source: Any) -> Iterator[ToolUse]:
    if isinstance(source, ToolUseBlock | UnreadableUse):
        yield source
    elif isinstance(source, list | tuple):
        for each in source:
            yield from _read(each)
    elif source is None or isinstance(source, str):
        return
    elif (use := _use(source)) is not None:
        yield use
    elif _get(source, "type") in (None, "message"):
        for holder in _HOLDERS:
            yield from _read(_get(source, holder))
        if choices := _get(source, "choices"):  # alternatives: only one of them was chosen
            yield from _read(choices[0])


def _use(source: Any) -> ToolUse | None:
    """The call that this object is; None if it is none."""
    match _get(source, "type"):
        case "tool_use":
            return _call(_get(source, "id"), _get(source, "name"), _get(source, "input"))
        case "function" if (function := _get(source, "function")) is not None:
            return _call(_get(source, "id"), _get(function, "name"), _get(function, "arguments"))
        case "custom" if (custom := _get(source, "custom")) is not None:
            return _text_call(_get(source, "id"), _get(custom, "name"), _get(custom, "input"))
        case "function_call":
            name, arguments = _get(source, "name"), _get(source, "arguments")
            return _call(_get(source, "call_id"), name, arguments)
        case "custom_tool_call":
            return _text_call(_get(source, "call_id"), _get(source, "name"), _get(source, "input"))
    if _get(source, "method") == "tools/call":
        request, parameters = _get(source, "id"), _get(source, "params")
        arguments = _get(parameters, "arguments")
        return _call(request, _get(parameters, "name"), {} if arguments is None else arguments)
    if (function := _get(source, "function")) is not None:  # some servers leave the type out
        return _call(_get(source, "id"), _get(function, "name"), _get(function, "arguments"))
    return None


def _get(source: Any, key: str) -> Any:
    return source.get(key) if isinstance(source, Mapping) else getattr(source, key, None)


def _call(id: Any, name: Any, arguments: Any) -> ToolUse:
    shown_id = str(id) if isinstance(id, str | int) and not isinstance(id, bool) else ""
    if not shown_id:
        return UnreadableUse("", name if isinstance(name, str) else "", "the call has no id")
    if not isinstance(name, str) or not name:
        return UnreadableUse(shown_id, "", "the call names no tool")
    if isinstance(arguments, str):
        try:
            arguments = strict_json.loads(arguments)
        except strict_json.StrictJsonError as error:
            return UnreadableUse(shown_id, name, f"the arguments are not JSON we take: {error}")
    if not isinstance(arguments, dict):
        return UnreadableUse(shown_id, name, "the arguments are not a JSON object")
    return ToolUseBlock(shown_id, name, arguments)


def _text_call(id: Any, name: Any, text: Any) -> ToolUse:
    return _call(id, name, {"text": text} if isinstance(text, str) else None)
