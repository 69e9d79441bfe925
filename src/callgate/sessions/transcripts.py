"""A stored session as one Markdown page: a heading a turn, who said what, which tools ran and
who allowed it.

    items, in their order --> Survey         what has to be known before the first part is written
    items, in their order --> TranscriptPage --> text, part by part

The second pass writes a part as soon as everything before it is written. What waits is little: the
events of calls that have not ended yet, and what stands behind them. More of that is put aside
on the disk.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from tempfile import TemporaryFile
from typing import IO, NamedTuple

import msgspec

from callgate.core.events import EVENTS_LOST, EVENTS_PRUNED, TURN_CANCELLED, Event
from callgate.core.stored import StoredMessage, StoredSession
from callgate.core.stores import Store
from callgate.sessions.markdown import code
from callgate.sessions.ordering import in_order, read_in_order
from callgate.sessions.transcript_paragraphs import (
    ToolUse,
    call_history,
    direct_call,
    message_paragraphs,
)
from callgate.sessions.transcript_surveys import Item, SectionFacts, SectionOrder, Survey, call_of

_MOST_WAITING = 1_000_000
"""Characters that wait in memory; the others do on the disk."""


def transcript(
    session: StoredSession, messages: Sequence[StoredMessage], events: Sequence[Event]
) -> str:
    """The page. It ends with a line end."""
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
    """The same, part by part; each ends with a line end."""
    survey = Survey()
    async for _, item in read_in_order(store, session.id):
        survey.add(item)
    page = TranscriptPage(session, survey, write)
    async for _, item in read_in_order(store, session.id):
        if page.count == survey.count:  # what came since is not in the survey
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
    """A text on the disk."""

    begin: int
    size: int


class _Slot(msgspec.Struct, eq=False):
    """Some paragraphs. Those about a call are made once its last event is read."""

    text: str | _SpilledText | None = None
    """None: its call goes on."""
    call: str | None = None
    """The call that it tells everything of; None: a message asked for it, and tells the rest."""
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
    """Takes the items of a session once more, and writes what can be written."""

    def __init__(
        self, session: StoredSession, survey: Survey, write: Callable[[str], object]
    ) -> None:
        self.count = 0
        self._survey = survey
        self._write = write
        self._order = SectionOrder()
        self._sections: dict[int, _Section] = {}
        """Those that are not written to their end, in their order."""
        self._waiting: dict[int, list[_Slot]] = {}
        """The parts about each call, by its hash, until that has ended."""
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
        """Write whatever still waits."""
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
            yield f"*Events that were pruned, being too old: {upto}.*"
        elif event.type == TURN_CANCELLED:
            yield "*The turn was cancelled.*"

    def _write_ready(self) -> None:
        """Write from the beginning on, up to a call or a section that goes on."""
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
    """Texts that wait: in memory, and on the disk when they are many."""

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
    """As they stand behind others, with a blank line before each."""
    return "".join(f"\n{each}\n" for each in paragraphs)
