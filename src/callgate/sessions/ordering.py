"""Stored session in chronological order, and the survey that precedes its transcript.

Events and messages have separate numbers. `in_order` merges them: events by number, each message
before the first event that needs it. `read_in_order` does this page by page from a store, for
sessions of any size. A `Survey` has the sections of the session, the tools that messages name, and
the calls whose last event does not end them.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import msgspec

from callgate.core.events import TERMINAL, TURN_CANCELLED, TURN_COMPLETED, Event
from callgate.core.stored import StoredMessage
from callgate.core.stores import Store, pruned_upto


class Numbered(NamedTuple):
    number: int
    """Counted from 1, separately for events and messages."""
    item: Event | StoredMessage


def in_order(messages: Sequence[StoredMessage], events: Sequence[Event]) -> list[Numbered]:
    """Return a whole session in one order.

    A message comes before the events of its calls, before the end of its turn and before later
    turns. Unbound messages come after the events.
    """
    needs = _Needs({}, {}, {})
    for message in enumerate(messages, 1):
        needs.add(*message)
    row: list[Numbered] = []
    placed = 0
    for number, event in enumerate(events, 1):
        upto = needs.before(event)
        row += (Numbered(n, messages[n - 1]) for n in range(placed + 1, upto + 1))
        placed = max(placed, upto)
        row.append(Numbered(number, event))
    row += (Numbered(n, messages[n - 1]) for n in range(placed + 1, len(messages) + 1))
    return row


async def read_in_order(store: Store, session: str) -> AsyncIterator[Numbered]:
    """Yield a session in order, page by page; only the ids of messages stay in memory."""
    needs = _Needs({}, {}, {})
    async for message in _messages(store, session):
        needs.add(*message)
    messages = _messages(store, session)
    placed = 0
    async for number, event in read_numbered(store, session):
        upto = needs.before(event)
        while placed < upto:
            placed += 1
            yield Numbered(*await anext(messages))
        yield Numbered(number, event)
    async for message in messages:
        yield Numbered(*message)


async def _messages(store: Store, session: str) -> AsyncIterator[tuple[int, StoredMessage]]:
    after = 0
    while page := await store.read_messages(session, after):
        for each in enumerate(page, after + 1):
            yield each
        after += len(page)


async def read_numbered(store: Store, session: str) -> AsyncIterator[tuple[int, Event]]:
    """Yield every event with its number; pruned events as one, with the number of the last."""
    after = 0
    while page := await store.read_events(session, after):
        if upto := pruned_upto(page, after):  # one event replaces the pruned ones
            yield upto, page[0]
            after = upto
            continue
        for each in enumerate(page, after + 1):
            yield each
        after += len(page)


class _Needs(NamedTuple):
    """Number of messages that come before an event."""

    uses: dict[str, int]
    """Before the events of a tool use."""
    begins: dict[str, int]
    """Before the first event of a turn."""
    ends: dict[str, int]
    """Before the event that ends a turn."""

    def add(self, number: int, message: StoredMessage) -> None:
        """Add a message; messages arrive in order."""
        if message.turn_id is not None:
            self.begins.setdefault(message.turn_id, number - 1)
            self.ends[message.turn_id] = number
        for block in blocks(message):
            match block:
                case {"type": "tool_use", "id": str(id)}:
                    self.uses.setdefault(id, number)

    def before(self, event: Event) -> int:
        upto = self.uses.get(str(event.payload.get("tool_use_id")), 0)
        if event.turn_id is None:
            return upto
        bound = self.ends if event.type in (TURN_COMPLETED, TURN_CANCELLED) else self.begins
        return max(upto, bound.get(event.turn_id, 0))


def turns(messages: Sequence[StoredMessage], events: Sequence[Event]) -> dict[str, str]:
    """Return the turns in order, each with its first message; empty if there are none."""
    found: dict[str, str] = {}
    for _, item in in_order(messages, events):
        note_turn(found, item)
    return found


def note_turn(found: dict[str, str], item: Event | StoredMessage) -> None:
    """Add the turn of an item; items arrive in order."""
    if item.turn_id is None:
        return
    prompt = found.setdefault(item.turn_id, "")
    if prompt or not isinstance(item, StoredMessage) or item.body.get("role") != "user":
        return
    for block in blocks(item):
        match block:
            case {"type": "text", "text": str(text)}:
                found[item.turn_id] = found[item.turn_id] or text


def blocks(message: StoredMessage) -> Sequence[Any]:
    """Return the content of a message; plain text becomes one block."""
    content = message.body.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list | tuple) else ()


Item = Event | StoredMessage


class SectionOrder:
    """Order of sections: a turn is one section, at its first item; other items keep their place."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}
        self._count = 0
        self._ends_outside = False
        """Whether the last section is outside of turns."""

    def section_of(self, item: Item) -> int:
        turn = item.turn_id
        if turn in self._turns:
            return self._turns[turn]
        if turn is not None:
            self._turns[turn] = self._count
        elif self._ends_outside:
            return self._count - 1
        self._ends_outside = turn is None
        self._count += 1
        return self._count - 1


class SectionFacts(msgspec.Struct):
    title: str
    began: float | None = None
    """The time of its earliest event."""
    last: int = 0
    """The number of its last item."""


class _EndedCalls:
    """A set of calls with a few bits for each, so false positives are possible."""

    _BITS = 1 << 22

    def __init__(self) -> None:
        self._bits = bytearray(self._BITS // 8)

    def add(self, call: int) -> None:
        for bit in self._bit_numbers(call):
            self._bits[bit >> 3] |= 1 << (bit & 7)

    def __contains__(self, call: int) -> bool:
        return all(self._bits[bit >> 3] & 1 << (bit & 7) for bit in self._bit_numbers(call))

    def _bit_numbers(self, call: int) -> tuple[int, int]:
        return call % self._BITS, (call >> 32) % self._BITS


class Survey:
    """Facts about a whole session; ordinary calls and texts need no memory."""

    def __init__(self) -> None:
        self.count = 0
        self.sections: list[SectionFacts] = []
        self.names: dict[str, str] = {}
        """The tool of each tool use in a message."""
        self.calls: dict[str, int] = {}
        """The call of each tool use, by its hash."""
        self.ends: dict[int, int] = {}
        """Keys are call hashes; values number the last event, unless it ends the call."""
        self._ended = _EndedCalls()
        self._order = SectionOrder()
        self._turns = 0

    def add(self, item: Item) -> None:
        self.count += 1
        section = self._section(item)
        section.last = self.count
        if isinstance(item, StoredMessage):
            for block in blocks(item):
                match block:
                    case {"type": "tool_use", "id": str(id), "name": str(name)}:
                        self.names[id] = name
            return
        earlier = item.timestamp if section.began is None else section.began
        section.began = min(earlier, item.timestamp)
        if (call := call_of(item)) is not None:
            self._add_to_call(hash(call), item)

    def _add_to_call(self, call: int, event: Event) -> None:
        is_known = call in self.ends or call in self._ended
        use = str(event.payload.get("tool_use_id"))
        if use in self.names and (not is_known or use not in self.calls):
            self.calls[use] = call
        if event.type in TERMINAL and call not in self._ended:
            self.ends.pop(call, None)
            self._ended.add(call)
        else:
            self.ends[call] = self.count

    def is_last(self, call: int, event: Event, number: int) -> bool:
        """Whether an event is the last of its call."""
        return self.ends[call] <= number if call in self.ends else event.type in TERMINAL

    def facts_of(self, section: int) -> SectionFacts:
        if section < len(self.sections):
            return self.sections[section]
        return SectionFacts("Later", last=sys.maxsize)  # the session has changed since

    def _section(self, item: Item) -> SectionFacts:
        number = self._order.section_of(item)
        if number == len(self.sections):
            self._turns += item.turn_id is not None
            title = "Outside of turns" if item.turn_id is None else f"Turn {self._turns}"
            self.sections.append(SectionFacts(title))
        return self.sections[number]


def call_of(event: Event) -> str | None:
    """Return the call of an event."""
    if not event.type.startswith("tool."):
        return None
    id = event.payload.get("call_id") or event.payload.get("tool_use_id")
    return None if id is None else str(id)
