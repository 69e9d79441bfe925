"""`callgate store status` and `move`: where sessions are kept, and how they get elsewhere."""

from __future__ import annotations

import asyncio
import os
import re
import urllib.parse
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.logs import set_up
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.records.stores import explained, process_name, settle
from callgate.cli.ui.dialog import Lines, agreed
from callgate.cli.ui.output import print_json
from callgate.cli.ui.progress_line import ProgressLine
from callgate.cli.ui.terminal import say
from callgate.cli.ui.tty import open_tty
from callgate.config.home import Home
from callgate.config.load import SettingsError, is_database
from callgate.config.schema import StoreTable
from callgate.config.stores import postgres_location, store_table
from callgate.core.errors import ToolErrorClass
from callgate.core.stores import StoreError
from callgate.storage.moving import MovableStore, MoveReport, Step, StoreInUse
from callgate.storage.moving import move as move_all
from callgate.storage.sqlite.files import Location
from callgate.surfaces.socket.instances import running
from callgate.wiring.stores import movable_store, open_store

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
        raise CliError(f"--schema: {schema!r} is no name for a schema: use a-z, 0-9 and _")
    return StoreTable(url=words, schema=schema)


def _move(home: Home, source: StoreTable, target: StoreTable, options: Namespace) -> int:
    here, there = movable_store(home, source), movable_store(home, target)
    if here.place == there.place:
        raise CliError("--to names the store that everything is moved from")
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
        # Whoever has come meanwhile waits to write to what is left behind.
        moved = move_all(here, there, tell, lambda: _ensure_unused(home, here), committed)
    if options.json:
        print_json(_as_json(here, there, moved, target, written=bool(written)))
    else:
        _show_moved(home, source, target, (here.place, there.place), moved, bool(written))
    return OK


def _ensure_unused(home: Home, *stores: MovableStore) -> None:
    """Whoever has one of them open would go on with what is left behind."""
    instances = [f"the instance {each.pid} ({each.label})" for each in running(home.path)]
    if instances:
        raise CliError(
            f"a running callgate uses this home: {', '.join(instances)}",
            hint="callgate stop ends it.",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="store_in_use",
        )
    for store in stores:
        living = store.living()
        if living:
            error = StoreInUse(store.place, [process_name(each) for each in living])
            raise CliError(
                str(error),
                hint="End these first; a server on another machine, too.",
                error_class=ToolErrorClass.PERMISSION_DENIED,
                reason="store_in_use",
            )


async def _settle(home: Home, table: StoreTable) -> None:
    """Let the source hold what dead processes left, so that nothing is owed in it."""
    if not table.is_shared and not os.path.exists(Location(home=home.path).path):
        return
    store = await open_store(home, table)
    try:
        await settle(store)
    finally:
        await store.close()


async def _ask(here: MovableStore, there: MovableStore) -> None:
    tty = open_tty()
    if tty is None:
        raise CliError(
            "moving needs a yes, and nobody can be asked here",
            hint="--yes moves without asking.",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="no_confirmer",
        )
    lines = [f"  from {here.place}", f"  to   {there.place}", *_counts(here.row_counts())]
    if not await agreed(tty, Lines(lines), "Move all of it?"):
        raise CliError(
            "nothing was moved", error_class=ToolErrorClass.USER_DENIED, reason="user_denied"
        )


def _counts(rows: Mapping[str, int]) -> list[str]:
    return [f"  {count:>12,} {table.replace('_', ' ')}" for table, count in rows.items() if count]


def _show_plan(here: MovableStore, there: MovableStore, options: Namespace) -> int:
    rows, held = here.row_counts(), there.row_counts()
    if options.json:
        print_json(
            {"dry_run": True, "from": here.place, "to": there.place, "rows": rows, "held": held}
        )
        return OK
    _say(f"would move from {here.place}", f"to {there.place}", *(_counts(rows) or ["  nothing"]))
    if held:
        _say("but the target is not empty:", *_counts(held))
    return OK


@contextmanager
def _progress(options: Namespace) -> Iterator[Any]:
    line = ProgressLine(wanted=not options.json)
    steps: list[Step] = [Step("looking", "", 0, 0)]

    def tell(step: Step) -> None:
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
        "from": here.place,
        "to": there.place,
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
    places: tuple[str, str],
    moved: MoveReport,
    written: bool,
) -> None:
    done = "was moved before" if moved.was_there else "moved"
    say(f"{done}: {places[0]} -> {places[1]}; both sides hold the same")
    _say(*_counts({table: each.rows for table, each in moved.tables.items()}))
    settings = _settings(target)
    if written:
        say(f"{home.settings} names it now")
    elif settings:
        _say(f"before a callgate starts, put into {home.settings}:", *_lines(settings))
    else:
        say(f"before a callgate starts, take [store] out of {home.settings}")
    if URL_VARIABLE in settings.values():
        say(f"and the address, with its password, into the variable {URL_VARIABLE}")
    if target.is_shared:
        say("a shared store needs [secrets] key_env or key_command, the same key on every server")
    if source.is_shared:
        say(f'the old schema stays; once you are sure: drop schema "{source.schema}" cascade')
    else:
        path = Location(home=home.path).path
        say(f"the old file stays; once you are sure: mv {path} {path}.moved")


def _say(*lines: str) -> None:
    for line in lines:
        say(line)


def _settings(target: StoreTable) -> dict[str, str]:
    """What `[store]` has to say; a password does not stand in a file."""
    if target.url is None:
        return {}
    named = {"url_env": URL_VARIABLE} if _has_password(target.url) else {"url": target.url}
    return named if target.schema == StoreTable().schema else {**named, "schema": target.schema}


def _lines(settings: Mapping[str, str]) -> list[str]:
    from callgate.config.toml_edits import table_text  # lazy: tomlkit is slow to import  # noqa: PLC0415

    return [f"    {line}" for line in table_text(("store",), settings).rstrip("\n").split("\n")]


def _has_password(url: str) -> bool:
    parts = urllib.parse.urlsplit(url)
    return parts.password is not None or "password" in urllib.parse.parse_qs(parts.query)


def _write_settings(home: Home, target: StoreTable) -> None:
    from callgate.config.settings_file import editing  # lazy: as above  # noqa: PLC0415
    from callgate.config.toml_edits import NotATableError  # lazy: as above  # noqa: PLC0415

    try:
        with editing(home) as settings:
            settings.set_table("store", _settings(target))
    except (SettingsError, NotATableError, OSError) as error:
        raise CliError(
            f"everything was moved, but {home.settings} could not be written: {error}",
            hint=" ".join(["Have it say:", *(each.strip() for each in _lines(_settings(target)))]),
            error_class=ToolErrorClass.EXECUTION_ERROR,
            reason="settings_unwritten",
        ) from error


# What there is.


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
                print(f"{name.replace('_', ' '):<12}  {_shown(name, value)}")
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
    location = postgres_location(table)
    from callgate.storage.postgres.inspection import inspect  # lazy: few have one  # noqa: PLC0415

    found: dict[str, Any] = {
        "engine": "PostgreSQL",
        "place": location.place,
        "schema": location.schema,
        "reachable": True,
    }
    try:
        seen = inspect(location)
    except StoreError as error:
        return {**found, "reachable": False, "problem": str(error)}
    return {
        **found,
        "version": seen.version,
        "role": "standby" if seen.is_standby else "primary",
        "connection": _connection(location.is_pooled, seen.is_pooled, seen.has_direct),
        "clock_skew_s": round(seen.skew_s, 3),
        "format": seen.format,
        "bytes": seen.bytes,
        "rows": dict(seen.rows),
        "processes": _names(seen.living),
    }


def _connection(is_pooled: bool, shares_sessions: bool, has_direct: bool) -> str:
    if shares_sessions:
        return "pooled, and none that is direct: see listen_url"
    if not has_direct:
        return "pooled; changes are looked for"
    return "pooled, and one that is direct" if is_pooled else "direct"


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
            f"{command} takes no {options.words[0]!r}", hint=f"See callgate {command} --help."
        )
