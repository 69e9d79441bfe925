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
    survey, parts = Survey(), list[str]()
    for item in items:
        survey.add(item)
    page = TranscriptPage(session, survey, parts.append)
    for item in items:
        page.add(item)
    page.end()
    return "".join(parts)


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


class _PutAside(NamedTuple):
    """A text on the disk."""

    begin: int
    size: int


class _Part(msgspec.Struct, eq=False):
    """Some paragraphs. Those about a call are made once its last event is read."""

    text: str | _PutAside | None = None
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
    parts: deque[_Part] = msgspec.field(default_factory=deque)
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
        self._waiting: dict[int, list[_Part]] = {}
        """The parts about each call, by its hash, until that has ended."""
        self._shelf = _Shelf()
        self._tells_pruned = False
        write("\n\n".join(_heading(session)) + "\n")

    def add(self, item: Item) -> None:
        self.count += 1
        number = self._order.section_of(item)
        if number not in self._sections:
            self._sections[number] = _Section(self._survey.facts_of(number))
        section = self._sections[number]
        if isinstance(item, StoredMessage):
            for part in message_paragraphs(item, self._survey.names):
                section.parts.append(self._part_about(part))
        elif (call := call_of(item)) is not None:
            self._add_to_call(section, call, item)
        else:
            section.parts.append(_Part(self._shelf.put(_text(self._note(item)))))
        section.is_complete = section.facts.last <= self.count
        self._write_ready()

    def end(self) -> None:
        """Write whatever still waits."""
        for parts in self._waiting.values():
            self._complete(parts)
        for section in self._sections.values():
            section.is_complete = True
        self._write_ready()
        self._shelf.close()

    def _part_about(self, paragraph: str | ToolUse) -> _Part:
        if not isinstance(paragraph, ToolUse):
            return _Part(self._shelf.put(_text([paragraph])))
        call = self._survey.calls.get(paragraph)
        if call is None:
            return _Part("")
        part = _Part()
        self._waiting.setdefault(call, []).append(part)
        return part

    def _add_to_call(self, section: _Section, call: str, event: Event) -> None:
        key = hash(call)
        if key not in self._waiting:
            if event.payload.get("tool_use_id") in self._survey.names:
                return
            self._waiting[key] = [_Part(call=call)]
            section.parts.extend(self._waiting[key])
        for part in self._waiting[key]:
            part.events.append(event)
        if self._survey.is_last(key, event, self.count):
            self._complete(self._waiting.pop(key))

    def _complete(self, parts: Iterable[_Part]) -> None:
        for part in parts:
            part.text = self._shelf.put(_text(part.paragraphs()))
            part.events.clear()

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
            while section.parts:
                if (text := section.parts[0].text) is None:
                    return
                section.parts.popleft()
                self._write_text(section, self._shelf.take(text))
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


class _Shelf:
    """Texts that wait: in memory, and on the disk when they are many."""

    def __init__(self) -> None:
        self._held = 0
        """Characters in memory."""
        self._file: IO[bytes] | None = None

    def put(self, text: str) -> str | _PutAside:
        if self._held + len(text) <= _MOST_WAITING:
            self._held += len(text)
            return text
        if self._file is None:
            self._file = TemporaryFile()  # noqa: SIM115  # closed with the page
        begin = self._file.seek(0, os.SEEK_END)
        return _PutAside(begin, self._file.write(text.encode("utf-8", "surrogatepass")))

    def take(self, text: str | _PutAside) -> str:
        if isinstance(text, str):
            self._held -= len(text)
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
