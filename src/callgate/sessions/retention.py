"""How long records are kept, and what pruning comes to: values alone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_DAY_S = 86_400.0
FRESH_S = 3_600.0
"""What was used that lately stays, also where there is too much."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What is older goes: moments in seconds since 1970. None: no bound."""

    sessions: float | None = None
    """Sessions that were last used before it."""
    events: float | None = None
    """Events, and the calls that ended with them, of sessions that stay."""
    artifacts: float | None = None
    audit: float | None = None
    """Closed files of the audit log whose every line is older."""
    store_bytes: int = 0
    """Beyond this the sessions that were not used for the longest go; 0: no bound."""
    fresh: float = 0.0
    """Sessions that were used since stay, however much there is."""

    @classmethod
    def at(
        cls,
        now: float,
        *,
        sessions_days: float,
        events_days: float,
        artifacts_days: float,
        audit_days: float,
        store_bytes: int,
    ) -> Bounds:
        """0 days, or bytes: no bound."""

        def before(days: float) -> float | None:
            return now - days * _DAY_S if days else None

        return cls(
            sessions=before(sessions_days),
            events=before(events_days),
            artifacts=before(artifacts_days),
            audit=before(audit_days),
            store_bytes=store_bytes,
            fresh=now - FRESH_S,
        )

    def describe(self) -> str:
        """What goes, in words."""
        return ", ".join(self.each()) or "none"

    def each(self) -> Iterator[str]:
        if self.sessions is not None:
            yield f"sessions not used since {_moment(self.sessions)}"
        if self.store_bytes:
            size = _size(self.store_bytes)
            yield f"sessions beyond {size}, but for those used since {_moment(self.fresh)}"
        if self.events is not None:
            yield f"events before {_moment(self.events)}"
        if self.artifacts is not None:
            yield f"artifacts before {_moment(self.artifacts)}"
        if self.audit is not None:
            yield f"audit files before {_moment(self.audit)}"


class Tally(msgspec.Struct, kw_only=True):
    """What was deleted, or would be."""

    sessions: int = 0
    events: int = 0
    calls: int = 0
    messages: int = 0
    artifacts: int = 0
    """Files, or directories of sessions that are gone."""
    audit_files: int = 0
    bytes: int = 0
    """Of the store, the artifacts and the audit log together; an estimate before it is done."""

    @property
    def is_empty(self) -> bool:
        return self == Tally()

    def counts(self) -> list[str]:
        names = {
            "sessions": self.sessions,
            "events": self.events,
            "calls": self.calls,
            "messages": self.messages,
            "artifacts": self.artifacts,
            "audit files": self.audit_files,
        }
        counts = [f"{name} {count:,}" for name, count in names.items() if count]
        return [*counts, f"about {_size(self.bytes)}"] if self.bytes else counts

    def describe(self) -> str:
        return ", ".join(self.counts()) or "nothing"


def _moment(timestamp: float) -> str:
    try:
        return datetime.fromtimestamp(timestamp).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return "long ago"


def _size(count: float) -> str:
    for unit in _UNITS[:-1]:
        if count < 1024:
            return f"{count:,.0f} {unit}"
        count /= 1024
    return f"{count:,.1f} {_UNITS[-1]}"
