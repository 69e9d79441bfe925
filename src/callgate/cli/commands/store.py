"""`callgate store status` and `move`: show the store of sessions, and move it."""

from __future__ import annotations

import asyncio
import os
import re
import urllib.parse
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from callgate.cli.commands.machine_checks import NO_DATABASES
from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.logs import ProgressLine, set_up
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.stores import explained, process_name, settle
from callgate.cli.ui.dialog import Lines, agreed
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import print_field
from callgate.cli.ui.terminal import say
from callgate.cli.ui.tty import open_tty
from callgate.config import stores
from callgate.config.home import Home
from callgate.config.load import SettingsError, is_database
from callgate.config.schema import StoreTable
from callgate.config.stores import shared_homes, shared_store, store_table
from callgate.core.errors import ToolErrorClass
from callgate.core.stores import Store, StoreError
from callgate.feature import port
from callgate.socket.instances import running
from callgate.storage.moving import MovableStore, MoveReport, MoveStep, StoreInUse
from callgate.storage.moving import move as move_all
from callgate.storage.sqlite.files import Location


async def open_table_store(home: Home, table: StoreTable) -> Store:
    """Open the store of a `[store]` table, also if it is unreachable now.

    Raises `StoreError` if it cannot be used at all, or `SettingsError`.
    """
    return await stores.open_store(home, shared_store(home, table))


def movable_store(home: Home, table: StoreTable) -> MovableStore:
    """Return the source or target of a move."""
    if table.is_shared and (table.url is None or is_database(table.url)):
        movable: MovableStore = shared_homes().movable_store(table)
        return movable
    from callgate.storage.sqlite.files import Location  # lazy: for one command  # noqa: PLC0415
    from callgate.storage.sqlite.moving import SqliteMovable  # lazy: for one command  # noqa: PLC0415

    directory = home.path if table.url is None else unquote(urlsplit(table.url).path)
    return SqliteMovable(Location(home=directory))


URL_VARIABLE = "CALLGATE_STORE_URL"
_FILE = "sqlite"
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,40}\Z")


def move(options: Namespace) -> int:
    _no_words(options, "store move")
    if not options.dry_run:
        refuse_within_a_call("callgate store move")
    set_up(options.debug)
    home = Home.from_environment()
    with explained():
        target = _table(options.to, "--to", options.schema)
        return _move(home, _source(home, options, target), target, options)


def _source(home: Home, options: Namespace, target: StoreTable) -> StoreTable:
    if options.source is None:
        return store_table(home)
    schema = options.schema if not target.is_shared else None
    return _table(options.source, "--from", schema)


def _table(words: str, option: str, schema: str | None) -> StoreTable:
    if words == _FILE:
        return StoreTable()
    if not is_database(words):
        raise CliError(f"{option}: {words!r} is neither sqlite nor postgresql://...")
    if schema is None:
        return StoreTable(url=words)
    if not _SCHEMA.match(schema):
        raise CliError(f"--schema: {schema!r} is not a valid schema name; use a-z, 0-9 and _")
    return StoreTable(url=words, schema=schema)


def _move(home: Home, source: StoreTable, target: StoreTable, options: Namespace) -> int:
    here, there = movable_store(home, source), movable_store(home, target)
    if here.label == there.label:
        raise CliError("--to names the source store; name another target")
    _ensure_unused(home, here, there)
    if options.dry_run:
        return _show_plan(here, there, options)
    asyncio.run(_settle(home, source))
    if not options.yes:
        asyncio.run(_ask(here, there))
    _ensure_unused(home, here, there)
    written: list[str] = []

    def committed() -> None:
        if options.write_settings:
            _write_settings(home, target)
            written.append(home.settings)

    with _progress(options) as tell:
        # A callgate that started since then would write to the old store.
        moved = move_all(here, there, tell, lambda: _ensure_unused(home, here), committed)
    if options.json:
        print_json(_as_json(here, there, moved, target, written=bool(written)))
    else:
        _show_moved(home, source, target, (here.label, there.label), moved, bool(written))
    return OK


def _ensure_unused(home: Home, *stores: MovableStore) -> None:
    """Raise `CliError` if a process uses the home or a store: it would write to the old store."""
    instances = [f"the instance {each.pid} ({each.label})" for each in running(home.path)]
    if instances:
        raise CliError(
            f"a running callgate uses this home: {', '.join(instances)}",
            hint="Run callgate stop first.",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="store_in_use",
        )
    for store in stores:
        living = store.living()
        if living:
            error = StoreInUse(store.label, [process_name(each) for each in living])
            raise CliError(
                str(error),
                hint="Stop these processes first, also servers on other machines.",
                error_class=ToolErrorClass.PERMISSION_DENIED,
                reason="store_in_use",
            )


async def _settle(home: Home, table: StoreTable) -> None:
    """Recover the calls of dead processes in the source store before the move."""
    if not table.is_shared and not os.path.exists(Location(home=home.path).path):
        return
    store = await open_table_store(home, table)
    try:
        await settle(store)
    finally:
        await store.close()


async def _ask(here: MovableStore, there: MovableStore) -> None:
    tty = open_tty()
    if tty is None:
        raise CliError(
            "moving the store needs confirmation, and there is no terminal to ask at",
            hint="Use --yes to move without confirmation.",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="no_confirmer",
        )
    lines = [f"  from {here.label}", f"  to   {there.label}", *_counts(here.row_counts())]
    if not await agreed(tty, Lines(lines), "Move all of it?"):
        raise CliError(
            "nothing was moved", error_class=ToolErrorClass.USER_DENIED, reason="user_denied"
        )


def _counts(rows: Mapping[str, int]) -> list[str]:
    return [f"  {count:>12,} {table.replace('_', ' ')}" for table, count in rows.items() if count]


def _show_plan(here: MovableStore, there: MovableStore, options: Namespace) -> int:
    rows, existing = here.row_counts(), there.row_counts()
    if options.json:
        print_json(
            {"dry_run": True, "from": here.label, "to": there.label, "rows": rows, "held": existing}
        )
        return OK
    _say(f"would move from {here.label}", f"to {there.label}", *(_counts(rows) or ["  nothing"]))
    if existing:
        _say("but the target is not empty:", *_counts(existing))
    return OK


@contextmanager
def _progress(options: Namespace) -> Iterator[Any]:
    line = ProgressLine(wanted=not options.json)
    steps: list[MoveStep] = [MoveStep("looking", "", 0, 0)]

    def tell(step: MoveStep) -> None:
        steps[0] = step

    def text() -> str:
        step = steps[0]
        far = f" {step.rows:,} of {step.of:,}" if step.of else ""
        return f"{step.doing} {step.table.replace('_', ' ')}{far},".replace(" ,", ",")

    line.start(text)
    try:
        yield tell
    finally:
        line.stop()


def _as_json(
    here: MovableStore, there: MovableStore, moved: MoveReport, target: StoreTable, *, written: bool
) -> dict[str, Any]:
    return {
        "dry_run": False,
        "from": here.label,
        "to": there.label,
        "was_there": moved.was_there,
        "rows": {table: each.rows for table, each in moved.tables.items() if each.rows},
        "sha256": {table: each.sha256 for table, each in moved.tables.items()},
        "settings": _settings(target),
        "settings_written": written,
    }


def _show_moved(
    home: Home,
    source: StoreTable,
    target: StoreTable,
    labels: tuple[str, str],
    moved: MoveReport,
    written: bool,
) -> None:
    done = "was moved before" if moved.was_there else "moved"
    say(f"{done}: {labels[0]} -> {labels[1]}; both stores have the same content")
    _say(*_counts({table: each.rows for table, each in moved.tables.items()}))
    settings = _settings(target)
    if written:
        say(f"{home.settings} now names the target")
    elif settings:
        _say(f"before you start callgate, add to {home.settings}:", *_lines(settings))
    else:
        say(f"before you start callgate, remove [store] from {home.settings}")
    if URL_VARIABLE in settings.values():
        say(f"and set the variable {URL_VARIABLE} to the address with its password")
    if target.is_shared:
        say("a shared store needs [secrets] key_env or key_command, the same key on every server")
    if source.is_shared:
        say(f'the old schema remains; to delete it: drop schema "{source.schema}" cascade')
    else:
        path = Location(home=home.path).path
        say(f"the old file remains; to put it aside: mv {path} {path}.moved")


def _say(*lines: str) -> None:
    for line in lines:
        say(line)


def _settings(target: StoreTable) -> dict[str, str]:
    """Return the `[store]` settings of the target; a password never enters the file."""
    if target.url is None:
        return {}
    named = {"url_env": URL_VARIABLE} if _has_password(target.url) else {"url": target.url}
    return named if target.schema == StoreTable().schema else {**named, "schema": target.schema}


def _lines(settings: Mapping[str, str]) -> list[str]:
    from callgate.config.settings_file import table_text  # lazy: tomlkit is slow to import  # noqa: PLC0415

    return [f"    {line}" for line in table_text(("store",), settings).rstrip("\n").split("\n")]


def _has_password(url: str) -> bool:
    split_url = urllib.parse.urlsplit(url)
    return split_url.password is not None or "password" in urllib.parse.parse_qs(split_url.query)


def _write_settings(home: Home, target: StoreTable) -> None:
    from callgate.config.settings_file import NotATableError, editing  # lazy: as above  # noqa: PLC0415

    try:
        with editing(home) as settings:
            settings.set_table("store", _settings(target))
    except (SettingsError, NotATableError, OSError) as error:
        raise CliError(
            f"everything was moved, but {home.settings} could not be written: {error}",
            hint=" ".join(["Add to it:", *(each.strip() for each in _lines(_settings(target)))]),
            error_class=ToolErrorClass.EXECUTION_ERROR,
            reason="settings_unwritten",
        ) from error


def status(options: Namespace) -> int:
    _no_words(options, "store status")
    set_up(options.debug)
    home = Home.from_environment()
    with explained():
        table = store_table(home)
        found = _database(table) if table.is_shared else _file(home)
    if options.json:
        print_json(found)
    else:
        for name, value in found.items():
            if value not in (None, [], {}):
                print_field(f"{name.replace('_', ' '):<12}  ", _shown(name, value))
    return OK if found["reachable"] else FAILED


def _shown(name: str, value: Any) -> str:
    match name, value:
        case "bytes", _:
            return _size(value)
        case "clock_skew_s", _:
            return f"{value:+.3f}"
        case _, bool():
            return "yes" if value else "no"
        case _, dict():
            return ", ".join(f"{count:,} {each.replace('_', ' ')}" for each, count in value.items())
        case _, list():
            return ", ".join(value)
        case _:
            return str(value)


def _file(home: Home) -> dict[str, Any]:
    location = Location(home=home.path)
    store = movable_store(home, StoreTable())
    found: dict[str, Any] = {"engine": "SQLite", "place": location.path, "reachable": True}
    try:
        size = os.path.getsize(location.path) if os.path.exists(location.path) else 0
        rows = dict(store.row_counts())
    except (StoreError, OSError) as error:
        return {**found, "reachable": False, "problem": str(error)}
    return {**found, "bytes": size, "rows": rows, "processes": _names(store.living())}


def _database(table: StoreTable) -> dict[str, Any]:
    status = port("database_status")
    if status is None:
        return {"engine": "PostgreSQL", "reachable": False, "problem": NO_DATABASES}
    found: dict[str, Any] = status(table)
    return {**found, "processes": _names(found["processes"])} if found["reachable"] else found


def _names(owners: Sequence[str]) -> list[str]:
    return [process_name(each) for each in owners]


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"


def _no_words(options: Namespace, command: str) -> None:
    if options.words:
        raise CliError(
            f"unexpected argument {options.words[0]!r}", hint=f"See callgate {command} --help."
        )
