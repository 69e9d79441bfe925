"""When a request is made again. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

FIRST_WAIT_S = 0.5
"""Before the second attempt, about."""


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds until the server wants to be asked again; None where it does not say."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, TypeError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max((moment - now).total_seconds(), 0.0)


def back_off(attempt: int, chance: float) -> float:
    """Seconds before the request is made again: about 0.5, 1, 2, ... 16, never in step.

    Args:
        attempt: how many have failed, from 1.
        chance: from 0 to 1.
    """
    return float(min(FIRST_WAIT_S * 2 ** (attempt - 1), 16.0) * (0.75 + chance / 2))
