"""`callgate watch`: show the start and the end of every call of this home, as they happen.

    12:03:11  9QK3M7Z2ABCD  start    shell  {"command": "make test"}
    12:03:11  9QK3M7Z2ABCD  ASKS     shell  {"command": "make test"}  Calls with ...
              callgate confirmations allow 01JCK3...  (or deny)
    12:03:19  9QK3M7Z2ABCD  ok       shell  {"command": "make test"}  8.1 s

It reads the store that all clients write to, so it needs no instance and misses no call. Text of
calls is untrusted, and is shown without control characters.
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
from callgate.cli.commands.events import (
    OfAll,
    OfOne,
    Placed,
    clock,
    event_words,
    follow,
    print_placed,
    text,
    went_wrong,
)
from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.stores import find_session, short, span, with_store, words
from callgate.cli.ui.confirmation_prompt import Answers
from callgate.cli.ui.tables import Cell, Column, print_rows
from callgate.cli.ui.terminal import paint_for, say
from callgate.cli.ui.tty import open_tty
from callgate.cli.ui.visible import shorten, visible
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
"""The store has only events of calls with these effects."""
_MOST = 10_000
"""Maximum number of calls and of sessions in memory."""
_LOOK_BACK = 200
"""Audit records that a search for calls reads, in addition to one per event."""
_WIDEST = 200
_NARROWEST = 20
_INDENT = " " * 10
_HEADINGS = (Column("at"), Column("session"), Column("what", least=7), Column("call"))


class _Call(NamedTuple):
    tool: str
    summary: str = ""
    """Summary of its arguments."""


def watch(options: Namespace) -> int:
    words(options)
    tty = None
    if options.answer:
        refuse_within_a_call("callgate watch --answer")
        tty = open_tty()
        if tty is None or options.json:
            raise CliError("--answer needs a terminal, and cannot be used with --json")

    async def run(store: Store) -> None:
        pages = await _from_now(store, options.session)
        answers = None if tty is None else Answers(store, tty)
        watcher = _Watch(store, options, answers)
        say("callgate: watching; stop with Ctrl-C")
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
        """Running calls, by id."""
        self._introduced: dict[str, None] = {}
        self._asked_before: set[str] = set()

    async def begin(self) -> None:
        """Show the open questions. Their events may follow, and `show` skips those."""
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

    # Calls.

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
        """Return the audit log's entries of calls that ended, including calls without effects."""
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
            pass  # the calls are shown without arguments
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
        left = f"already waiting, {span(stored.expires_at - now)} left"
        self._asks(now, stored.session_id, call, left, stored.id)
        sys.stdout.flush()
        if self._answers is not None:
            await self._answers.ask(stored.id)

    async def _introduce(self, event: Event) -> None:
        """Print the title and the workspace of a session at its first event."""
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
        head = (clock(at)[11:], short(session), Cell(word, _COLOURS.get(word, "cyan")))
        last = "  ".join(filter(None, details))
        detail = shorten(last, _WIDEST // 2 if call.summary else _WIDEST)
        room = max(_WIDEST - len(detail), _NARROWEST)
        text = shorten("  ".join(filter(None, [call.tool, call.summary])), room)
        print_rows(_HEADINGS, [(*head, f"{text}{'  ' if detail else ''}{detail}")])


def _question(event: Event) -> str | None:
    """Return the id of the question that an event opens."""
    id = event.payload.get("confirmation_request_id")
    return str(id) if event.type == CONFIRMATION_REQUESTED and id is not None else None


def _remember(entries: dict[str, Any], key: str, value: Any) -> None:
    """Add an entry, and drop the oldest one at the limit, because a call may never end."""
    entries[key] = value
    if len(entries) > _MOST:
        del entries[next(iter(entries))]
