"""`callgate sessions`: what is kept of earlier work, to look at, copy, rename or delete.

Everything here works while another process uses the session. Only deleting does not: what a
living process owns stays.
"""

from __future__ import annotations

import os
import time
from argparse import Namespace

import msgspec

from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.records.exports import write_export
from callgate.cli.records.session_deletion import delete_sessions
from callgate.cli.records.session_pages import (
    described,
    first_line,
    print_page,
    print_table,
    read_states,
)
from callgate.cli.records.stores import (
    find_session,
    not_found,
    with_store,
    words,
)
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.core.events import Event
from callgate.core.ids import session_id
from callgate.core.ops import Fork, UpdateSession
from callgate.core.stored import StoredSession
from callgate.core.stores import Store
from callgate.sessions.ordering import note_turn, read_in_order

_COUNTED = 1_000


def list(options: Namespace) -> int:
    words(options)
    workspace = None if options.all else _directory(options.workspace)
    with_store(options, lambda store: _list(store, workspace, options))
    return OK


async def _list(store: Store, workspace: str | None, options: Namespace) -> None:
    try:
        page = await store.list_sessions(
            workspace, cursor=options.cursor, limit=options.n, workers=options.workers
        )
    except ValueError as error:
        raise CliError(f"--cursor: {error}", reason="bad_cursor") from None
    states = await read_states(store)
    if options.json:
        shown = [described(each, states) for each in page.sessions]
        print_json({"sessions": shown, "cursor": page.cursor})
        return
    print_table(page.sessions, states, time.time(), everywhere=workspace is None)
    if page.cursor is not None:
        say(f"more: --cursor {page.cursor}")
    elif not page.sessions and workspace is not None:
        others = await store.list_sessions(limit=_COUNTED, workers=options.workers)
        count = len(others.sessions)
        elsewhere = f"{count:,}{' or more' if others.cursor else ''} elsewhere: --all lists them"
        say(f"no sessions in {workspace}" + (f"; {elsewhere}" if count else ""))


def show(options: Namespace) -> int:
    (id,) = words(options, "session")
    with_store(options, lambda store: _show(store, id, options.json))
    return OK


async def _show(store: Store, wanted: str, as_json: bool) -> None:
    id = (await find_session(store, wanted)).id
    snapshot, states = await store.snapshot(id), await read_states(store)
    prompts: dict[str, str] = {}
    async for _, item in read_in_order(store, id):
        note_turn(prompts, item)
        if item.turn_id is not None and not as_json:
            prompts[item.turn_id] = first_line(prompts[item.turn_id])
    if not as_json:
        print_page(snapshot, states, prompts, time.time())
        return
    shown = described(snapshot.session, states)
    for name in ("calls", "confirmations", "grants"):
        shown[name] = msgspec.to_builtins(getattr(snapshot, name))
    shown["turns"] = [{"id": turn, "prompt": text} for turn, text in prompts.items()]
    print_json(shown)


def export(options: Namespace) -> int:
    (id,) = words(options, "session")
    path = None if options.output in (None, "-") else options.output
    as_json = options.json or options.format == "json"

    async def write(store: Store) -> None:
        session = await find_session(store, id)
        await write_export(store, session, path, as_json=as_json)

    with_store(options, write)
    if path is not None:
        say(f"wrote {path}")
    return OK


def fork(options: Namespace) -> int:
    (id,) = words(options, "session")
    refuse_within_a_call("callgate sessions fork")
    forked = with_store(options, lambda store: _fork(store, id, options))
    if options.json:
        print_json(msgspec.to_builtins(forked))
    else:
        print(visible(forked.id))
    return OK


async def _fork(store: Store, id: str, options: Namespace) -> StoredSession:
    source = await find_session(store, id)
    turn = options.turn and await _turn(store, source.id, options.turn)
    new, now = session_id(), time.time()
    title = msgspec.UNSET if options.title is None else options.title or None
    _, forked = await store.commit(
        Fork(session=source.id, new=new, turn=turn or None, at=now),
        UpdateSession(session=new, title=title, at=now),
    )
    return forked


async def _turn(store: Store, session: str, turn: str) -> str:
    """The id of a turn, which may be given by its number."""
    prompts: dict[str, str] = {}
    with_events = set()
    async for _, item in read_in_order(store, session):
        note_turn(prompts, item)
        if isinstance(item, Event):
            with_events.add(item.turn_id)
    known = [*prompts]
    if turn.isascii() and turn.isdecimal() and 0 < int(turn[:9]) <= len(known):
        turn = known[int(turn) - 1]
    if turn not in with_events:
        raise not_found(f"session {session} has no turn {turn!r}; it has {len(known)}")
    return turn


def rename(options: Namespace) -> int:
    wanted, title = words(options, "session", "title")
    refuse_within_a_call("callgate sessions rename")

    async def change(store: Store) -> StoredSession:
        id = (await find_session(store, wanted)).id
        (renamed,) = await store.commit(
            UpdateSession(session=id, title=title or None, at=time.time())
        )
        return renamed

    renamed = with_store(options, change)
    if options.json:
        print_json(msgspec.to_builtins(renamed))
    else:
        say(f"{renamed.id} is now {renamed.title or 'without a title'}")
    return OK


def delete(options: Namespace) -> int:
    if not options.words:
        raise CliError("which session?")
    refuse_within_a_call("callgate sessions delete")
    deleted = with_store(
        options, lambda store: delete_sessions(store, options.words, ask=not options.yes)
    )
    if options.json:
        print_json({"deleted": deleted})
    for id in () if options.json else deleted:
        say(f"deleted {id}")
    return OK


def _directory(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))
