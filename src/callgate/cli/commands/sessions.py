"""`callgate sessions` and `prune`: show, export, copy, rename, delete and prune stored records.

All commands of `sessions` except `delete` work while another process uses the session.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager

import msgspec

from callgate.audit.log import AuditLog
from callgate.cli.commands.session_records import (
    ask_to_delete,
    delete_sessions,
    described,
    first_line,
    print_page,
    print_table,
    read_states,
    write_export,
)
from callgate.cli.errors import OK, CliError
from callgate.cli.logs import ProgressLine
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.stores import explained, find_session, not_found, with_store, words
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.config.schema import Settings
from callgate.core.events import Event
from callgate.core.ids import session_id
from callgate.core.ops import Fork, UpdateSession
from callgate.core.stored import StoredSession
from callgate.core.stores import Store
from callgate.sessions.ordering import note_turn, read_in_order
from callgate.sessions.pruning import Bounds, Pruning, PruningPlan, Tally, paced
from callgate.storage.sqlite.files import Location

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
    """Return the id of a turn, from an id or a number."""
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
        raise CliError("no session was named: callgate sessions delete ID ...")
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


_AGE = re.compile(r"(\d{1,6})([hdw])\Z")
_DAYS = {"h": 1 / 24, "d": 1.0, "w": 7.0}


def prune(options: Namespace) -> int:
    if options.words:
        raise CliError(
            f"unexpected argument {options.words[0]!r}", hint="See callgate prune --help."
        )
    home = Home.from_environment()
    settings = _settings(home)
    if options.vacuum and settings.store.is_shared:
        raise CliError("--vacuum works only for a store file: PostgreSQL vacuums automatically")
    bounds = _bounds(options, settings)
    if not options.dry_run:
        refuse_within_a_call("callgate prune")
    tally, shrinks = with_store(
        options, lambda store: _prune(store, home, settings, bounds, options)
    )
    if options.vacuum and not options.dry_run:
        _vacuum(home, options)
    elif not shrinks and not options.dry_run and not options.json:
        say("an older callgate created the store file; run prune --vacuum once to shrink it")
    if options.json:
        print_json({"dry_run": options.dry_run, **msgspec.to_builtins(tally)})
    elif tally.is_empty:
        say("nothing to prune")
    else:
        say(("would delete " if options.dry_run else "deleted ") + tally.describe())
        if options.dry_run:
            say(f"bounds: {bounds.describe()}")
    return OK


def _settings(home: Home) -> Settings:
    try:
        return load_user(home)[0]
    except SettingsError as error:  # defaults could delete too much
        raise CliError(str(error), reason="settings_invalid") from error


def _bounds(options: Namespace, settings: Settings) -> Bounds:
    table = settings.retention
    everything = not (options.sessions or options.artifacts or options.audit)
    age = None if options.older_than is None else _days(options.older_than)

    def days(chosen: bool, usual: float) -> float:
        if not (chosen or everything):
            return 0
        return usual if age is None else age

    return Bounds.at(
        time.time(),
        sessions_days=days(options.sessions, table.sessions_days),
        events_days=days(options.sessions, table.events_days),
        artifacts_days=days(options.artifacts, table.artifacts_days),
        audit_days=days(options.audit, table.audit_days)
        if options.audit or table.audit_days
        else 0,
        # With --older-than, the size limit must not delete younger records.
        store_bytes=table.store_bytes if age is None and (options.sessions or everything) else 0,
    )


def _days(text: str) -> float:
    age = _AGE.match(text)
    if age is None or not int(age[1]):
        raise CliError(f"--older-than: {text!r} is not an age", hint="Examples: 30d, 12h, 8w.")
    return int(age[1]) * _DAYS[age[2]]


async def _prune(
    store: Store, home: Home, settings: Settings, bounds: Bounds, options: Namespace
) -> tuple[Tally, bool]:
    """Return the deleted records, and whether the store file can shrink.

    A dry run returns the records that would be deleted.
    """
    shrinks = (await store.usage()).shrinks
    if options.dry_run or not options.yes:
        with _progress(options, "searching old records,"):
            plan = await PruningPlan(store, bounds, home.artifacts, home.audit).make()
        if options.dry_run or plan.is_empty:
            return plan, shrinks
        await ask_to_delete([*plan.counts(), "bounds:", *bounds.each()])
    audit = AuditLog(home.audit, max_bytes=settings.audit.max_bytes, keep=settings.audit.keep)
    pruning = Pruning(store, bounds, home.artifacts, audit)
    try:
        with _progress(options, lambda: f"deleted {pruning.tally.describe()};"):
            async with aclosing(paced(pruning.steps())) as steps:
                async for _ in steps:
                    pass
    except asyncio.CancelledError:  # each step is atomic: the next prune continues here
        say(f"stopped; deleted {pruning.tally.describe()}")
        raise
    finally:
        audit.close()
    return pruning.tally, shrinks


@contextmanager
def _progress(options: Namespace, text: str | Callable[[], str]) -> Iterator[None]:
    line = ProgressLine(wanted=not options.json)
    line.start(text)
    try:
        yield
    finally:
        line.stop()


def _vacuum(home: Home, options: Namespace) -> None:
    from callgate.storage.sqlite.moving import vacuum  # lazy: only for --vacuum  # noqa: PLC0415

    location = Location(home=home.path)
    if os.path.exists(location.path):
        with explained(), _progress(options, "compacting the store,"):
            vacuum(location)
