"""`callgate watch`: every call of every client of this home, a line when it starts and ends.

    12:03:11  9QK3M7Z2ABCD  start    shell  {"command": "make test"}
    12:03:11  9QK3M7Z2ABCD  ASKS     shell  {"command": "make test"}  Calls with ...
              callgate confirmations allow 01JCK3...  (or deny)
    12:03:19  9QK3M7Z2ABCD  ok       shell  {"command": "make test"}  8.1 s

It reads the store that all of them write to, so it needs no instance and sees them all. What
the calls brought with them is shown escaped, and can act on no terminal.
"""

from __future__ import annotations

import itertools
import sys
import time
from argparse import Namespace
from collections.abc import Collection, Iterable
from contextlib import aclosing
from typing import Any, NamedTuple

from callgate.audit.reading import newest_first
from callgate.cli.commands.events import OfAll, OfOne, Placed, clock, follow, print_placed
from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.records.event_words import event_words, text, went_wrong
from callgate.cli.records.stores import find_session, short, span, with_store, words
from callgate.cli.ui.terminal import columns, is_terminal, paint_for, say
from callgate.cli.ui.tty import open_tty
from callgate.cli.ui.visible import clip, visible
from callgate.cli.ui.watch_answers import Answers
from callgate.config.home import Home
from callgate.core.effects import SideEffects
from callgate.core.events import (
    CALLED,
    CONFIRMATION_REQUESTED,
    CONFIRMATION_RESOLVED,
    TERMINAL,
    Event,
)
from callgate.core.stored import StoredConfirmation
from callgate.core.stores import SessionNotFound, Store

_SHOWN = frozenset({CALLED, CONFIRMATION_REQUESTED, CONFIRMATION_RESOLVED}) | TERMINAL
_COLOURS = {
    "start": "dim",
    "ASKS": "yellow",
    "ok": "green",
    "failed": "red",
    "refused": "red",
    "invalid": "red",
    "session": "cyan",
}
_QUIET = (SideEffects.NONE, SideEffects.READ)
"""The store keeps no call of these, only its events."""
_MOST = 10_000
"""Calls and sessions that are remembered."""
_LOOK_BACK = 200
"""Records of the audit log, beside one for each event, among which a call is looked for."""
_WIDEST = 200
_NARROWEST = 20
_INDENT = " " * 10


class _Call(NamedTuple):
    tool: str
    summary: str = ""
    """Of its arguments."""


def watch(options: Namespace) -> int:
    words(options)
    tty = None
    if options.answer:
        refuse_within_a_call("callgate watch --answer")
        tty = open_tty()
        if tty is None or options.json:
            raise CliError("--answer asks at a terminal, and prints no JSON")

    async def run(store: Store) -> None:
        pages = await _from_now(store, options.session)
        answers = None if tty is None else Answers(store, tty)
        watcher = _Watch(store, options, answers)
        say("callgate: watching; Ctrl-C ends it")
        await watcher.begin()
        async with aclosing(follow(store, pages)) as coming:
            async for page in coming:
                await watcher.show(page)

    with_store(options, run)
    return OK


async def _from_now(store: Store, session_id: str | None) -> OfAll | OfOne:
    if session_id is not None:
        session = await find_session(store, session_id)
        return OfOne(store, session.id, session.last_seq)
    return OfAll(store, (await store.behind()).cursor)


class _Watch:
    def __init__(self, store: Store, options: Namespace, answers: Answers | None) -> None:
        self._store = store
        self._tool: str | None = options.tool
        self._session: str | None = options.session
        self._errors: bool = options.errors
        self._json: bool = options.json
        self._answers = answers
        self._paint = paint_for(sys.stdout)
        self._calls: dict[str, _Call] = {}
        """Under way, as far as their start was seen."""
        self._introduced: dict[str, None] = {}
        self._asked_before: set[str] = set()

    async def begin(self) -> None:
        """Show what waits for an answer already; the event of one may follow all the same."""
        if self._json or self._errors:
            return
        session = None if self._session is None else await find_session(self._store, self._session)
        waiting = await self._store.open_confirmations(None if session is None else session.id)
        for stored in waiting:
            self._asked_before.add(stored.id)
            await self._asks_since_before(stored)
        sys.stdout.flush()

    async def show(self, page: Collection[Placed]) -> None:
        shown = [each for each in page if each.event.type in _SHOWN]
        recorded = self._recorded(each.event for each in shown)
        questions: list[str] = []
        for cursor, event in shown:
            call = await self._call_of(event, recorded)
            if not self._wants(event, call) or _question(event) in self._asked_before:
                continue
            if self._json:
                print_placed(cursor, event)
            else:
                await self._introduce(event)
                self._print(event, call)
                questions += filter(None, [_question(event)])
        sys.stdout.flush()
        if self._answers is not None:
            for id in questions:
                await self._answers.ask(id)

    def _wants(self, event: Event, call: _Call) -> bool:
        return (self._tool is None or call.tool == self._tool) and (
            not self._errors or went_wrong(event)
        )

    # What is known of a call.

    async def _call_of(self, event: Event, recorded: dict[str, _Call]) -> _Call:
        payload, id = event.payload, str(event.payload.get("call_id", ""))
        known = self._calls.get(id)
        if event.type == CALLED or (known is None and event.type == CONFIRMATION_REQUESTED):
            known = _Call(text(payload, "tool_name"), text(payload, "input_summary"))
            if event.type == CALLED and payload.get("side_effects") not in _QUIET:
                known = await self._stored(id) or known
            _remember(self._calls, id, known)
        elif event.type in TERMINAL:
            self._calls.pop(id, None)
            known = recorded.get(id) or known
        return known or await self._stored(id) or _Call(text(payload, "tool_name"))

    async def _stored(self, id: str) -> _Call | None:
        stored = await self._store.get_call(id)
        return None if stored is None else _Call(stored.tool, stored.summary)

    def _recorded(self, events: Iterable[Event]) -> dict[str, _Call]:
        """What the audit log says of the calls that ended: also of those without effects."""
        ids = {str(each.payload.get("call_id")) for each in events if each.type in TERMINAL}
        found: dict[str, _Call] = {}
        if not ids or self._json:
            return found
        records = newest_first(Home.from_environment().audit)
        try:
            for record, _ in itertools.islice(records, len(ids) + _LOOK_BACK):
                if record.call_id in ids:
                    found[record.call_id] = _Call(record.tool, record.args)
                    if len(found) == len(ids):
                        break
        except OSError:
            pass  # shown without arguments
        return found

    # Lines.

    def _print(self, event: Event, call: _Call) -> None:
        if event.type == CONFIRMATION_REQUESTED:
            why, id = text(event.payload, "why"), _question(event)
            self._asks(event.timestamp, event.session_id, call, why, id or "")
        else:
            word, *details = event_words(event)
            self._line(event.timestamp, event.session_id, word, call, *details)

    def _asks(self, at: float, session: str, call: _Call, why: str, id: str) -> None:
        self._line(at, session, "ASKS", call, why)
        if self._answers is None:
            command = f"callgate confirmations allow {visible(id)}"
            print(f"{_INDENT}{self._paint('bold', command)}  (or deny)")

    async def _asks_since_before(self, stored: StoredConfirmation) -> None:
        call = await self._stored(stored.call_id) or _Call("")
        if self._tool is not None and call.tool != self._tool:
            return
        now = time.time()
        left = f"asked before, {span(stored.expires_at - now)} left"
        self._asks(now, stored.session_id, call, left, stored.id)
        sys.stdout.flush()
        if self._answers is not None:
            await self._answers.ask(stored.id)

    async def _introduce(self, event: Event) -> None:
        """Say once what a session is."""
        if event.session_id in self._introduced:
            return
        _remember(self._introduced, event.session_id, None)
        try:
            session = await self._store.get_session(event.session_id)
        except SessionNotFound:
            return
        about = _Call(session.title or "untitled", session.workspace)
        self._line(event.timestamp, session.id, "session", about)

    def _line(self, at: float, session: str, word: str, call: _Call, *details: str) -> None:
        head = f"{clock(at)[11:]}  {visible(short(session))}  "
        room = columns() - len(head) - 10 if is_terminal(sys.stdout) else _WIDEST
        room = max(room, _NARROWEST)
        last = "  ".join(filter(None, details))
        detail = clip(last, room // 2) if call.summary else clip(last, room)
        text = clip("  ".join(filter(None, [call.tool, call.summary])), max(room - len(detail), 8))
        coloured = self._paint(_COLOURS.get(word, "cyan"), f"{word:<7}")
        print(f"{head}{coloured}  {text}{'  ' if detail else ''}{detail}".rstrip())


def _question(event: Event) -> str | None:
    """The id of the question that an event asks."""
    id = event.payload.get("confirmation_request_id")
    return str(id) if event.type == CONFIRMATION_REQUESTED and id is not None else None


def _remember(entries: dict[str, Any], key: str, value: Any) -> None:
    """The oldest is forgotten where there are too many: a call may never end."""
    entries[key] = value
    if len(entries) > _MOST:
        del entries[next(iter(entries))]
