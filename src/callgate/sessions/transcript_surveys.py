"""What has to be known of a whole stored session before the first part of its page is written:
its sections, the tools that messages name, and the calls whose last event does not end them.
"""

from __future__ import annotations

import sys

import msgspec

from callgate.core.events import TERMINAL, Event
from callgate.core.stored import StoredMessage
from callgate.sessions.ordering import blocks

Item = Event | StoredMessage


class SectionOrder:
    """A turn is one section, at its first place; what is outside of turns stays where it is."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}
        self._count = 0
        self._ends_outside = False
        """Whether the last section is one outside of turns."""

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
    """Remembers calls by a few bits each, so that it may take another for one of them."""

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
    """What has to be known of a whole session; of calls and texts that are as usual, nothing."""

    def __init__(self) -> None:
        self.count = 0
        self.sections: list[SectionFacts] = []
        self.names: dict[str, str] = {}
        """The tool of each tool use that a message asks for."""
        self.calls: dict[str, int] = {}
        """The call, by its hash, of each of these."""
        self.ends: dict[int, int] = {}
        """By the hash of a call: the number of its last event, where that does not end it."""
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
        """Whether nothing more is told of the call of an event."""
        return self.ends[call] <= number if call in self.ends else event.type in TERMINAL

    def facts_of(self, section: int) -> SectionFacts:
        if section < len(self.sections):
            return self.sections[section]
        return SectionFacts("Later", last=sys.maxsize)  # the session was changed meanwhile

    def _section(self, item: Item) -> SectionFacts:
        number = self._order.section_of(item)
        if number == len(self.sections):
            self._turns += item.turn_id is not None
            title = "Outside of turns" if item.turn_id is None else f"Turn {self._turns}"
            self.sections.append(SectionFacts(title))
        return self.sections[number]


def call_of(event: Event) -> str | None:
    """The call that an event is about."""
    if not event.type.startswith("tool."):
        return None
    id = event.payload.get("call_id") or event.payload.get("tool_use_id")
    return None if id is None else str(id)
