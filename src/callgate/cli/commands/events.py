"""`callgate events`: show the events of sessions, and with `--follow` new ones as they happen.

With `--session` an event's cursor is its number, otherwise an opaque text. Reading again with
`--since` and the last cursor misses no event.
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
from callgate.cli.stores import find_session, settle, short, span, with_store, words
from callgate.cli.ui.output import print_json_line
from callgate.cli.ui.tables import Cell, Column, print_rows
from callgate.cli.ui.terminal import is_terminal, say
from callgate.cli.ui.visible import shorten, visible
from callgate.core.errors import DENIALS
from callgate.core.events import (
    CALLED,
    COMPLETED,
    CONFIRMATION_RESOLVED,
    FAILED,
    INPUT_INVALID,
    OUTPUT_DELTA,
    Event,
)
from callgate.core.stores import PAGE, EventPage, Hint, Store, pruned_upto


def event_words(event: Event) -> Iterator[str]:
    """Yield a word for the event, then its details."""
    payload = event.payload
    if event.type == CALLED:
        yield "start"
    elif event.type == CONFIRMATION_RESOLVED:
        yield "answer"
        by = text(payload, "by")
        yield f"{text(payload, 'decision')}{f' by {by}' if by else ''}"
    elif event.type == INPUT_INVALID:
        yield "invalid"
        yield "; ".join(map(str, payload.get("validation_errors") or ()))
    elif event.type == FAILED:
        error_class = text(payload, "error_class")
        yield "refused" if error_class in DENIALS else "failed"
        yield f"{error_class}: {text(payload, 'message')}"
        yield duration(payload)
    else:
        yield "failed" if went_wrong(event) else "ok"
        yield duration(payload)


def went_wrong(event: Event) -> bool:
    return event.type in (FAILED, INPUT_INVALID) or (
        event.type == COMPLETED and event.payload.get("success") is False
    )


def duration(payload: Any) -> str:
    ms = payload.get("latency_ms")
    if not isinstance(ms, int | float):
        return ""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    return f"{ms / 1_000:.1f} s" if ms < 60_000 else span(ms / 1_000)


def text(payload: Any, name: str) -> str:
    value = payload.get(name)
    return "" if value is None else str(value)


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
"""The fields of a payload in the output, in this order."""
_SHOWN = 200
_HEADINGS = (Column("when"), Column("session"), Column("event", usual=27), Column("says"))
_MOST_ROWS = 3
"""Maximum rows of one event at a terminal; `--json` has the whole event."""


class Placed(NamedTuple):
    cursor: int | str
    """Cursor for reading the events after this one."""
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
    """Return the last `count` matching events, reading backwards only as far as necessary."""
    found: list[Placed] = []
    limit = PAGE if show.chooses else max(1, min(count, PAGE))
    async for page in pages.backwards(limit):
        wanted = [each for each in page if show.wants(each.event)]
        found = [*wanted, *found][-count:] if count else []
        if len(found) >= count:
            break
    return found


class OfAll:
    """The events of all sessions after a cursor."""

    def __init__(self, store: Store, cursor: str | None) -> None:
        self._store = store
        self._cursor = cursor

    async def there(self) -> AsyncIterator[list[Placed]]:
        """Yield the existing events, page by page."""
        while True:
            page = await self._store.read_all(self._cursor)
            if not page.events:
                return
            self._cursor = page.cursor
            yield _placed(page)

    async def backwards(self, limit: int) -> AsyncIterator[list[Placed]]:
        """Yield the existing events, last page first; then `there` continues after the last one."""
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
    """The events of one session after a number."""

    def __init__(self, store: Store, session: str, after: int) -> None:
        self._store = store
        self._session = session
        self._after = after

    async def there(self) -> AsyncIterator[list[Placed]]:
        while page := await self._store.read_events(self._session, self._after):
            upto = pruned_upto(page, self._after)
            if upto:  # one event replaces all pruned events
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
            if upto:  # no earlier events exist
                page, first, begin = page[upto - first - 1 :], upto - 1, end
            yield [Placed(seq, event) for seq, event in enumerate(page, first + 1)]
            end = first

    async def _between(self, after: int, upto: int) -> list[Event]:
        found: list[Event] = []
        while after + len(found) < upto:  # pages of large events are shorter
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
    """Yield existing and new events until the reader of stdout is gone."""
    with pages.wake() as hint:
        while True:
            async for page in pages.there():
                yield page
            if not await hint.wait():
                _ensure_read()
                await settle(store)  # for processes that ended since


async def _pages(store: Store, options: Namespace) -> OfAll | OfOne:
    since = options.since
    if options.session is None:
        try:
            await store.read_all(since, 1)
        except ValueError:
            raise _bad_cursor(f"{since!r} is not a cursor of this command") from None
        if since is not None and (await store.behind(since)).pruned:
            say("callgate: some events after this cursor were pruned")
        return OfAll(store, since)
    session = await find_session(store, options.session)
    if since is None:
        return OfOne(store, session.id, 0)
    if not (since.isascii() and since.isdecimal() and len(since) < 16):
        raise _bad_cursor(f"{since!r} is not the number of an event")
    if int(since) > session.last_seq:
        raise _bad_cursor(f"session {session.id} has only {session.last_seq} events")
    return OfOne(store, session.id, int(since))


def _bad_cursor(message: str) -> CliError:
    return CliError(f"--since: {message}", reason="bad_cursor")


def _ensure_read() -> None:
    """Raise `BrokenPipeError` if the reader of stdout is gone, even without output to write."""
    poll = select.poll()
    try:
        poll.register(sys.stdout, 0)
    except (OSError, ValueError):
        return
    if any(happened & (select.POLLERR | select.POLLNVAL) for _, happened in poll.poll(0)):
        raise BrokenPipeError


class _Show:
    """Printer of events: one text line or one JSON object per event."""

    def __init__(self, options: Namespace) -> None:
        self._types: Collection[str] = options.type or ()
        self._json: bool = options.json
        self._live: bool = options.follow

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
                print_event(event)


def print_event(event: Event) -> None:
    text = "  ".join(_details(event.payload))
    if not is_terminal(sys.stdout):
        text = shorten(text, _SHOWN)
    type = Cell(event.type, _COLOURS.get(event.type, "cyan"))
    row = (clock(event.timestamp), short(event.session_id), type, text)
    print_rows(_HEADINGS, [row], most=_MOST_ROWS)


def print_placed(cursor: int | str, event: Event) -> None:
    """Print an event in the form of `--json`."""
    print_json_line({"cursor": cursor, **msgspec.to_builtins(event)})


def _details(payload: Any) -> Iterator[str]:
    """Yield the tool and a summary of the other fields."""
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
    """Return local date and time; zeros in the same format for an invalid timestamp."""
    try:
        return datetime.fromtimestamp(timestamp).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "0000-00-00 00:00:00"
