"""What `callgate doctor` says about the store: a file in the home, or a database."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from callgate.cli.doctor.findings import Finding, Level
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.schema import StoreTable
from callgate.config.stores import postgres_location, store_table
from callgate.core.stores import (
    MissingPackage,
    StoreDamaged,
    StoreError,
    StoreTooNew,
    StoreUnlocked,
)

if TYPE_CHECKING:
    from callgate.storage.postgres.inspection import Inspection

_NOTED_SKEW_S = 2.0
_WRONG_SKEW_S = 30.0
_BESIDE_READERS = 2
"""Connections of a server: one writes, one listens."""
_WAIT_S = 2.0
"""How long the file may be busy."""
_FIXES: dict[type[StoreError], str] = {
    StoreDamaged: "stop every callgate of this home, and run `callgate sessions`: it saves what can"
    " be read beside the file, and names the copy to put in its place",
    StoreTooNew: "update callgate",
    StoreUnlocked: "move the home, and set CALLGATE_HOME",
}
_NO_ACCESS = "see who owns the file, its mode, and the disk"


def store_finding(home: Home) -> Finding:
    """Of several findings the gravest comes first."""
    try:
        table = store_table(home)
        if not table.is_shared:
            return _file(home)
        location = postgres_location(table)
    except SettingsError as error:
        return Finding(Level.FAILED, str(error), f"correct {home.settings}")
    except MissingPackage as error:
        return Finding(Level.FAILED, str(error), "pip install 'callgate[postgres]'")
    from callgate.storage.postgres.inspection import inspect  # lazy: few have one  # noqa: PLC0415

    try:
        seen = inspect(location)
    except StoreError as error:
        return Finding(Level.FAILED, str(error), "see that it runs, and [store] in the settings")
    about = f"{location.place}, PostgreSQL {seen.version}, schema {location.schema}"
    return combined(about, problems(seen, table))


def _file(home: Home) -> Finding:
    from callgate.storage.sqlite.files import Location, inspect  # lazy: heavy  # noqa: PLC0415

    location = Location(home=home.path, wait_s=_WAIT_S)
    try:
        inspect(location)
    except StoreError as error:
        return Finding(Level.FAILED, str(error), _FIXES.get(type(error), _NO_ACCESS))
    begins = "" if os.path.exists(location.path) else " begins with the first call"
    return Finding(Level.OK, location.path + begins)


def combined(about: str, found: Sequence[Finding]) -> Finding:
    if not found:
        return Finding(Level.OK, about)
    gravest = sorted(found, key=lambda each: each.level is not Level.FAILED)
    return Finding(
        gravest[0].level, "; ".join([about, *(each.text for each in gravest)]), gravest[0].fix
    )


def problems(seen: Inspection, table: StoreTable) -> list[Finding]:
    """Pure."""
    found = [*_use(seen), *_durability(seen), *_connections(seen, table), *_clock(seen)]
    if seen.format is None:
        found.append(Finding(Level.NOTE, "the tables are made by the first callgate that starts"))
    return found


def _use(seen: Inspection) -> list[Finding]:
    found = []
    if seen.is_standby:
        text = "it is a standby and cannot be written: calls with effects are refused"
        found.append(Finding(Level.FAILED, text, "name the primary in [store]"))
    if not seen.may_write:
        text = "its rights do not suffice to make or change the tables"
        found.append(Finding(Level.FAILED, text, "grant create on database ... to this user"))
    if seen.is_pooled:
        text = "the connection for locks leads to a pooler that shares sessions"
        fix = 'set listen_url in [store] to a direct connection, or to "none"'
        found.append(Finding(Level.FAILED, text, fix))
    elif not seen.has_direct:
        found.append(Finding(Level.NOTE, "no direct connection: changes are looked for"))
    return found


def _durability(seen: Inspection) -> list[Finding]:
    off = [name for name in ("fsync", "synchronous_commit") if not getattr(seen, name)]
    text = f"{' and '.join(off)} off: calls that were answered may be lost"
    return [Finding(Level.NOTE, text, f"set {' and '.join(off)} to on")] if off else []


def _connections(seen: Inspection, table: StoreTable) -> list[Finding]:
    servers = len(seen.living) + 1
    needed = servers * (table.readers + _BESIDE_READERS)
    free = seen.connections - seen.other_connections
    if needed <= free:
        return []
    text = f"{servers} callgates need {needed} connections, and there are {free}"
    return [Finding(Level.FAILED, text, "raise max_connections, or use a pooler")]


def _clock(seen: Inspection) -> list[Finding]:
    skew = abs(seen.skew_s)
    if skew <= _NOTED_SKEW_S:
        return []
    ahead = "ahead" if seen.skew_s > 0 else "behind"
    level = Level.FAILED if skew > _WRONG_SKEW_S else Level.NOTE
    text = f"its clock is {skew:.1f} s {ahead} of this machine's"
    return [Finding(level, text, "have both follow one time server")]
