"""A stored session as one Markdown page: a heading a turn, who said what, which tools ran and
who allowed it.

Pure functions. Every text that a person, a model or a tool brought goes through `markdown`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from callgate.core.events import (
    COMPLETED,
    CONFIRMATION_REQUESTED,
    CONFIRMATION_RESOLVED,
    EVENTS_LOST,
    EVENTS_PRUNED,
    FAILED,
    INPUT_INVALID,
    OUTPUT_DELTA,
    TERMINAL,
    TURN_CANCELLED,
    Event,
)
from callgate.core.stored import StoredMessage, StoredSession
from callgate.sessions.markdown import code, fenced, folded
from callgate.sessions.ordering import Numbered, blocks, in_order, turns

_SPEAKERS = {"user": "User", "assistant": "Assistant", "system": "System"}


def transcript(
    session: StoredSession, messages: Sequence[StoredMessage], events: Sequence[Event]
) -> str:
    """The page. It ends with a line end."""
    page = _Page(messages, events)
    paragraphs = [*_heading(session)]
    numbers = {id: number for number, id in enumerate(turns(messages, events), 1)}
    for turn, items in _sections(in_order(messages, events)):
        shown = [part for item in items for part in page.item(item)]
        if shown:
            title = "Outside of turns" if turn is None else f"Turn {numbers[turn]}"
            began = min((e.timestamp for e in items if isinstance(e, Event)), default=0.0)
            paragraphs += [f"## {title}" + (f", {moment(began)}" if began > 0 else ""), *shown]
    return "\n\n".join(paragraphs) + "\n"


def moment(timestamp: float) -> str:
    try:
        return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def _heading(session: StoredSession) -> Iterator[str]:
    yield f"# {code(session.title) if session.title else 'Session'}"
    lines = [f"- session: {code(session.id)}", f"- workspace: {code(session.workspace)}"]
    lines.append(f"- mode: {session.mode}")
    lines.append(f"- made: {moment(session.created_at)}")
    lines.append(f"- last used: {moment(session.updated_at)}")
    if session.forked_from is not None:
        lines.append(f"- forked from: {code(session.forked_from)}")
    if session.parent is not None:
        lines.append(f"- works for: {code(session.parent)}")
    yield "\n".join(lines)


def _sections(row: Sequence[Numbered]) -> list[tuple[str | None, list[Event | StoredMessage]]]:
    """A turn is one section, at its first place; what is outside stays where it is."""
    sections: list[tuple[str | None, list[Event | StoredMessage]]] = []
    turns: dict[str, list[Event | StoredMessage]] = {}
    for _, item in row:
        turn = item.turn_id
        if turn is None:
            if not sections or sections[-1][0] is not None:
                sections.append((None, []))
            sections[-1][1].append(item)
            continue
        if turn not in turns:
            turns[turn] = []
            sections.append((turn, turns[turn]))
        turns[turn].append(item)
    return sections


class _Page:
    """What has to be known of the whole session while its parts are written."""

    def __init__(self, messages: Sequence[StoredMessage], events: Sequence[Event]) -> None:
        self._tells_pruned = False
        self._names: dict[str, str] = {}
        """The tool of each tool use that a message asks for."""
        for message in messages:
            for block in blocks(message):
                match block:
                    case {"type": "tool_use", "id": str(id), "name": str(name)}:
                        self._names[id] = name
        self._calls: dict[str, list[Event]] = {}
        for event in events:
            if event.type.startswith("tool.") and (call := _call_of(event)) is not None:
                self._calls.setdefault(call, []).append(event)
        self._by_use: dict[str, list[Event]] = {
            str(some[0].payload.get("tool_use_id")): some for some in self._calls.values()
        }

    def item(self, item: Event | StoredMessage) -> Iterator[str]:
        if isinstance(item, StoredMessage):
            yield from self._message(item)
        elif item.type == EVENTS_LOST:
            yield f"*Events that are lost: {code(str(item.payload.get('missed', 1)))}.*"
        elif item.type == EVENTS_PRUNED:
            if not self._tells_pruned:
                self._tells_pruned = True
                upto = code(str(item.payload.get("upto", 1)))
                yield f"*Events that were pruned, being too old: {upto}.*"
        elif item.type == TURN_CANCELLED:
            yield "*The turn was cancelled.*"
        else:
            yield from self._direct_call(item)

    def _message(self, message: StoredMessage) -> Iterator[str]:
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
                    yield from _history(self._by_use.get(str(block.get("id")), ()))
                case {"type": "tool_result"}:
                    yield from self._result(block)
                case _:
                    yield f"**{speaker}**: {_other(block)}"

    def _result(self, block: Mapping[str, Any]) -> Iterator[str]:
        name = self._names.get(str(block.get("tool_use_id")))
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

    def _direct_call(self, event: Event) -> Iterator[str]:
        """All of a call that no message asked for, where its first event stands."""
        call = _call_of(event)
        some = self._calls.get(call or "")
        if not some or some[0] is not event or event.payload.get("tool_use_id") in self._names:
            return
        names = (str(each.payload["tool_name"]) for each in some if "tool_name" in each.payload)
        yield f"**Call** of {code(next(names, 'a tool'))} ({code(str(call))}):"
        payloads = [each.payload for each in some if each.payload.get("input_summary")]
        if payloads:
            yield fenced(str(payloads[0]["input_summary"]))
        yield from _history(some)
        output = "".join(str(e.payload.get("text", "")) for e in some if e.type == OUTPUT_DELTA)
        if output:
            yield folded("Output", output)


def _history(events: Sequence[Event]) -> Iterator[str]:
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


def _call_of(event: Event) -> str | None:
    id = event.payload.get("call_id") or event.payload.get("tool_use_id")
    return None if id is None else str(id)


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
