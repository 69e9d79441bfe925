"""Operations that delete old data from a store, and the figures that precede them.

    PruneSessions ---> deletes sessions, but not their rows
    SweepRows     ---> deletes those rows, in bounded batches
    PruneEvents   ---> deletes the oldest events of the remaining sessions; no number is reused
    ReleasePages  ---> returns empty pages of the file to the disk

Each operation is one idempotent commit. After a crash a session is complete or deleted, and the
next process sweeps the remaining rows. A session is needed while a living process owns it, or while
one of its calls has not ended, which includes calls that wait for approval. Its workers are deleted
with it, not earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from callgate.core.ops import Op
from callgate.core.stored import StoredSession


class SessionPruning(msgspec.Struct, frozen=True, kw_only=True):
    sessions: Sequence[StoredSession] = ()
    """The deleted sessions, as they were."""
    cursor: str | None = None
    """Start of the next batch; None: no more data is older than the bound."""


class EventPruning(msgspec.Struct, frozen=True, kw_only=True):
    events: int = 0
    calls: int = 0
    """Number of ended calls whose last event was deleted."""
    cursor: str | None = None
    """Start of the next batch; None: no more data is older than the bound."""


class RowSweep(msgspec.Struct, frozen=True, kw_only=True):
    events: int = 0
    messages: int = 0
    calls: int = 0
    more: bool = False
    """Whether rows of deleted sessions remain."""


class PageRelease(msgspec.Struct, frozen=True, kw_only=True):
    pages: int = 0
    more: bool = False
    """Whether more empty pages can be released."""


class PruneSessions(Op[SessionPruning], frozen=True, kw_only=True):
    """Delete sessions that are not needed and were last used before a moment.

    Least recently used sessions first. One op examines at most `most` sessions.
    """

    sole: ClassVar[bool] = True
    before: float
    most: int = 100
    rows: int | None = None
    """Stop after the deleted sessions had this many events and messages."""
    cursor: str | None = None


class SweepRows(Op[RowSweep], frozen=True, kw_only=True):
    """Delete at most `most` rows of deleted sessions."""

    sole: ClassVar[bool] = True
    most: int = 1_000


class PruneEvents(Op[EventPruning], frozen=True, kw_only=True):
    """Delete events from before a moment, and the calls that ended with them.

    The oldest events of a session go first, so that the remaining ones have no gap. One op examines
    at
    most `most` events. A session that is needed retains all of its events.
    """

    sole: ClassVar[bool] = True
    before: float
    most: int = 500
    cursor: str | None = None


class ReleasePages(Op[PageRelease], frozen=True, kw_only=True):
    """Return at most `most` empty pages to the disk, if the file supports it."""

    sole: ClassVar[bool] = True
    most: int = 1_000


class PrunablePage(msgspec.Struct, frozen=True, kw_only=True):
    sessions: Sequence[StoredSession] = ()
    """Sessions that `PruneSessions` would delete."""
    calls: int = 0
    """Number of recorded calls in these sessions."""
    cursor: str | None = None
    """Start of the next page; None: this was the last."""


class StoreUsage(msgspec.Struct, frozen=True, kw_only=True):
    bytes: int = 0
    """Size of the file without its empty pages; 0: there is no file."""
    free_bytes: int = 0
    """Size of its empty pages."""
    sessions: int = 0
    events: int = 0
    messages: int = 0
    shrinks: bool = True
    """Whether empty pages can be released; not in a file from an older callgate."""
