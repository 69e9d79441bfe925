"""Times as people write them, as Google Calendar takes them. Pure."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from callgate import ToolValidationError

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}\Z")


def is_day(text: str) -> bool:
    return _DAY.match(text) is not None


def needs_zone(name: str, text: str) -> bool:
    """Whether it is a time of some zone that it does not name."""
    return not is_day(text) and _read(name, text).tzinfo is None


def event_time(name: str, text: str, zone: str | None) -> dict[str, Any]:
    """The start or end of an event. Without a zone of its own it counts in `zone`."""
    if is_day(text):
        _read(name, text)
        # A PATCH keeps what it does not name: an event of a time becomes one of a day.
        return {"date": text, "dateTime": None, "timeZone": None}
    moment = _read(name, text)
    fields = {"dateTime": moment.isoformat(), "date": None}
    return fields if zone is None else {**fields, "timeZone": zone}


def instant(name: str, text: str, zone: str | None) -> str:
    """A moment that everyone understands alike; a day is its beginning."""
    moment = _read(name, text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=_zone(zone or "UTC"))
    return moment.isoformat()


def check_order(start: str, end: str) -> None:
    """`ToolValidationError` where an event would end before it begins."""
    if is_day(start) != is_day(end):
        raise ToolValidationError("start and end: both are times, or both are days.")
    first, last = _read("start", start), _read("end", end)
    if (first.tzinfo is None) == (last.tzinfo is None) and not first < last:
        hint = " The end of whole days is the day after the last." if is_day(start) else ""
        raise ToolValidationError(f"end: it must be after the start.{hint}")


def due_day(text: str) -> str:
    """A day as Google Tasks takes it, which knows no times."""
    return f"{_read('due', text[:10]).date().isoformat()}T00:00:00.000Z"


def _read(name: str, text: str) -> datetime:
    try:
        if is_day(text):
            day = date.fromisoformat(text)
            return datetime(day.year, day.month, day.day)
        return datetime.fromisoformat(text)
    except ValueError:
        raise ToolValidationError(
            f"{name}: {text!r} is no time; write 2026-01-31T12:00:00+01:00 or 2026-01-31."
        ) from None


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ToolValidationError(
            f"timeZone: {name!r} is not known here; write it like Europe/Berlin."
        ) from None
