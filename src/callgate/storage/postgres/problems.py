"""PostgreSQL's errors in the store's own words."""

from __future__ import annotations

import psycopg

from callgate.core.stores import StoreUnreadable, StoreUnwritable, Trouble

_BY_STATE = {
    "25006": Trouble.READ_ONLY,  # a standby
    "53300": Trouble.EXHAUSTED,
    "53100": Trouble.FULL,
    "55P03": Trouble.BUSY,
    "57014": Trouble.BUSY,
    "3D000": Trouble.NO_ACCESS,
    "42501": Trouble.NO_ACCESS,
    "25P03": Trouble.UNREACHABLE,
}
_BY_CLASS = {
    "08": Trouble.UNREACHABLE,
    "57": Trouble.UNREACHABLE,
    "28": Trouble.NO_ACCESS,
    "40": Trouble.BUSY,
    "53": Trouble.EXHAUSTED,
    "58": Trouble.IO,
    "XX": Trouble.IO,
}


_EXHAUSTED = ("too many", "remaining connection slots", "no more connections allowed")


class Lost(Exception):
    """The connection is gone, or the database did not answer in time."""


TROUBLE = (psycopg.Error, Lost, OSError)
"""What the database does to us."""


def trouble_of(error: BaseException) -> Trouble | None:
    """None for a mistake of ours."""
    if isinstance(error, Lost | OSError):
        return Trouble.UNREACHABLE
    state = getattr(error, "sqlstate", None) or ""
    known = _BY_STATE.get(state) or _BY_CLASS.get(state[:2])
    if known is None and isinstance(error, psycopg.OperationalError):
        return _of_message(str(error)) if not state else Trouble.IO
    return known


def _of_message(text: str) -> Trouble:
    """Of a connection that was refused: libpq tells the reason in words only."""
    if any(word in text for word in _EXHAUSTED):
        return Trouble.EXHAUSTED
    failures = [line.rpartition("failed: ")[2] for line in text.splitlines() if "failed: " in line]
    if failures and all("session is read-only" in each for each in failures):
        return Trouble.READ_ONLY  # there is no other host than standbys
    if "authentication failed" in text or "does not exist" in text or "permission denied" in text:
        return Trouble.NO_ACCESS
    return Trouble.UNREACHABLE


def unwritable(
    place: str, error: BaseException, *, outcome_unknown: bool = False
) -> StoreUnwritable | None:
    trouble = trouble_of(error)
    if trouble is None:
        return None
    return StoreUnwritable(place, trouble, outcome_unknown=outcome_unknown)


def unreadable(place: str, error: BaseException) -> StoreUnreadable | None:
    trouble = trouble_of(error)
    return None if trouble is None else StoreUnreadable(place, trouble)
