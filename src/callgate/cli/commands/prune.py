"""`callgate prune`: delete records that are older than they are kept, beside whoever uses them."""

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
from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.records.deletion_question import ask_to_delete
from callgate.cli.records.stores import explained, with_store
from callgate.cli.ui.output import print_json
from callgate.cli.ui.progress_line import ProgressLine
from callgate.cli.ui.terminal import say
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.config.schema import Settings
from callgate.core.stores import Store
from callgate.sessions.prune_plans import Plan
from callgate.sessions.pruning import Pruning, paced
from callgate.sessions.retention import Bounds, Tally
from callgate.storage.sqlite.files import Location

_AGE = re.compile(r"(\d{1,6})([hdw])\Z")
_DAYS = {"h": 1 / 24, "d": 1.0, "w": 7.0}


def prune(options: Namespace) -> int:
    if options.words:
        raise CliError(f"prune takes no {options.words[0]!r}", hint="See callgate prune --help.")
    home = Home.from_environment()
    settings = _settings(home)
    if options.vacuum and settings.store.is_shared:
        raise CliError("--vacuum is for the file in the home: PostgreSQL vacuums by itself")
    bounds = _bounds(options, settings)
    if not options.dry_run:
        refuse_within_a_call("callgate prune")
    tally, shrinks = with_store(
        options, lambda store: _prune(store, home, settings, bounds, options)
    )
    if options.vacuum and not options.dry_run:
        _vacuum(home, options)
    elif not shrinks and not options.dry_run and not options.json:
        say("the file was made by an older callgate: once, --vacuum lets it shrink")
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
    except SettingsError as error:  # how long something is kept must not be guessed
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
        # An age is given: nothing goes that is younger.
        store_bytes=table.store_bytes if age is None and (options.sessions or everything) else 0,
    )


def _days(text: str) -> float:
    age = _AGE.match(text)
    if age is None or not int(age[1]):
        raise CliError(f"--older-than: {text!r} is no age", hint="Such as 30d, 12h or 8w.")
    return int(age[1]) * _DAYS[age[2]]


async def _prune(
    store: Store, home: Home, settings: Settings, bounds: Bounds, options: Namespace
) -> tuple[Tally, bool]:
    """What is gone, or would be; and whether the file gives its empty pages back."""
    shrinks = (await store.usage()).shrinks
    if options.dry_run or not options.yes:
        with _progress(options, "looking for what is old,"):
            plan = await Plan(store, bounds, home.artifacts, home.audit).make()
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
    except asyncio.CancelledError:  # every step is whole: the next prune goes on from here
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
    from callgate.storage.sqlite.vacuum import vacuum  # lazy: for --vacuum  # noqa: PLC0415

    location = Location(home=home.path)
    if os.path.exists(location.path):
        with explained(), _progress(options, "writing the store anew,"):
            vacuum(location)
