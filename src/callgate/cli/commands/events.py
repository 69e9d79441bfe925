"""`callgate events`: what happened in the sessions, and with `--follow` what happens next.

With `--session` an event's cursor is its number; without, it is a text that means nothing but
the place. Reading again with `--since` and the last cursor seen misses nothing.
"""

from __future__ import annotations

import select
import sys
from argparse import Namespace
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from contextlib import aclosing
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from callgate.cli.errors import OK, CliError
from callgate.cli.records.stores import find_session, settle, short, with_store, words
from callgate.cli.ui.output import print_json_line
from callgate.cli.ui.terminal import Paint, columns, is_terminal, paint_for, say
from callgate.cli.ui.visible import clip, visible
from callgate.core.events import COMPLETED, FAILED, INPUT_INVALID, OUTPUT_DELTA, Event
from callgate.core.stores import PAGE, EventPage, Hint, Store, pruned_upto

_COLOURS = {FAILED: "red", INPUT_INVALID: "red", COMPLETED: "green", OUTPUT_DELTA: "dim"}
_DETAIL_FIELDS = (
    "message",
    "why",
    "command_executed",
    "input_summary",
    "text",
    "decision",
    "by",
    "validation_errors",
    "files_modified",
)
"""Fields of a payload that are shown to a person, in this order."""
_SHOWN = 200
_NARROWEST = 20


class Placed(NamedTuple):
    cursor: int | str
    """What continues behind the event."""
    event: Event


def events(options: Namespace) -> int:
    words(options)
    with_store(options, lambda store: show_events(store, options))
    return OK


async def show_events(store: Store, options: Namespace) -> None:
    show = _Show(options)
    pages = await _pages(store, options)
    if options.n is not None:
        show(await _last(pages, options.n, show))
    else:
        async for page in pages.there():
            show(page)
    sys.stdout.flush()
    if options.follow:
        async with aclosing(follow(store, pages)) as coming:
            async for page in coming:
                show(page)
                sys.stdout.flush()


async def _last(pages: OfAll | OfOne, count: int, show: _Show) -> list[Placed]:
    """The last so many that are wanted, read from the end and no further than necessary."""
    found: list[Placed] = []
    limit = PAGE if show.chooses else max(1, min(count, PAGE))
    async for page in pages.backwards(limit):
        wanted = [each for each in page if show.wants(each.event)]
        found = [*wanted, *found][-count:] if count else []
        if len(found) >= count:
            break
    return found


class OfAll:
    """The events of all sessions, from a cursor on."""

    def __init__(self, store: Store, cursor: str | None) -> None:
        self._store = store
        self._cursor = cursor

    async def there(self) -> AsyncIterator[list[Placed]]:
        """What there is by now, page by page."""
        while True:
            page = await self._store.read_all(self._cursor)
            if not page.events:
                return
            self._cursor = page.cursor
            yield _placed(page)

    async def backwards(self, limit: int) -> AsyncIterator[list[Placed]]:
        """The same, the last page first. What comes later is behind all of them."""
        first, upto = self._cursor, None
        while (page := await self._store.read_last(first, upto, limit)).events:
            if upto is None:
                self._cursor = page.cursor
            upto = page.begin
            yield _placed(page)

    def wake(self) -> Hint:
        return self._store.wake()


def _placed(page: EventPage) -> list[Placed]:
    return [Placed(*each) for each in zip(page.cursors, page.events, strict=True)]


class OfOne:
    """The events of one session, from a number on."""

    def __init__(self, store: Store, session: str, after: int) -> None:
        self._store = store
        self._session = session
        self._after = after

    async def there(self) -> AsyncIterator[list[Placed]]:
        while page := await self._store.read_events(self._session, self._after):
            upto = pruned_upto(page, self._after)
            if upto:  # one stands for them all
                self._after = upto
                yield [Placed(upto, page[0])]
                continue
            first = self._after + 1
            self._after += len(page)
            yield [Placed(seq, event) for seq, event in enumerate(page, first)]

    async def backwards(self, limit: int) -> AsyncIterator[list[Placed]]:
        begin = self._after
        end = (await self._store.get_session(self._session)).last_seq
        self._after = max(begin, end)
        while end > begin:
            first = max(begin, end - limit)
            page = await self._between(first, end)
            upto = min(pruned_upto(page, first), end)
            if upto:  # nothing is before these
                page, first, begin = page[upto - first - 1 :], upto - 1, end
            yield [Placed(seq, event) for seq, event in enumerate(page, first + 1)]
            end = first

    async def _between(self, after: int, upto: int) -> list[Event]:
        found: list[Event] = []
        while after + len(found) < upto:  # a page is short where events are large
            page = await self._store.read_events(
                self._session, after + len(found), upto - after - len(found)
            )
            if not page:
                break
            found += page
        return found

    def wake(self) -> Hint:
        return self._store.wake(self._session)


async def follow(store: Store, pages: OfAll | OfOne) -> AsyncGenerator[list[Placed]]:
    """What there is by now and what comes, until nobody reads our output any more."""
    with pages.wake() as hint:
        while True:
            async for page in pages.there():
                yield page
            if not await hint.wait():
                _ensure_read()
                await settle(store)  # those who died since


async def _pages(store: Store, options: Namespace) -> OfAll | OfOne:
    since = options.since
    if options.session is None:
        try:
            await store.read_all(since, 1)
        except ValueError:
            raise _bad_cursor(f"{since!r} is no cursor of this command") from None
        if since is not None and (await store.behind(since)).pruned:
            say("callgate: some of the events after this cursor were pruned")
        return OfAll(store, since)
    session = await find_session(store, options.session)
    if since is None:
        return OfOne(store, session.id, 0)
    if not (since.isascii() and since.isdecimal() and len(since) < 16):
        raise _bad_cursor(f"{since!r} is no number of an event")
    if int(since) > session.last_seq:
        raise _bad_cursor(f"session {session.id} has only {session.last_seq} events")
    return OfOne(store, session.id, int(since))


def _bad_cursor(message: str) -> CliError:
    return CliError(f"--since: {message}", reason="bad_cursor")


def _ensure_read() -> None:
    """Notice while nothing happens that whoever read our output has gone."""
    poll = select.poll()
    try:
        poll.register(sys.stdout, 0)
    except (OSError, ValueError):
        return
    if any(happened & (select.POLLERR | select.POLLNVAL) for _, happened in poll.poll(0)):
        raise BrokenPipeError


class _Show:
    """Prints events: a line each, or an object a line."""

    def __init__(self, options: Namespace) -> None:
        self._types: Collection[str] = options.type or ()
        self._json: bool = options.json
        self._live: bool = options.follow
        self._paint: Paint = paint_for(sys.stdout)

    @property
    def chooses(self) -> bool:
        return bool(self._types)

    def wants(self, event: Event) -> bool:
        return not self._types or event.type in self._types

    def __call__(self, page: Collection[Placed]) -> None:
        for cursor, event in page:
            if not self.wants(event):
                continue
            if self._json:
                print_placed(cursor, event)
            elif self._live and event.type == OUTPUT_DELTA:
                for line in str(event.payload.get("text", "")).splitlines():
                    print(f"  | {visible(line)}")
            else:
                print(self._line(event))

    def _line(self, event: Event) -> str:
        head = f"{clock(event.timestamp)}  {visible(short(event.session_id))}  "
        type = visible(event.type)
        text = "  ".join(_details(event.payload))
        room = columns() - len(head) - len(type) - 3 if is_terminal(sys.stdout) else _SHOWN
        coloured = self._paint(_COLOURS.get(event.type, "cyan"), type)
        return f"{head}{coloured}  {clip(text, max(room, _NARROWEST))}".rstrip()


def print_placed(cursor: int | str, event: Event) -> None:
    """As `--json` shows it."""
    print_json_line({"cursor": cursor, **msgspec.to_builtins(event)})


def _details(payload: Any) -> Iterator[str]:
    """The tool, and the rest of a payload in a few words."""
    if payload.get("tool_name"):
        yield str(payload["tool_name"])
    if payload.get("error_class"):
        yield str(payload["error_class"])
    if payload.get("success") is False:
        yield "reported failure"
    for name in _DETAIL_FIELDS:
        value = payload.get(name)
        if value:
            text = "; ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield text[: 2 * _SHOWN]


def clock(timestamp: float) -> str:
    """Date and time here; a time that cannot be has the shape of one all the same."""
    try:
        return datetime.fromtimestamp(timestamp).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "0000-00-00 00:00:00"
