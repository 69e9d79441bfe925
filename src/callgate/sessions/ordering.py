"""A stored session in the order in which it happened.

Events and messages are kept apart, each with numbers of their own. `in_order` puts them into
one row: events by their numbers, each message before the first event that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from callgate.core.events import TURN_CANCELLED, TURN_COMPLETED, Event
from callgate.core.stored import StoredMessage


class Numbered(NamedTuple):
    number: int
    """Counted from 1, events and messages each for themselves."""
    item: Event | StoredMessage


def in_order(messages: Sequence[StoredMessage], events: Sequence[Event]) -> list[Numbered]:
    """All of a session in one row.

    A message comes before the events of the calls it asks for, before the end of its turn
    and before later turns; what is not bound like that comes after the events.
    """
    uses, begins, ends = _needs(messages)
    row: list[Numbered] = []
    placed = 0

    def tell(upto: int) -> None:
        nonlocal placed
        for number in range(placed + 1, upto + 1):
            row.append(Numbered(number, messages[number - 1]))
        placed = max(placed, upto)

    for number, event in enumerate(events, 1):
        tell(uses.get(str(event.payload.get("tool_use_id")), 0))
        if event.turn_id is not None:
            bound = ends if event.type in (TURN_COMPLETED, TURN_CANCELLED) else begins
            tell(bound.get(event.turn_id, 0))
        row.append(Numbered(number, event))
    tell(len(messages))
    return row


class _Needs(NamedTuple):
    """How many messages come first."""

    uses: dict[str, int]
    """Before the events of a tool use."""
    begins: dict[str, int]
    """Before the first event of a turn."""
    ends: dict[str, int]
    """Before the event that ends a turn."""


def _needs(messages: Sequence[StoredMessage]) -> _Needs:
    needs = _Needs({}, {}, {})
    for number, message in enumerate(messages, 1):
        if message.turn_id is not None:
            needs.begins.setdefault(message.turn_id, number - 1)
            needs.ends[message.turn_id] = number
        for block in blocks(message):
            match block:
                case {"type": "tool_use", "id": str(id)}:
                    needs.uses.setdefault(id, number)
    return needs


def turns(messages: Sequence[StoredMessage], events: Sequence[Event]) -> dict[str, str]:
    """The turns in their order, and what was said first in each; empty if nothing was."""
    row = in_order(messages, events)
    found = {each.item.turn_id: "" for each in row if each.item.turn_id is not None}
    for message in messages:
        if message.turn_id is None or message.body.get("role") != "user":
            continue
        for block in blocks(message):
            match block:
                case {"type": "text", "text": str(text)}:
                    found[message.turn_id] = found[message.turn_id] or text
    return found


def blocks(message: StoredMessage) -> Sequence[Any]:
    """A message's content; a plain text is one block of it."""
    content = message.body.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list | tuple) else ()
