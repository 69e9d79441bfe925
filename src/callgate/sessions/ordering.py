"""A stored session in the order in which it happened.

Events and messages are kept apart, each with numbers of their own. `in_order` puts them into
one row: events by their numbers, each message before the first event that needs it. `read_in_order`
does the same page by page from a store, for sessions of any size.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from callgate.core.events import TURN_CANCELLED, TURN_COMPLETED, Event
from callgate.core.stored import StoredMessage
from callgate.core.stores import Store, pruned_upto


class Numbered(NamedTuple):
    number: int
    """Counted from 1, events and messages each for themselves."""
    item: Event | StoredMessage


def in_order(messages: Sequence[StoredMessage], events: Sequence[Event]) -> list[Numbered]:
    """All of a session in one row.

    A message comes before the events of the calls it asks for, before the end of its turn
    and before later turns; what is not bound like that comes after the events.
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
    """The same, page by page: of messages only the ids are kept."""
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
    """Every event with its number; those that are pruned as one, with the number of the last."""
    after = 0
    while page := await store.read_events(session, after):
        if upto := pruned_upto(page, after):  # one stands for them all
            yield upto, page[0]
            after = upto
            continue
        for each in enumerate(page, after + 1):
            yield each
        after += len(page)


class _Needs(NamedTuple):
    """How many messages come first."""

    uses: dict[str, int]
    """Before the events of a tool use."""
    begins: dict[str, int]
    """Before the first event of a turn."""
    ends: dict[str, int]
    """Before the event that ends a turn."""

    def add(self, number: int, message: StoredMessage) -> None:
        """Called for each message, in their order."""
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
    """The turns in their order, and what was said first in each; empty if nothing was."""
    found: dict[str, str] = {}
    for _, item in in_order(messages, events):
        note_turn(found, item)
    return found


def note_turn(found: dict[str, str], item: Event | StoredMessage) -> None:
    """Add what an item says of its turn; items come in their order."""
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
    """A message's content; a plain text is one block of it."""
    content = message.body.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list | tuple) else ()
