"""Stored session as one Markdown page: a heading per turn, messages, calls, approvals.

    items, in their order --> Survey         facts that the first part of the page needs
    items, in their order --> TranscriptPage --> text, part by part

The second pass writes a part after all parts before it. Only events of unfinished calls and their
successors wait; larger amounts wait on the disk. Text of users, models and tools is made inert.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import msgspec

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
from callgate.core.stores import Store
from callgate.core.texts import code, fenced, folded
from callgate.sessions.ordering import (
    Item,
    SectionFacts,
    SectionOrder,
    Survey,
    blocks,
    call_of,
    in_order,
    read_in_order,
)

_SPEAKERS = {"user": "User", "assistant": "Assistant", "system": "System"}


class ToolUse(str):
    """Placeholder after the paragraphs of a tool use for the history of its call; its value is the
    id."""

    __slots__ = ()


def message_paragraphs(message: StoredMessage, names: Mapping[str, str]) -> Iterator[str | ToolUse]:
    """Return the paragraphs of a message. `names` has the tools of its tool uses."""
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
    """Yield the paragraphs of a call without a message."""
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
    """Yield the history of a call from its events: the approver, the answer, the end."""
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
    """Describe a block that is not text: an image by its size, anything else as JSON."""
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


_MOST_WAITING = 1_000_000
"""Maximum waiting characters in memory; more wait on disk."""


def transcript(
    session: StoredSession, messages: Sequence[StoredMessage], events: Sequence[Event]
) -> str:
    """Return the page, which ends with a newline."""
    items = [item for _, item in in_order(messages, events)]
    survey, texts = Survey(), list[str]()
    for item in items:
        survey.add(item)
    page = TranscriptPage(session, survey, texts.append)
    for item in items:
        page.add(item)
    page.end()
    return "".join(texts)


async def write_transcript(
    store: Store, session: StoredSession, write: Callable[[str], object]
) -> None:
    """Write the page part by part; each part ends with a newline."""
    survey = Survey()
    async for _, item in read_in_order(store, session.id):
        survey.add(item)
    page = TranscriptPage(session, survey, write)
    async for _, item in read_in_order(store, session.id):
        if page.count == survey.count:  # later items are not in the survey
            break
        page.add(item)
    page.end()


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


class _SpilledText(NamedTuple):
    """A text on disk."""

    begin: int
    size: int


class _Slot(msgspec.Struct, eq=False):
    """Paragraphs of a section. Those about a call are written after its last event."""

    text: str | _SpilledText | None = None
    """None while the call is running."""
    call: str | None = None
    """The call whose complete description this is; None: the message of a call has the rest."""
    events: list[Event] = msgspec.field(default_factory=list)

    def paragraphs(self) -> Iterator[str]:
        if self.call is None:
            return call_history(self.events)
        return direct_call(self.call, self.events)


class _Section(msgspec.Struct, eq=False):
    facts: SectionFacts
    slots: deque[_Slot] = msgspec.field(default_factory=deque)
    has_heading: bool = False
    is_complete: bool = False


class TranscriptPage:
    """Takes the items of a session a second time, and writes the complete parts."""

    def __init__(
        self, session: StoredSession, survey: Survey, write: Callable[[str], object]
    ) -> None:
        self.count = 0
        self._survey = survey
        self._write = write
        self._order = SectionOrder()
        self._sections: dict[int, _Section] = {}
        """Unfinished sections, in order."""
        self._waiting: dict[int, list[_Slot]] = {}
        """The parts about each call until its end, by the call's hash."""
        self._buffer = _TextBuffer()
        self._tells_pruned = False
        write("\n\n".join(_heading(session)) + "\n")

    def add(self, item: Item) -> None:
        self.count += 1
        number = self._order.section_of(item)
        if number not in self._sections:
            self._sections[number] = _Section(self._survey.facts_of(number))
        section = self._sections[number]
        if isinstance(item, StoredMessage):
            for paragraph in message_paragraphs(item, self._survey.names):
                section.slots.append(self._slot_for(paragraph))
        elif (call := call_of(item)) is not None:
            self._add_to_call(section, call, item)
        else:
            section.slots.append(_Slot(self._buffer.put(_text(self._note(item)))))
        section.is_complete = section.facts.last <= self.count
        self._write_ready()

    def end(self) -> None:
        """Write all pending sections."""
        for slots in self._waiting.values():
            self._complete(slots)
        for section in self._sections.values():
            section.is_complete = True
        self._write_ready()
        self._buffer.close()

    def _slot_for(self, paragraph: str | ToolUse) -> _Slot:
        if not isinstance(paragraph, ToolUse):
            return _Slot(self._buffer.put(_text([paragraph])))
        call = self._survey.calls.get(paragraph)
        if call is None:
            return _Slot("")
        slot = _Slot()
        self._waiting.setdefault(call, []).append(slot)
        return slot

    def _add_to_call(self, section: _Section, call: str, event: Event) -> None:
        key = hash(call)
        if key not in self._waiting:
            if event.payload.get("tool_use_id") in self._survey.names:
                return
            self._waiting[key] = [_Slot(call=call)]
            section.slots.extend(self._waiting[key])
        for slot in self._waiting[key]:
            slot.events.append(event)
        if self._survey.is_last(key, event, self.count):
            self._complete(self._waiting.pop(key))

    def _complete(self, slots: Iterable[_Slot]) -> None:
        for slot in slots:
            slot.text = self._buffer.put(_text(slot.paragraphs()))
            slot.events.clear()

    def _note(self, event: Event) -> Iterator[str]:
        if event.type == EVENTS_LOST:
            yield f"*Events that are lost: {code(str(event.payload.get('missed', 1)))}.*"
        elif event.type == EVENTS_PRUNED and not self._tells_pruned:
            self._tells_pruned = True
            upto = code(str(event.payload.get("upto", 1)))
            yield f"*Events that were pruned because of their age: {upto}.*"
        elif event.type == TURN_CANCELLED:
            yield "*The turn was cancelled.*"

    def _write_ready(self) -> None:
        """Write up to the first running call or unfinished section."""
        while self._sections:
            number, section = next(iter(self._sections.items()))
            while section.slots:
                if (text := section.slots[0].text) is None:
                    return
                section.slots.popleft()
                self._write_text(section, self._buffer.take(text))
            if not section.is_complete:
                return
            del self._sections[number]

    def _write_text(self, section: _Section, text: str) -> None:
        if not text:
            return
        if not section.has_heading:
            section.has_heading = True
            began = section.facts.began or 0.0
            when = f", {moment(began)}" if began > 0 else ""
            self._write(f"\n## {section.facts.title}{when}\n")
        self._write(text)


class _TextBuffer:
    """Texts that wait: in memory up to a limit, the others on disk."""

    def __init__(self) -> None:
        self._in_memory = 0
        """Characters in memory."""
        self._file: IO[bytes] | None = None

    def put(self, text: str) -> str | _SpilledText:
        if self._in_memory + len(text) <= _MOST_WAITING:
            self._in_memory += len(text)
            return text
        if self._file is None:
            self._file = TemporaryFile()  # noqa: SIM115  # closed with the page
        begin = self._file.seek(0, os.SEEK_END)
        return _SpilledText(begin, self._file.write(text.encode("utf-8", "surrogatepass")))

    def take(self, text: str | _SpilledText) -> str:
        if isinstance(text, str):
            self._in_memory -= len(text)
            return text
        assert self._file is not None
        self._file.seek(text.begin)
        return self._file.read(text.size).decode("utf-8", "surrogatepass")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _text(paragraphs: Iterable[str]) -> str:
    """Join paragraphs after others, with a blank line before each."""
    return "".join(f"\n{each}\n" for each in paragraphs)
