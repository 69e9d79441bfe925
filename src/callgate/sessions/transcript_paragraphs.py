"""How a message and a call of a stored session read: paragraphs of Markdown.

Pure functions. Every text that a person, a model or a tool brought goes through `markdown`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from callgate.core.events import (
    COMPLETED,
    CONFIRMATION_REQUESTED,
    CONFIRMATION_RESOLVED,
    FAILED,
    INPUT_INVALID,
    OUTPUT_DELTA,
    TERMINAL,
    Event,
)
from callgate.core.stored import StoredMessage
from callgate.sessions.markdown import code, fenced, folded
from callgate.sessions.ordering import blocks

_SPEAKERS = {"user": "User", "assistant": "Assistant", "system": "System"}


class ToolUse(str):
    """Stands behind the paragraphs of a tool use, where what became of its call is told; its id."""

    __slots__ = ()


def message_paragraphs(message: StoredMessage, names: Mapping[str, str]) -> Iterator[str | ToolUse]:
    """`names` are the tools of the tool uses that messages ask for."""
    role = str(message.body.get("role"))
    speaker = _SPEAKERS.get(role) or code(role)
    for block in blocks(message):
        match block:
            case {"type": "text", "text": str(text)}:
                yield f"**{speaker}**:\n\n{fenced(text)}"
            case {"type": "thinking"}:
                thought = str(block.get("thinking") or block.get("text") or "")
                yield folded(f"**{speaker}** thinks", thought)
            case {"type": "tool_use", "name": str(name)}:
                yield f"**{speaker}** calls {code(name)}:"
                yield fenced(_json(block.get("input")), "json")
                yield ToolUse(block.get("id"))
            case {"type": "tool_result"}:
                yield from _result(block, names.get(str(block.get("tool_use_id"))))
            case _:
                yield f"**{speaker}**: {_other(block)}"


def _result(block: Mapping[str, Any], name: str | None) -> Iterator[str]:
    yield f"Result{'' if name is None else f' of {code(name)}'}" + (
        ", an error:" if block.get("is_error") else ":"
    )
    content = block.get("content")
    for part in [content] if isinstance(content, str) else content or ():
        match part:
            case str(text) | {"type": "text", "text": str(text)}:
                yield folded("Text", text)
            case _:
                yield _other(part)


def direct_call(call: str, events: Sequence[Event]) -> Iterator[str]:
    """All of a call that no message asked for."""
    names = (str(each.payload["tool_name"]) for each in events if "tool_name" in each.payload)
    yield f"**Call** of {code(next(names, 'a tool'))} ({code(call)}):"
    payloads = [each.payload for each in events if each.payload.get("input_summary")]
    if payloads:
        yield fenced(str(payloads[0]["input_summary"]))
    yield from call_history(events)
    output = "".join(str(e.payload.get("text", "")) for e in events if e.type == OUTPUT_DELTA)
    if output:
        yield folded("Output", output)


def call_history(events: Sequence[Event]) -> Iterator[str]:
    """What the events say of a call: who was asked, what was answered, how it ended."""
    lines = [
        f"- {line}"
        for event in events
        if event.type in _DESCRIBE
        for line in _DESCRIBE[event.type](event.payload)
    ]
    if events and not any(event.type in TERMINAL for event in events):
        lines.append("- has not ended")
    if lines:
        yield "\n".join(lines)


def _question(payload: Mapping[str, Any]) -> Iterator[str]:
    yield f"asked: {code(str(payload.get('why') or 'may this run?'))}"


def _answer(payload: Mapping[str, Any]) -> Iterator[str]:
    by = f" by {code(str(payload['by']))}" if payload.get("by") else ""
    scope = f", scope {code(str(payload['scope']))}" if payload.get("scope") else ""
    yield f"answered: {code(str(payload.get('decision')))}{by}{scope}"


def _completed(payload: Mapping[str, Any]) -> Iterator[str]:
    yield ("completed" if payload.get("success", True) else "reported failure") + _duration(payload)
    yield from (f"changed: {code(str(path))}" for path in payload.get("files_modified") or ())
    if payload.get("command_executed"):
        yield f"ran: {code(str(payload['command_executed']))}"


def _failed(payload: Mapping[str, Any]) -> Iterator[str]:
    kind, message = code(str(payload.get("error_class"))), code(str(payload.get("message")))
    yield f"failed: {kind} {message}{_duration(payload)}"


def _invalid(payload: Mapping[str, Any]) -> Iterator[str]:
    wrong = "; ".join(map(str, payload.get("validation_errors") or ()))
    yield f"refused, wrong arguments: {code(wrong)}"


_DESCRIBE: Mapping[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    CONFIRMATION_REQUESTED: _question,
    CONFIRMATION_RESOLVED: _answer,
    COMPLETED: _completed,
    FAILED: _failed,
    INPUT_INVALID: _invalid,
}


def _duration(payload: Mapping[str, Any]) -> str:
    took = payload.get("latency_ms")
    return f" after {took:,.0f} ms" if isinstance(took, int | float) and took >= 1 else ""


def _other(block: Any) -> str:
    """A block that is not text: an image by its size, anything else as JSON."""
    match block:
        case {"type": "image", "source": {"data": str(data)} as source}:
            kind = source.get("kind") or source.get("type") or "base64"
            size = f"{len(data) * 3 // 4 - data[-2:].count('='):,} bytes"
            where = size if kind == "base64" else data
            return code(f"[{block.get('media_type') or 'image'}, {where}]")
        case {"type": "json", "value": value}:
            return folded("Value", _json(value), "json")
    return folded("Block", _json(block), "json")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=repr)
