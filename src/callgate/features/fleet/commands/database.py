"""The database of a shared store, for `callgate doctor` and `callgate store status`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from callgate.cli.findings import Finding, Level, Patient, good
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.schema import StoreTable
from callgate.config.stores import configured_store
from callgate.core.stores import MissingPackage, StoreError
from callgate.features.fleet.mirror import Mirror
from callgate.features.fleet.shared_homes import postgres_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from callgate.features.fleet.postgres.administration import Inspection

_NOTED_SKEW_S = 2.0
_WRONG_SKEW_S = 30.0
_BESIDE_READERS = 2
"""Connections of a server besides its readers: the writer and the listener."""


def database_finding(home: Home, table: StoreTable) -> Finding:
    """Return the finding about the database; of several, the worst comes first."""
    try:
        location = postgres_location(table)
    except SettingsError as error:
        return Finding(Level.FAILED, str(error), f"correct {home.settings}")
    except MissingPackage as error:
        return Finding(Level.FAILED, str(error), "pip install 'callgate[postgres]'")
    from callgate.features.fleet.postgres.administration import inspect  # lazy: needs psycopg  # noqa: PLC0415

    try:
        seen = inspect(location)
    except StoreError as error:
        return Finding(
            Level.FAILED, str(error), "start the database, and check [store] in the settings"
        )
    about = f"{location.label}, PostgreSQL {seen.version}, schema {location.schema}"
    return combined(about, problems(seen, table))


def combined(about: str, found: Sequence[Finding]) -> Finding:
    if not found:
        return Finding(Level.OK, about)
    gravest = sorted(found, key=lambda each: each.level is not Level.FAILED)
    return Finding(
        gravest[0].level, "; ".join([about, *(each.text for each in gravest)]), gravest[0].fix
    )


def problems(seen: Inspection, table: StoreTable) -> list[Finding]:
    """Return the problems of the database. Pure."""
    found = [*_use(seen), *_durability(seen), *_connections(seen, table), *_clock(seen)]
    if seen.format is None:
        found.append(Finding(Level.NOTE, "the first callgate that starts will create the tables"))
    return found


def _use(seen: Inspection) -> list[Finding]:
    found = []
    if seen.is_standby:
        text = "it is a read-only standby: calls with effects are refused"
        found.append(Finding(Level.FAILED, text, "use the address of the primary in [store]"))
    if not seen.may_write:
        text = "the user has no right to create or change the tables"
        found.append(Finding(Level.FAILED, text, "grant create on database ... to this user"))
    if seen.is_pooled:
        text = "the connection for locks uses a pooler that shares sessions"
        fix = 'set listen_url in [store] to a direct connection, or to "none"'
        found.append(Finding(Level.FAILED, text, fix))
    elif not seen.has_direct:
        found.append(Finding(Level.NOTE, "no direct connection: changes are polled"))
    return found


def _durability(seen: Inspection) -> list[Finding]:
    off = [name for name in ("fsync", "synchronous_commit") if not getattr(seen, name)]
    text = f"{' and '.join(off)} off: finished calls may be lost in a crash"
    return [Finding(Level.NOTE, text, f"set {' and '.join(off)} to on")] if off else []


def _connections(seen: Inspection, table: StoreTable) -> list[Finding]:
    servers = len(seen.living) + 1
    needed = servers * (table.readers + _BESIDE_READERS)
    free = seen.connections - seen.other_connections
    if needed <= free:
        return []
    text = f"{servers} callgate processes need {needed} connections, and {free} are available"
    return [Finding(Level.FAILED, text, "raise max_connections, or use a pooler")]


def _clock(seen: Inspection) -> list[Finding]:
    skew = abs(seen.skew_s)
    if skew <= _NOTED_SKEW_S:
        return []
    ahead = "ahead" if seen.skew_s > 0 else "behind"
    level = Level.FAILED if skew > _WRONG_SKEW_S else Level.NOTE
    text = f"its clock is {skew:.1f} s {ahead} of this machine's"
    return [Finding(level, text, "synchronize both clocks with one time server")]


def check_shared(patient: Patient) -> Finding:
    """Check that the local rules, trust and pins equal the shared ones."""
    try:
        shared = configured_store(patient.home)
    except SettingsError as error:
        return Finding(Level.FAILED, str(error), f"correct {error.file}")
    if shared is None:
        return good("this home shares no store")
    mirror = Mirror(patient.home, shared)
    edited = mirror.edited()
    if edited:
        text = f"edited manually, and not shared: {', '.join(edited)}"
        return Finding(Level.NOTE, text, "callgate policy import FILE, or remove the file")
    if not mirror.exists:
        text = f"no copy of the data in {shared.label}: calls with effects are refused without it"
        return Finding(Level.NOTE, text, "callgate policy export")
    return good(f"rules, trust and pins equal those in {shared.label}")


def database_status(table: StoreTable) -> dict[str, Any]:
    location = postgres_location(table)
    from callgate.features.fleet.postgres.administration import inspect  # lazy: few have one  # noqa: PLC0415

    found: dict[str, Any] = {
        "engine": "PostgreSQL",
        "place": location.label,
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
        "processes": list(seen.living),
    }


def _connection(is_pooled: bool, shares_sessions: bool, has_direct: bool) -> str:
    if shares_sessions:
        return "pooled, and none that is direct: see listen_url"
    if not has_direct:
        return "pooled; changes are looked for"
    return "pooled, and one that is direct" if is_pooled else "direct"
